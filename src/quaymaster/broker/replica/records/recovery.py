"""From a directory to the state it holds: snapshot, journal, replay.

    <data>/journals/<id>/                  segments (broker/storage/journal_files)
                         snapshots/        blobs and manifests (broker/storage/snapshots)
                         index.chunks      chunks of the partitions' indexes (broker/storage/chunk_store): derived
                         index.damaged     a chunk could not be read: look at all of them at the next start

The index is derived from the journal. Chunks that are lost are rebuilt from the segments' record tables.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from quaymaster.broker.storage.chunk_store import ChunkLost, ChunkStore
from quaymaster.broker.storage.disk import Disk, is_full, write_file_durably
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_recovery import NOTHING_EXPECTED, Expected
from quaymaster.broker.storage.journal_state import JournalCorrupt, lock_directory
from quaymaster.broker.storage.snapshots import MANIFEST_VERSIONS, Snapshot, SnapshotStore
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.broker.storage.state_store import (
    BLOB_VERSIONS,
    decode_meta,
    encode_key,
    encode_partition,
    load_partitions,
)
from quaymaster.core.partition.partition import Partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import entry_of_record, find_message
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.index import (
    ChunkKeeper,
    IndexRebuild,
    NoRoomForChunk,
    ScatteredRebuild,
)
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.records import MESSAGE_TYPES, iterate_rows
from quaymaster.monitoring.logs import log_event

INDEX_NAME = "index.chunks"
DAMAGED_NAME = "index.damaged"
SCATTERED_CHUNKS_MAX = 256
"""Where records lie scattered, so many chunks of a partition, 160 KB each, are rebuilt by one look at the journal."""

log = logging.getLogger(__name__)


class IndexChunks:
    """The chunk file as the partitions see it; it can be opened once the snapshot has said what is in use."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._store: ChunkStore | None = None

    @property
    def store(self) -> ChunkStore:
        """The open chunk file."""
        assert self._store is not None, "the chunk file is opened before it is used"
        return self._store

    def open(self, live_slots: Iterable[int]) -> None:
        """Open the file; slots that are not live may be written again."""
        self._store = ChunkStore.open(self._disk, f"{self._directory}/{INDEX_NAME}", live_slots=live_slots)

    def write(self, tag: bytes, data: bytes) -> int | None:
        """Store a chunk; return its slot, None on a full disk: the journal goes on, and the chunk waits in memory."""
        try:
            return self.store.write(tag, data)
        except OSError as error:
            if not is_full(error):
                raise
            return None

    def read(self, number: int, tag: bytes) -> bytes:
        """Return a chunk. When it is lost, the next start is told to look at all of them."""
        try:
            return self.store.read(number, tag)
        except ChunkLost as error:
            with suppress(OSError):
                write_file_durably(self._disk, self._directory, DAMAGED_NAME, f"{error}\n".encode())
            raise

    def free(self, number: int) -> None:
        """Give a slot up."""
        self.store.free(number)


@dataclass(slots=True)
class Recovered:
    """A journal that was opened, and the state it gives."""

    files: JournalFiles
    snapshots: SnapshotStore
    chunks: ChunkStore
    queues: QueueStates
    base_offset: int
    last_time_ms: int
    replayed_records: int
    warnings: list[str]
    start: Position
    """Where the snapshot ends: what is below is committed."""
    positions: list[Position]
    """Where the batches end that were replayed."""

    @property
    def end_offset(self) -> int:
        """Up to where the queues are what the journal says."""
        return self.positions[-1].end if self.positions else self.start.end

    def replay(self) -> None:
        """Apply what the journal has behind that. Blocks."""
        for header, data in self.files.read_batches(self.end_offset):
            self.last_time_ms = max(self.last_time_ms, header.time_ms)
            self.positions.append(Position(header.next_offset, header.epoch, header.chain))
            for row in iterate_rows(data, header):
                self.queues.apply(row, data[row.position : row.position + row.length], header.epoch)
                self.replayed_records += 1
        self.queues.unfinished.finish()


MakeQueues = Callable[[ChunkKeeper], QueueStates]
"""Makes the queues that a journal is replayed into, with what they need to know besides its records."""


def recover(
    disk: Disk,
    directory: str,
    *,
    journal_id: int,
    limits: JournalLimits,
    make_queues: MakeQueues,
    expected: Expected = NOTHING_EXPECTED,
) -> Recovered:
    """Open the journal in `directory` and rebuild its queues. Blocks; see `JournalFiles.open` for errors."""
    path = f"{directory}/{journal_id}"

    def open_and_load() -> Recovered:
        disk.make_directory(path)
        lock = lock_directory(disk, path)  # before anything is loaded: loading removes what it does not need
        opened: list[JournalFiles] = []

        def open_files(durable_floor: int) -> JournalFiles:
            known = expected._replace(durable_floor=durable_floor)
            opened.append(
                JournalFiles.open(disk, path, journal_id=journal_id, limits=limits, expected=known, lock=lock)
            )
            return opened[0]

        try:
            return _load(disk, path, open_files, make_queues)
        except Exception:
            for files in opened:
                files.close()
            lock.close()  # for the next try: what was raised keeps everything alive that it has passed
            raise

    return _twice(open_and_load)


def rebuild(disk: Disk, files: JournalFiles, directory: str, make_queues: MakeQueues) -> Recovered:
    """Rebuild the queues of an open journal, up to where it ends now. Blocks; batches may be written meanwhile.

    The queues, snapshots and chunks of before must not be used any more.
    """
    path = f"{directory}/{files.journal_id}"
    return _twice(lambda: _load(disk, path, lambda durable_floor: files, make_queues))


def _twice(load: Callable[[], Recovered]) -> Recovered:
    with suppress(ChunkLost):
        return load()
    # The replay needed a chunk that is lost, and has left the mark: now all of them are looked at first.
    return load()


def _load(
    disk: Disk, path: str, open_files: Callable[[int], JournalFiles], make_queues: MakeQueues
) -> Recovered:
    """Load the newest snapshot and replay what is behind it. `open_files` takes the floor that the snapshot knows."""
    snapshots = SnapshotStore(disk, f"{path}/snapshots")
    snapshot = snapshots.load()
    chunks = IndexChunks(disk, path)
    queues = make_queues(chunks)
    base_offset = last_time_ms = durable_floor = 0
    if snapshot is not None:
        base_offset, durable_floor = snapshot.base_offset, snapshot.durable_floor
        meta = decode_meta(snapshot.meta)
        last_time_ms = meta.last_time_ms
        queues.marks.raise_to(*msgspec.structs.astuple(meta.marks))
        load_partitions(queues, snapshot.blobs, chunks)
    slots = [slot for found in queues.partitions.values() for slot in found.index.chunk_numbers()]
    if slots and (snapshots.warnings or not disk.exists(f"{path}/{INDEX_NAME}")):
        # An older snapshot counts, whose chunks may have been written over, or the file is gone: look at all.
        write_file_durably(disk, path, DAMAGED_NAME, b"\n")
    chunks.open(slots)
    files = open_files(durable_floor)
    warnings = [*snapshots.warnings, *files.warnings]
    if base_offset < files.start_offset:
        raise JournalCorrupt(
            f"{path}: the journal starts at offset {files.start_offset}, and the newest snapshot that can be read "
            f"ends at {base_offset}. What lies between is missing. Restore the directory from a backup."
        )
    if snapshot is not None and disk.exists(f"{path}/{DAMAGED_NAME}"):
        rebuilt = rebuild_index(queues, files)
        if rebuilt:
            warnings.append(f"{rebuilt} chunks of the message index were lost and made anew")
            _write_rebuilt(queues, chunks.store, snapshots, snapshot)
        disk.unlink(f"{path}/{DAMAGED_NAME}")
    start = files.position_at(base_offset)
    if start is None:
        raise JournalCorrupt(
            f"{path}: the newest snapshot that can be read ends at {base_offset}, where no batch of the journal ends. "
            "Restore the directory from a backup or another replica."
        )
    recovered = Recovered(
        files, snapshots, chunks.store, queues, base_offset, last_time_ms, 0, warnings, start, []
    )
    queues.attach_groups()
    recovered.replay()
    return recovered


def _write_rebuilt(
    queues: QueueStates, chunks: ChunkStore, snapshots: SnapshotStore, snapshot: Snapshot
) -> None:
    """Write the snapshot that was loaded once more, with the rebuilt chunks in the place of the lost ones."""
    chunks.snapshot_begun()
    changed = {
        encode_key(key): b"".join(
            encode_partition(
                queues.partitions[key],
                queues.partitions[key].applied,
                version=queues.cell_format.version_of(BLOB_VERSIONS),
            )
        )
        for key in queues.dirty_keys()
    }
    chunks.sync()
    snapshots.write(
        snapshot.base_offset,
        changed,
        [],
        snapshot.meta,
        durable_floor=snapshot.durable_floor,
        version=queues.cell_format.version_of(MANIFEST_VERSIONS),
    )
    chunks.snapshot_published()


def rebuild_index(queues: QueueStates, files: JournalFiles) -> int:
    """Rebuild every index chunk that cannot be read from the journal; return how many there were."""
    count, is_done = 0, False
    while not is_done:
        is_done = True
        rebuilds: dict[int, tuple[Partition, IndexRebuild | ScatteredRebuild]] = {}
        for key, partition in queues.partitions.items():
            firsts = partition.index.lost_chunks(ChunkLost)
            if firsts:
                order = partition.order
                groups = order.known_groups() if isinstance(order, FIFOOrder) else {}
                # Staged messages lie in front of their commit: their records are not in the order of their numbers.
                if partition.staged is not None and len(partition.staged.runs):
                    some = firsts[:SCATTERED_CHUNKS_MAX]
                    is_done = is_done and len(some) == len(firsts)
                    rebuilds[key] = partition, ScatteredRebuild(partition.index, some, groups)
                else:
                    some = firsts
                    rebuilds[key] = partition, IndexRebuild(partition.index, some, groups)
                partition.note_change()
                count += len(some)
        if not rebuilds:
            break
        log_event(log, logging.WARNING, "index rebuild started", partitions=len(rebuilds))
        try:
            _fill(rebuilds, files)
        except NoRoomForChunk as error:
            raise OSError(errno.ENOSPC, "no room to make the message index anew", INDEX_NAME) from error
    return count


def _fill(
    rebuilds: dict[int, tuple[Partition, IndexRebuild | ScatteredRebuild]], files: JournalFiles
) -> None:
    for header, data in files.read_batches(files.start_offset):
        for row in iterate_rows(data, header):
            if row.type not in MESSAGE_TYPES:
                continue
            wanted = rebuilds.get(partition_key(row.queue_id, row.partition))
            if wanted is None:
                continue
            sequence, run = find_message(wanted[0], row)
            if sequence < wanted[0].head or not wanted[1].wants(sequence):
                continue
            payload = data[row.position : row.position + row.length]
            wanted[1].fill(sequence, entry_of_record(row, payload, run))
    for _, rebuild in rebuilds.values():
        rebuild.finish()


__all__ = ["ChunkLost", "IndexChunks", "Recovered", "rebuild_index", "recover"]
