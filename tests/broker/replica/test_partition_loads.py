"""Commands of a leader's turns, counted by partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quaymaster.broker.replica import partition_loads
from quaymaster.broker.replica.partition_loads import PartitionLoads
from quaymaster.core.values.commands.decided import WriteBarrier
from quaymaster.core.values.commands.messages import NewMessage, Purge, Receive, Send
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.queues.partition_keys import partition_key


def ticking(*times: float) -> PartitionLoads:
    """Return loads whose clock shows these times."""
    clock: Iterator[float] = iter(times)
    return PartitionLoads(lambda: next(clock))


def test_each_command_counts_for_its_partition_with_the_time_since_the_one_before() -> None:
    loads = ticking(10.0, 10.5, 10.75, 11.0, 20.0, 20.25)
    stored = [NewMessage(b"i", b"123", group=0xB << 60)]

    loads.begin()
    loads.note(Send(5, 0, stored))
    loads.note(Receive(5, 0, 10))
    loads.note(StageMessages(6, 1, "sink", 1, "stage", 0, stored))
    loads.begin()
    loads.note(Send(5, 0, []))

    counted = loads.take()
    first, second = counted[partition_key(5, 0)], counted[partition_key(6, 1)]
    assert (first.commands, first.messages, first.bytes, first.seconds) == (3, 1, 3, 1.0)
    assert (second.commands, second.messages, second.seconds) == (1, 1, 0.25)
    assert first.by_key[0xB] == second.by_key[0xB] == 1
    assert loads.take() == {}


def test_commands_of_a_whole_queue_or_of_none_cost_the_next_one_nothing() -> None:
    loads = ticking(0.0, 3.0, 4.0, 5.0)

    loads.begin()
    loads.note(Purge(5))
    loads.note(WriteBarrier())
    loads.note(Receive(5, 0, 1))

    ((_, counters),) = loads.take().items()
    assert (counters.commands, counters.seconds) == (1, 1.0)


def test_counts_begin_anew_rather_than_hold_more_partitions_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_loads, "COUNTED_MAX", 3)
    loads = ticking(*range(6))

    loads.begin()
    for queue_id in range(1, 6):
        loads.note(Receive(queue_id, 0, 1))

    assert set(loads.take()) == {partition_key(4, 0), partition_key(5, 0)}
