"""How any process starts, serves and ends, whatever its role."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from harness.process import free_port
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import StoreUnusable
from quaymaster.node.node import EXIT_FAILED, EXIT_OK, EXIT_UNUSABLE, Node, Role, run_node, run_on
from quaymaster.node.roles import ROLES, run_role
from quaymaster.settings import Settings, load_settings


def settings_of(data: Path, coordination: str = "etcd") -> Settings:
    flags = {
        "data_directory": data,
        "admin_listen": f"127.0.0.1:{free_port()}",
        "coordination": coordination,
    }
    return load_settings(flags=flags, environment={})


async def ask(node: Node, path: str) -> tuple[int, bytes]:
    """Return status and body of a GET on the admin port."""
    address = node.admin_address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def run(settings: Settings, role: Role) -> int:
    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        return await run_on(stack, settings, role)


def test_a_process_that_starts_answers_probes_and_no_admin_api(tmp_path: Path) -> None:
    seen: dict[str, tuple[int, bytes]] = {}

    async def start(node: Node) -> None:
        for path in ("/health/live", "/health/ready", "/admin/v1/status", "/elsewhere"):
            seen[path] = await ask(node, path)
        node.stopped.set()

    assert asyncio.run(run(settings_of(tmp_path), Role("any", start))) == EXIT_OK
    assert {path: status for path, (status, _) in seen.items()} == {
        "/health/live": 200,
        "/health/ready": 503,
        "/admin/v1/status": 503,
        "/elsewhere": 404,
    }
    assert json.loads(seen["/admin/v1/status"][1]) == {
        "error": {"code": "ServiceUnavailable", "message": "The process is starting."}
    }


def test_a_process_that_is_told_to_stop_while_it_starts_ends_at_once(tmp_path: Path) -> None:
    ended: list[str] = []

    async def start(node: Node) -> None:
        node.stack.callback(lambda: ended.append("undone"))
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("start")
            raise

    assert asyncio.run(run(settings_of(tmp_path), Role("any", start))) == EXIT_OK
    assert ended == ["start", "undone"]


def test_a_process_of_a_cell_that_has_no_etcd_makes_no_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"

    assert asyncio.run(run_role(settings_of(data, "sqlite"), "broker")) == EXIT_UNUSABLE
    assert not data.exists()


def test_what_fails_during_a_start_is_told_by_the_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(node: Node) -> None:
        node.fail(OSError("the disk is gone"))
        raise StoreUnusable("the store cannot be used")  # what the same break makes of the start

    async def refuse(node: Node) -> None:
        raise StoreUnusable("the store is another one")

    assert asyncio.run(run(settings_of(tmp_path / "a"), Role("any", break_down))) == EXIT_FAILED
    assert "process stopped" in caplog.text
    assert "the disk is gone" in caplog.text
    assert asyncio.run(run_node(settings_of(tmp_path / "b"), Role("any", refuse))) == EXIT_UNUSABLE


def test_a_process_serves_until_it_is_told_to_stop_or_fails(tmp_path: Path) -> None:
    async def served(stop: str) -> tuple[int, list[str]]:
        states: list[str] = []

        async def start(node: Node) -> None:
            def greet() -> None:
                states.append(f"{node.health.state}, started: {node.has_started}")
                if stop == "fails":
                    node.fail(OSError("the disk is gone"))
                else:
                    os.kill(os.getpid(), signal.SIGINT)

            node.greet = greet
            node.stack.callback(lambda: states.append(node.health.state))

        return await run(settings_of(tmp_path / stop), Role("any", start)), states

    assert asyncio.run(served("told")) == (EXIT_OK, ["serving, started: True", "draining"])
    assert asyncio.run(served("fails")) == (EXIT_FAILED, ["serving, started: True", "draining"])


async def draining(
    data: Path,
    role: Role,
    signals: list[signal.Signals],
    *,
    notice_s: int = 1,
    has_notice: bool = False,
    on_notice: Callable[[], None] = lambda: None,
) -> list[int]:
    """Run a process of the role, signal it, and return what readiness said before, during and after that."""
    settings = settings_of(data).model_copy(update={"drain_notice_s": notice_s})
    said: list[int] = []

    async def look(node: Node) -> None:
        said.append((await ask(node, "/health/ready"))[0])
        for number in signals:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)  # the same signal twice at once would be one
        if has_notice:
            while said[-1] == 200:
                said.append((await ask(node, "/health/ready"))[0])
            assert (await ask(node, "/health/live"))[0] == 200

    async def start(node: Node) -> None:
        node.on_notice.append(on_notice)
        tasks: list[asyncio.Task[None]] = []
        node.greet = lambda: tasks.append(asyncio.create_task(look(node)))

        async def end() -> None:
            said.append(0)
            await asyncio.gather(*tasks)

        node.stack.push_async_callback(end)

    assert await run(settings, replace(role, start=start)) == EXIT_OK
    return said


async def nothing(node: Node) -> None:
    """What a role does that is replaced."""


FRONT_END = Role("frontend", nothing, has_clients=True)


def test_a_front_end_that_drains_answers_404_and_still_serves_during_the_notice(tmp_path: Path) -> None:
    told: list[str] = []
    drained = draining(
        tmp_path, FRONT_END, [signal.SIGTERM], has_notice=True, on_notice=lambda: told.append("once")
    )

    said = asyncio.run(drained)

    assert (said[0], *said[-2:]) == (200, 404, 0)
    assert told == ["once"]


def test_the_notice_is_for_balancers_so_other_roles_end_at_once(tmp_path: Path) -> None:
    # Were there a notice, the test would run into its limit.
    told: list[str] = []
    drained = draining(
        *(tmp_path, Role("broker", nothing), [signal.SIGTERM]),
        notice_s=3600,
        on_notice=lambda: told.append("told"),
    )

    said = asyncio.run(drained)

    assert said[0] == 200
    assert said[-1] == 0
    assert told == []


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM] * 2, [signal.SIGTERM, signal.SIGINT]])
def test_the_notice_is_cut_short_by_ctrl_c_and_by_a_second_signal(
    tmp_path: Path, signals: list[signal.Signals]
) -> None:
    said = asyncio.run(draining(tmp_path, FRONT_END, signals, notice_s=3600))

    assert said == [200, 0]


def test_a_process_that_fails_gives_no_notice(tmp_path: Path) -> None:
    async def start(node: Node) -> None:
        node.greet = lambda: node.fail(OSError("the disk is gone"))

    settings = settings_of(tmp_path).model_copy(update={"drain_notice_s": 3600})

    assert asyncio.run(run(settings, replace(FRONT_END, start=start))) == EXIT_FAILED


def test_bug_in_work_of_a_process_ends_the_process_and_work_ends_with_it(tmp_path: Path) -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waited")

    async def fail() -> None:
        raise ValueError("a bug")

    async def start(node: Node) -> None:
        node.run("waiting", wait())
        node.greet = lambda: node.run("failing", fail())

    assert asyncio.run(run(settings_of(tmp_path), Role("any", start))) == EXIT_FAILED
    assert ended == ["waited"]


def test_front_ends_and_servers_have_clients_that_balancers_send() -> None:
    assert {name for name, role in ROLES.items() if role.has_clients} == {"server", "frontend"}
