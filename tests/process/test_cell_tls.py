"""A cell of real processes under mutual TLS: it serves, strangers get nowhere, and certificates are replaced."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.running_cell import CELL, RoleProcess, RunningCell

from quaymaster.broker.cell.copy_calls import COPY_BEGIN
from quaymaster.cli.commands import app
from quaymaster.core.values.commands.messages import CountMessages
from quaymaster.core.values.errors import AccessDenied, CallerError, NotNow, Unreachable
from quaymaster.net.rpc import RPCClient
from quaymaster.net.tls import CA_FILE, TransportSecurity
from quaymaster.protocol.rpc.broker_calls import DROP, JOURNAL_ID, PREPARE, REPORT, TRANSFER
from quaymaster.protocol.rpc.command_codec import encode_command
from quaymaster.protocol.rpc.frames import Hello

from .support import EXIT_UNUSABLE, CellClient, bodies

ROLES = {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1}


def quaymaster_ca(*arguments: str) -> None:
    app(["ca", *arguments], standalone_mode=False)


class Certificates:
    """Where each node's certificates are; made by `quaymaster ca` when a node is first asked for."""

    def __init__(self, directory: Path, cell: str = CELL) -> None:
        self.directory = directory / "ca"
        quaymaster_ca("init", cell, "--ca", str(self.directory))

    def of(self, node: str, role: str) -> Path:
        found = self.directory / "nodes" / node
        if not found.exists():
            quaymaster_ca("issue", node, "--role", role, "--ca", str(self.directory))
        return found


def test_cell_under_tls_serves_and_lets_no_stranger_in(tmp_path: Path) -> None:
    ours = Certificates(tmp_path / "ours")
    another_ca = Certificates(tmp_path / "another-ca")
    another_cell = Certificates(tmp_path / "another-cell", "elsewhere")
    with RunningCell.started(tmp_path, ROLES, tls=ours.of) as cell:
        cell.wait_until_whole()
        client = CellClient(cell)
        client.create("orders")
        client.send("orders", bodies(20, "first"))

        # Other front ends, brokers, operators than those of this cell.
        brokers = cell.of_role("broker")
        for directory, hello in (
            (another_ca.of("frontend-1", "frontend"), Hello(CELL, "frontend", "frontend-1")),
            (another_ca.of("broker-1", "broker"), Hello(CELL, "broker", "broker-1")),
            (another_cell.of("broker-1", "broker"), Hello("elsewhere", "broker", "broker-1")),
            (ours.of("frontend-1", "frontend"), Hello(CELL, "broker", "broker-1")),
            (ours.of("frontend-1", "frontend"), Hello(CELL, "frontend", "frontend-2")),
            (ours.of("frontend-1", "frontend"), Hello("elsewhere", "frontend", "frontend-1")),
        ):
            asked = [brokers[0], *cell.of_role("metadata"), *cell.of_role("manager")]
            for answer in ask_all(asked, hello, directory):
                assert isinstance(answer, Unreachable), hello
        assert isinstance(ask(brokers[0], Hello(CELL, "broker", "broker-2"), None), Unreachable)
        operator = ours.of("operator-1", "operator")
        assert isinstance(ask(brokers[0], Hello(CELL, "operator", "operator-1"), operator), bytes)
        # A front end's certificate, which is the one most exposed, is no broker's and no manager's.
        front_end = (Hello(CELL, "frontend", "frontend-1"), ours.of("frontend-1", "frontend"))
        for method in (PREPARE, DROP, TRANSFER, REPORT, COPY_BEGIN):
            assert isinstance(ask(brokers[0], *front_end, method), AccessDenied), method
        for process in cell.of_role("metadata"):  # who is somebody, and has nothing to say there
            assert isinstance(ask(process, Hello(CELL, "operator", "operator-1"), operator), Unreachable)

        # Brokers that the operator got wrong.
        strangers = [
            cell.add("broker", name, tls_directory=directory)
            for name, directory in (
                ("broker-4", another_cell.of("broker-4", "broker")),
                ("broker-5", ours.of("broker-5", "frontend")),
                ("broker-6", ours.of("broker-1", "broker")),
                ("broker-7", another_ca.of("broker-7", "broker")),
            )
        ]
        for stranger in strangers:
            stranger.launch()
        stranger = strangers.pop()
        for wrong in strangers:
            assert wrong.ended_with() == EXIT_UNUSABLE
            assert "tls.crt does not name quaymaster://" in wrong.log()
        stranger.wait_until_ready()
        status = cell.wait_until(lambda status: any(one["name"] == "broker-7" for one in status["brokers"]))
        client.send("orders", bodies(20, "second"))
        stranger.kill9()
        status = cell.wait_until(lambda status: bool(status["problems"]))
        (seen,) = (one for one in status["brokers"] if one["name"] == "broker-7")
        assert not seen["is_reachable"]
        assert not seen["replicas"]

        assert client.take_all("orders") == bodies(20, "first") + bodies(20, "second")
        client.close()


def test_certificates_and_their_authority_are_replaced_while_the_cell_runs(tmp_path: Path) -> None:
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")

    def deployed(node: str, role: str) -> Path:
        directory = tmp_path / "tls" / node
        if not directory.exists():
            shutil.copytree(old.of(node, role), directory)
        return directory

    with RunningCell.started(tmp_path, ROLES, tls=deployed) as cell:
        cell.wait_until_whole()
        client = CellClient(cell)
        client.create("orders")
        client.send("orders", bodies(20, "first"))
        nodes = [
            *((process.name, process.role) for process in cell.processes.values()),
            ("operator-1", "operator"),
        ]
        old_ca, new_ca = ((one.directory / CA_FILE).read_bytes() for one in (old, new))

        for_all(
            nodes, deployed, lambda node, role, directory: (directory / CA_FILE).write_bytes(old_ca + new_ca)
        )
        restart_leader(cell)
        client.send("orders", bodies(20, "second"))
        for_all(
            nodes,
            deployed,
            lambda node, role, directory: replace(new.of(node, role), directory, old_ca + new_ca),
        )
        restart_leader(cell)
        client.send("orders", bodies(20, "third"))
        for_all(nodes, deployed, lambda node, role, directory: (directory / CA_FILE).write_bytes(new_ca))
        restart_leader(cell)
        client.send("orders", bodies(20, "zfourth"))

        broker = cell["broker-1"]
        assert isinstance(
            ask(broker, Hello(CELL, "broker", "broker-2"), old.of("broker-2", "broker")), Unreachable
        )
        operator = new.of("operator-1", "operator")
        assert isinstance(ask(broker, Hello(CELL, "operator", "operator-1"), operator), bytes)
        texts = ("first", "second", "third", "zfourth")
        assert client.take_all("orders") == [body for text in texts for body in bodies(20, text)]
        client.close()


def for_all(
    nodes: list[tuple[str, str]], deployed: Callable[[str, str], Path], do: Callable[[str, str, Path], object]
) -> None:
    for node, role in nodes:
        do(node, role, deployed(node, role))


def replace(source: Path, directory: Path, authorities: bytes) -> None:
    """Copy a certificate over the one there, file by file, as an operator does."""
    for path in source.iterdir():
        shutil.copy(path, directory / path.name)
    (directory / CA_FILE).write_bytes(authorities)


def restart_leader(cell: RunningCell) -> None:
    """Have every connection to the first journal's leader made anew."""
    status = cell.wait_until_whole()
    leader = cell[status["journals"][0]["leader"]]
    leader.kill9()
    leader.start()
    cell.wait_until_whole()


def ask(process: RoleProcess, hello: Hello, directory: Path | None, method: str = "") -> bytes | Exception:
    """Return what a process answers to somebody."""
    (answer,) = ask_all([process], hello, directory, method)
    return answer


def ask_all(
    processes: list[RoleProcess], hello: Hello, directory: Path | None, method: str = ""
) -> list[bytes | Exception]:
    """Return what processes answer to somebody who asks them at the same time."""
    security = None if directory is None else TransportSecurity(directory)

    async def call(process: RoleProcess) -> bytes | Exception:
        client = RPCClient(
            ("127.0.0.1", process.port), hello, tls=None if security is None else security.client_context
        )
        asked, body = method or REPORT, b""
        if not method and hello.role == "frontend":
            asked, body = "command", JOURNAL_ID.pack(1) + encode_command(CountMessages(1))
        try:
            return await client.ask(asked, body, 5_000)
        except (NotNow, CallerError) as error:
            return error
        finally:
            await client.close()

    async def call_all() -> list[bytes | Exception]:
        return await asyncio.gather(*map(call, processes))

    return asyncio.run(call_all())
