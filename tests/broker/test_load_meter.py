"""What a broker tells of its load, with clocks that show what the test says, and in a cell that works."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.broker_support import define

from broker.cell.test_broker_service import JOURNAL, Cell, run, until
from quaymaster.broker.load_meter import LoadMeter
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.partition_loads import PartitionLoads
from quaymaster.core.cell.load import BUSIEST_MAX, BrokerLoad
from quaymaster.core.values.commands.messages import NewMessage, Receive, Send
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    PartitionState,
    QueueDefinition,
    replace_definition,
)


def defined(queue_id: int) -> QueueDefinition:
    """Return a queue with open partitions 0 and 1, and partition 2, which is sealed."""
    states: tuple[PartitionState, ...] = ("open", "open", "closing")
    partitions = tuple(PartitionPlacement(number, 1, state) for number, state in enumerate(states))
    return replace_definition(define(queue_id), partitions=partitions)


DEFINITIONS = {queue_id: defined(queue_id) for queue_id in (8, 9, *range(100, 120), *range(200, 220))}
GROUPS = (50, 51)
"""Consumer groups of queue 8."""
DEFINITIONS |= {queue_id: replace_definition(defined(queue_id), group_of=8) for queue_id in GROUPS}


class Clocks:
    """A machine's time, and its thread's."""

    now = 100.0
    cpu = 1.0


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def meter(clocks: Clocks) -> LoadMeter:
    return LoadMeter(clock=lambda: clocks.now, cpu_clock=lambda: clocks.cpu)


def journal(**host: Any) -> Any:
    """Return what a meter reads of a replica."""
    host = {"worked_s": 0.0, "loads": None, "files": SimpleNamespace(end_offset=0), **host}
    partitions = host.pop("partitions", {})
    host["replica"] = SimpleNamespace(queues=SimpleNamespace(definitions=DEFINITIONS, partitions=partitions))
    return cast(JournalService, SimpleNamespace(host=SimpleNamespace(**host)))


def pass_time(clocks: Clocks, seconds: float, cpu_s: float = 0.0) -> None:
    clocks.now += seconds
    clocks.cpu += cpu_s


def test_load_is_the_share_of_a_window_that_each_replica_and_the_thread_worked(
    meter: LoadMeter, clocks: Clocks
) -> None:
    led, followed = journal(), journal(worked_s=7.0)
    pass_time(clocks, 1.0)
    meter.measure({1: led, 2: followed})

    pass_time(clocks, 2.0, cpu_s=1.5)
    led.host.worked_s += 1.0
    followed.host.worked_s += 0.25
    led.host.files.end_offset += 60

    assert meter.measure({1: led, 2: followed}) == BrokerLoad(
        cpu_share=0.75, records_per_s=30.0, journals={1: 0.5, 2: 0.125}
    )


def test_all_who_ask_within_a_window_are_told_the_last_one(meter: LoadMeter, clocks: Clocks) -> None:
    one = journal()
    pass_time(clocks, 1.0, cpu_s=0.5)
    told = meter.measure({1: one})

    pass_time(clocks, 0.125, cpu_s=0.125)

    assert meter.measure({1: one}) is told
    pass_time(clocks, 0.375)
    assert meter.measure({1: one}).cpu_share == 0.25


def test_replica_that_was_opened_anew_or_cut_has_no_negative_load(meter: LoadMeter, clocks: Clocks) -> None:
    before = journal(worked_s=50.0, files=SimpleNamespace(end_offset=900))
    cut = journal(files=SimpleNamespace(end_offset=900))
    pass_time(clocks, 1.0)
    meter.measure({1: before, 2: cut})

    pass_time(clocks, 1.0)
    cut.host.files.end_offset = 100
    load = meter.measure({1: journal(worked_s=0.5, files=SimpleNamespace(end_offset=4)), 2: cut})

    assert (load.journals, load.records_per_s) == ({1: 0.5, 2: 0.0}, 0.0)


def test_busiest_partitions_have_their_part_of_their_journals_share(meter: LoadMeter, clocks: Clocks) -> None:
    times = iter([0.0, 3.0, 4.0, 8.0, 12.0])
    loads = PartitionLoads(lambda: next(times))
    one = journal(loads=loads)
    pass_time(clocks, 1.0)
    meter.measure({1: one})

    loads.begin()
    loads.note(Send(8, 1, [NewMessage(b"i", b"1234", group=1)] * 2))
    loads.note(Receive(9, 0, 1))
    loads.note(Receive(8, 2, 1))  # sealed: it is work, and none that could go elsewhere
    loads.note(Receive(7, 0, 1))  # of a queue that is gone
    one.host.worked_s = 1.5
    pass_time(clocks, 2.0)
    busiest, other = meter.measure({1: one}).partitions

    assert (busiest.queue_id, busiest.partition, busiest.journal, busiest.share) == (8, 1, 1, 0.1875)
    assert (busiest.commands_per_s, busiest.messages_per_s, busiest.bytes_per_s) == (0.5, 1.0, 4.0)
    assert busiest.by_key == (2, *[0] * 15)
    assert (other.queue_id, other.share) == (9, 0.0625)


def test_load_of_consumer_groups_is_that_of_their_log(meter: LoadMeter, clocks: Clocks) -> None:
    ticks = iter([0.0, 1.0, 3.0, 4.0, 5.0, 8.0])
    loads = PartitionLoads(lambda: next(ticks))
    one = journal(loads=loads)
    pass_time(clocks, 1.0)
    meter.measure({1: one})

    loads.begin()
    loads.note(Send(8, 1, [NewMessage(b"i", b"1234", group=1)] * 2))
    loads.note(Receive(GROUPS[0], 1, 1))
    loads.note(Receive(GROUPS[1], 1, 1))
    loads.note(Receive(GROUPS[1], 2, 1))  # sealed
    loads.note(Receive(GROUPS[1], 0, 1))
    one.host.worked_s = 1.6
    pass_time(clocks, 2.0)
    told = meter.measure({1: one}).partitions

    assert [(load.queue_id, load.partition, round(load.share, 6)) for load in told] == [
        (8, 1, 0.4),
        (8, 0, 0.3),
    ]
    assert (told[0].commands_per_s, told[0].messages_per_s, told[0].by_key) == (1.5, 1.0, (2, *[0] * 15))


def test_broker_tells_which_partitions_sinks_committed_to(meter: LoadMeter, clocks: Clocks) -> None:
    ticks = iter(range(100))
    loads = PartitionLoads(lambda: next(ticks))
    partitions = {
        partition_key(8, 0): SimpleNamespace(staged=SimpleNamespace(sinks={"etl": 1})),
        partition_key(8, 1): SimpleNamespace(staged=SimpleNamespace(sinks={})),
        partition_key(9, 0): SimpleNamespace(staged=None),
    }
    one = journal(loads=loads, partitions=partitions)
    meter.measure({1: one})
    loads.begin()
    for queue_id, number in ((8, 0), (8, 1), (9, 0), (9, 1)):
        loads.note(Receive(queue_id, number, 1))
    pass_time(clocks, 1.0)

    told = meter.measure({1: one}).partitions

    assert {(load.queue_id, load.partition): load.has_sinks for load in told} == {
        (8, 0): True,
        (8, 1): False,
        (9, 0): False,
        (9, 1): False,
    }


def test_broker_tells_of_few_partitions_of_all_its_journals(meter: LoadMeter, clocks: Clocks) -> None:
    ticks = iter(float(number * number) for number in range(100))
    journals = {}
    for number in (1, 2):
        loads = PartitionLoads(lambda: next(ticks))
        loads.begin()
        for queue_id in range(20):
            loads.note(Receive(number * 100 + queue_id, 0, 1))
        journals[number] = journal(loads=loads, worked_s=0.0)
    meter.measure(journals)
    for each in journals.values():
        each.host.worked_s = 1.0
    pass_time(clocks, 1.0)

    told = meter.measure(journals).partitions

    assert len(told) == BUSIEST_MAX
    assert [load.share for load in told] == sorted((load.share for load in told), reverse=True)


def test_brokers_of_a_cell_tell_what_their_loops_do(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        await cell.send("a", 1, 50)

        def is_told() -> bool:
            leader, follower = cell.brokers["a"].report().load, cell.brokers["b"].report().load
            led = [(load.queue_id, load.partition, load.journal) for load in leader.partitions]
            seen.update(led)
            for name, load in (("a", leader), ("b", follower)):
                if load.journals.get(JOURNAL, 0.0) > 0.0 and load.cpu_share > 0.0:
                    working.add(name)
            return working == {"a", "b"} and bool(seen)

        seen: set[tuple[int, int, int]] = set()
        working: set[str] = set()
        await until(is_told)

        assert seen == {(1, 0, JOURNAL)}
        assert cell.brokers["b"].report().load.partitions == ()

    run(tmp_path, story)
