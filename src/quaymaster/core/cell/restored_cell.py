"""What a cell is that a backup is restored into: which broker gets which journal, and in which epoch it leads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quaymaster.core.values.journal_configuration import JournalConfiguration


def assign_journals(sizes: Mapping[int, int], brokers: Sequence[str]) -> dict[int, str]:
    """Return a broker for each journal: the largest first, to the one with the fewest bytes by then."""
    assert brokers, "a cell has brokers"
    loads = dict.fromkeys(sorted(brokers), 0)
    counts = dict.fromkeys(loads, 0)
    assigned: dict[int, str] = {}
    for number in sorted(sizes, key=lambda number: (-sizes[number], number)):
        chosen = min(loads, key=lambda name: (loads[name], counts[name], name))
        assigned[number] = chosen
        loads[chosen] += sizes[number]
        counts[chosen] += 1
    return assigned


def restored_configuration(
    member: str, *, led_epoch: int, known: JournalConfiguration | None
) -> JournalConfiguration:
    """Return the configuration of a restored journal: its one member alone, in an epoch above all before.

    `led_epoch`: the one it was backed up in; `known`: what the backup's metadata says of it.
    """
    epoch = max(led_epoch, known.epoch if known is not None else 0) + 1
    return JournalConfiguration(epoch, member, (member,), (member,), False)
