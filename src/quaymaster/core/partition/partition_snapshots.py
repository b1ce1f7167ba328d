"""A partition's state as bytes: what a snapshot says of it, written a piece at a time, and read back whole.

Sections, each version u8 · section u8 · length u64 · so many bytes:

    STATE     what there is one of: `_State`, MessagePack
    others    what there may be many of, in any number of pieces each (`Section`)
    END       nothing

To change what is in them: a new STATE_VERSION, by the recipe in `core/values/formats`. Cells whose programs read older
ones only get those, as long as they can say everything there is.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec
from pyroaring import BitMap64

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import PartitionMoves
from quaymaster.core.partition.staged_messages import StagedMessages
from quaymaster.core.partition.staged_snapshots import Parts
from quaymaster.core.structures.deliveries import CLAIMED_MS, Attempt, InFlight, Returned
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.ids.settled_deliveries import SettledDeliveries
from quaymaster.core.structures.log_sizes import LogSizes, LogState
from quaymaster.core.structures.orders.claims import Claims
from quaymaster.core.structures.orders.fifo_order import FIFOOrder, GroupState
from quaymaster.core.structures.orders.index import ChunkKeeper, GroupIndex, SequenceIndex
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.structures.sequences import SequenceSet
from quaymaster.core.values.commands.move_tasks import MoveTask
from quaymaster.core.values.queues.queue_definitions import FIRST_SEQUENCE, QueueDefinition

STATE_VERSION = 7
STATE_VERSION_WITHOUT_SETTLED = 6
"""The same but for SETTLED, KEPT_IDS, KEPT_MESSAGES and resets, for cells whose programs know of one guarantee only."""
STATE_VERSION_WITHOUT_PARTITIONS = 5
"""The same but for seals and first sequences, too, for cells whose programs know of one partition a queue only."""
STATE_VERSION_WITHOUT_LOGS = 4
"""The same but for LOG and TRANSACTIONS, for cells whose programs know of neither."""
STATE_VERSION_WITHOUT_MOVES = 3
"""The same but for MOVES, too."""
_VERSIONS_READ = frozenset(range(STATE_VERSION_WITHOUT_MOVES, STATE_VERSION + 1))


class Section(IntEnum):
    """What a piece of a snapshot says. The state comes first, END last."""

    STATE = 1
    IN_FLIGHT = 2
    RETURNED = 3
    TIMERS = 4
    GROUPS = 5
    LINE = 6
    ATTEMPTS = 7
    DEDUP = 8
    RETRIES = 9
    END = 10
    MOVES = 11
    LOG = 12
    TRANSACTIONS = 13
    SETTLED = 14
    CLAIMS = 16
    KEPT_IDS = 17
    KEPT_MESSAGES = 18


class _State(msgspec.Struct, array_like=True):
    """What a snapshot says of a partition, but for what it may have many of: see `Section`.

    The order of the fields of this and of the rows' classes (`core/structures/deliveries`) is a format.
    """

    applied: int
    head: int
    deleted: bytes
    cursor: int
    stretches: list[int]
    passed: bytes
    own: bytes
    returned_order: bytes
    tenants_in_flight: dict[int, int]
    tasks: list[MoveTask]
    has_moved_in: bool
    index: bytes
    moved_in: int = 0
    deletions: int = 0
    counted_from: int = -1
    sealed_ms: int = 0
    first_sequence: int = FIRST_SEQUENCE
    resets: int = 0


PIECE_ROWS = 1_000


def snapshot_pieces(partition: Partition, version: int | None = None) -> Iterator[bytes]:
    """Return the whole state as it is now, for a snapshot, as bytes to be joined; `applied` says as of when.

    Each piece takes a moment of a large partition's time, and the state may change between them. One at a time
    is under way.
    """
    version = STATE_VERSION if version is None else version
    assert version >= state_version_min(partition), "a snapshot says everything that there is"
    order = partition.order
    moving = dict(partition.moving)
    state = _State(
        applied=partition.applied,
        head=partition.head,
        deleted=_bitmap_bytes(partition.deleted),
        cursor=order.cursor,
        stretches=[],
        passed=b"",
        own=b"",
        returned_order=b"",
        tenants_in_flight={},
        tasks=[msgspec.structs.replace(task) for task in partition.tasks],
        has_moved_in=partition.has_moved_in,
        index=partition.index.to_bytes(),
        moved_in=partition.moved_in,
        deletions=partition.deletions,
        counted_from=partition.counted_from,
        sealed_ms=partition.sealed_ms,
        first_sequence=partition.first_sequence,
        resets=partition.resets,
    )
    groups: Iterator[list[GroupState]] = iter(())
    line: Iterator[list[tuple[int, int]]] = iter(())
    if isinstance(order, FIFOOrder):
        groups, line = order.freeze(moving)
    else:
        state.passed = order.fresh().to_bytes()
        state.own = order.own.to_bytes()
        state.stretches = order.stretches
        # What was taken for a move is not decided yet: where this is loaded it is visible.
        state.returned_order = array("Q", moving).tobytes() + array("Q", order.returned).tobytes()
        state.tenants_in_flight = _tenants_in_flight(partition, order)
    attempts = list(partition.attempts.items())
    dedup = partition.ids.dedup.pieces() if partition.ids.dedup else []
    kept = partition.ids.kept
    retries = partition.ids.retries.pieces() if partition.ids.retries else []
    sections: list[tuple[Section, Iterator[Any]]] = [
        (Section.STATE, iter([state])),
        (Section.IN_FLIGHT, partition.in_flight.freeze()),
        (Section.RETURNED, partition.returned.freeze()),
        (Section.TIMERS, partition.timers.freeze()),
        (Section.GROUPS, groups),
        (Section.LINE, line),
        (
            Section.ATTEMPTS,
            (attempts[at : at + PIECE_ROWS] for at in range(0, len(attempts), PIECE_ROWS)),
        ),
        (Section.DEDUP, iter(dedup)),
        (Section.RETRIES, iter(retries)),
        (Section.MOVES, iter([partition.moves.to_bytes()] if partition.moves is not None else [])),
        (Section.LOG, iter([partition.sizes.state()] if partition.sizes is not None else [])),
        (Section.TRANSACTIONS, partition.staged.pieces() if partition.staged is not None else iter(())),
        (Section.KEPT_IDS, iter(kept.id_pieces() if kept is not None else [])),
        (Section.KEPT_MESSAGES, iter(kept.message_pieces() if kept is not None else [])),
        (Section.SETTLED, iter(partition.settled.pieces() if partition.settled is not None else [])),
        (Section.CLAIMS, iter(partition.claims.pieces() if partition.claims is not None else [])),
        (Section.END, iter([b""])),
    ]
    return _render(sections, version)


def state_version_min(partition: Partition) -> int:
    """Return the first version of the state that can hold what there is."""
    newest = (partition.settled, partition.claims, partition.ids.kept)
    if partition.resets or any(part is not None for part in newest):
        return STATE_VERSION
    if partition.number or partition.is_sealed or partition.first_sequence != FIRST_SEQUENCE:
        return STATE_VERSION_WITHOUT_SETTLED
    if partition.sizes is not None or partition.definition.group_of or partition.staged is not None:
        return STATE_VERSION_WITHOUT_PARTITIONS
    return STATE_VERSION_WITHOUT_MOVES if partition.moves is None else STATE_VERSION_WITHOUT_LOGS


def load_partition(
    data: bytes,
    definition: QueueDefinition,
    number: int,
    keeper: ChunkKeeper,
    *,
    retry_window_ms: int,
    id_limits: IdLimits = ID_LIMITS,
) -> Partition:
    """Rebuild the state from `snapshot_pieces`, joined. Index chunks are not read: the keeper may not be open yet.

    Raises ValueError when the bytes are not whole, msgspec.MsgspecError when they say something else.
    """
    sections = _parse(data)
    partition = Partition(definition, number, keeper, retry_window_ms=retry_window_ms, id_limits=id_limits)
    state = _load_state(partition, sections[Section.STATE][0], keeper)
    last_ms = 0
    for piece in sections[Section.IN_FLIGHT]:
        rows = _in_flight_decoder.decode(piece)
        partition.in_flight.load(rows)
        for sequence, row in rows.items():
            if row.deadline_ms != CLAIMED_MS:
                partition.wheel.add(sequence, row.deadline_ms)
            last_ms = max(last_ms, row.received_ms)
    for piece in sections[Section.RETURNED]:
        partition.returned.load(_returned_decoder.decode(piece))
    for piece in sections[Section.TIMERS]:
        for numbers in partition.timers.load(_timers_decoder.decode(piece)):
            for sequence in numbers:
                if partition.is_live(sequence):
                    partition.timed.add(sequence)
    for piece in sections[Section.ATTEMPTS]:
        partition.attempts.update(_attempts_decoder.decode(piece))
    if sections[Section.DEDUP]:
        partition.ids.load_dedup(b"".join(sections[Section.DEDUP]))
    if sections[Section.KEPT_MESSAGES]:
        partition.ids.load_kept(
            b"".join(sections[Section.KEPT_IDS]), b"".join(sections[Section.KEPT_MESSAGES])
        )
    if sections[Section.RETRIES]:
        partition.ids.load_retries(b"".join(sections[Section.RETRIES]))
    for piece in sections[Section.MOVES]:
        partition.moves = PartitionMoves.from_bytes(piece, partition.is_live)
    for piece in sections[Section.LOG]:
        partition.sizes = LogSizes.of_state(_log_decoder.decode(piece))
    if sections[Section.TRANSACTIONS]:
        partition.staged = StagedMessages.of_pieces(sections[Section.TRANSACTIONS])
    if sections[Section.SETTLED]:
        partition.settled = SettledDeliveries.from_bytes(
            b"".join(sections[Section.SETTLED]), id_limits.settled_ids_max
        )
    if sections[Section.CLAIMS]:
        partition.claims = Claims.of_pieces(sections[Section.CLAIMS])
    order = partition.order
    if isinstance(order, FIFOOrder):
        for piece in sections[Section.GROUPS]:
            order.load_groups(_groups_decoder.decode(piece))
        order.load_line(entry for piece in sections[Section.LINE] for entry in _line_decoder.decode(piece))
    else:
        order.load_in_flight(state.tenants_in_flight, last_ms)
    partition.dirty = False
    return partition


def _load_state(partition: Partition, data: memoryview, keeper: ChunkKeeper) -> _State:
    state = _state_decoder.decode(data)
    index: SequenceIndex
    if partition.definition.group_of:
        index = GroupIndex.of_bytes(state.index)
    else:
        tag = b"%d/%d" % (partition.definition.queue_id, partition.number)
        index = SequenceIndex.from_bytes(state.index, keeper, tag)
    deleted = BitMap64.deserialize(state.deleted) if state.deleted else BitMap64()
    partition.restore(index, state.head, deleted)
    partition.applied = state.applied
    partition.tasks = state.tasks
    partition.has_moved_in = state.has_moved_in
    partition.moved_in = state.moved_in
    partition.deletions = state.deletions
    partition.sealed_ms = state.sealed_ms
    partition.first_sequence = state.first_sequence
    partition.resets = state.resets
    partition.counted_from = state.applied if state.counted_from < 0 else state.counted_from
    order = partition.order
    order.cursor = state.cursor
    if isinstance(order, StandardOrder):
        order.passed = SequenceSet.from_bytes(state.passed)
        order.own = SequenceSet.from_bytes(state.own)
        order.load_stretches(state.stretches)
        order.returned.update(dict.fromkeys(array("Q", state.returned_order)))
    return state


def _tenants_in_flight(partition: Partition, order: StandardOrder) -> dict[int, int]:
    counts = {key: tenant.in_flight for key, tenant in order.tenants.items() if tenant.in_flight}
    for sequence in partition.moving if counts else ():
        key = partition.index.group(sequence)
        if counts.get(key):
            counts[key] -= 1
    return counts


def _bitmap_bytes(bitmap: BitMap64) -> bytes:
    if not bitmap:
        return b""
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def _render(sections: list[tuple[Section, Iterator[Any]]], state_version: int) -> Iterator[bytes]:
    encode = _encoder.encode
    for section, contents in sections:
        for content in contents:
            if isinstance(content, Parts):
                yield _SECTION.pack(state_version, section, content.size)
                yield from content.parts
                continue
            data = content if isinstance(content, bytes) else encode(content)
            yield _SECTION.pack(state_version, section, len(data))
            yield data


def _parse(data: bytes) -> dict[Section, list[memoryview]]:
    view = memoryview(data)
    sections: dict[Section, list[memoryview]] = {section: [] for section in Section}
    at = 0
    while at + _SECTION.size <= len(view):
        version, section, length = _SECTION.unpack_from(view, at)
        assert version in _VERSIONS_READ, f"partition state version {version} is not known"
        at += _SECTION.size + length
        sections[Section(section)].append(view[at - length : at])
    if at != len(view) or not sections[Section.END]:
        raise ValueError("the partition's state is cut off")
    return sections


_SECTION = struct.Struct("<BBQ")
_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(_State)
_in_flight_decoder = msgspec.msgpack.Decoder(dict[int, InFlight])
_returned_decoder = msgspec.msgpack.Decoder(dict[int, Returned])
_timers_decoder = msgspec.msgpack.Decoder(list[tuple[int, bytes]])
_attempts_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, Attempt]])
_groups_decoder = msgspec.msgpack.Decoder(list[GroupState])
_log_decoder = msgspec.msgpack.Decoder(LogState)
_line_decoder = msgspec.msgpack.Decoder(list[tuple[int, int]])
