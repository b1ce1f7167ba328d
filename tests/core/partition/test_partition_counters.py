"""Counters of a partition's load."""

from __future__ import annotations

from quaymaster.core.partition.partition_counters import PartitionCounters
from quaymaster.core.values.commands.messages import NewMessage


def test_counters_hold_what_commands_stored_by_the_first_bits_of_their_key() -> None:
    counters = PartitionCounters()

    counters.note(0.5, [NewMessage(b"i", b"12345"), NewMessage(b"j", b"6")], key=0xA << 60 | 7)
    counters.note(0.25, [NewMessage(b"k", b"")], key=(1 << 64) - 1)
    counters.note(1.0)

    assert (counters.commands, counters.messages, counters.bytes, counters.seconds) == (3, 3, 6, 1.75)
    assert {bits: count for bits, count in enumerate(counters.by_key) if count} == {0xA: 2, 0xF: 1}


def test_counters_are_added_to_others() -> None:
    log, group = PartitionCounters(), PartitionCounters()
    log.note(0.25, [NewMessage(b"i", b"1234")], 5 << 60)
    group.note(0.5)

    group.add(log)

    assert (group.commands, group.seconds, group.messages, group.bytes) == (2, 0.75, 1, 4)
    assert group.by_key == log.by_key
