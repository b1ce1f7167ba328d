"""The state of a cell as pages see it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from console.monitored import NOON_MS, monitored, until

from quaymaster.console.exchange import APIPlace
from quaymaster.console.process_monitor import ProcessName
from quaymaster.console.site import CellFollower, CellProcess
from quaymaster.coordination.interface import Put
from quaymaster.coordination.presence import PresenceRow
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.monitoring.process_metrics import ProcessReading
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.queue_metrics import QueueMetricsRow
from quaymaster.node.cell.transport import BROKER_ROLE
from quaymaster.node.console.cell_state import GONE_MS, SERVER, CellState, ServerState, charts_of

READING = ProcessReading(1.0, 0.25, 1_024.0, 0.5, {"3": {"b3": 4, "b2": 0}, "9": {"b2": 1}})


def test_cell_shows_what_processes_use_and_how_far_followers_are_behind() -> None:
    async def run() -> None:
        store, table = MemoryCoordination(), LeaderTable()
        table.set_address("b1", "127.0.0.1:1")
        members = ("b1@s", "b2@t", "b3@u", "b4@v")
        table.set_configuration(3, JournalConfiguration(17, "b1@s", members, members, True))
        table.set_configuration(4, JournalConfiguration(2, "b9@s", members, members, True))
        rows = [
            PresenceRow("broker", "b1", "1", zone="a", admin="127.0.0.1:2"),
            PresenceRow("manager", "m1", "1"),
            PresenceRow("frontend", "f1", "1", address="127.0.0.1:3", admin="127.0.0.1:4"),
        ]
        await store.transaction([], [Put(row.key, msgspec.msgpack.encode(row)) for row in rows])
        state = CellState(store, table, "eu1", "a", is_one_host=True)
        told: list[PresenceRow] = []
        state.on_front_end = told.append
        looking = asyncio.create_task(state.look_for_ever())
        await until(lambda: state.now().processes)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

        assert set(state._places()) == {ProcessName("broker", "b1"), ProcessName("frontend", "f1")}
        assert [row.node for row in told] == ["f1"]
        assert all(
            one.cpu is one.memory is one.disk is one.measured_ms is None for one in state.now().processes
        )
        state.processes.take(ProcessName("broker", "b1"), {"": READING}, NOON_MS - 5_000)
        state.processes.take(ProcessName("broker", "b1"), {"": READING._replace(cpu_s=3.5)}, NOON_MS)

        now = state.now()
        broker = next(one for one in now.processes if one.role == BROKER_ROLE)
        assert (broker.cpu, broker.memory, broker.memory_bytes, broker.disk) == (0.5, 0.25, 1_024.0, 0.5)
        assert (broker.measured_ms, broker.leads, broker.zone) == (NOON_MS, ["3"], "a")
        followers = {one.name: one.followers for one in now.journals}
        assert followers == {
            "3": [CellFollower("b2", 0), CellFollower("b3", 4), CellFollower("b4", None)],
            "4": [CellFollower(f"b{number}", None) for number in (1, 2, 3, 4)],
        }
        assert [(one.name, one.leader, one.epoch, one.last_leader) for one in now.journals] == [
            ("3", "b1", 17, None),
            ("4", None, 2, "b9"),
        ]

        table.set_configuration(3, JournalConfiguration(18, "b2@t", members, members, False))
        electing = state.now().journals[0]
        assert (electing.leader, electing.epoch, electing.last_leader) == (None, 18, "b1")
        assert electing.followers == followers["3"]
        assert not any(one.leads for one in state.now().processes)
        assert charts_of(state, "broker", "b1") is not None
        assert charts_of(state, "manager", "m1") is None

    asyncio.run(run())


def test_a_console_asks_no_loopback_address_of_another_host() -> None:
    async def run() -> None:
        store = MemoryCoordination()
        rows = [
            PresenceRow("broker", "b1", "1", admin="127.0.0.1:2"),
            PresenceRow("broker", "b2", "1", admin="10.0.0.2:2"),
        ]
        await store.transaction([], [Put(row.key, msgspec.msgpack.encode(row)) for row in rows])
        state = CellState(store, LeaderTable(), "eu1", "a")
        looking = asyncio.create_task(state.look_for_ever())
        await until(lambda: len(state.now().processes) == 2)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

        assert set(state._places()) == {ProcessName("broker", "b2")}

    asyncio.run(run())


def test_server_shows_its_workers_and_its_console_until_they_are_gone(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path) as found:
            state = ServerState("local", found.monitor, APIPlace("http://127.0.0.1:1"))
            assert [one.is_live for one in state.now().processes] == [False]
            found.leaders.set(QueueMetricsRow(7, 0, 0, 1))
            await found.look(NOON_MS)
            state.processes.take(SERVER, {"": READING, "0": READING, "console": READING}, NOON_MS)

            shown = {one.name: one for one in state.now().processes}
            assert list(shown) == ["server", "console", "worker 0"]
            assert shown["worker 0"] == CellProcess(
                *("worker 0", "worker", "", True, NOON_MS, None, 0.5, [], 0.25, 1_024.0, NOON_MS)
            )
            assert (shown["server"].memory, shown["server"].leads) == (0.25, ["0"])
            assert [(one.name, one.leader) for one in state.now().journals] == [("0", "server")]
            found.now_ms = NOON_MS + GONE_MS
            assert [one.name for one in state.now().processes] == ["server"]

    asyncio.run(run())
