"""The one thread that writes a journal: group commit, and one call back to the event loop for each commit.

    loop thread      append(batches) ──▶ queue                    on_progress(written_end, durable_end)
                                           │                            ▲
    writer thread           take all that waits, at most 1 MiB ─▶ write ─▶ fdatasync

While an fsync runs the next group forms by itself, so no timer is needed. Promises and cuts of the journal take
their turn between the batches. A second thread, the keeper, prepares the next segment, watches free space and
writes down the durable floor, out of the commits' way.

A full disk holds everything back and tries again until there is room. Any other error ends the writer for good:
`on_failed` is called once, and nothing more is written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from quaymaster.broker.storage.disk import is_full
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_state import JournalClosed
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.values.records import Batch
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Histogram

FULL_DISK_RETRY_S = 0.25
KEEPER_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class _Action(NamedTuple):
    """Something else than batches, to be done in its turn."""

    act: Callable[[], None]
    done: Callable[[], None]


Work = tuple[Sequence[Batch], bool] | _Action


class WriterCounters:
    """Plain figures of one writer, written by its thread and read by the owner. They only grow."""

    __slots__ = ("appended_batches", "appended_bytes", "fsync_durations", "fsyncs", "full_disk_waits")

    def __init__(self) -> None:
        self.appended_bytes = 0
        self.appended_batches = 0
        self.fsyncs = 0
        self.fsync_durations = Histogram()
        self.full_disk_waits = 0

    def note_fsync(self, seconds: float) -> None:
        """Count one fsync."""
        self.fsyncs += 1
        self.fsync_durations.observe(seconds)


class JournalWriter:
    """Writes one journal. `append` belongs to the event loop's thread; callbacks come back on it."""

    def __init__(
        self,
        journal: JournalFiles,
        *,
        post: Callable[..., object],
        on_progress: Callable[[int, int, int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """Make a writer; `start` starts it.

        `post(callback, *arguments)` runs a callback on the loop's thread: `loop.call_soon_threadsafe`.
        `on_progress(written_end, durable_end, truncations)` is called once for each group commit, and once more
        before its fsync when someone asked for that; it speaks of the journal as it was cut so many times.
        `on_failed(error)` is called at most once.
        """
        self._journal = journal
        self._post = post
        self._on_progress = on_progress
        self._on_failed = on_failed
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._next: Work | None = None
        """What was taken from the queue and comes after the group that is being formed."""
        self._given_bytes = 0  # the loop's thread
        self._done_bytes = 0  # the writer's thread
        self._told_end = journal.durable_end
        self._closing = threading.Event()
        self._keeper_wake = threading.Event()
        self._failed_lock = threading.Lock()
        self._failed: Exception | None = None
        self._held_since: float | None = None
        self._told_room = DiskPressure.PLENTY
        self._writer = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._keeper = threading.Thread(target=self._keep, name="journal-keeper", daemon=True)
        self.counters = WriterCounters()

    @property
    def pending_bytes(self) -> int:
        """How many bytes were given and are not durable yet; the owner holds back when it is too much."""
        return self._given_bytes - self._done_bytes

    @property
    def disk_low(self) -> bool:
        """Whether free space is below the limit: refuse sends, let deletes and receives go on."""
        return self._journal.space.disk_low

    @property
    def held_back_s(self) -> float:
        """For how long the writer has waited for room; 0 when it does not."""
        since = self._held_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def failed(self) -> Exception | None:
        """Why the writer ended for good, or None."""
        return self._failed

    def start(self) -> None:
        """Start both threads."""
        self._writer.start()
        self._keeper.start()

    def append(self, batches: Sequence[Batch], *, tell_written: bool = False) -> None:
        """Hand over batches to be written in this order; never blocks.

        With `tell_written` there is an extra `on_progress` as soon as they are written, before their fsync.
        After a failure batches are dropped: `on_failed` has said so or is about to.
        """
        self._given_bytes += sum([len(batch.data) for batch in batches])
        self._queue.put((batches, tell_written))

    def run(self, act: Callable[[], None], done: Callable[[], None]) -> None:
        """Have `act` done when all that was given before is durable, then `done` on the loop's thread."""
        self._queue.put(_Action(act, done))

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write what was given, stop both threads; False when they did not end in time. Blocks.

        On a disk that stays full, what cannot be written is given up. The journal itself stays open.
        """
        self._closing.set()
        self._keeper_wake.set()
        self._queue.put(None)
        if self._writer.ident is None:
            return True
        deadline = time.monotonic() + timeout_s
        for thread in (self._writer, self._keeper):
            thread.join(max(0.0, deadline - time.monotonic()))
        return not (self._writer.is_alive() or self._keeper.is_alive())

    # The writer's thread.

    def _run(self) -> None:
        try:
            while (work := self._take()) is not None:
                if isinstance(work, _Action):
                    if not self._act(work):
                        break
                elif not self._commit(*self._gather(work)):
                    break
        except Exception as error:
            self._fail(error)
            raise

    def _take(self) -> Work | None:
        work, self._next = self._next, None
        return self._queue.get() if work is None else work

    def _act(self, work: _Action) -> bool:
        while True:
            try:
                work.act()
            except (OSError, JournalClosed) as error:
                if self._journal.failure is not None or not (isinstance(error, OSError) and is_full(error)):
                    self._fail(error)
                    return False
            else:
                break
            if not self._wait_for_room():
                return False
        self._note_room()
        self._told_end = self._journal.durable_end
        self._call(work.done)
        return True

    def _wait_for_room(self) -> bool:
        """Wait a moment on a full disk; false when the writer was closed meanwhile."""
        if self._held_since is None:
            self._held_since = time.monotonic()
        self._journal.space.note_full()
        self.counters.full_disk_waits += 1
        return not self._closing.wait(FULL_DISK_RETRY_S)

    def _note_room(self) -> None:
        """Say that what waited for room went through, and have the keeper look at once at how much there is."""
        if self._held_since is not None:
            self._held_since = None
            self._journal.space.note_written()
            self._keeper_wake.set()

    def _gather(self, work: tuple[Sequence[Batch], bool]) -> tuple[list[Batch], int, bool]:
        """Take what waits, up to the limit of one group; at least the work that is there."""
        group: list[Batch] = []
        group_bytes = 0
        tell_written = False
        limit = self._journal.group_bytes_max
        while True:
            batches, tell = work
            group.extend(batches)
            group_bytes += sum([len(batch.data) for batch in batches])
            tell_written = tell_written or tell
            if group_bytes >= limit:
                break
            try:
                more = self._queue.get_nowait()
            except Empty:
                break
            if more is None:
                self._queue.put(None)  # the end comes after this group
                break
            if isinstance(more, _Action):
                self._next = more
                break
            work = more
        return group, group_bytes, tell_written

    def _commit(self, group: list[Batch], group_bytes: int, tell_written: bool) -> bool:
        journal = self._journal
        segments = journal.segment_count
        try:
            if not self._write(group):
                return False
            if tell_written:
                self._call(self._on_progress, journal.end_offset, journal.durable_end, journal.truncations)
            started = time.perf_counter()
            durable_end = journal.sync()
            self.counters.note_fsync(time.perf_counter() - started)
        except (OSError, JournalClosed) as error:
            self._fail(error)
            return False
        self.counters.appended_bytes += group_bytes
        self.counters.appended_batches += len(group)
        self._done_bytes += group_bytes
        self._told_end = durable_end
        self._call(self._on_progress, durable_end, durable_end, journal.truncations)
        if journal.segment_count != segments:
            self._keeper_wake.set()
        return True

    def _write(self, group: list[Batch]) -> bool:
        """Write a group; on a full disk wait for room. False when the writer was closed while waiting."""
        journal = self._journal
        while True:
            try:
                journal.append(group)
            except OSError as error:
                if not is_full(error):
                    raise
            else:
                self._note_room()
                return True
            group = [batch for batch in group if batch.base_offset >= journal.end_offset]
            durable_end = journal.sync()
            if durable_end > self._told_end:
                self._told_end = durable_end
                self._call(self._on_progress, durable_end, durable_end, journal.truncations)
            if not self._wait_for_room():
                return False

    # The keeper's thread.

    def _keep(self) -> None:
        journal = self._journal
        try:
            while not self._closing.is_set():
                self._keeper_wake.clear()
                journal.space.prepare_next()
                journal.space.check()
                self._tell_room()
                try:
                    journal.persist_floor_if_due()
                except OSError as error:
                    if not is_full(error):
                        raise
                journal.release_files()
                self._keeper_wake.wait(KEEPER_INTERVAL_S)
        except JournalClosed:
            return
        except OSError as error:
            journal.fail(error)
            self._fail(error)
        except Exception as error:
            self._fail(error)
            raise

    def _tell_room(self) -> None:
        room = self._journal.room
        if room is not self._told_room:
            self._told_room = room
            log_event(
                log,
                logging.INFO if room is DiskPressure.PLENTY else logging.WARNING,
                "room on the disk changed",
                journal=self._journal.journal_id,
                room=room.name.lower(),
            )

    # Both.

    def _fail(self, error: Exception) -> None:
        with self._failed_lock:
            if self._failed is not None:
                return
            self._failed = error
        self._call(self._on_failed, error)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._post(callback, *arguments)
        except RuntimeError:
            self._closing.set()  # the loop is closed: no one is left to tell
