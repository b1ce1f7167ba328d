"""The queues' state on disk: what a snapshot holds, and how a start rebuilds the state from it.

A snapshot is one blob for each partition, and only those that changed are written. Each carries its own applied
offset, so they need not be taken at one moment: a long snapshot is spread over many turns of the event loop, and
a replay skips for each partition what its blob has. The blobs of a snapshot are published only when everything
in them is committed, because the leader's state runs ahead.

    key   partition key u64 (queue id << 16 | partition)
    blob  version u8 · definition length u32 · definition · partition state (core/partition/partition_snapshots)
    meta  MessagePack: last stamp · highest ids (core/values/queues/queue_marks)

To change a blob, or the partition's state in it: add a version to BLOB_VERSIONS, by the recipe in
`core/values/formats`. Other replicas copy snapshots, so they are written in the form that all of the cell read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_snapshots import (
    STATE_VERSION,
    load_partition,
    snapshot_pieces,
    state_version_min,
)
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import ChunkKeeper
from quaymaster.core.values.formats import FORMAT_MAX, UnknownFormat, Versions, version_in
from quaymaster.core.values.queues.queue_definitions import decode_queue_definition, encode_queue_definition
from quaymaster.core.values.queues.queue_marks import QueueMarks

BLOB_VERSIONS: Final[Versions] = {1: 3, 2: 4, 3: 5, 7: 6, 8: 7}
_VERSIONS_READ = frozenset(BLOB_VERSIONS.values())
BLOB_VERSION = version_in(BLOB_VERSIONS, FORMAT_MAX)

_KEY = struct.Struct(">Q")
_HEAD = struct.Struct("<BI")


class SnapshotMeta(msgspec.Struct, array_like=True):
    """What a snapshot says besides its partitions."""

    last_time_ms: int
    marks: QueueMarks = msgspec.field(default_factory=QueueMarks)


_meta_encoder = msgspec.msgpack.Encoder()
_meta_decoder = msgspec.msgpack.Decoder(SnapshotMeta)


class UnknownSnapshotFormat(UnknownFormat):
    """The snapshot was written by another version of this program."""


def encode_key(key: int) -> bytes:
    """Return the snapshot key of a partition."""
    return _KEY.pack(key)


def encode_meta(meta: SnapshotMeta) -> bytes:
    """Return the bytes of a snapshot's meta."""
    return _meta_encoder.encode(meta)


def decode_meta(data: bytes) -> SnapshotMeta:
    """Read what `encode_meta` wrote."""
    return _meta_decoder.decode(data)


def encode_partition(partition: Partition, applied: int, *, version: int = BLOB_VERSION) -> Iterator[bytes]:
    """Return a partition's blob as of `applied`, and note that it is clean from there on.

    It comes in pieces, to be joined elsewhere: each takes a moment, and requests need not wait for all of them.
    """
    partition.applied = applied
    partition.note_saved()
    # More than the cell's format says: it was raised, which this process has not heard of yet.
    version = max(version, state_version_min(partition))
    definition = encode_queue_definition(partition.definition)
    pieces = snapshot_pieces(partition, min(version, STATE_VERSION))
    return chain((_HEAD.pack(version, len(definition)), definition), pieces)


def load_partitions(queues: QueueStates, blobs: Iterable[tuple[bytes, bytes]], keeper: ChunkKeeper) -> None:
    """Fill `queues` from a snapshot's blobs. Before anything is applied, `attach_groups`."""
    for key, blob in blobs:
        (number_and_queue,) = _KEY.unpack(key)
        version, length = _HEAD.unpack_from(blob)
        if version not in _VERSIONS_READ:
            raise UnknownSnapshotFormat(
                f"snapshot blob version {version} is not known; this program reads up to version {BLOB_VERSION}"
            )
        at = _HEAD.size
        definition = decode_queue_definition(blob[at : at + length])
        try:
            partition = load_partition(
                blob[at + length :],
                definition,
                number_and_queue & 0xFFFF,
                keeper,
                retry_window_ms=queues.retry_window_ms,
                id_limits=queues.id_limits,
            )
        except (msgspec.MsgspecError, ValueError) as error:
            raise UnknownSnapshotFormat(
                f"the snapshot of queue {definition.name} cannot be read: {error}. "
                "Start the version of Quaymaster that wrote it."
            ) from error
        queues.load(definition, [partition])
