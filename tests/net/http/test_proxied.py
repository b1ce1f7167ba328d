"""Connections that begin with a PROXY protocol header, and listeners where one means nothing."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
from harness.proxied import SSL_TLV, header_v2
from harness.waiting import PATIENCE_S
from hypothesis import given
from hypothesis import strategies as st

from net.http.test_http_server import GET, PATIENT, QUICK, Client, RunOnLoop, Served, echo, post, run, serving
from quaymaster.net.http import proxied
from quaymaster.net.http.forwarded import TrustedProxies
from quaymaster.net.http.message import HTTPLimits, HTTPRequest
from quaymaster.net.http.proxied import WAITING_MAX, ProxiedListener
from quaymaster.protocol.proxy_header import SIGNATURE

__all__ = ["run"]

V1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 443\r\n"
V2 = header_v2("192.0.2.7")
TLS = header_v2("192.0.2.7", SSL_TLV)


class Edge:
    """A server with a listener for proxies."""

    def __init__(self, served: Served, listener: ProxiedListener, place: str | int) -> None:
        self.served = served
        self.listener = listener
        self.place = place

    async def connect(self) -> Client:
        if isinstance(self.place, str):
            client = Client(*await asyncio.open_unix_connection(self.place))
        else:
            client = Client(*await asyncio.open_connection("127.0.0.1", self.place))
        self.served.clients.append(client)
        return client


@asynccontextmanager
async def edge(
    path: Path | None, limits: HTTPLimits = PATIENT, trusted: str = "127.0.0.0/8"
) -> AsyncIterator[Edge]:
    def answer(request: HTTPRequest) -> None:
        served._keep(request)
        request.respond(200, b"", request.peer.encode())

    async with serving(answer, limits) as served:
        served.server.trusted_proxies = TrustedProxies([ip_network(trusted)])
        listener = ProxiedListener(served.server)
        if path is None:
            _, place = await listener.start("127.0.0.1", 0)
            found = Edge(served, listener, place)
        else:
            listener.start_unix(path)
            found = Edge(served, listener, str(path))
        try:
            yield found
        finally:
            await listener.drain()


@pytest.mark.parametrize("is_unix", [True, False])
def test_address_and_tls_come_from_the_header(run: RunOnLoop, tmp_path: Path, is_unix: bool) -> None:
    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock" if is_unix else None) as at:
            plain, secure = await at.connect(), await at.connect()

            answers = [await plain.ask(V2 + GET), await secure.ask(TLS + GET), await secure.ask(GET)]

            assert [body for _, _, body in answers] == [b"192.0.2.7"] * 3
            assert [request.is_tls for request in at.served.kept] == [False, True, True]

    run(scenario)


def test_header_may_come_in_pieces(run: RunOnLoop, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock") as at:
            client = await at.connect()
            for byte in TLS:
                client.send(bytes([byte]))
                await asyncio.sleep(0)

            assert (await client.ask(GET))[2] == b"192.0.2.7"

    run(scenario)


@pytest.mark.parametrize(
    "sent",
    [GET, V1 + GET, V1 + V2 + GET, V2 + V2 + GET, V2 + V1 + GET, TLS + TLS + GET, b"\x16\x03\x01\x02\0\x01"],
    ids=["none", "v1", "v1, then v2", "v2 twice", "v2, then v1", "v2 twice, with TLS", "a TLS client"],
)
def test_connection_without_exactly_one_v2_header_gets_400_and_is_closed(
    run: RunOnLoop, tmp_path: Path, sent: bytes
) -> None:
    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock") as at:
            client = await at.connect()

            assert (await client.ask(sent))[0] == 400
            assert await client.rest() == b""
            assert not at.served.kept

    run(scenario)


@pytest.mark.parametrize("sent", [V1 + GET, V2 + GET, TLS + GET], ids=["v1", "v2", "v2 with TLS"])
def test_other_listeners_never_read_a_header(run: RunOnLoop, sent: bytes) -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            served.server.trusted_proxies = TrustedProxies([ip_network("127.0.0.0/8")])
            client = await served.connect()

            assert (await client.ask(sent))[0] == 400
            assert await client.rest() == b""
            assert served.events["rejected_malformed"] == 1

    run(scenario)


def test_only_trusted_proxies_may_connect_over_tcp(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with edge(None, trusted="10.0.0.0/8") as at:
            client = await at.connect()
            client.send(V2 + GET)

            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.reply()
            assert not at.served.kept

    run(scenario)


def test_connection_whose_header_does_not_come_is_closed(run: RunOnLoop, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock", QUICK) as at:
            silent, slow = await at.connect(), await at.connect()
            slow.send(V2[:-1])

            assert await silent.rest() == await slow.rest() == b""
            assert at.served.events["timeout_header"] == 2
            assert not at.listener.waiting

    run(scenario)


def test_one_more_that_waits_for_its_header_closes_the_oldest(
    run: RunOnLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied, "WAITING_MAX", 2)
    assert WAITING_MAX > 2

    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock") as at:
            first = await at.connect()
            others = [await at.connect() for _ in range(2)]

            assert await first.rest() == b""
            for other in others:
                assert (await other.ask(V2 + GET))[0] == 200

    run(scenario)


def test_strangers_shares_are_those_of_the_clients(run: RunOnLoop, tmp_path: Path) -> None:
    limits = replace(PATIENT, unsigned_peer_connections_max=2)

    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock", limits) as at:
            other = await at.connect()
            await other.ask(header_v2("192.0.2.8") + GET)
            greedy = [await at.connect() for _ in range(3)]
            for client in greedy:
                await client.ask(V2 + GET)

            assert await greedy[0].rest() == b""
            assert (await other.ask(GET))[2] == b"192.0.2.8"
            assert (await greedy[2].ask(GET))[2] == b"192.0.2.7"

    run(scenario)


def test_proxy_that_names_no_client_is_taken_at_its_own_address(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with edge(None) as at:
            client = await at.connect()

            assert (await client.ask(SIGNATURE + b"\x20\0\0\0" + GET))[2] == b"127.0.0.1"

    run(scenario)


def test_forwarded_headers_change_nothing_behind_a_header(run: RunOnLoop, tmp_path: Path) -> None:
    forged = b"GET /a HTTP/1.1\r\nHost: q\r\nX-Forwarded-For: 203.0.113.1\r\nX-Forwarded-Proto: https\r\n\r\n"

    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock", trusted="192.0.2.0/24") as at:
            client = await at.connect()

            assert (await client.ask(V2 + forged))[2] == b"192.0.2.7"
            assert not at.served.kept[0].is_tls

    run(scenario)


# The socket.


def test_socket_is_open_to_owner_and_group_only_and_goes_with_the_server(
    run: RunOnLoop, tmp_path: Path
) -> None:
    path = tmp_path / "edge.sock"

    async def scenario() -> None:
        async with edge(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660

    run(scenario)
    assert list(tmp_path.iterdir()) == []


def test_socket_of_a_process_that_is_gone_is_replaced(run: RunOnLoop, tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def scenario() -> None:
        async with edge(path) as at:
            client = await at.connect()
            assert (await client.ask(V2 + GET))[0] == 200

    run(scenario)


def test_path_that_another_process_or_file_has_is_refused(run: RunOnLoop, tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    (tmp_path / "file").write_bytes(b"")

    async def scenario() -> None:
        async with edge(path) as at:
            for place, reason in (
                (path, "another process listens there"),
                (tmp_path / "file", "no socket"),
                (tmp_path / ("long" * 30), "at most"),
            ):
                with pytest.raises(OSError, match=reason):
                    ProxiedListener(at.served.server).start_unix(place)
            client = await at.connect()
            assert (await client.ask(V2 + GET))[0] == 200

    run(scenario)


# Its end.


async def waits(at: Edge) -> None:
    """Return when a connection waits for its header."""
    async with asyncio.timeout(PATIENCE_S):
        while not at.listener.waiting:  # noqa: ASYNC110 -- the loop accepts it
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_unix", [True, False])
def test_what_waits_in_the_kernel_is_answered_where_the_end_was_announced(
    run: RunOnLoop, tmp_path: Path, is_unix: bool
) -> None:
    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock" if is_unix else None) as at:
            waiting = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
            waiting.connect(("127.0.0.1", at.place) if isinstance(at.place, int) else at.place)
            waiting.sendall(V2 + GET)
            at.served.server.announce_end()

            await at.listener.drain()
            client = Client(*await asyncio.open_connection(sock=waiting))
            at.served.clients.append(client)
            draining = asyncio.create_task(at.served.server.drain(20))

            status, headers, body = await client.reply()
            assert (status, headers[b"Connection"], body) == (200, b"close", b"192.0.2.7")
            await draining

    run(scenario)


def test_a_header_that_is_on_its_way_is_waited_for_where_the_end_was_announced(
    run: RunOnLoop, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock") as at:
            client = await at.connect()
            client.send(V2[:10])
            await waits(at)
            at.served.server.announce_end()
            draining = asyncio.create_task(at.listener.drain())
            await asyncio.sleep(0)

            client.send(V2[10:] + GET)
            await draining
            ending = asyncio.create_task(at.served.server.drain(20))

            assert (await client.reply())[0] == 200
            await ending

    run(scenario)


@pytest.mark.parametrize("is_announced", [True, False])
def test_connections_without_a_header_are_closed_in_the_end(
    run: RunOnLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    monkeypatch.setattr(proxied, "HEADER_S", 0.01)

    async def scenario() -> None:
        async with edge(tmp_path / "edge.sock") as at:
            client = await at.connect()
            await waits(at)
            if is_announced:
                at.served.server.announce_end()

            await at.listener.drain()

            assert not at.listener.waiting
            assert await client.rest() == b""

    run(scenario)


# Headers of believed proxies.


@pytest.mark.parametrize(
    ("headers", "peer", "is_tls"),
    [
        ("", "127.0.0.1", False),
        ("X-Forwarded-For: 192.0.2.7\r\n", "192.0.2.7", False),
        ("X-Forwarded-For: 203.0.113.9, 192.0.2.7, 10.0.0.2\r\n", "192.0.2.7", False),
        ("X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 192.0.2.7,10.0.0.2\r\n", "192.0.2.7", False),
        ("X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3", False),
        ("X-Forwarded-For: 203.0.113.9, nonsense, 10.0.0.2\r\n", "10.0.0.2", False),
        ("X-Forwarded-For: nonsense\r\n", "127.0.0.1", False),
        ("X-Forwarded-For: ::ffff:192.0.2.7\r\n", "192.0.2.7", False),
        (f"X-Forwarded-For: 192.0.2.7{', 10.0.0.2' * 16}\r\n", "10.0.0.2", False),
        ("X-Forwarded-Proto: https\r\n", "127.0.0.1", True),
        ("X-Forwarded-Proto: HTTPS, https\r\n", "127.0.0.1", True),
        ("X-Forwarded-Proto: https, http\r\n", "127.0.0.1", False),
        ("X-Forwarded-Proto: http\r\nX-Forwarded-Proto: https\r\n", "127.0.0.1", False),
    ],
)
def test_believed_proxy_names_client_and_scheme(
    run: RunOnLoop, headers: str, peer: str, is_tls: bool
) -> None:
    async def scenario() -> None:
        async with serving() as served:
            served.server.trusted_proxies = TrustedProxies(
                [ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8")]
            )
            client = await served.connect()
            client.send(post(b"", headers.encode()))
            (request,) = await served.keep(1)

            assert (request.peer, request.is_tls) == (peer, is_tls)

    run(scenario)


def test_others_are_not_believed(run: RunOnLoop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            served.server.trusted_proxies = TrustedProxies([ip_network("10.0.0.0/8")])
            client = await served.connect()
            client.send(post(b"", b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n"))
            (request,) = await served.keep(1)

            assert (request.peer, request.is_tls) == ("127.0.0.1", False)

    run(scenario)


def test_refused_client_does_not_hold_others_of_the_same_proxy_back(run: RunOnLoop) -> None:
    def refuse(request: HTTPRequest) -> None:
        request.hold_off(60_000)
        request.respond(403, b"", b"")

    async def scenario() -> None:
        async with serving(refuse) as served:
            served.server.trusted_proxies = TrustedProxies([ip_network("127.0.0.0/8")])
            client = await served.connect()

            assert [(await client.ask(GET))[0] for _ in range(2)] == [403, 403]
            assert served.server.connections_held == 0

    run(scenario)


@given(st.lists(st.text("0123456789.:,[]abc ", max_size=40), max_size=4))
def test_any_header_names_an_address_or_changes_nothing(values: list[str]) -> None:
    headers = [(b"x-forwarded-for", value.strip().encode()) for value in values]
    request = HTTPRequest(b"GET", b"/", b"/", b"", headers, "10.0.0.1", 0.0, dict(headers), b"")

    TrustedProxies([ip_network("10.0.0.0/8")]).tell(request)

    family = socket.AF_INET6 if ":" in request.peer else socket.AF_INET
    assert socket.inet_pton(family, request.peer)
