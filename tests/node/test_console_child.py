"""The console next to a server, as the server has it."""

import asyncio
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from quaymaster.broker.queue_watch import QueueWatch
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.loop_watch import LoopWatch
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.http.probe_port import ProbePort
from quaymaster.net.http.server import HTTPServer, one_by_one
from quaymaster.net.rpc import RPCServer
from quaymaster.node import server_role
from quaymaster.node.children import console_child, console_extra
from quaymaster.node.children.child_settings import plain_values
from quaymaster.node.children.console_child import (
    ConsoleBrief,
    ServerConsole,
    choose_console_port,
    prepare_console,
    settings_of,
)
from quaymaster.node.file_limit import admin_limits
from quaymaster.node.node import Node
from quaymaster.settings import Address, Settings


def node_with(stack: AsyncExitStack, data: Path, **settings: object) -> Node:
    given = {"data_directory": data, "console_listen": "127.0.0.1:0", **settings}
    found = Settings.model_validate(given)
    metrics, health = Metrics("0"), Health()
    probes = ProbePort(metrics, health)
    admin = HTTPServer(one_by_one(probes.handle), admin_limits(found), name="admin", admit=probes.admit)
    watch = LoopWatch(0.005)
    return Node(found, "server", data, stack, health, metrics, watch, admin, Address("127.0.0.1", 9325))


async def prepared(stack: AsyncExitStack, data: Path, **settings: object) -> ServerConsole:
    node = node_with(stack, data, **settings)
    return await prepare_console(node, data, Address("127.0.0.1", 9324), has_workers=False)


def test_a_server_without_the_extra_says_so_in_one_line_and_has_no_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(console_extra, "NEEDED", ("jinja2", "not_installed_at_all"))

    async def run() -> None:
        async with AsyncExitStack() as stack:
            console = await prepared(stack, tmp_path)
            console.start()
            assert console.address is None
            assert await console.metrics() == {}

    with caplog.at_level("INFO"):
        asyncio.run(run())

    [told] = [record for record in caplog.records if "console" in record.message]
    assert told.message == "console is not installed"
    assert told.__dict__["fields"]["missing"] == "not_installed_at_all"
    assert not (tmp_path / "console.key").exists()


def test_a_console_whose_port_is_taken_leaves_the_server_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(port: int) -> None:
        async with AsyncExitStack() as stack:
            assert (await prepared(stack, tmp_path, console_listen=f"127.0.0.1:{port}")).address is None

    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level("WARNING"):
        asyncio.run(run(taken.getsockname()[1]))

    assert "no console" in caplog.text


def test_console_with_any_port_has_one_before_the_server_serves_and_links_name_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            node = node_with(stack, tmp_path)
            bound = await choose_console_port(node)
            chosen = node.settings.console_listen_address
            assert chosen.port > 0
            address = Address("127.0.0.1", 9324)
            console = await prepare_console(node, tmp_path, address, has_workers=False, bound=bound)
            assert console.address == chosen
        async with AsyncExitStack() as stack:
            for settings in ({"console_listen": "127.0.0.1:9326"}, {"console": "off"}):
                assert await choose_console_port(node_with(stack, tmp_path, **settings)) is None

    asyncio.run(run())


def test_a_console_that_is_switched_off_has_neither_key_nor_port(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            assert (await prepared(stack, tmp_path, console="off")).address is None

    asyncio.run(run())

    assert not (tmp_path / "console.key").exists()


def test_a_console_is_told_no_secret_of_the_server(tmp_path: Path) -> None:
    secrets = Settings.model_validate(
        {
            "data_directory": tmp_path,
            "master_key_source": "environment",
            "master_key": "the-master-key",
            "kms": "vault",
            "vault_url": "https://vault.example",
            "vault_token_file": "/run/the-token",
        }
    )
    told = plain_values(secrets) | console_child.NOT_THE_CONSOLES

    brief = ConsoleBrief(told, str(tmp_path), [], ("127.0.0.1", 1), ("127.0.0.1", 2), has_workers=False)

    assert not {"the-master-key", "/run/the-token"} & set(map(str, told.values()))
    assert settings_of(brief).data_directory == tmp_path


def test_calls_of_a_console_are_slow_when_the_setting_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RPCServer] = []

    class Noted(RPCServer):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr(server_role, "RPCServer", Noted)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            node = node_with(stack, tmp_path, slow_request_ms=123)
            await server_role.tell_console(node, QueueWatch("server", list), tmp_path)

    asyncio.run(run())

    assert [server.limits.slow_ms for server in made] == [123]


def test_a_console_loads_none_of_the_code_that_keeps_messages() -> None:
    program = "import sys, quaymaster.node.console.process, quaymaster.node.console.role; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    kept = (
        "quaymaster.broker.broker",
        "quaymaster.broker.replica.replica",
        "quaymaster.core.queues",
        "quaymaster.frontend.server",
    )
    assert not set(loaded.split()) & set(kept)
    assert "quaymaster.node.console.role" in loaded.split()
