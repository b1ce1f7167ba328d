"""Reading a partition by sequence numbers, as a log: what may be read, from when on, and where it lies.

    gone │ earliest ── committed messages ── end │ not committed yet
         └ head                                  └ half open

Nothing is taken, hidden or changed, and only what is committed is shown: a message that was read once can never turn
out not to have been sent.
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.commands.decided import FetchedOffsets
from quaymaster.core.values.commands.logs import (
    Fetch,
    FetchOutcome,
    FindOffset,
    FoundOffset,
    LogBoundsOutcome,
)
from quaymaster.core.values.errors import OffsetOutOfRange

FETCH_MESSAGES_MAX: Final = 4_096
"""So many messages are looked up for one Fetch; a client that wants more goes on where it ended."""


def bounds_of(partition: Partition) -> LogBoundsOutcome:
    """Return the first sequence number that is kept, and the one behind the last committed message."""
    return LogBoundsOutcome(partition.head, max(partition.head, partition.committed))


def find_messages(partition: Partition, command: Fetch) -> FetchedOffsets | FetchOutcome:
    """Return the messages of [from, to), the first FETCH_MESSAGES_MAX of them at most, and where to go on.

    Sequence numbers of messages that were deleted are left out. Raises OffsetOutOfRange where the range begins below
    what is kept, or above all that was sent.
    """
    bounds = bounds_of(partition)
    start = command.from_sequence
    if not bounds.earliest <= start <= bounds.end:
        raise OffsetOutOfRange(start, bounds.earliest, bounds.end)
    stop = max(start, min(command.to_sequence, bounds.end, start + FETCH_MESSAGES_MAX))
    offsets: list[int] = []
    sent_ms: list[int] = []
    for run_offsets, run_times in partition.index.offsets_and_times(start, stop):
        offsets += run_offsets
        sent_ms += run_times
    assert len(offsets) == stop - start, "the index has an entry for each message that is kept"
    sequences = list(range(start, stop))
    if partition.deleted.range_cardinality(start, stop):
        kept = [at for at, sequence in enumerate(sequences) if sequence not in partition.deleted]
        sequences = [sequences[at] for at in kept]
        offsets = [offsets[at] for at in kept]
        sent_ms = [sent_ms[at] for at in kept]
    if not command.with_messages:
        return FetchOutcome(sequences, sent_ms, [], stop, bounds.earliest, bounds.end)
    return FetchedOffsets(sequences, sent_ms, offsets, stop, bounds.earliest, bounds.end, command.bytes_max)


def find_offset(partition: Partition, command: FindOffset) -> FoundOffset:
    """Return the first sequence number whose message was sent at the time or later; the end when there is none.

    It is searched by halves: of messages that were moved here with the time they were first sent, it may pass some.
    """
    bounds = bounds_of(partition)
    return FoundOffset(partition.index.first_sent_after(bounds.earliest, bounds.end, command.time_ms - 1))
