"""How connections are accepted: a few in each turn, whoever and however many they are."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from harness.short_paths import short_directory

from net.http.test_http_server import RunOnLoop, run
from quaymaster.net import listener as listener_module
from quaymaster.net.certificates import CertificateAuthority
from quaymaster.net.listener import ACCEPTS_PER_TURN, Listener, bind_all, fits_unix, listen_unix
from quaymaster.net.tls import TransportSecurity

__all__ = ["run"]


class Accepted(asyncio.Protocol):
    """Counts those that came to it."""

    def __init__(self, all_of_them: list[Accepted]) -> None:
        self._all = all_of_them
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._all.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def connect(stack: ExitStack, port: int, count: int = 1) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]


def test_many_that_connect_at_once_are_accepted_a_bounded_number_in_each_turn(run: RunOnLoop) -> None:
    async def scenario() -> None:
        made: list[Accepted] = []
        asked: list[str] = []

        def takes(peer: str) -> bool:
            asked.append(peer)
            return True

        listener = Listener(lambda: Accepted(made), takes=takes)
        _, port = await listener.start("127.0.0.1", 0)
        with ExitStack() as stack:
            connect(stack, port, 100)
            turns = [0]
            while turns[-1] < 100:
                await asyncio.sleep(0)
                turns.append(len(asked))
            await until(lambda: len(made) == 100 and listener.handshakes == 0)

        assert max(after - before for before, after in pairwise(turns)) == ACCEPTS_PER_TURN
        assert set(asked) == {"127.0.0.1"}
        listener.close()

    run(scenario)


def test_who_is_not_taken_is_closed_and_no_protocol_is_made(run: RunOnLoop) -> None:
    async def scenario() -> None:
        made: list[Accepted] = []
        listener = Listener(lambda: Accepted(made), takes=lambda _: False)
        _, port = await listener.start("127.0.0.1", 0)

        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        assert await reader.read() == b""
        assert made == []
        writer.close()
        listener.close()

    run(scenario)


def test_after_the_end_nobody_can_connect_and_the_port_is_free(run: RunOnLoop) -> None:
    async def scenario() -> None:
        first = Listener(lambda: Accepted([]), takes=lambda _: True)
        _, port = await first.start("127.0.0.1", 0)
        taken = Listener(lambda: Accepted([]), takes=lambda _: True)
        with pytest.raises(OSError, match="in use"):
            await taken.start("127.0.0.1", port)

        first.close()

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        again = Listener(lambda: Accepted([]), takes=lambda _: True)
        assert await again.start("127.0.0.1", port) == ("127.0.0.1", port)
        again.close()

    run(scenario)


def test_accepting_goes_on_after_the_system_had_no_file_for_a_connection(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = socket.socket.accept
    failures = [errno.EMFILE, errno.ECONNABORTED, errno.EPROTO]

    def fail_first(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(0), "no room")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", fail_first)

    async def scenario() -> None:
        failures[:] = [errno.EMFILE, errno.ECONNABORTED, errno.EPROTO]
        made: list[Accepted] = []
        listener = Listener(lambda: Accepted(made), takes=lambda _: True)
        _, port = await listener.start("127.0.0.1", 0)
        with ExitStack() as stack:
            connect(stack, port)
            await until(lambda: len(made) == 1)
        listener.close()

    run(scenario)


def test_handshakes_that_are_not_made_give_way_to_others(
    run: RunOnLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKES_MAX", 3)
    authority = CertificateAuthority.create(tmp_path / "ca", "eu1", days=30)
    tls = TransportSecurity(authority.issue("b1", ["broker"], days=20).path)

    async def scenario() -> None:
        made: list[Accepted] = []
        listener = Listener(
            lambda: Accepted(made), takes=lambda _: True, tls=tls.server_context(), handshake_timeout_s=60
        )
        _, port = await listener.start("127.0.0.1", 0)
        with ExitStack() as stack:
            silent = connect(stack, port, 5)
            await until(lambda: listener.handshakes == 3)

            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls.client_context())

            await until(lambda: len(made) == 1)
            assert [await ended(one) for one in silent[:3]] == [b"", b"", b""]
            assert listener.handshakes == 2
            writer.close()
            await until(lambda: made[0].is_lost)
        await until(lambda: listener.handshakes == 0)
        listener.close()

    run(scenario)


async def ended(client: socket.socket) -> bytes:
    client.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(client, 1)


def test_a_port_is_shared_by_those_that_say_so_and_by_no_others(run: RunOnLoop) -> None:
    async def scenario() -> None:
        made: tuple[list[Accepted], list[Accepted]] = ([], [])
        first = Listener(lambda: Accepted(made[0]), takes=lambda peer: True)
        second = Listener(lambda: Accepted(made[1]), takes=lambda peer: True)
        alone = Listener(lambda: Accepted([]), takes=lambda peer: True)
        (reserved,) = await bind_all("127.0.0.1", 0, shares_port=True)
        port = reserved.getsockname()[1]
        await first.start("127.0.0.1", port, shares_port=True)

        with pytest.raises(OSError, match="in use"):
            await alone.start("127.0.0.1", port)
        await second.start("127.0.0.1", port, shares_port=True)
        first.close()

        with ExitStack() as stack:
            stack.callback(reserved.close)
            connect(stack, port, 3)
            await until(lambda: len(made[1]) == 3)
        second.close()

    run(scenario)


def test_a_unix_socket_that_listens_may_be_accepted_from_by_several(run: RunOnLoop) -> None:
    async def scenario() -> None:
        made: list[Accepted] = []
        with short_directory() as directory, ExitStack() as stack:
            path = directory / "s"
            shared = listen_unix(path, 0o600)
            stack.callback(shared.close)
            listeners = [Listener(lambda: Accepted(made), takes=lambda peer: True) for _ in range(2)]
            for listener in listeners:
                listener.start_on(shared.dup())
            listeners[0].close()

            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(path))
            await until(lambda: len(made) == 1)
            listeners[1].close()

            assert not fits_unix(directory / ("x" * 100))

    run(scenario)
