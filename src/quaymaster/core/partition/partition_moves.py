"""Messages between a partition and partitions of other journals: what has left, what came in, what is not settled.

    source                                                         target
    visible ──MOVE_OUT: number──▶ leaving ──sent, again and again──▶ MOVE, with the number: it is here
       ▲                             │  ◀────── taken, or withdrawn ────── (a number that it has seen: nothing new)
       └──MOVE_END: withdrawn────────┴──MOVE_END: taken──▶ gone

Each pair of partitions counts its moves by itself. A number is never given twice, and never a lower one after a higher:
it begins again, far above all before, with each epoch of the source's journal. So the target keeps one number for each
source, the last one it has seen, for as long as it lives; a journal that lost its end by a forced recovery goes on
with numbers that were never in use.

A number is withdrawn when its message cannot be sent any more: it was deleted meanwhile, or cannot be read. The target
alone says what becomes of a number, because an earlier sending of it may have arrived. It remembers which ones were
withdrawn until their source has noted it. The source sends a batch only when the one before is settled, durably: so
the first number of a batch says that all lower ones are.

A sealed target takes no new numbers. All moves to it then go on to other partitions of the queue, under new numbers and
in their order. A message of a group goes where the one of its group goes that left before it and is not settled: the
tables that both go by may differ, their order must not.

Outputs of completions (`core/partition/work/completion_records`) leave as numbered moves, too, also for partitions of
the same journal. They have no sequence number, and never return: each is in a COMPLETE record, which stays until all of
its outputs are settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from quaymaster.core.values.formats import CellFormat, Versions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

NUMBERED_MOVES: Versions = {1: 0, 2: 1}
"""Since which cell format messages move between journals: 0 stands for not at all."""

AWAY_MAX = 10_000
"""With so many messages of a partition on their way to other journals, further ones stay and are handed out again."""

EPOCH_SHIFT = 32


UNKNOWN: Final = QueueDefinition(
    queue_id=0,
    account_id="",
    name="",
    state="deleting",
    revision=0,
    created_ms=0,
    modified_ms=0,
    attributes={},
    tags={},
    data_key_id=0,
    partitions=(),
)
"""Stands for a queue that was not asked for yet."""


class QueuesElsewhere:
    """Queues with partitions in other journals, by ARN, as far as a leader has asked; None: there is no such queue."""

    def __init__(self, cell_format: CellFormat) -> None:
        self._cell_format = cell_format
        self.places: dict[str, QueueDefinition | None] = {}

    @property
    def is_reachable(self) -> bool:
        """Whether messages may go there: all processes of the cell know how that is written."""
        return self._cell_format.version_of(NUMBERED_MOVES) > 0

    def find(self, arn: str) -> QueueDefinition | None:
        """Return a queue, UNKNOWN if it is not known, None if messages cannot go there."""
        return self.places.get(arn, UNKNOWN) if self.is_reachable else None


OUTPUTS_MAX = 10_000
"""With so many outputs of a partition under way, nothing more is completed there."""

NOT_IN_A_RECORD = -1


class OpenMove(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that is leaving, and whether a move task took it; or an output of a completion.

    An output is the one with the index `at` in the COMPLETE record at `offset`; `key` chooses its partition.
    """

    sequence: int
    is_redrive: bool
    key: int = 0
    offset: int = NOT_IN_A_RECORD
    at: int = 0

    @property
    def is_output(self) -> bool:
        """Whether it is an output: it has no sequence number."""
        return self.offset != NOT_IN_A_RECORD

    def row(self) -> tuple[int, ...]:
        """Return what a snapshot says of it: as before there were outputs, where it is none."""
        if not self.is_output:
            return self.sequence, self.is_redrive
        return self.sequence, self.is_redrive, self.key, self.offset, self.at


class MovesOut(msgspec.Struct, array_like=True):
    """The moves to one other partition: the last number given, and those that are not settled, in their order."""

    target_key: int
    journal_id: int
    last: int = 0
    open: dict[int, OpenMove] = {}


class MovesIn(msgspec.Struct, array_like=True):
    """The moves from one other partition: the last number seen, and those seen lately whose message did not come."""

    source_key: int
    last: int = 0
    withdrawn: list[int] = []


class _MovesState(msgspec.Struct, array_like=True):
    """Both, for a snapshot. The order of the fields is a format, as that of the classes above."""

    out: list[MovesOut]
    into: list[MovesIn]


class PartitionMoves:
    """The moves of one partition, out and in."""

    __slots__ = ("into", "last_of_group", "leaving", "out", "outputs", "outputs_under_way")

    def __init__(self) -> None:
        self.out: dict[int, MovesOut] = {}
        self.into: dict[int, MovesIn] = {}
        self.leaving: dict[int, OpenMove] = {}
        """What is leaving and exists, by sequence."""
        self.last_of_group: dict[tuple[int, int], tuple[int, int]] = {}
        """Target and number of the last message of a group that left for a queue, by queue and group.

        Of messages a leader knows those that it let go; of outputs every replica knows all that are not settled.
        """
        self.outputs: dict[int, int] = {}
        """How many outputs of a record are not settled, by its offset."""
        self.outputs_under_way = 0
        """How many outputs are not settled."""

    def next_number(self, target_key: int, epoch: int) -> int:
        """Return the number that the next move to a partition gets."""
        pair = self.out.get(target_key)
        return max(epoch << EPOCH_SHIFT, pair.last if pair is not None else 0) + 1

    def begin(self, target_key: int, journal_id: int, number: int, move: OpenMove) -> None:
        """A message is leaving."""
        pair = self.out.get(target_key)
        if pair is None:
            pair = self.out[target_key] = MovesOut(target_key, journal_id)
        pair.last = number
        pair.open[number] = move
        if move.is_output:
            self._note_output(target_key, number, move)
        else:
            self.leaving[move.sequence] = move

    def go_on(self, target_key: int, number: int, to: tuple[int, int, int]) -> None:
        """A move has another target: its key, journal and number are `to`."""
        move = self.out[target_key].open.pop(number)
        if not move.is_output:
            self.begin(*to, move)
            return
        group = target_key >> 16, move.key
        last = self.last_of_group.get(group)
        self._forget_output(target_key, number, move)
        self.begin(*to, move)
        if last is not None and last != (target_key, number):
            self.last_of_group[group] = last  # a later one, which is asked for where this one was

    def end(self, target_key: int, number: int) -> OpenMove | None:
        """A move is settled: return it, if it is an output or its message still exists."""
        move = self.out[target_key].open.pop(number)
        if move.is_output:
            self._forget_output(target_key, number, move)
            return move
        return move if move.sequence in self.leaving else None

    def _note_output(self, target_key: int, number: int, move: OpenMove) -> None:
        self.outputs_under_way += 1
        self.outputs[move.offset] = self.outputs.get(move.offset, 0) + 1
        self.last_of_group[target_key >> 16, move.key] = target_key, number

    def _forget_output(self, target_key: int, number: int, move: OpenMove) -> None:
        self.outputs_under_way -= 1
        self.outputs[move.offset] -= 1
        if not self.outputs[move.offset]:
            del self.outputs[move.offset]
        group = target_key >> 16, move.key
        if self.last_of_group.get(group) == (target_key, number):
            del self.last_of_group[group]

    def to_send(self, target_key: int, committed: int, count_max: int) -> list[tuple[int, OpenMove]]:
        """Return the first moves to a partition that are not settled, none above the number `committed`."""
        pair = self.out.get(target_key)
        some = islice(pair.open.items(), count_max) if pair is not None else ()
        return [(number, move) for number, move in some if number <= committed]

    def came(self, source_key: int) -> MovesIn:
        """Return what came from a partition."""
        pair = self.into.get(source_key)
        if pair is None:
            pair = self.into[source_key] = MovesIn(source_key)
        return pair

    def withdraw(self, source_key: int, settled_below: int, numbers: Sequence[int]) -> None:
        """Messages that would have come do not; what is below `settled_below` is asked for no more."""
        pair = self.came(source_key)
        pair.last = numbers[-1]
        pair.withdrawn = [number for number in pair.withdrawn if number >= settled_below]
        pair.withdrawn += numbers

    def leave_below(self, stop: int) -> list[int]:
        """Forget messages that are gone; return which of them were leaving. Their numbers are still to be settled."""
        gone = [sequence for sequence in self.leaving if sequence < stop]
        for sequence in gone:
            del self.leaving[sequence]
        return gone

    def forget_settled_groups(self) -> None:
        """Forget what groups no longer follow."""
        last = self.last_of_group
        self.last_of_group = {
            group: (key, number) for group, (key, number) in last.items() if number in self.out[key].open
        }

    def to_bytes(self) -> bytes:
        """Return everything as it is now, for a snapshot."""
        out = [
            (pair.target_key, pair.journal_id, pair.last, {at: move.row() for at, move in pair.open.items()})
            for pair in self.out.values()
        ]
        return _encode((out, list(self.into.values())))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, is_live: Callable[[int], bool]) -> PartitionMoves:
        """Rebuild the moves from `to_bytes`. `is_live` says which messages exist."""
        state = _decode(data)
        moves = cls()
        moves.out = {pair.target_key: pair for pair in state.out}
        moves.into = {pair.source_key: pair for pair in state.into}
        moves.leaving = {
            move.sequence: move
            for pair in state.out
            for move in pair.open.values()
            if not move.is_output and is_live(move.sequence)
        }
        outputs = [
            (move.offset, move.at, pair.target_key, number, move)
            for pair in state.out
            for number, move in pair.open.items()
            if move.is_output
        ]
        for _, _, target_key, number, move in sorted(outputs, key=lambda output: output[:2]):
            moves._note_output(target_key, number, move)
        return moves

    def content(self) -> list[object]:
        """Return what a hash of the state is taken of."""
        return [
            [
                (
                    pair.target_key,
                    pair.journal_id,
                    pair.last,
                    [(number, move.row()) for number, move in pair.open.items()],
                )
                for _, pair in sorted(self.out.items())
            ],
            [(pair.source_key, pair.last, pair.withdrawn) for _, pair in sorted(self.into.items())],
        ]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_MovesState).decode
