"""Only nodes with a certificate of the cell get anywhere, each only as what its certificate names."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from harness.waiting import PATIENCE_S

from quaymaster.core.values.errors import AccessDenied, ConnectionLost, Unreachable
from quaymaster.net.certificates import CertificateAuthority
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCLimits, RPCServer
from quaymaster.net.tls import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    TransportSecurity,
    TransportSecurityError,
    names_of,
    security_for,
)
from quaymaster.protocol.rpc.frames import Hello, render_hello
from quaymaster.settings import parse_address

BROKER = Hello(cell="eu1", role="broker", node="b1")
FRONT_END = Hello(cell="eu1", role="frontend", node="f1")
LIMITS = RPCLimits(reconnect_min_ms=1, reconnect_max_ms=20, connect_timeout_ms=10_000)
LONG_MS = 20_000
LONG_AGO = datetime.now(UTC) - timedelta(days=400)

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on the loop under test, in bounded time."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run_scenario


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca", "eu1", days=2000, now=LONG_AGO)


def echo(call: IncomingCall) -> None:
    call.reply(call.body)


class Served:
    """A broker that speaks TLS, and what its clients are answered."""

    def __init__(
        self, authority: CertificateAuthority, *roles: str, limits: RPCLimits = LIMITS, **options: Any
    ) -> None:
        self.security = TransportSecurity(authority.issue("b1", ["broker"], days=700).path)
        check = self.security.check_peer(*(roles or ("frontend", "broker")))
        handlers = {"echo": echo, "replicate": echo}
        self.server = RPCServer(handlers, BROKER, check_peer=check, limits=limits, **options)
        self.clients: list[RPCClient] = []

    async def __aenter__(self) -> Served:
        await self.server.start("127.0.0.1", 0, tls=self.security.server_context())
        return self

    async def __aexit__(self, *problem: object) -> None:
        for client in self.clients:
            await client.close()
        await self.server.close()

    def client(self, hello: Hello, directory: Path | None, **options: Any) -> RPCClient:
        if directory is not None:
            security = TransportSecurity(directory)
            options = {"tls": security.client_context, "check_peer": security.check_peer("broker")} | options
        client = RPCClient(self.server.address, hello, limits=LIMITS, **options)
        self.clients.append(client)
        return client

    async def refusal(self, hello: Hello, directory: Path | None, **options: Any) -> str:
        """Return why the server, or this client, ended the connection; no call went through."""
        with pytest.raises((Unreachable, ConnectionLost)) as refused:
            await self.client(hello, directory, **options).ask("echo", b"", LONG_MS)
        assert self.server.connections == []
        return str(refused.value)


def test_nodes_with_certificates_of_the_cell_speak_to_each_other(
    run: Run, authority: CertificateAuthority
) -> None:
    async def scenario() -> None:
        async with Served(authority) as served:
            client = served.client(FRONT_END, authority.issue("f1", ["frontend"], days=700).path)

            bodies = [b"x", bytes(300_000)]

            assert [await client.ask("echo", body, LONG_MS) for body in bodies] == bodies
            (connection,) = served.server.connections
            assert connection.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert names_of(connection.transport.get_extra_info("peercert")) == [
                "quaymaster://eu1/frontend/f1"
            ]

    run(scenario)


def test_a_node_may_have_several_roles(run: Run, authority: CertificateAuthority) -> None:
    async def scenario() -> None:
        async with Served(authority) as served:
            directory = authority.issue("n1", ["metadata", "frontend"], days=700).path

            client = served.client(Hello("eu1", "frontend", "n1"), directory)

            assert await client.ask("echo", b"x", LONG_MS) == b"x"

    run(scenario)


def test_a_peer_without_a_certificate_gets_nowhere(run: Run, authority: CertificateAuthority) -> None:
    def without_one() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=authority.directory / CA_FILE)
        context.check_hostname = False
        return context

    async def scenario() -> None:
        async with Served(authority) as served:
            await served.refusal(FRONT_END, None, tls=without_one)

    run(scenario)


def test_a_peer_that_speaks_no_tls_gets_nowhere(run: Run, authority: CertificateAuthority) -> None:
    async def scenario() -> None:
        async with Served(authority) as served:
            await served.refusal(FRONT_END, None)
            reader, writer = await asyncio.open_connection(*served.server.address)
            writer.write(render_hello(FRONT_END))
            try:
                told = await reader.read()
            except ConnectionResetError:
                told = b""
            writer.transport.abort()

        assert b"eu1" not in told, "not even who is there"

    run(scenario)


def test_a_certificate_of_another_authority_gets_nowhere(
    run: Run, authority: CertificateAuthority, tmp_path: Path
) -> None:
    stranger = CertificateAuthority.create(tmp_path / "other", "eu1", days=100)
    directory = stranger.issue("f1", ["frontend"], days=90).path

    async def scenario() -> None:
        async with Served(authority) as served:
            reason = await served.refusal(FRONT_END, directory)
            assert "CERTIFICATE_VERIFY_FAILED" in reason or "certificate verify failed" in reason, reason

            # One that takes our server all the same, but shows the stranger's certificate.
            shutil.copy(authority.directory / CA_FILE, directory / CA_FILE)
            await served.refusal(FRONT_END, directory)

    run(scenario)


def test_an_expired_certificate_gets_nowhere(run: Run, authority: CertificateAuthority) -> None:
    directory = authority.issue("f1", ["frontend"], days=30, now=LONG_AGO).path

    async def scenario() -> None:
        async with Served(authority) as served:
            await served.refusal(FRONT_END, directory)

    run(scenario)


def test_a_server_with_an_expired_certificate_is_not_spoken_to(
    run: Run, authority: CertificateAuthority
) -> None:
    directory = authority.issue("f1", ["frontend"], days=700).path

    async def scenario() -> None:
        served = Served(authority)
        authority.renew("b1", days=30, now=LONG_AGO)
        async with served:
            reason = await served.refusal(FRONT_END, directory)

        assert "certificate verify failed" in reason or "CERTIFICATE_VERIFY_FAILED" in reason, reason

    run(scenario)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (Hello("eu1", "broker", "f1"), "eu1/broker/f1 has a certificate of quaymaster://eu1/frontend/f1"),
        (Hello("eu1", "frontend", "f2"), "eu1/frontend/f2 has a certificate of quaymaster://eu1/frontend/f1"),
        (Hello("eu2", "frontend", "f1"), "eu2/frontend/f1 is not of the cell eu1"),
    ],
    ids=["role", "node", "cell"],
)
def test_a_node_that_says_it_is_another_gets_nowhere(
    run: Run, authority: CertificateAuthority, says: Hello, reason: str
) -> None:
    directory = authority.issue("f1", ["frontend"], days=700).path

    async def scenario() -> None:
        async with Served(authority) as served:
            assert reason in await served.refusal(says, directory)

    run(scenario)


def test_a_certificate_of_another_cell_gets_nowhere_whatever_its_node_says(
    run: Run, authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "eu2", "eu2", days=100)
    directory = other.issue("f1", ["frontend"], days=90).path
    # Even where one cell takes the other's authority.
    both = (authority.directory / CA_FILE).read_bytes() + (other.directory / CA_FILE).read_bytes()

    async def scenario() -> None:
        served = Served(authority)
        for place in (served.security.directory, directory):
            (place / CA_FILE).write_bytes(both)
        async with served:
            reason = await served.refusal(FRONT_END, directory)

        assert "eu1/frontend/f1 has a certificate of quaymaster://eu2/frontend/f1" in reason

    run(scenario)


def test_a_role_that_the_server_does_not_serve_gets_nowhere(
    run: Run, authority: CertificateAuthority
) -> None:
    directory = authority.issue("m1", ["metadata"], days=700).path

    async def scenario() -> None:
        async with Served(authority, "frontend", "broker") as served:
            reason = await served.refusal(Hello("eu1", "metadata", "m1"), directory)

        assert "eu1/metadata/m1 is none of frontend, broker" in reason

    run(scenario)


def test_a_certificate_of_one_role_does_not_open_the_calls_of_another(
    run: Run, authority: CertificateAuthority
) -> None:
    async def scenario() -> None:
        async with Served(authority, callers={"replicate": ("broker",)}) as served:
            front_end = served.client(FRONT_END, authority.issue("f1", ["frontend"], days=700).path)
            other = served.client(
                Hello("eu1", "broker", "b2"), authority.issue("b2", ["broker"], days=700).path
            )

            assert await front_end.ask("echo", b"x", LONG_MS) == b"x"
            assert await other.ask("replicate", b"x", LONG_MS) == b"x"
            with pytest.raises(AccessDenied, match="eu1/frontend/f1 may not call replicate"):
                await front_end.ask("replicate", b"x", LONG_MS)

    run(scenario)


def test_a_peer_that_begins_no_handshake_or_does_not_end_it_is_dropped(
    run: Run, authority: CertificateAuthority
) -> None:
    limits = RPCLimits(connect_timeout_ms=300)

    async def scenario() -> None:
        async with Served(authority, limits=limits) as served:
            ends = [await asyncio.open_connection(*served.server.address) for _ in range(20)]
            for _, writer in ends[10:]:
                writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # a ClientHello's beginning
            for reader, writer in ends:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.transport.abort()
            directory = authority.issue("f1", ["frontend"], days=700).path
            assert await served.client(FRONT_END, directory).ask("echo", b"x", LONG_MS) == b"x"

    run(scenario)


def test_a_client_speaks_only_to_the_role_and_node_it_means(
    run: Run, authority: CertificateAuthority
) -> None:
    directory = authority.issue("f1", ["frontend"], days=700).path
    security = TransportSecurity(directory)

    async def scenario() -> None:
        async with Served(authority) as served:
            wrong_role = await served.refusal(FRONT_END, directory, check_peer=security.check_peer("manager"))
            other_node = security.check_peer("broker", node="b2")
            wrong_node = await served.refusal(FRONT_END, directory, check_peer=other_node)

        assert "eu1/broker/b1 is none of manager" in wrong_role
        assert "eu1/broker/b1 is not the node b2" in wrong_node

    run(scenario)


def test_new_certificates_are_used_by_the_next_connections_and_open_ones_stay(
    run: Run, authority: CertificateAuthority, tmp_path: Path
) -> None:
    front_end = authority.issue("f1", ["frontend"], days=700).path
    successor = CertificateAuthority.create(tmp_path / "successor", "eu1", days=100)

    def expiry_seen_by(client: RPCClient) -> Any:
        connection = client._connection
        assert connection is not None
        return connection.transport.get_extra_info("peercert")["notAfter"]

    async def scenario() -> None:
        async with Served(authority) as served:
            first = served.client(FRONT_END, front_end)
            await first.ask("echo", b"", LONG_MS)

            authority.renew("b1", days=500)
            second = served.client(FRONT_END, front_end)
            await second.ask("echo", b"", LONG_MS)

            assert await first.ask("echo", b"still", LONG_MS) == b"still"
            assert expiry_seen_by(first) != expiry_seen_by(second)

            # Another authority altogether: the old one's nodes can connect no more.
            for name, role, place in [("b1", "broker", served.security.directory), ("f9", "frontend", None)]:
                made = successor.issue(name, [role], days=90).path
                if place is not None:
                    shutil.copytree(made, place, dirs_exist_ok=True)
            third = served.client(Hello("eu1", "frontend", "f9"), successor.directory / "nodes" / "f9")
            assert await third.ask("echo", b"new", LONG_MS) == b"new"
            with pytest.raises((Unreachable, ConnectionLost)):
                await served.client(FRONT_END, front_end).ask("echo", b"", LONG_MS)
            assert await first.ask("echo", b"still", LONG_MS) == b"still"

    run(scenario)


def test_files_that_do_not_fit_together_change_nothing_until_they_do(
    authority: CertificateAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = authority.issue("f1", ["frontend"], days=700).path
    security = TransportSecurity(directory)
    before = security.client_context()
    renewed = tmp_path / "renewed"
    shutil.copytree(directory, tmp_path / "kept")
    authority.renew("f1", days=400)
    shutil.copytree(directory, renewed)
    shutil.copytree(tmp_path / "kept", directory, dirs_exist_ok=True)
    assert security.client_context() is not before
    before = security.client_context()

    os.replace(shutil.copy(renewed / KEY_FILE, directory / "new"), directory / KEY_FILE)
    assert security.client_context() is before
    assert security.client_context() is before
    (directory / CA_FILE).rename(directory / "away")
    assert security.client_context() is before
    (directory / "away").rename(directory / CA_FILE)
    os.replace(shutil.copy(renewed / CERTIFICATE_FILE, directory / "new"), directory / CERTIFICATE_FILE)

    assert security.client_context() is not before
    told = [record.getMessage() for record in caplog.records if "not reloaded" in record.getMessage()]
    assert len(told) == 2, "once for each set of files that could not be used"


def test_a_process_does_not_start_as_what_its_certificate_does_not_name(
    authority: CertificateAuthority,
) -> None:
    security = TransportSecurity(authority.issue("b1", ["broker", "metadata"], days=700).path)

    security.require_own(BROKER)
    security.require_own(Hello("eu1", "metadata", "b1"))
    with pytest.raises(
        TransportSecurityError, match="does not name quaymaster://eu1/broker/b2, but quaymaster"
    ):
        security.require_own(Hello("eu1", "broker", "b2"))


def test_a_certificate_near_its_end_is_a_warning(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("b1", ["broker"], days=5)

    security = TransportSecurity(issued.path)

    assert security.expires_ms == issued.expires_ms
    assert "certificate expires soon" in caplog.text


def test_files_that_cannot_be_used_are_named(authority: CertificateAuthority, tmp_path: Path) -> None:
    directory = authority.issue("b1", ["broker"], days=700).path

    with pytest.raises(TransportSecurityError, match=r"nowhere/ca.crt cannot be read: No such file"):
        TransportSecurity(tmp_path / "nowhere")
    (directory / KEY_FILE).write_bytes((authority.directory / "ca.key").read_bytes())
    with pytest.raises(TransportSecurityError, match=r"cannot be used: KEY_VALUES_MISMATCH"):
        TransportSecurity(directory)
    (directory / CERTIFICATE_FILE).write_text("no certificate")
    with pytest.raises(TransportSecurityError, match="cannot be used"):
        TransportSecurity(directory)


def test_a_certificate_that_names_nobody_of_ours_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    directory = authority.issue("b1", ["broker"], days=700).path
    shutil.copy(authority.directory / CA_FILE, directory / CERTIFICATE_FILE)
    shutil.copy(authority.directory / "ca.key", directory / KEY_FILE)

    with pytest.raises(TransportSecurityError, match="does not name"):
        TransportSecurity(directory).require_own(BROKER)


@pytest.mark.parametrize("listen", ["127.0.0.1:9400", "localhost:9400", "[::1]:9400"])
def test_loopback_needs_no_certificates(listen: str) -> None:
    assert security_for(parse_address(listen), None, force_plaintext=False) is None


def test_listening_to_others_without_certificates_is_refused_unless_forced(
    authority: CertificateAuthority,
) -> None:
    everywhere = parse_address(":9400")

    with pytest.raises(TransportSecurityError, match=r"force_plaintext = true if nobody else"):
        security_for(everywhere, None, force_plaintext=False)
    assert security_for(everywhere, None, force_plaintext=True) is None
    directory = authority.issue("b1", ["broker"], days=700).path
    security = security_for(everywhere, directory, force_plaintext=False)
    assert security is not None
    assert security.names == {"quaymaster://eu1/broker/b1"}
