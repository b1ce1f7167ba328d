"""A manager believes a broker's report only when it comes from that broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from quaymaster.coordination.cell_keys import BrokerRegistration
from quaymaster.core.cell.cell import BrokerReport
from quaymaster.core.values.errors import NotNow
from quaymaster.managers.broker_link import rpc_links
from quaymaster.net.certificates import CertificateAuthority
from quaymaster.net.rpc import IncomingCall, RPCServer
from quaymaster.net.tls import TransportSecurity
from quaymaster.protocol.rpc.broker_calls import REPORT
from quaymaster.protocol.rpc.frames import Hello

CELL = "eu1"
MANAGER = Hello(cell=CELL, role="manager", node="m1")
ANSWER = BrokerReport({}, disk_free_bytes=5)
TIMEOUT_MS = 20_000


def report(call: IncomingCall) -> None:
    call.reply(msgspec.msgpack.encode(ANSWER))


async def reported(
    answering: Hello,
    *,
    asked: str,
    server_certificates: Path | None = None,
    manager_certificates: Path | None = None,
) -> BrokerReport:
    """Return what a manager is told that asks a broker, when this one answers at its address."""
    async with AsyncExitStack() as stack:
        server_security = None if server_certificates is None else TransportSecurity(server_certificates)
        server = RPCServer({REPORT: report}, answering)
        host, port = await server.start(
            "127.0.0.1", 0, tls=None if server_security is None else server_security.server_context()
        )
        stack.push_async_callback(server.close)
        if manager_certificates is None:
            connect = rpc_links(MANAGER)
        else:
            security = TransportSecurity(manager_certificates)
            connect = rpc_links(
                MANAGER, tls=security.client_context, check_peer=security.check_peer("broker")
            )
        link = connect(BrokerRegistration(asked, "z", f"{host}:{port}"), lambda: None)
        stack.push_async_callback(link.close)
        return await link.report(TIMEOUT_MS)


def test_broker_is_asked_how_it_is() -> None:
    answer = asyncio.run(reported(Hello(CELL, "broker", "a"), asked="a"))

    assert answer == ANSWER


def test_another_broker_at_the_address_of_one_does_not_speak_for_it() -> None:
    with pytest.raises(NotNow, match="eu1/broker/b is not the broker a"):
        asyncio.run(reported(Hello(CELL, "broker", "b"), asked="a"))


@pytest.mark.parametrize(
    ("certified", "told"),
    [
        (("a", "broker"), None),
        (("a", "frontend"), "has a certificate of"),
        (("b", "broker"), "has a certificate of"),
    ],
)
def test_under_tls_a_broker_is_who_its_certificate_says(
    tmp_path: Path, certified: tuple[str, str], told: str | None
) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=1)
    authority = CertificateAuthority.create(tmp_path / "ca", CELL, days=100, now=long_ago)
    node, role = certified
    asking = reported(
        Hello(CELL, "broker", "a"),
        asked="a",
        server_certificates=authority.issue(node, [role], days=50).path,
        manager_certificates=authority.issue("m1", ["manager"], days=50).path,
    )

    if told is None:
        assert asyncio.run(asking) == ANSWER
    else:
        with pytest.raises(NotNow, match=told):
            asyncio.run(asking)
