"""The store of a single node: one SQLite file, written by one thread of its own.

The event loop never waits for an fsync: it hands jobs to the thread, which runs all that wait in one SQLite
transaction (group commit), commits, and hands the results back in one call. WAL with `synchronous=FULL`: a
change that was answered survives a power cut. The file (`coordination/stores/sqlite_file`) is readable by its owner
only.

Other processes (the CLI beside a running server, its workers) may use the same file: compare-and-swap holds between
them, and watches notice their changes within POLL_MS, or what `open` is told. The mark is kept by one of them, the one
that was told where it is; it names what the others changed as soon as it has noticed it.

    serving ──a write or fsync of the file or its mark fails──▶ stopped: `on_stopped`, and nothing more is done

A full disk is no such failure: what found no room is refused, and the next call tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from quaymaster.coordination.directories import fsync_directory
from quaymaster.coordination.interface import (
    ABSENT,
    LEASE_TTL_MIN_MS,
    LIST_LIMIT_MAX,
    Compare,
    Coordination,
    CoordinationUnavailable,
    Event,
    KeyValue,
    LeaseExpired,
    Listing,
    OutcomeUnknown,
    Put,
    RevisionMismatch,
    StoreUnusable,
    WatchLost,
    check_limit,
    check_transaction,
    prefix_end,
)
from quaymaster.coordination.store_mark import DECIDE, SLOTS, Mark, NoRoomForMark, StoreMarks, why_went_back
from quaymaster.coordination.stores.sqlite_file import (
    add_to_sum,
    as_unusable,
    create_private_file,
    current_mark,
    hash_row,
    open_connection,
    peek_mark,
    read_meta,
)
from quaymaster.coordination.timed import timed

log = logging.getLogger(__name__)

POLL_MS: Final = 500
JOBS_MAX: Final = 10_000
JOBS_PER_COMMIT_MAX: Final = 256
EVENTS_PER_READ_MAX: Final = 1_000
TOMBSTONES_MAX: Final = 10_000
OPERATION_TIMEOUT_MS: Final = 30_000
BACKUP_TIMEOUT_MS: Final = 3_600_000

T = TypeVar("T")
_Operation = Callable[[sqlite3.Connection], Any]


class _Job:
    __slots__ = ("future", "operation", "writes")

    def __init__(self, operation: _Operation, future: asyncio.Future[Any], *, writes: bool) -> None:
        self.operation = operation
        self.future = future
        self.writes = writes


_Results = list[tuple["_Job", Any, Exception | None]]


def wall_clock_ms() -> int:
    """Return the wall clock in milliseconds since 1970. Leases use it, as they outlive the process."""
    return time.time_ns() // 1_000_000


class SQLiteCoordination(Coordination):
    """Opened with `await SQLiteCoordination.open(path)`; used within the event loop that opened it."""

    def __init__(
        self,
        path: Path,
        now_ms: Callable[[], int],
        marks: Sequence[Path],
        on_stopped: Callable[[Exception], None] | None,
        poll_ms: int,
    ) -> None:
        self._path = path
        self._poll_ms = poll_ms
        self._mark_paths = marks
        self._mark_names = " and ".join(map(str, marks))
        self._on_stopped = on_stopped
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._watchers: set[asyncio.Event] = set()
        self._closed = False
        # Owned by the thread:
        self._broken: str | None = None
        self._failures = 0
        """Transactions that failed since the last one that wrote something."""
        self._changes_at_failure = 0
        self._data_version = 0
        self._tombstones = 0
        self._next_expiry_ms: int | None = None
        self._revision_before = 0
        self._marks: StoreMarks | None = None
        self._is_mark_behind = False
        """Whether something was committed that the mark does not name, as there was no room for it."""
        opened: asyncio.Future[None] = self._loop.create_future()
        self._opened = opened
        self._thread = threading.Thread(target=self._run, name="coordination-sqlite", daemon=True)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        marks: Sequence[Path] = (),
        on_stopped: Callable[[Exception], None] | None = None,
        poll_ms: int = POLL_MS,
    ) -> SQLiteCoordination:
        """Open the file, made with mode 0600 if absent; StoreUnusable says why it cannot be used.

        `marks`: the files in which it is written down how far the store has come (`coordination/store_mark`).
        `on_stopped`: is told once, on this event loop, that the store does nothing more until it is opened again, and
        why; every call raises the same CoordinationUnavailable from then on. Never after `close`.
        `poll_ms`: so often it looks whether other processes have changed something.
        """
        store = cls(path, now_ms, marks, on_stopped, poll_ms)
        store._thread.start()
        try:
            await store._opened
        except BaseException:
            store._closed = True
            raise
        return store

    # The interface

    @timed
    async def get(self, key: str) -> KeyValue | None:
        def read(connection: sqlite3.Connection) -> KeyValue | None:
            row = connection.execute(
                "SELECT key, value, revision FROM kv WHERE key = ? AND value IS NOT NULL", (key,)
            ).fetchone()
            return KeyValue(*row) if row else None

        return await self._call(read)

    @timed
    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        check_limit(limit)
        end = prefix_end(prefix)

        def read(connection: sqlite3.Connection) -> Listing:
            rows = connection.execute(
                "SELECT key, value, revision FROM kv WHERE key >= ? AND key > ? AND (? IS NULL OR key < ?) "
                "AND value IS NOT NULL ORDER BY key LIMIT ?",
                (prefix, after, end, end, limit + 1),
            ).fetchall()
            items = tuple(KeyValue(*row) for row in rows[:limit])
            return Listing(items, revision=read_meta(connection, "revision"), more=len(rows) > limit)

        return await self._call(read)

    @timed
    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        check_transaction(compares, puts, deletes)

        def write(connection: sqlite3.Connection) -> int:
            for compare in compares:
                row = connection.execute(
                    "SELECT revision FROM kv WHERE key = ? AND value IS NOT NULL", (compare.key,)
                ).fetchone()
                found = row[0] if row else ABSENT
                if found != compare.revision:
                    raise RevisionMismatch(compare.key, compare.revision, found)
            for put in puts:
                if put.lease_id and not _has_lease(connection, put.lease_id):
                    raise LeaseExpired(f"lease {put.lease_id} is over")
            return self._apply(connection, puts, deletes)

        return await self._call(write, writes=True)

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        wake = asyncio.Event()
        self._watchers.add(wake)
        position = after_revision
        try:
            while True:
                wake.clear()
                events, position, complete = await self._call(_changes_after(prefix, position))
                if events:
                    yield events
                elif complete:
                    await wake.wait()
        finally:
            self._watchers.discard(wake)

    @timed
    async def grant_lease(self, ttl_ms: int) -> int:
        ttl_ms = max(ttl_ms, LEASE_TTL_MIN_MS)

        def write(connection: sqlite3.Connection) -> int:
            cursor = connection.execute(
                "INSERT INTO leases (ttl_ms, expires_ms) VALUES (?, ?)", (ttl_ms, self._now_ms() + ttl_ms)
            )
            assert cursor.lastrowid is not None, "an inserted row has an id"
            return cursor.lastrowid

        return await self._call(write, writes=True)

    @timed
    async def keep_alive(self, lease_id: int) -> None:
        def write(connection: sqlite3.Connection) -> None:
            cursor = connection.execute(
                "UPDATE leases SET expires_ms = ? + ttl_ms WHERE id = ?", (self._now_ms(), lease_id)
            )
            if not cursor.rowcount:
                raise LeaseExpired(f"lease {lease_id} is over")

        await self._call(write, writes=True)

    async def revoke_lease(self, lease_id: int) -> None:
        assert lease_id > 0, "0 stands for no lease: nearly all keys have it"
        await self._call(lambda connection: self._end_lease(connection, lease_id), writes=True)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            for wake in self._watchers:
                wake.set()
            # The thread ends after what was accepted before; it never waits for this loop.
            await self._loop.run_in_executor(None, self._thread.join)

    async def backup(self, target: Path) -> int:
        """Write a consistent copy to a file that must not exist; return the revision it is of.

        Raises OSError when it cannot be written: that is the copy's failure, and the store goes on.
        """

        def copy(connection: sqlite3.Connection) -> int:
            create_private_file(target)
            try:
                with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as destination:
                    connection.backup(destination)
                    revision = read_meta(destination, "revision")
            except sqlite3.Error as error:
                raise OSError(f"{target} cannot be written: {error}") from error
            with target.open("rb") as file:
                os.fsync(file.fileno())
            fsync_directory(target.parent)
            return revision

        return await self._call(copy, timeout_ms=BACKUP_TIMEOUT_MS)

    # On the event loop

    async def _call(
        self,
        operation: Callable[[sqlite3.Connection], T],
        *,
        writes: bool = False,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> T:
        if self._closed:
            raise CoordinationUnavailable("The metadata store is closed.")
        if self._jobs.qsize() >= JOBS_MAX:
            raise CoordinationUnavailable(f"More than {JOBS_MAX} metadata operations are waiting.")
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(operation, future, writes=writes))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            if writes:
                raise OutcomeUnknown from None
            raise CoordinationUnavailable("The metadata store does not answer.") from None

    def _deliver(self, results: _Results, *, changed: bool) -> None:
        for job, value, error in results:
            if job.future.done():
                continue  # the caller was cancelled; what it asked for was done all the same
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)
        if changed:
            for wake in self._watchers:
                wake.set()

    def _tell_stopped(self, error: Exception) -> None:
        if self._on_stopped is not None and not self._closed:
            self._on_stopped(error)

    def _note_open(self, error: Exception | None) -> None:
        if self._opened.done():
            return  # nobody waits any more
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)

    # On the thread

    def _run(self) -> None:
        try:
            connection = self._open()
        except Exception as error:  # noqa: BLE001 -- told to who waits
            self._post(self._note_open, as_unusable(self._path, error))
            return
        try:
            self._post(self._note_open, None)
            while self._run_jobs(connection):
                pass
        except Exception as error:  # noqa: BLE001 -- nobody waits for the thread: a bug in it ends the process
            self._stop(f"The metadata store {self._path} stopped: {error!r}.", error)
            while self._run_jobs(connection):  # refused at once, until the process has ended
                pass
        finally:
            connection.close()
            if self._marks is not None:
                self._marks.close()

    def _open(self) -> sqlite3.Connection:
        if self._mark_paths:
            self._marks = StoreMarks(self._mark_paths)
            known = self._marks.open()
            if known:
                self._compare(known)
        connection = open_connection(self._path)
        if self._marks is not None:
            mark = current_mark(connection)
            if not known and mark.revision:
                log.warning("store mark written again path=%s revision=%d", self._mark_names, mark.revision)
            for _ in range(SLOTS):  # one may be damaged
                self._marks.write(mark)
        self._load_thread_state(connection)
        return connection

    def _compare(self, known: Mapping[Path, Mark]) -> None:
        """Refuse a file that is not what the marks say; StoreUnusable."""
        if not self._path.exists():
            place, mark = max(known.items(), key=lambda entry: entry[1].revision)
            raise StoreUnusable(
                f"{self._path} is missing, and {place} says that changes up to revision {mark.revision} were "
                f"answered. {DECIDE}."
            )
        reason = why_went_back(self._path, known, peek_mark(self._path))
        if reason is not None:
            raise StoreUnusable(f"{reason}. {DECIDE}.")

    def _load_thread_state(self, connection: sqlite3.Connection) -> None:
        self._tombstones = connection.execute("SELECT count(*) FROM kv WHERE value IS NULL").fetchone()[0]
        self._next_expiry_ms = _next_expiry_ms(connection)
        self._data_version = _data_version(connection)
        self._revision_before = read_meta(connection, "revision")

    def _run_jobs(self, connection: sqlite3.Connection) -> bool:
        """Run what is waiting in one SQLite transaction; False when the store is to close."""
        jobs: list[_Job] = []
        open_ = True
        try:
            first = self._jobs.get(timeout=self._idle_s())
            while True:
                if first is None:
                    open_ = False
                    break
                jobs.append(first)
                if len(jobs) >= JOBS_PER_COMMIT_MAX:
                    break
                first = self._jobs.get_nowait()
        except queue.Empty:
            pass
        results, changed = self._commit(connection, jobs)
        if results or changed:
            self._post(lambda _: self._deliver(results, changed=changed), None)
        return open_

    def _idle_s(self) -> float | None:
        """Return how long the thread may sleep: until a lease ends, or other processes may have written."""
        waits_ms = [self._poll_ms] if self._watchers else []
        if self._next_expiry_ms is not None and not self._broken:
            waits_ms.append(max(self._next_expiry_ms - self._now_ms(), LEASE_TTL_MIN_MS))
        return min(waits_ms) / 1000 if waits_ms else None

    def _commit(self, connection: sqlite3.Connection, jobs: list[_Job]) -> tuple[_Results, bool]:
        if self._broken:
            return [(job, None, CoordinationUnavailable(self._broken)) for job in jobs], False
        was_behind = self._is_mark_behind
        if was_behind and (unwritten := self._write_mark(connection)):
            # What is there must not be read either: who has seen it was answered.
            return [(job, None, CoordinationUnavailable(unwritten)) for job in jobs], False
        leases_due = self._next_expiry_ms is not None and self._next_expiry_ms <= self._now_ms()
        writes = leases_due or any(job.writes for job in jobs)
        results: _Results = []
        committing = False
        try:
            if jobs or leases_due:
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                if leases_due:
                    self._expire_leases(connection)
                for job in jobs:
                    results.append(_run_job(connection, job))
                committing = writes
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            return self._fail(connection, jobs, error, committing=committing), was_behind
        if writes and self._write_mark(connection):
            return [(job, None, OutcomeUnknown()) for job in jobs], self._broken is not None
        if self._failures and connection.total_changes != self._changes_at_failure:
            # One that found nothing to write says nothing about the room on the disk.
            log.info("metadata transactions recovered path=%s failures=%d", self._path, self._failures)
            self._failures = 0
        try:
            return results, self._note_changes(connection, wrote=writes or was_behind)
        except sqlite3.Error as error:
            # What was asked is committed; only its aftermath failed, and the next call meets the error again.
            log.warning("metadata upkeep failed path=%s error=%s", self._path, error)
            self._stop_if_broken(error)
            return results, True

    def _write_mark(self, connection: sqlite3.Connection) -> str | None:
        """Let the marks name the store's revision; why they do not, and nothing may be told of that one, else None."""
        if self._marks is None:
            return None
        try:
            mark = current_mark(connection)
            if self._is_mark_behind or mark.revision != self._revision_before:
                self._marks.write(mark)
        except (OSError, sqlite3.Error) as error:
            if not self._is_mark_behind:
                log.error("store mark not written path=%s error=%s", self._mark_names, error)
            if isinstance(error, NoRoomForMark):
                self._is_mark_behind = True
                return f"The metadata store waits for room on the disk for {self._mark_names}."
            reason = (
                f"The metadata store stopped: {self._mark_names} cannot be written ({error}). Restart it."
            )
            self._stop(reason, error)
            return reason
        if self._is_mark_behind:
            log.info("store mark written again path=%s revision=%d", self._mark_names, mark.revision)
            self._is_mark_behind = False
        return None

    def _fail(
        self, connection: sqlite3.Connection, jobs: list[_Job], error: sqlite3.Error, *, committing: bool
    ) -> _Results:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        with contextlib.suppress(sqlite3.Error):
            self._load_thread_state(connection)
        code = _code_of(error)
        if not self._failures or code == sqlite3.SQLITE_IOERR:
            # Not one line each: on a full disk every transaction fails until there is room again.
            log.error("metadata transaction failed path=%s error=%s jobs=%d", self._path, error, len(jobs))
        self._failures += 1
        self._changes_at_failure = connection.total_changes
        self._stop_if_broken(error)
        unknown = committing and code not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
        return [
            (
                job,
                None,
                OutcomeUnknown()
                if unknown and job.writes
                else CoordinationUnavailable(f"The metadata store cannot be used now: {error}."),
            )
            for job in jobs
        ]

    def _stop_if_broken(self, error: sqlite3.Error) -> None:
        """Stop after a failed read, write or fsync of the file; not when there was no room."""
        if _code_of(error) == sqlite3.SQLITE_IOERR:
            # After a failed fsync the kernel may have dropped the pages and would report success next time.
            self._stop(
                f"The metadata store {self._path} stopped after an I/O error ({error}). Restart it.", error
            )

    def _stop(self, reason: str, error: Exception) -> None:
        """Do nothing more, and let who opened the store know why; the first reason counts."""
        if self._broken is None:
            self._broken = reason
            stopped = CoordinationUnavailable(reason)
            stopped.__cause__ = error
            self._post(self._tell_stopped, stopped)

    def _note_changes(self, connection: sqlite3.Connection, *, wrote: bool) -> bool:
        """Tell whether anything changed since the last call, by this process or another one."""
        changed = False
        if wrote:
            revision = read_meta(connection, "revision")
            changed = revision != self._revision_before
            self._revision_before = revision
            self._next_expiry_ms = _next_expiry_ms(connection)
            if self._tombstones > 2 * TOMBSTONES_MAX:
                self._forget_tombstones(connection)
        data_version = _data_version(connection)
        if data_version != self._data_version:
            self._data_version = data_version
            self._next_expiry_ms = _next_expiry_ms(connection)
            self._write_mark(connection)
            self._revision_before = read_meta(connection, "revision")
            changed = True
        return changed

    def _apply(self, connection: sqlite3.Connection, puts: Sequence[Put], deletes: Sequence[str]) -> int:
        revision = read_meta(connection, "revision") + 1
        connection.execute("UPDATE meta SET value = ? WHERE name = 'revision'", (revision,))
        change = 0
        for put in puts:
            change += hash_row(put.key, put.value, revision, put.lease_id) - _hash_of(connection, put.key)
            connection.execute(
                "INSERT INTO kv (key, value, revision, lease) VALUES (?, ?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET value = excluded.value, revision = excluded.revision, lease = excluded.lease",
                (put.key, put.value, revision, put.lease_id),
            )
        for key in deletes:
            change -= _hash_of(connection, key)
            self._tombstones += connection.execute(
                "UPDATE kv SET value = NULL, revision = ?, lease = 0 WHERE key = ? AND value IS NOT NULL",
                (revision, key),
            ).rowcount
        add_to_sum(connection, change)
        return revision

    def _end_lease(self, connection: sqlite3.Connection, lease_id: int) -> None:
        connection.execute("DELETE FROM leases WHERE id = ?", (lease_id,))
        keys = [
            row[0] for row in connection.execute("SELECT key FROM kv WHERE lease = ?", (lease_id,)).fetchall()
        ]
        if keys:
            self._apply(connection, [], keys)

    def _expire_leases(self, connection: sqlite3.Connection) -> None:
        due = connection.execute("SELECT id FROM leases WHERE expires_ms <= ?", (self._now_ms(),)).fetchall()
        for (lease_id,) in due:
            self._end_lease(connection, lease_id)

    def _forget_tombstones(self, connection: sqlite3.Connection) -> None:
        """Keep the newest tombstones; watches from before the others must list again."""
        connection.execute("BEGIN IMMEDIATE")
        (revision,) = connection.execute(
            "SELECT revision FROM kv WHERE value IS NULL ORDER BY revision DESC LIMIT 1 OFFSET ?",
            (TOMBSTONES_MAX,),
        ).fetchone() or (0,)
        connection.execute("DELETE FROM kv WHERE value IS NULL AND revision <= ?", (revision,))
        connection.execute(
            "UPDATE meta SET value = max(value, ?) WHERE name = 'forgotten_revision'", (revision,)
        )
        connection.execute("COMMIT")
        self._tombstones = connection.execute("SELECT count(*) FROM kv WHERE value IS NULL").fetchone()[0]

    def _post(self, callback: Callable[[T], object], argument: T) -> None:
        # The loop may be gone already when the process ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, argument)


def _code_of(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; where the error has none, the one after which nothing is tried again."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF


def _run_job(connection: sqlite3.Connection, job: _Job) -> tuple[_Job, Any, Exception | None]:
    # An operation raises its own errors before it changes anything, so the others of the commit may go on.
    try:
        return job, job.operation(connection), None
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 -- told to who waits
        return job, None, error


def _changes_after(
    prefix: str, position: int
) -> Callable[[sqlite3.Connection], tuple[list[Event], int, bool]]:
    def read(connection: sqlite3.Connection) -> tuple[list[Event], int, bool]:
        forgotten = read_meta(connection, "forgotten_revision")
        if position < forgotten:
            raise WatchLost(f"changes before revision {forgotten} are forgotten")
        rows = connection.execute(
            "SELECT key, value, revision FROM kv WHERE revision > ? ORDER BY revision, key LIMIT ?",
            (position, EVENTS_PER_READ_MAX),
        ).fetchall()
        complete = len(rows) < EVENTS_PER_READ_MAX
        if complete:
            reached = read_meta(connection, "revision")
        else:
            # The last revision may go on behind the limit: leave it for the next read.
            cut = rows[-1][2]
            rows = [row for row in rows if row[2] != cut]
            reached = rows[-1][2]
        return [Event(*row) for row in rows if row[0].startswith(prefix)], reached, complete

    return read


def _hash_of(connection: sqlite3.Connection, key: str) -> int:
    """Return what a key adds to the sum now; 0 when there is no such key."""
    row = connection.execute(
        "SELECT key, value, revision, lease FROM kv WHERE key = ? AND value IS NOT NULL", (key,)
    ).fetchone()
    return 0 if row is None else hash_row(*row)


def _has_lease(connection: sqlite3.Connection, lease_id: int) -> bool:
    return connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease_id,)).fetchone() is not None


def _next_expiry_ms(connection: sqlite3.Connection) -> int | None:
    (expires_ms,) = connection.execute("SELECT min(expires_ms) FROM leases").fetchone()
    return None if expires_ms is None else int(expires_ms)


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
