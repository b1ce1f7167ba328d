"""One journal's directory, open: batches written at its end, promises, cuts, compaction, copies.

    <directory>/lock                      held while the journal is open
                journal.state             identity, promised epoch, start, durable floor (journal_state)
                00000000000000000000.seg  segments, named by base offset; the last one is active
                next-segment-1.tmp        prepared ahead of need; deleted at open, like every *.tmp
                reserve, spare-0          room kept for a full disk (space)
                tainted                   an fsync failed: the next open copies what verifies to fresh files
                cut                       the journal is being cut at an offset: the next open goes on with that
                queue.time                how queue time runs in this boot of the machine (time_file)

What is found there at a start: journal_recovery. Reading: journal_reading.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk, FileHandle, is_full
from quaymaster.broker.storage.journal_reading import JournalReader
from quaymaster.broker.storage.journal_recovery import (
    NOTHING_EXPECTED,
    Expected,
    RecoveredSegments,
    recover_segments,
)
from quaymaster.broker.storage.journal_state import (
    CUT_NAME,
    STATE_NAME,
    TAINTED_NAME,
    JournalClosed,
    JournalState,
    header_at,
    lock_directory,
    render_state,
    write_state,
)
from quaymaster.broker.storage.segment_compaction import CompactionResult, copy_kept, damaged_records
from quaymaster.broker.storage.segment_life import close_segment, cut_files, make_segment, scan_to_end
from quaymaster.broker.storage.segments import (
    DATA_AT,
    SEGMENT_COMPACTED,
    RecordUnreadable,
    Segment,
    SegmentDamaged,
    iterate_batches,
    render_footer,
    render_header,
    segment_name,
)
from quaymaster.broker.storage.space import SPARE_BYTES, JournalLimits
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.values.records import (
    HEADER_BYTES,
    Batch,
    BatchHeader,
    CorruptBatch,
    RecordRow,
    chain_after,
    decode_header,
)

ACTIVE_LEFT_SHARE = 4
"""The last quarter of the active segment is not counted on: what is on its way when the disk is full goes there."""


class JournalFiles(JournalReader):
    """A journal's files. One thread appends, any thread reads; opened with `open`, never built directly.

    `end_offset` and `end_chain` cover what was written, `durable_end` what was fsynced. After the first
    failed write or fsync `failure` is set and every further write raises JournalClosed.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        limits: JournalLimits,
        recovered: RecoveredSegments,
        lock: FileHandle,
        *,
        is_replicated: bool,
    ) -> None:
        super().__init__(disk, recovered.segments)
        self._directory = directory
        self._limits = limits
        self._state = recovered.state
        self._lock: FileHandle | None = lock
        self._change_lock = threading.Lock()  # the list of segments
        self._state_lock = threading.Lock()  # the state file
        self._sync_lock = threading.Lock()  # so that no thread misses an fsync error another was told of
        self._maintenance_lock = threading.Lock()  # compaction and dropping; close waits for them
        self._closing = False
        self._closed = False
        active = recovered.segments[-1]
        self.space = recovered.space
        self.warnings = recovered.warnings
        self.failure: OSError | None = None
        self.end_chain = active.end_chain
        self.last_epoch = active.end_epoch
        self.durable_end = 0
        self.durable_floor = recovered.state.durable_floor
        self.truncations = 0
        """How often the journal was cut since it was opened."""
        self.is_replicated = is_replicated

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str | os.PathLike[str],
        *,
        journal_id: int,
        limits: JournalLimits | None = None,
        expected: Expected = NOTHING_EXPECTED,
        lock: FileHandle | None = None,
    ) -> JournalFiles:
        """Open or format the journal in a directory: lock it, recover it, and make all of it durable.

        An owner with other files in the directory takes the lock first (`lock_directory`) and hands it over.

        Afterwards `warnings` says what an operator should be told.

        Raises JournalCorrupt, JournalEndsEarly (it ends below the noted floor), DirectoryInUse, OSError. Nothing is
        changed when it raises one of the first two.
        """
        path = os.fspath(directory).rstrip("/")
        limits = limits or JournalLimits()
        disk.make_directory(path)
        lock = lock or lock_directory(disk, path)
        recovered = recover_segments(disk, path, journal_id=journal_id, limits=limits, expected=expected)
        journal = cls(disk, path, limits, recovered, lock, is_replicated=expected.is_replicated)
        journal._settle()
        return journal

    def _settle(self) -> None:
        """Make what was found durable: after kill -9 the last writes may be in memory only."""
        active = self._segments[-1]
        try:
            self._disk.sync(active.open_file(self._disk).fd)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            self.fail(error)  # the next open must not take what it reads for what is on the disk
            raise
        self.durable_end = self.durable_floor = self.end_offset
        self.space.note_segment(min(active.capacity, self._limits.segment_bytes_max))
        self.space.check()

    @property
    def state(self) -> JournalState:
        """What the state file says."""
        return self._state

    @property
    def storage_id(self) -> bytes:
        """The 16 bytes that name this copy; new when it is formatted, and after an fsync error."""
        return self._state.storage_id

    @property
    def journal_id(self) -> int:
        """Which journal this is a copy of."""
        return self._state.journal_id

    @property
    def promised_epoch(self) -> int:
        """The highest epoch promised; lower ones are refused, across restarts."""
        return self._state.promised_epoch

    @property
    def room(self) -> DiskPressure:
        """How much room there is for batches, as of the last look."""
        room = self.space.room
        if room is DiskPressure.NONE:
            active = self._segments[-1]
            if active.capacity - active.data_end > active.capacity // ACTIVE_LEFT_SHARE:
                return DiskPressure.RESERVE
        return room

    @property
    def group_bytes_max(self) -> int:
        """How many bytes one group commit should not go beyond."""
        return self._limits.group_bytes_max

    # Writing: one thread.

    def append(self, batches: Sequence[Batch]) -> None:
        """Write batches at the journal's end; they are readable at once and durable after `sync`.

        Raises OSError (is_full) when there is no room for another segment: `end_offset` then says which
        batches were written, and the rest may be given again later. Any other failure stops the journal for
        good.
        """
        self._check_running()
        segment = self._segments[-1]
        position = segment.data_end
        buffers: list[bytes] = []
        headers: list[BatchHeader] = []
        offset, chain = self.end_offset, self.end_chain
        for batch in batches:
            data = batch.data
            header = decode_header(data)
            assert len(data) == header.length, "a batch is as long as its header says"
            assert header.base_offset == offset, (
                f"a batch with base offset {header.base_offset} was given where {offset} is due"
            )
            assert header.chain == chain_after(chain, header.epoch, offset, header.span, header.crc), (
                f"the batch at {offset} does not continue the journal's chain"
            )
            if position + len(data) > segment.capacity:
                self._write(segment, buffers, headers)
                segment = self._roll(DATA_AT + len(data))
                buffers, headers = [], []
                position = segment.data_end
            buffers.append(data)
            headers.append(header)
            position += len(data)
            offset, chain = header.next_offset, header.chain
        self._write(segment, buffers, headers)

    def sync(self) -> int:
        """Make everything written so far durable and return the durable end.

        The first failure stops the journal for good and marks its directory tainted: after a failed fsync the
        system may have forgotten which pages never reached the disk, so no later success means anything.
        """
        self._check_running()
        end = self.end_offset
        if end > self.durable_end:
            self._sync_segment(self._segments[-1])
            self.durable_end = end
            self.durable_floor = end
        return self.durable_end

    def persist_promise(self, epoch: int) -> None:
        """Promise to refuse epochs below `epoch`; returns when that, and the whole log, is durable."""
        assert epoch >= self.promised_epoch, f"epoch {epoch} is below the promised {self.promised_epoch}"
        end = self.end_offset
        self._check_running()
        self._sync_segment(self._segments[-1])  # what a promise says of the log must survive a power cut
        with self._state_lock:
            self._write_state(
                replace(
                    self._state,
                    promised_epoch=max(epoch, self._state.promised_epoch),
                    durable_floor=max(end, self._state.durable_floor),
                )
            )

    def truncate(self, end: int) -> None:
        """Cut everything behind the batch that ends at `end`; what is left is durable when it returns.

        Only what is not committed is ever cut, so never what was compacted. The mark is durable first: a crash in
        the middle finds it, and the next open goes on.
        """
        self._check_running()
        assert end <= self.end_offset, f"the journal ends at {self.end_offset}, before {end}"
        with self._change_lock, self._state_lock:
            # The floor first: what is cut must not be missed when a crash comes before the end.
            self._write_state(replace(self._state, durable_floor=min(end, self._state.durable_floor)))
            with self._stop_on_failure():
                self.space.put(CUT_NAME, b"%d\n" % end)
            self._cut(end)

    def _cut(self, end: int) -> None:
        with self._sync_lock, self._stop_on_failure(full_too=True):
            bases = [segment.base_offset for segment in self._segments]
            kept = len(cut_files(self._disk, self._directory, bases, end))
            last = self._segments[kept - 1]
            fresh = Segment(last.path, last.header, self._disk.size(last.open_file(self._disk).fd))
            fresh.hold_file(last.open_file(self._disk))
            scan_to_end(self._disk, fresh, self._limits)
            self._set_segments((*self._segments[: kept - 1], fresh))
            assert fresh.end_offset == end, (
                f"no batch ends at {end}; the journal was cut at {fresh.end_offset}"
            )
            self._disk.unlink(f"{self._directory}/{CUT_NAME}")
            self._disk.sync_directory(self._directory)
            self.end_offset, self.end_chain, self.last_epoch = end, fresh.end_chain, fresh.end_epoch
            self.durable_end = end
            self.durable_floor = min(end, self.durable_floor)
            self.truncations += 1

    def persist_floor(self) -> None:
        """Write down how far the journal is durable, so that damage below is never taken for a torn write.

        OSError (is_full) on a full disk: a note is worth no spare.
        """
        with self._state_lock:
            if self.durable_floor > self._state.durable_floor:
                self._check_running()
                state = replace(self._state, durable_floor=self.durable_floor)
                with self._stop_on_failure():
                    write_state(self._disk, self._directory, state)
                self._state = state

    def persist_floor_if_due(self) -> None:
        """Write down the durable floor once for each new segment, so that a lost last segment is noticed.

        Where batches come from other replicas, whose floors say nothing of this disk, each time.
        """
        if self.is_replicated or self._segments[-1].base_offset > self._state.durable_floor:
            self.persist_floor()

    def close(self) -> None:
        """Make everything durable, note it, and let go of the directory. A failed journal only lets go."""
        self._closing = True  # a compaction gives up at its next batch
        with self._maintenance_lock:
            if self._closed:
                return
            try:
                if self.failure is None:
                    self.sync()
                    self._note_floor()
            finally:
                self._closed = True
                self.space.close()
                for segment in self._segments:
                    segment.release_file()
                self._lock = None

    def _note_floor(self) -> None:
        try:
            self.persist_floor()
        except (
            OSError
        ) as error:  # all is durable, and the floor is only a note of it: a full disk may lack it
            if not is_full(error):
                raise

    def fail(self, error: OSError) -> None:
        """Stop for good after a failed write or fsync, and mark the directory for the next open."""
        if self.failure is None:
            self.failure = error
            with suppress(OSError):  # on a full disk, too: a spare is there for it
                self.space.put(TAINTED_NAME, f"{error}\n".encode()[:SPARE_BYTES])

    def repair_record(self, offset: int, payload: bytes) -> None:
        """Write a record's payload, as another replica has it, over what is damaged here, durably.

        The record's own row says what it must be. Raises RecordUnreadable when it is not that, or there is no row.
        """
        with self._maintenance_lock:  # the segment is not rewritten meanwhile
            self._check_running()
            segment, position, row = self._locate(offset)
            if len(payload) != row.length or crc32c(payload) != row.crc:
                raise RecordUnreadable(offset, "what another replica has is not what was written here")
            self._disk.write(segment.open_file(self._disk).fd, payload, position)
            self._sync_segment(segment)

    def repair_stretch(self, start: int, end: int, batches: Sequence[Batch]) -> None:
        """Write whole batches, as another replica has them, over a stretch that is damaged here, durably.

        The chain says that they are what was written: it must come from what is before, and lead to what is behind.
        What was sound becomes what it was, so a crash in the middle leaves nothing worse. Raises RecordUnreadable
        when they are not that.
        """
        with self._maintenance_lock:  # the segment is not rewritten meanwhile
            self._check_running()
            segment, entry = self._entry_of(start)
            positions = segment.index_positions
            position = positions[entry]
            is_last = entry + 1 == len(positions)
            room = (segment.data_end if is_last else positions[entry + 1]) - position
            data = b"".join(batch.data for batch in batches)
            if self.stretch_of(start) != (start, end) or len(data) != room:
                raise RecordUnreadable(start, "what another replica has does not fit here")
            chain = self._chain_before(segment, entry)
            for batch in batches:
                header = decode_header(batch.data)
                if chain is not None and header.chain != chain_after(
                    chain, header.epoch, header.base_offset, header.span, header.crc
                ):
                    raise RecordUnreadable(start, "what another replica has does not follow what is here")
                chain = header.chain
            if chain != self._chain_at_end(segment, entry, chain):
                raise RecordUnreadable(start, "what another replica has does not lead to what is here")
            self._disk.write(segment.open_file(self._disk).fd, data, position)
            self._sync_segment(segment)

    def _chain_before(self, segment: Segment, entry: int) -> int | None:
        """Return the chain value in front of an index entry; None when what is there cannot be read."""
        if entry == 0:
            return segment.header.start_chain
        positions = segment.index_positions
        chain: int | None = None
        with suppress(SegmentDamaged):
            for _, header, _ in iterate_batches(self._disk, segment, positions[entry - 1], positions[entry]):
                chain = header.chain
            return chain
        return None

    def _chain_at_end(self, segment: Segment, entry: int, chain: int | None) -> int | None:
        """Return `chain` if what is behind an index entry continues it, else what does not."""
        if entry + 1 == len(segment.index_positions):
            return segment.end_chain
        page = self._disk.read(
            segment.open_file(self._disk).fd, HEADER_BYTES, segment.index_positions[entry + 1]
        )
        try:
            header = decode_header(page)
        except CorruptBatch:
            return None
        if chain is not None and header.chain == chain_after(
            chain, header.epoch, header.base_offset, header.span, header.crc
        ):
            return chain
        return None

    def damaged_records(self) -> tuple[list[int], list[RecordUnreadable]]:
        """Read everything; return the records whose payloads are damaged, and where a batch's table is. Blocks."""
        found: list[int] = []
        batches: list[RecordUnreadable] = []
        for segment in self._segments:
            try:
                found += damaged_records(self._disk, segment)
            except RecordUnreadable as error:
                batches.append(error)
        return found, batches

    # Making room: one background thread.

    def compact(
        self, base_offset: int, keep: Callable[[RecordRow], bool], *, last_base_offset: int | None = None
    ) -> CompactionResult:
        """Rewrite a closed segment so that only records stay for which `keep` says so.

        Offsets and the chain at both ends stay. With `last_base_offset` the neighbours up to that segment are
        merged into the same file (a fully dead segment thus disappears into its neighbour). Only for segments
        below snapshot and commit. Readers inside the old files are not disturbed.

        Raises RecordUnreadable when a record to keep is damaged or the disk cannot read it, and OSError
        (is_full) on a full disk, and JournalClosed when the journal is being closed; nothing has changed
        then. Any other OSError has stopped the journal for good.
        """
        with self._maintenance_lock:
            self._check_running()
            return self._compact(
                base_offset, keep, base_offset if last_base_offset is None else last_base_offset
            )

    def _compact(
        self, base_offset: int, keep: Callable[[RecordRow], bool], last_base_offset: int
    ) -> CompactionResult:
        segments = self._segments_between(base_offset, last_base_offset)
        temporary = f"{self._directory}/compaction.tmp"
        first, last = segments[0], segments[-1]
        compacted = Segment(
            first.path,
            replace(
                first.header,
                flags=first.header.flags | SEGMENT_COMPACTED,
                storage_id=self.storage_id,
                end_offset=last.end_offset,
                end_chain=last.end_chain,
                end_epoch=last.end_epoch,
            ),
            0,
        )
        handle = FileHandle(self._disk, self._disk.open(temporary, create=True))
        try:
            kept, dropped = copy_kept(
                self._disk,
                segments,
                keep,
                compacted,
                limits=self._limits,
                go_on=self._check_open,
                write=partial(self._write_aside, handle),
            )
            footer = render_footer(compacted)
            compacted.header = replace(compacted.header, data_end=compacted.data_end)
            with self._stop_on_failure():
                self._disk.write(handle.fd, footer, compacted.data_end)
                self._disk.write(handle.fd, render_header(compacted.header), 0)
                self._disk.sync(handle.fd)
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise
        compacted.capacity = compacted.data_end + len(footer)
        compacted.is_closed = True
        compacted.hold_file(handle)
        with self._change_lock, self._stop_on_failure():
            for segment in segments:  # a reader inside the old file must not open the new one under its name
                segment.open_file(self._disk)
            self._disk.rename(temporary, first.path)
            number = self._segments.index(first)
            rest = self._segments[number + len(segments) :]
            self._set_segments((*self._segments[:number], compacted, *rest))
        with self._stop_on_failure():
            self._disk.sync_directory(self._directory)  # before anything the new file replaces goes
            for segment in segments[1:]:
                self._disk.unlink(segment.path)
            if len(segments) > 1:
                self._disk.sync_directory(self._directory)
        before = sum(segment.data_end - DATA_AT for segment in segments)
        return CompactionResult(kept, dropped, before, compacted.data_end - DATA_AT)

    def list_data_keys(self, segment: Segment, key_ids: array[int]) -> None:
        """Note which data keys the messages of a closed segment name, in its footer too; not if it was replaced.

        As any footer, it is not fsynced and allowed to fail.
        """
        with self._maintenance_lock, self._change_lock:  # its file is neither rewritten nor cut meanwhile
            if self.failure is None and not self._closed and segment in self._segments[:-1]:
                segment.data_key_ids = key_ids
                close_segment(self._disk, segment)

    def drop_before(self, offset: int) -> None:
        """Delete whole segments below `offset`; only called past a snapshot durable on this replica."""
        with self._maintenance_lock, self._change_lock:
            self._check_running()
            number = 0
            while number < len(self._segments) - 1 and self._segments[number].end_offset <= offset:
                number += 1
            dropped = self._segments[:number]
            if not dropped:
                return
            with self._state_lock:  # first: segments missing below the start are fine, above it damage
                self._write_state(replace(self._state, start_offset=self._segments[number].base_offset))
            for segment in dropped:
                self._disk.unlink(segment.path)
            self._set_segments(self._segments[number:])
        self._disk.sync_directory(self._directory)

    def segment_files(self, until: int | None = None) -> tuple[int, Position, list[tuple[str, int]]]:
        """Return the journal's start, where what is durable ends, and name and bytes of each file up to there.

        `until`: up to this offset, where a batch ends that is durable and was never compacted.
        """
        with self._change_lock:
            segments, bases = self._view
            durable_end = min(self.durable_end, segments[-1].end_offset)
            end = durable_end if until is None else until
            assert end <= durable_end, f"the journal is durable up to {durable_end}, not {end}"
            number = bisect_right(bases, end) - 1
            found = [
                (segment_name(segment.base_offset), self._disk.size(segment.open_file(self._disk).fd))
                for segment in segments[:number]
            ]
        # Without the lock: no one waits for what is read, and what is durable stays as it is.
        data_end, last = self._last_batch_below(segments[number], end)
        found.append((segment_name(segments[number].base_offset), data_end))
        return segments[0].base_offset, last, found

    def _last_batch_below(self, segment: Segment, end: int) -> tuple[int, Position]:
        """Return where in a segment, and in the journal, the last batch ends that reaches no further than an offset."""
        data_end = DATA_AT
        last = Position(segment.base_offset, segment.header.start_epoch, segment.header.start_chain)
        entry = bisect_right(segment.index_offsets, end - 1) - 1
        if entry < 0 or end == segment.base_offset:
            return data_end, last
        start = segment.index_positions[entry]
        for position, header, _ in iterate_batches(self._disk, segment, start, segment.data_end):
            if header.next_offset > end:
                break
            data_end = position + header.length
            last = Position(header.next_offset, header.epoch, header.chain)
        assert last.end == end, f"the journal is durable up to {end}, where a batch ends"
        return data_end, last

    def release_files(self) -> None:
        """Close segment files above the limit of open ones, oldest first; they open again when read."""
        with self._change_lock:
            opened = [segment for segment in self._segments[:-1] if segment.is_open()]
            for segment in opened[: max(0, len(opened) - self._limits.open_segments_max)]:
                segment.release_file()

    # Inside.

    def _check_running(self) -> None:
        if self.failure is not None:
            raise JournalClosed(f"the journal stopped at the first failure: {self.failure}") from self.failure
        if self._closed:
            raise JournalClosed("the journal is closed")

    def _write(self, segment: Segment, buffers: list[bytes], headers: list[BatchHeader]) -> None:
        if not buffers:
            return
        position = segment.data_end
        try:
            with self._stop_on_failure():
                self._disk.write_many(segment.open_file(self._disk).fd, buffers, position)
        except OSError as error:
            if is_full(error):
                self._clear(segment, position, sum(map(len, buffers)))
            raise
        every = self._limits.index_every_bytes
        for header in headers:
            segment.note_batch(header, position, every)
            position += header.length
        last = headers[-1]
        self.end_chain = last.chain
        self.last_epoch = last.epoch
        self.end_offset = last.next_offset

    def _clear(self, segment: Segment, position: int, length: int) -> None:
        """Take away what a full disk has let through of a write: another batch may come in its place."""
        fd = segment.open_file(self._disk).fd
        try:
            with self._stop_on_failure():
                self._disk.fill_zeros(fd, position, min(position + length, segment.capacity))
        except OSError as error:
            if not is_full(error):
                raise
            return  # a file system that writes nothing in place; the chain tells what is there from what comes
        self._sync_segment(segment)

    def _sync_segment(self, segment: Segment) -> None:
        with self._sync_lock:
            self._check_running()
            with self._stop_on_failure(full_too=True):
                self._disk.sync_data(segment.open_file(self._disk).fd)

    @contextmanager
    def _stop_on_failure(self, *, full_too: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if full_too or not is_full(error):
                self.fail(error)
            raise

    def _roll(self, needed_bytes: int) -> Segment:
        """Close the active segment, make the next one active, and return it."""
        closed = self._segments[-1]
        if self.end_offset > self.durable_end:
            self.sync()  # so a break can only ever be torn in the last segment
        with self._stop_on_failure():
            header = header_at(self._state, self.end_offset, self.end_chain, self.last_epoch)
            segment = make_segment(self._disk, self._directory, self.space, header, needed_bytes)
        is_empty = closed.end_offset == closed.base_offset  # too small for this batch; its file was replaced
        with self._change_lock:
            self._set_segments((*(self._segments[:-1] if is_empty else self._segments), segment))
        if not is_empty:
            close_segment(self._disk, closed)
        return segment

    def _segments_between(self, first_base: int, last_base: int) -> list[Segment]:
        segments = [segment for segment in self._segments if first_base <= segment.base_offset <= last_base]
        assert len(segments) > 0, f"no segment starts at {first_base}"
        assert (segments[0].base_offset, segments[-1].base_offset) == (first_base, last_base), (
            f"no segments start at {first_base} and {last_base}"
        )
        assert segments[-1].is_closed, "the active segment is not compacted"
        return segments

    def _check_open(self) -> None:
        if self._closing:
            raise JournalClosed("the journal is being closed")

    def _write_aside(self, handle: FileHandle, buffers: list[bytes], position: int) -> None:
        with self._stop_on_failure():
            self._disk.write_many(handle.fd, buffers, position)

    def _write_state(self, state: JournalState) -> None:
        """Replace the state file, on a full disk too; the caller holds its lock."""
        self._check_running()
        with self._stop_on_failure():
            self.space.put(STATE_NAME, render_state(state))
        self._state = state
