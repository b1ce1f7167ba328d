"""The partition table of a queue: which partition is asked about a message, and what splits, merges and moves make.

    open ──"children are open"──▶ closing ──ids forgotten──▶ closed ──empty──▶ drained ──15 days──▶ (not listed)
    new ───"all journals know"──▶ open

A change opens new partitions (children) for the keys of others (parents), which are sealed. Nothing is copied: parents
keep their messages until consumers or retention have emptied them, and journal and keys of a partition never change.
The keys of the open partitions hold each key once. Numbers are never given again.

The table is a part of the queue's definition. Its row in the coordination store decides; journals follow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.errors import InvalidParameterValue, OverLimit, UnsupportedOperation
from quaymaster.core.values.queues.queue_definitions import (
    FIRST_SEQUENCE,
    KEY_MAX,
    PartitionPlacement,
    PartitionState,
    QueueDefinition,
    replace_definition,
)

LISTED_MAX: Final = 256
"""Partitions in a table, of whatever state."""
NUMBERS_MAX: Final = 1 << 16
"""Partitions that a queue may ever have."""
SEQUENCE_SPAN: Final = 1 << 44
"""First sequences are multiples of it: no partition ever stores so many messages."""
_TAKING: Final[tuple[PartitionState, ...]] = ("open", "closing")
_READ: Final[tuple[PartitionState, ...]] = ("open", "closing", "closed")
_SEALED: Final[tuple[PartitionState, ...]] = ("closing", "closed", "drained")


# Questions


def is_sealed_by(entry: PartitionPlacement) -> bool:
    """Return whether a journal that has this entry seals the partition."""
    return entry.state in _SEALED


def is_read(entry: PartitionPlacement) -> bool:
    """Return whether receives ask the partition."""
    return entry.state in _READ


def has_key(entry: PartitionPlacement, key: int) -> bool:
    """Return whether messages of a key are, or were, for the partition."""
    return entry.first_key <= key <= entry.last_key


def has_all_keys(entry: PartitionPlacement) -> bool:
    """Return whether every message is, or was, for a partition."""
    return (entry.first_key, entry.last_key) == (0, KEY_MAX)


def have_keys_in_common(one: PartitionPlacement, other: PartitionPlacement) -> bool:
    """Return whether there are keys that both partitions have."""
    return one.first_key <= other.last_key and other.first_key <= one.last_key


def entry_of(definition: QueueDefinition, number: int) -> PartitionPlacement | None:
    """Return a partition's entry, None if it is not listed."""
    for entry in definition.partitions:
        if entry.number == number:
            return entry
    return None


def journal_of_partition(definition: QueueDefinition, number: int) -> int | None:
    """Return which journal has a partition, None if it is not listed; of ALL_PARTITIONS, that of the oldest."""
    if number == ALL_PARTITIONS:
        return definition.partitions[0].journal_id
    entry = entry_of(definition, number)
    return None if entry is None else entry.journal_id


def taking(definition: QueueDefinition, key: int) -> list[PartitionPlacement]:
    """Return which partitions are asked about a new message of a key, the oldest first; there is at least one."""
    return [entry for entry in definition.partitions if entry.state in _TAKING and has_key(entry, key)]


def in_state(definition: QueueDefinition, *states: PartitionState) -> list[PartitionPlacement]:
    """Return the partitions in some states, the oldest first."""
    return [entry for entry in definition.partitions if entry.state in states]


def read_partitions(definition: QueueDefinition) -> list[PartitionPlacement]:
    """Return the partitions that receives ask, the oldest first."""
    return in_state(definition, *_READ)


def parents_of(definition: QueueDefinition, number: int) -> list[PartitionPlacement]:
    """Return older partitions for some of the same keys that may still have messages, the oldest first."""
    child = entry_of(definition, number)
    if child is None:
        return []
    return [
        entry
        for entry in definition.partitions
        if entry.number < number and entry.state != "drained" and have_keys_in_common(entry, child)
    ]


def is_plain(definition: QueueDefinition) -> bool:
    """Return whether the queue has one partition and never had another: as it is with nearly all."""
    partitions = definition.partitions
    return len(partitions) == 1 and partitions[0].state == "open" and definition.next_partition == 1


def journals_of(definition: QueueDefinition) -> tuple[int, ...]:
    """Return the journals that have partitions of the queue, each once, that of the oldest partition first."""
    return tuple(dict.fromkeys(entry.journal_id for entry in definition.partitions))


def described_partitions(definition: QueueDefinition) -> list[PartitionPlacement]:
    """Return the partitions of a log that can be read by offsets, or could be once, the oldest first."""
    return [entry for entry in definition.partitions if entry.state != "new"]


def end_of_drained(entry: PartitionPlacement) -> int:
    """Return the sequence number behind the last message that a drained partition of a log had; none is left."""
    return entry.first_sequence + entry.sends


def share_of(definition: QueueDefinition, number: int, whole: int) -> int:
    """Return what a partition has of something that its queue has in all, by its share of the keys; rounded up.

    It is the same before and after its seal. One that is not listed any more has all.
    """
    entry = entry_of(definition, number)
    if entry is None or has_all_keys(entry):
        return whole
    return -(-whole * (entry.last_key - entry.first_key + 1) // (KEY_MAX + 1))


def awaited_journals(definition: QueueDefinition) -> tuple[int, ...]:
    """Return the journals that must know of a change of the queue: those with partitions that are not drained."""
    return tuple(
        dict.fromkeys(entry.journal_id for entry in definition.partitions if entry.state != "drained")
    )


def told_journals(definition: QueueDefinition) -> tuple[int, ...]:
    """Return the journals that are told of a change of the queue: all that have, or lately had, partitions of it."""
    return tuple(dict.fromkeys((*journals_of(definition), *definition.left_journals)))


def check_stays_by_group(definition: QueueDefinition, attributes: Mapping[str, str]) -> None:
    """Raise UnsupportedOperation if partitions divided by message group were to have such attributes together."""
    changed = replace_definition(definition, attributes=dict(attributes))
    if len(definition.partitions) > 1 and definition.is_split_by_group and not changed.is_split_by_group:
        raise UnsupportedOperation(
            f"The queue has {len(definition.partitions)} partitions, divided by message groups: as long as there are "
            "several, DeduplicationScope stays messageGroup and FifoThroughputLimit perMessageGroupId. Drained "
            "partitions count until 15 days after they were split, merged or moved."
        )


def is_at_rest(definition: QueueDefinition) -> bool:
    """Return whether nothing is to be done about the table before somebody changes it."""
    return not definition.left_journals and all(entry.state == "open" for entry in definition.partitions)


def final_counts(definition: QueueDefinition) -> tuple[int, int]:
    """Return how many messages were sent to partitions that are drained or gone, and how many were deleted there.

    No journal is asked for them any more.
    """
    drained = in_state(definition, "drained")
    return (
        definition.removed_sends + sum(entry.sends for entry in drained),
        definition.removed_deletions + sum(entry.deletions for entry in drained),
    )


def is_newer_table(definition: QueueDefinition, other: QueueDefinition) -> bool:
    """Return whether a definition's table must be believed by a row that has the other one."""
    if definition.table_version != other.table_version:
        return definition.table_version > other.table_version
    return definition.partitions != other.partitions


def with_table_of(row: QueueDefinition, known: QueueDefinition) -> QueueDefinition:
    """Return what a row becomes that met a newer table in a journal: its partitions, above both in version."""
    left = (*row.left_journals, *known.left_journals, *journals_of(row))
    return replace_definition(
        row,
        revision=max(row.revision, known.revision) + 1,
        partitions=known.partitions,
        table_version=max(row.table_version, known.table_version) + 1,
        next_partition=max(row.next_partition, known.next_partition),
        left_journals=_left(left, known.partitions),
        removed_sends=known.removed_sends,
        removed_deletions=known.removed_deletions,
    )


# Changes


def split_ranges(first_key: int, last_key: int, into: int) -> list[tuple[int, int]]:
    """Return a range of keys as so many ranges of nearly the same size, in order."""
    size = last_key - first_key + 1
    bounds = [first_key + size * at // into for at in range(into + 1)]
    return [(bounds[at], bounds[at + 1] - 1) for at in range(into)]


def with_children(
    definition: QueueDefinition,
    parents: Sequence[PartitionPlacement],
    ranges: Sequence[tuple[int, int]],
    journals: Sequence[int],
) -> QueueDefinition:
    """Return the next version of a table, with new partitions for the keys of open ones.

    `ranges` together are the keys of the `parents`; `journals` says where each new partition will be.

    Raises:
        OverLimit: the queue would have more partitions than it may.
        UnsupportedOperation: the queue must not be changed so, or not now.
    """
    _check_may_change(definition, parents, len(ranges))
    base = max(parent.first_sequence for parent in parents)
    first_sequence = (base // SEQUENCE_SPAN + 1) * SEQUENCE_SPAN
    children = tuple(
        PartitionPlacement(
            number=definition.next_partition + at,
            journal_id=journal_id,
            state="new",
            first_key=first_key,
            last_key=last_key,
            first_sequence=first_sequence,
        )
        for at, ((first_key, last_key), journal_id) in enumerate(zip(ranges, journals, strict=True))
    )
    return _next(
        definition,
        definition.partitions + children,
        next_partition=definition.next_partition + len(children),
        given_up="",
    )


def parents_of_new(definition: QueueDefinition) -> list[PartitionPlacement]:
    """Return the open partitions whose keys the new ones will have; no new ones: none."""
    new = in_state(definition, "new")
    return [
        entry
        for entry in in_state(definition, "open")
        if any(have_keys_in_common(entry, child) for child in new)
    ]


def with_children_open(definition: QueueDefinition) -> QueueDefinition:
    """Return the next version: new partitions are open, and those they are for are closing."""
    becomes: dict[int, PartitionState] = {entry.number: "closing" for entry in parents_of_new(definition)}
    becomes |= {entry.number: "open" for entry in in_state(definition, "new")}
    return _next(
        definition,
        tuple(
            msgspec.structs.replace(entry, state=becomes.get(entry.number, entry.state))
            for entry in definition.partitions
        ),
    )


def with_new_dropped(definition: QueueDefinition, why: str) -> QueueDefinition:
    """Return the next version without new partitions: the change is given up. Their numbers are not given again."""
    dropped = without(definition, [entry.number for entry in in_state(definition, "new")])
    return replace_definition(dropped, given_up=why)


def with_state(
    definition: QueueDefinition, number: int, state: PartitionState, **known: int
) -> QueueDefinition:
    """Return the next version, in which a partition has another state.

    `known`: what else is known of it once it is drained: its last counts, or that it was given up.
    """
    return _next(
        definition,
        tuple(
            msgspec.structs.replace(entry, state=state, **known) if entry.number == number else entry
            for entry in definition.partitions
        ),
    )


def without(definition: QueueDefinition, numbers: Collection[int]) -> QueueDefinition:
    """Return the next version, in which partitions are not listed any more. Their journals are to be told."""
    gone = [entry for entry in definition.partitions if entry.number in numbers]
    return _next(
        definition,
        tuple(entry for entry in definition.partitions if entry.number not in numbers),
        left=(*definition.left_journals, *(entry.journal_id for entry in gone)),
        removed_sends=definition.removed_sends + sum(entry.sends for entry in gone),
        removed_deletions=definition.removed_deletions + sum(entry.deletions for entry in gone),
    )


def with_told(definition: QueueDefinition, journals: Collection[int]) -> QueueDefinition:
    """Return a definition in which journals that have no partitions any more were told so; no other version."""
    left = tuple(journal_id for journal_id in definition.left_journals if journal_id not in journals)
    return replace_definition(definition, left_journals=left)


def entries_to_split(
    definition: QueueDefinition, into: int, number: int | None = None, key: int = 0
) -> tuple[list[PartitionPlacement], list[tuple[int, int]]]:
    """Return the open partition to split, and the ranges of its parts.

    `number`: which partition; None: that with most keys, the oldest of several. `key`: where the second of two parts
    begins; 0: the parts are of the same size.

    Raises:
        InvalidParameterValue: there is no such open partition, or it cannot be split into so many, or there.
    """
    opened = in_state(definition, "open")
    if number is None:
        parent = max(opened, key=lambda entry: (entry.last_key - entry.first_key, -entry.number))
    else:
        parent = _open_entry(definition, number)
    keys = parent.last_key - parent.first_key + 1
    into_max = min(keys, LISTED_MAX)
    if not 2 <= into <= into_max:
        raise InvalidParameterValue.of("Into", into, f"A partition is split into 2 to {into_max}.")
    if not key:
        return [parent], split_ranges(parent.first_key, parent.last_key, into)
    if into != 2 or not parent.first_key < key <= parent.last_key:
        raise InvalidParameterValue.of("Key", key, "Two parts of the partition meet there, each with keys.")
    return [parent], [(parent.first_key, key - 1), (key, parent.last_key)]


def entries_to_merge(
    definition: QueueDefinition, numbers: Collection[int] = ()
) -> tuple[list[PartitionPlacement], list[tuple[int, int]]]:
    """Return the open partitions to merge, in order of their keys, and their range as one.

    `numbers`: which ones; none: all open ones.

    Raises:
        InvalidParameterValue: there are no such open partitions, fewer than two, or keys of others lie between them.
    """
    chosen = [_open_entry(definition, number) for number in numbers] or in_state(definition, "open")
    parents = sorted(chosen, key=lambda entry: entry.first_key)
    if len(parents) < 2:
        raise InvalidParameterValue.of("Partitions", len(parents), "Two or more open partitions are merged.")
    for left, right in pairwise(parents):
        if left.last_key + 1 != right.first_key:
            raise InvalidParameterValue.of(
                "Partitions",
                right.number,
                f"It does not follow partition {left.number} in the order of keys.",
            )
    return parents, [(parents[0].first_key, parents[-1].last_key)]


def entries_to_move(
    definition: QueueDefinition, number: int | None = None
) -> tuple[list[PartitionPlacement], list[tuple[int, int]]]:
    """Return the open partition to move, and its range; `number` None: the only open one.

    Raises:
        InvalidParameterValue: there is no such open partition, or there are several to choose from.
    """
    opened = in_state(definition, "open")
    if number is None and len(opened) != 1:
        raise InvalidParameterValue.of(
            "Partition", "", f"The queue has {len(opened)} open partitions: name one."
        )
    parent = opened[0] if number is None else _open_entry(definition, number)
    return [parent], [(parent.first_key, parent.last_key)]


def why_broken(definition: QueueDefinition) -> str | None:
    """Return what is wrong with a table, None if nothing is: keys without a partition, with two, numbers twice."""
    numbers = [entry.number for entry in definition.partitions]
    if len(set(numbers)) != len(numbers):
        return "a number is listed twice"
    if any(number >= definition.next_partition for number in numbers):
        return "a number is listed that was not given yet"
    opened = sorted(in_state(definition, "open"), key=lambda entry: entry.first_key)
    expected = 0
    for entry in opened:
        if entry.first_key != expected:
            return f"the open partitions hold key {expected} not once"
        expected = entry.last_key + 1
    if expected != KEY_MAX + 1:
        return f"the open partitions hold key {expected} not once"
    return None


def spread_table(journals: Sequence[int]) -> tuple[PartitionPlacement, ...]:
    """Return the partitions of a new queue that has one open in each of these journals."""
    ranges = split_ranges(0, KEY_MAX, len(journals))
    return tuple(
        PartitionPlacement(number, journal_id, "open", first_key, last_key, FIRST_SEQUENCE)
        for number, (journal_id, (first_key, last_key)) in enumerate(zip(journals, ranges, strict=True))
    )


# Helpers


def _open_entry(definition: QueueDefinition, number: int) -> PartitionPlacement:
    entry = entry_of(definition, number)
    if entry is None or entry.state != "open":
        raise InvalidParameterValue.of("Partition", number, "The queue has no open partition of this number.")
    return entry


def _check_may_change(
    definition: QueueDefinition, parents: Sequence[PartitionPlacement], children: int
) -> None:
    if in_state(definition, "new", "closing"):
        raise UnsupportedOperation(
            "The partitions of the queue are changing; it can be changed again once none is new or closing."
        )
    opened = len(in_state(definition, "open")) - len(parents) + children
    if opened > definition.partitions_max and children > len(parents):
        raise OverLimit(f"The queue may have {definition.partitions_max} open partitions (PartitionsMax).")
    if len(definition.partitions) + children > LISTED_MAX:
        raise OverLimit(
            f"A queue may have {LISTED_MAX} partitions, those that are not drained or were so within 15 days included."
        )
    if definition.next_partition + children > NUMBERS_MAX:
        raise OverLimit(f"A queue may be given {NUMBERS_MAX:,} partitions in all.")
    is_move = len(parents) == 1 and children == 1
    if definition.is_fifo and not is_move and not definition.is_split_by_group:
        raise UnsupportedOperation(
            "A FIFO queue is split and merged by message groups: it needs DeduplicationScope=messageGroup and "
            "FifoThroughputLimit=perMessageGroupId."
        )


def _next(
    definition: QueueDefinition,
    partitions: tuple[PartitionPlacement, ...],
    *,
    left: Sequence[int] | None = None,
    **changes: Any,
) -> QueueDefinition:
    """Return the next version. `left`: journals that may have none of its partitions any more; None: as before."""
    return replace_definition(
        definition,
        partitions=partitions,
        table_version=definition.table_version + 1,
        revision=definition.revision + 1,
        left_journals=_left(definition.left_journals if left is None else left, partitions),
        **changes,
    )


def _left(journals: Sequence[int], partitions: Sequence[PartitionPlacement]) -> tuple[int, ...]:
    """Return those of some journals that have none of the partitions, each once."""
    there = {entry.journal_id for entry in partitions}
    return tuple(dict.fromkeys(journal_id for journal_id in journals if journal_id not in there))
