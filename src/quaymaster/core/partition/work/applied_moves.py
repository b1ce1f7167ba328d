"""How the records of moves between journals change a partition: what its leader and its followers have in common.

What is kept of such moves: `core/partition/partition_moves`.
"""

from __future__ import annotations

from collections.abc import Sequence

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OpenMove, PartitionMoves


def opened_moves(partition: Partition) -> PartitionMoves:
    """Return the moves between this partition and those of other journals, to change them."""
    partition.note_change()
    if partition.moves is None:
        partition.moves = PartitionMoves()
    return partition.moves


def apply_move_out(
    partition: Partition,
    target_key: int,
    journal_id: int,
    number: int,
    move: OpenMove,
    time_ms: int,
    *,
    taken: bool,
) -> None:
    """A message begins to leave for another journal. `taken`: see `Partition.apply_receive`."""
    if not taken and move.sequence >= partition.head:
        partition.timed.discard(move.sequence)
        partition.order.claim(move.sequence, time_ms)
    partition.moving.pop(move.sequence, None)
    moves = opened_moves(partition)
    moves.begin(target_key, journal_id, number, move)
    if move.sequence < partition.head:
        del moves.leaving[move.sequence]


def apply_move_withdrawn(
    partition: Partition,
    source_key: int,
    settled_below: int,
    numbers: Sequence[int],
    *,
    are_duplicates: bool = False,
) -> None:
    """Messages that would have come from another journal do not; `are_duplicates`: they are here already."""
    moves = opened_moves(partition)
    if are_duplicates:
        moves.came(source_key).last = numbers[-1]
    else:
        moves.withdraw(source_key, settled_below, numbers)


def apply_move_end(
    partition: Partition, target_key: int, number: int, time_ms: int, *, taken: bool
) -> OpenMove | None:
    """A move is settled: the message is gone, or visible again. Return it, if it still existed.

    An output is settled either way: where it was not taken, its queue is gone.
    """
    moves = opened_moves(partition)
    move = moves.end(target_key, number)
    if move is None or move.is_output:
        return move
    if taken:
        partition.apply_delete((move.sequence,), time_ms)
    else:
        del moves.leaving[move.sequence]
        partition.order.give_back(move.sequence, time_ms)
    return move


def count_moved(source: Partition) -> None:
    """A message of the running task was moved."""
    for task in source.tasks:
        if task.status == "RUNNING":
            task.moved += 1


def count_arrived(source: Partition) -> None:
    """A message that a task took has arrived in another journal; the task may have ended meanwhile."""
    source.tasks[-1].moved += 1
