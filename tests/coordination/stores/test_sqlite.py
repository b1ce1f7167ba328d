"""What is particular to SQLite: the file, its format, other processes, and errors of the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import (
    ABSENT,
    CoordinationUnavailable,
    Event,
    KeyValue,
    OutcomeUnknown,
    Put,
    RevisionMismatch,
    StoreUnusable,
    WatchLost,
)
from quaymaster.coordination.store_mark import SLOT_BYTES, Mark, StoreMark
from quaymaster.coordination.stores import sqlite as sqlite_module
from quaymaster.coordination.stores import sqlite_file
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.stores.sqlite_file import SCHEMA_VERSION


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def scenario() -> None:
        store = await SQLiteCoordination.open(path)
        revision = await store.compare_and_swap("a", ABSENT, b"1")
        await store.close()

        store = await SQLiteCoordination.open(path)

        assert await store.get("a") == KeyValue("a", b"1", revision)
        assert await store.compare_and_swap("a", revision, b"2") > revision
        await store.close()

    run(scenario)


def test_lease_that_ended_while_the_store_was_closed_is_over_when_it_opens(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def scenario() -> None:
        store = await SQLiteCoordination.open(path, now_ms=lambda: 1_000)
        lease = await store.grant_lease(500)
        await store.compare_and_swap("leader", ABSENT, b"", lease_id=lease)
        await store.close()

        store = await SQLiteCoordination.open(path, now_ms=lambda: 1_500)

        assert await store.get("leader") is None
        assert await store.grant_lease(500) != lease
        await store.close()

    run(scenario)


def test_file_is_readable_by_its_owner_only_also_when_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.touch(mode=0o644)
    modes: dict[str, int] = {}

    async def scenario() -> None:
        store = await SQLiteCoordination.open(path)
        await store.compare_and_swap("a", ABSENT, b"1")
        modes.update(modes_in(tmp_path))
        await store.close()

    run(scenario)

    assert set(modes) >= {"metadata.sqlite", "metadata.sqlite-wal"}
    assert set(modes.values()) == {0o600}


def modes_in(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


def test_commits_are_synced(tmp_path: Path) -> None:
    connection = sqlite_file.open_connection(tmp_path / "metadata.sqlite")

    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_file_of_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def scenario() -> None:
        store = await SQLiteCoordination.open(path)
        await store.close()
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        connection.close()

        with pytest.raises(StoreUnusable, match=f"has format {SCHEMA_VERSION + 1}.*newer Quaymaster"):
            await SQLiteCoordination.open(path)

    run(scenario)


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()

    async def scenario() -> None:
        with pytest.raises(StoreUnusable, match="another program"):
            await SQLiteCoordination.open(path)

    run(scenario)


@pytest.mark.parametrize("name", ["metadata.sqlite", "missing-directory/metadata.sqlite"])
def test_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"not a database at all" * 100)

    async def scenario() -> None:
        with pytest.raises(StoreUnusable, match=r"metadata\.sqlite cannot be opened"):
            await SQLiteCoordination.open(tmp_path / name)

    run(scenario)


async def first_events(store: SQLiteCoordination, after_revision: int = 0) -> list[Event]:
    return await anext(store.watch("", after_revision))


def test_change_by_another_connection_reaches_a_watch(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def scenario() -> None:
        server = await SQLiteCoordination.open(path, poll_ms=10)
        tool = await SQLiteCoordination.open(path)
        first = asyncio.create_task(first_events(server))
        await asyncio.sleep(0.05)

        revision = await tool.compare_and_swap("a", ABSENT, b"1")

        assert await first == [Event("a", b"1", revision)]
        await server.close()
        await tool.close()

    run(scenario)


def test_the_mark_names_what_another_connection_changed(tmp_path: Path) -> None:
    path, mark = tmp_path / "metadata.sqlite", tmp_path / "store.mark"

    async def scenario() -> None:
        server = await SQLiteCoordination.open(path, marks=[mark], poll_ms=10)
        worker = await SQLiteCoordination.open(path)
        first = asyncio.create_task(first_events(server))
        revision = await worker.compare_and_swap("a", ABSENT, b"1")
        await first
        await server.get("a")  # what was noticed before is in the mark by now
        shutil.copy(mark, tmp_path / "copied.mark")
        await server.close()
        await worker.close()

        known = StoreMark(tmp_path / "copied.mark").open()
        assert known is not None
        assert known.revision == revision

    run(scenario)


def test_watch_from_before_the_kept_deletions_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "TOMBSTONES_MAX", 5)

    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        for number in range(11):
            revision = await store.compare_and_swap(str(number), ABSENT, b"")
            await store.compare_and_swap(str(number), revision, None)

        with pytest.raises(WatchLost):
            await anext(store.watch("", 0))

        assert [event.key for event in await first_events(store, 12)] == ["6", "7", "8", "9", "10"]
        await store.close()

    run(scenario)


def test_backup_is_a_whole_store_and_never_overwrites(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        revision = await store.compare_and_swap("a", ABSENT, b"1")

        copied = await store.backup(tmp_path / "copy.sqlite")
        await store.compare_and_swap("a", revision, b"2")

        assert copied == revision
        assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600
        with pytest.raises(FileExistsError):
            await store.backup(tmp_path / "copy.sqlite")
        copy = await SQLiteCoordination.open(tmp_path / "copy.sqlite")
        assert await copy.get("a") == KeyValue("a", b"1", revision)
        await copy.close()
        await store.close()

    run(scenario)


class FailingConnection:
    """A connection whose chosen statement fails with a chosen SQLite error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.failing: tuple[str, int | Exception] | None = None
        self.backup: Callable[[sqlite3.Connection], None] = connection.backup

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if self.failing and statement.startswith(self.failing[0]):
            failure, self.failing = self.failing[1], None
            if isinstance(failure, Exception):
                raise failure
            error = sqlite3.OperationalError("made to fail")
            error.sqlite_errorcode = failure
            raise error
        return self._connection.execute(statement, *parameters)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[FailingConnection]:
    opened: list[FailingConnection] = []
    original = sqlite_file.open_connection

    def open_connection(path: Path) -> FailingConnection:
        opened.append(FailingConnection(original(path)))
        return opened[-1]

    monkeypatch.setattr(sqlite_module, "open_connection", open_connection)
    return opened


def test_full_disk_changes_nothing_and_the_store_goes_on(
    tmp_path: Path, failing: list[FailingConnection]
) -> None:
    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        failing[0].failing = ("INSERT INTO kv", sqlite3.SQLITE_FULL)

        with pytest.raises(CoordinationUnavailable):
            await store.compare_and_swap("a", ABSENT, b"1")

        assert await store.get("a") is None
        await store.compare_and_swap("a", ABSENT, b"2")
        await store.close()

    run(scenario)


def test_full_disk_is_logged_when_it_begins_and_when_it_ends(
    tmp_path: Path, failing: list[FailingConnection], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quaymaster.coordination")

    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        for _ in range(5):
            failing[0].failing = ("INSERT INTO kv", sqlite3.SQLITE_FULL)
            with pytest.raises(CoordinationUnavailable):
                await store.compare_and_swap("a", ABSENT, b"1")
            assert await store.get("a") is None
            with pytest.raises(RevisionMismatch):
                await store.compare_and_swap("a", 17, b"1")
        await store.compare_and_swap("a", ABSENT, b"2")
        await store.compare_and_swap("b", ABSENT, b"3")
        await store.close()

    run(scenario)

    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "metadata transaction failed" in caplog.messages[0]
    assert "recovered" in caplog.messages[1]
    assert "failures=5" in caplog.messages[1]


def test_io_error_at_commit_is_an_unknown_outcome_and_stops_the_store(
    tmp_path: Path, failing: list[FailingConnection]
) -> None:
    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        failing[0].failing = ("COMMIT", sqlite3.SQLITE_IOERR | (4 << 8))

        with pytest.raises(OutcomeUnknown):
            await store.compare_and_swap("a", ABSENT, b"1")

        with pytest.raises(CoordinationUnavailable, match="I/O error"):
            await store.get("a")
        await store.close()

    run(scenario)


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "COMMIT", "PRAGMA data_version"])
def test_a_store_that_broke_tells_who_opened_it_once_and_why(
    tmp_path: Path, failing: list[FailingConnection], statement: str
) -> None:
    told: list[Exception] = []

    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite", on_stopped=told.append)
        failing[0].failing = (statement, sqlite3.SQLITE_IOERR | (4 << 8))

        with contextlib.suppress(CoordinationUnavailable, OutcomeUnknown):
            await store.compare_and_swap("a", ABSENT, b"1")
        for _ in range(2):
            with pytest.raises(CoordinationUnavailable, match="stopped after an I/O error"):
                await store.get("a")

        assert len(told) == 1
        assert "stopped after an I/O error" in str(told[0])
        assert isinstance(told[0].__cause__, sqlite3.OperationalError)
        await store.close()

    run(scenario)


def test_a_bug_on_the_stores_thread_is_told_too(tmp_path: Path, failing: list[FailingConnection]) -> None:
    told: list[Exception] = []

    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite", on_stopped=told.append)
        failing[0].failing = ("BEGIN", AssertionError("a bug"))

        with pytest.raises(CoordinationUnavailable):
            await store._call(lambda _: None, timeout_ms=10)
        with pytest.raises(CoordinationUnavailable, match="a bug"):
            await store.get("a")

        assert [str(error.__cause__) for error in told] == ["a bug"]
        await store.close()

    run(scenario)


def test_a_full_disk_is_not_told_as_the_end_of_the_store(
    tmp_path: Path, failing: list[FailingConnection]
) -> None:
    told: list[Exception] = []

    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite", on_stopped=told.append)
        failing[0].failing = ("INSERT INTO kv", sqlite3.SQLITE_FULL)
        with pytest.raises(CoordinationUnavailable):
            await store.compare_and_swap("a", ABSENT, b"1")
        await store.compare_and_swap("a", ABSENT, b"1")

        assert told == []
        await store.close()

    run(scenario)


def test_a_copy_that_cannot_be_written_fails_alone(tmp_path: Path, failing: list[FailingConnection]) -> None:
    told: list[Exception] = []

    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite", on_stopped=told.append)

        def fail(_: sqlite3.Connection) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

        failing[0].backup = fail
        copying = asyncio.create_task(store.backup(tmp_path / "copy.sqlite"))
        revision = await store.compare_and_swap("a", ABSENT, b"1")

        with pytest.raises(OSError, match=r"copy\.sqlite cannot be written: disk I/O error"):
            await copying
        assert await store.get("a") == KeyValue("a", b"1", revision)
        assert told == []
        await store.close()

    run(scenario)


def test_cancelled_caller_leaves_the_store_working(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        task = asyncio.create_task(store.transaction([], [Put("a", b"1")]))
        await asyncio.sleep(0)

        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        await store.compare_and_swap("b", ABSENT, b"2")
        assert [item.key for item in (await store.list_prefix("")).items] == ["a", "b"]
        await store.close()

    run(scenario)


def test_store_that_does_not_answer_is_an_unknown_outcome_for_writers(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        release = threading.Event()
        stuck = asyncio.create_task(store._call(lambda _: release.wait(PATIENCE_S)))
        await asyncio.sleep(0.01)

        with pytest.raises(OutcomeUnknown):
            await store._call(lambda _: None, writes=True, timeout_ms=10)
        with pytest.raises(CoordinationUnavailable):
            await store._call(lambda _: None, timeout_ms=10)

        release.set()
        await stuck
        await store.close()

    run(scenario)


WRITER = """
import asyncio, sys
from pathlib import Path
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.sqlite import SQLiteCoordination

async def write(store, worker):
    number = int(sys.argv[2])
    while True:
        # Two keys in one transaction: both or none must be there.
        await store.transaction([], [Put(f"a/{worker}/{number}", b""), Put(f"b/{worker}/{number}", b"")])
        print(worker, number, flush=True)
        number += 1

async def main():
    store = await SQLiteCoordination.open(Path(sys.argv[1]))
    await asyncio.gather(*(write(store, worker) for worker in range(4)))

asyncio.run(main())
"""


def test_killed_process_leaves_every_answered_change_and_no_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    answered: set[str] = set()

    for first_number in (0, 10_000, 20_000):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(first_number)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line, _ in zip(process.stdout, range(60), strict=False):
            worker, number = line.split()
            answered.add(f"{worker}/{number}")
        process.kill()
        # What was printed before the kill was answered before it, read or not; a cut last line is none.
        for line in process.stdout:
            if line.endswith("\n"):
                worker, number = line.split()
                answered.add(f"{worker}/{number}")
        process.stdout.close()
        process.wait()

    assert len(answered) >= 3 * 60

    async def scenario() -> None:
        store = await SQLiteCoordination.open(path)
        first, _ = await store.list_all("a/")
        second, _ = await store.list_all("b/")
        await store.close()

        names = {item.key.removeprefix("a/") for item in first}
        assert answered <= names
        assert names == {item.key.removeprefix("b/") for item in second}

    run(scenario)


def test_a_store_that_went_back_or_was_changed_is_refused(tmp_path: Path) -> None:
    path, older, mark = tmp_path / "metadata.sqlite", tmp_path / "older", tmp_path / "store.mark"

    async def write(key: str) -> None:
        store = await SQLiteCoordination.open(path, marks=[mark])
        await store.compare_and_swap(key, ABSENT, b"1")
        await store.close()

    async def scenario() -> None:
        await write("a")
        shutil.copy(path, older)
        await write("b")

        shutil.copy(older, path)
        with pytest.raises(
            StoreUnusable, match=r"went back: it is at revision 1, .* up to revision 2 .*force-start"
        ):
            await SQLiteCoordination.open(path, marks=[mark])

        # Another history that came as far is no better, nor is another store.
        connection = sqlite3.connect(path)
        connection.close()
        changed = await SQLiteCoordination.open(path)
        await changed.compare_and_swap("other", ABSENT, b"1")
        await changed.close()
        with pytest.raises(StoreUnusable, match="other rows at revision 2"):
            await SQLiteCoordination.open(path, marks=[mark])
        path.unlink()
        other = await SQLiteCoordination.open(path)
        await other.compare_and_swap("a", ABSENT, b"1")
        await other.close()
        with pytest.raises(StoreUnusable, match="not the store that this data directory was served with"):
            await SQLiteCoordination.open(path, marks=[mark])
        path.unlink()
        with pytest.raises(StoreUnusable, match="is missing"):
            await SQLiteCoordination.open(path, marks=[mark])
        assert not path.exists()

    run(scenario)


def test_a_store_that_went_back_together_with_one_of_its_marks_is_refused_by_the_other(
    tmp_path: Path,
) -> None:
    path, marks = tmp_path / "metadata.sqlite", (tmp_path / "store.mark", tmp_path / "0" / "store.mark")

    async def write(key: str) -> None:
        store = await SQLiteCoordination.open(path, marks=marks)
        await store.compare_and_swap(key, ABSENT, b"1")
        await store.close()

    def put_back(*files: Path) -> None:
        for file in files:
            shutil.copy(tmp_path / f"{file.parent.name}.older.{file.name}", file)

    async def scenario() -> None:
        await write("a")
        for file in (path, *marks):
            shutil.copy(file, tmp_path / f"{file.parent.name}.older.{file.name}")
        await write("b")
        for going_back, witness in ((marks[0], marks[1]), (marks[1], marks[0])):
            kept = [(file, file.read_bytes()) for file in (path, going_back)]
            put_back(path, going_back)
            with pytest.raises(StoreUnusable, match=rf"up to revision 2 were answered, as {witness} says"):
                await SQLiteCoordination.open(path, marks=marks)
            for file, data in kept:
                file.write_bytes(data)

        put_back(*marks)  # a server that was killed before they were written has such marks
        await write("c")

        assert {mark.parent: revision_of(mark) for mark in marks} == {mark.parent: 3 for mark in marks}

    run(scenario)


def revision_of(path: Path) -> int:
    mark = StoreMark(path)
    found = mark.open()
    mark.close()
    assert found is not None
    return found.revision


def test_a_mark_is_as_good_as_its_newest_whole_slot(tmp_path: Path) -> None:
    path = tmp_path / "store.mark"
    marks = [Mark(bytes(16), revision, revision * 3) for revision in (1, 2)]
    for mark in marks:
        writing = StoreMark(path)
        writing.open()
        writing.write(mark)
        writing.close()
    whole = path.read_bytes()

    def read() -> Mark | None:
        reading = StoreMark(path)
        try:
            return reading.open()
        finally:
            reading.close()

    assert read() == marks[1]
    for place in range(40):
        damaged = bytearray(whole)
        damaged[SLOT_BYTES + place] ^= 1
        path.write_bytes(damaged)
        assert read() == marks[0]
    path.write_bytes(b"")
    assert read() is None


def test_a_row_that_sqlite_reads_but_nobody_wrote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def scenario() -> None:
        store = await SQLiteCoordination.open(path)
        await store.transaction([], [Put("/keys/one", b"value-of-one"), Put("/keys/two", b"value-of-two")])
        await store.transaction([], [Put("/keys/three", b"3")], ["/keys/two"])
        await store.close()
        whole = path.read_bytes()
        for text in (b"value-of-one", b"/keys/three"):
            data = bytearray(whole)
            data[whole.rindex(text) + len(text) - 1] ^= 1
            path.write_bytes(data)

            with pytest.raises(StoreUnusable, match="damaged"):
                await SQLiteCoordination.open(path)

        path.write_bytes(whole)
        store = await SQLiteCoordination.open(path)
        assert [item.key for item in (await store.list_prefix("")).items] == ["/keys/one", "/keys/three"]
        await store.close()

    run(scenario)


def test_a_store_of_the_schema_without_sums_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in sqlite_file._MIGRATIONS[0]:
        connection.execute(statement)
    connection.execute("INSERT INTO kv VALUES ('a', x'31', 1, 0), ('b', NULL, 2, 0)")
    connection.execute("UPDATE meta SET value = 2 WHERE name = 'revision'")
    connection.execute("PRAGMA user_version = 1")
    connection.close()

    async def scenario() -> None:
        for _ in range(2):
            store = await SQLiteCoordination.open(path, marks=[tmp_path / "store.mark"])
            assert await store.get("a") == KeyValue("a", b"1", 1)
            await store.close()

    run(scenario)


def test_a_store_of_the_schema_that_called_its_checksum_a_seal_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def write(value: bytes) -> None:
        store = await SQLiteCoordination.open(path)
        await store.transaction([], [Put("a", value)])
        await store.close()

    run(lambda: write(b"1"))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE meta SET name = 'seal' WHERE name = 'checksum'")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    run(lambda: write(b"2"))
    connection = sqlite3.connect(path, isolation_level=None)
    names = {name for (name,) in connection.execute("SELECT name FROM meta")}
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'checksum'")
    connection.close()

    assert names == {"revision", "forgotten_revision", "row_sum", "checksum"}
    with pytest.raises(StoreUnusable, match="damaged"):
        run(lambda: write(b"3"))


def test_a_mark_that_cannot_be_written_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        told: list[Exception] = []
        store = await SQLiteCoordination.open(
            tmp_path / "metadata.sqlite", marks=[tmp_path / "store.mark"], on_stopped=told.append
        )

        def fail(mark: StoreMark, moment: Mark) -> None:
            raise OSError(errno.EIO, "made to fail")

        monkeypatch.setattr(StoreMark, "write", fail)
        with pytest.raises(OutcomeUnknown):
            await store.compare_and_swap("a", ABSENT, b"1")
        with pytest.raises(CoordinationUnavailable, match=r"store\.mark cannot be written"):
            await store.get("a")
        assert len(told) == 1
        await store.close()

    run(scenario)


def test_a_mark_that_finds_no_room_is_written_when_there_is_some_and_nothing_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mark = tmp_path / "metadata.sqlite", tmp_path / "store.mark"
    told: list[Exception] = []
    is_full = False
    real = os.pwrite

    def pwrite(fd: int, data: bytes, position: int) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)

    async def scenario() -> None:
        nonlocal is_full
        store = await SQLiteCoordination.open(path, marks=[mark], on_stopped=told.append, poll_ms=10)
        revision = await store.compare_and_swap("a", ABSENT, b"1")
        watching = asyncio.create_task(first_events(store, revision))
        for _ in range(2):  # before the second one is answered, the watch has read all there is
            await store.get("a")

        is_full = True
        with pytest.raises(OutcomeUnknown):
            await store.compare_and_swap("b", ABSENT, b"1")
        for _ in range(2):
            with pytest.raises(CoordinationUnavailable, match=r"waits for room .*store\.mark"):
                await store.get("b")
        shutil.copy(mark, tmp_path / "mark-meanwhile")
        is_full = False

        assert [event.key for event in await watching] == ["b"]
        assert await store.get("b") == KeyValue("b", b"1", revision + 1)
        assert told == []
        await store.close()

        for written, known in ((tmp_path / "mark-meanwhile", revision), (mark, revision + 1)):
            opened = StoreMark(written)
            found = opened.open()
            opened.close()
            assert found is not None
            assert found.revision == known

    run(scenario)
