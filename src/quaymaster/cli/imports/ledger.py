"""The state file of an import: which messages were committed here, and of which batches the end is not known.

    begin (fsynced) ──▶ StageMessages with Commit ──▶ settle: committed, its ids are kept for good
                                                          or not: its messages are taken again when they come

A batch that was begun and not settled is asked for at the next start. The file is an SQLite database, written by one
import at a time; `begin` returns when the batch is on the disk. What `settle` says is written with the next `begin`:
if it is lost, the next start asks once more.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import IO, NamedTuple, Self

from quaymaster.cli.shared.failures import CommandRefused, WrongUsage, reason_of
from quaymaster.core.importing.messages import IDENTITY_BYTES

VERSION = 1
"""To change the tables, raise it, and let `_prepare` bring a file of an older one up to it."""
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, sink TEXT NOT NULL, begun_ms INTEGER NOT NULL,
    identities BLOB NOT NULL, message_ids TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS committed (identity BLOB PRIMARY KEY) WITHOUT ROWID;
"""
"""`batches` are those that are not settled; `identities` one behind the other, `message_ids` with spaces between."""


class Known(Enum):
    """What is known of a message that was received."""

    NEW = "nothing: it is the receiver's now"
    HELD = "a worker has it, or it is to stay"
    COMMITTED = "it is here; it may be deleted there"


class UnsettledBatch(NamedTuple):
    """A batch of an import that ended before it knew what became of it. `id` is its number for its sink."""

    id: int
    queue: str
    sink: str
    begun_ms: int
    identities: list[bytes]
    message_ids: list[str]


class Ledger:
    """A state file, for several threads."""

    def __init__(self, path: Path, *, source: str, target: str) -> None:
        """Open the file, or make it.

        Raises:
            CommandRefused: another import uses it, or it is of another source or target.
            WrongUsage: it cannot be written, or is no state file.
        """
        self.path = path
        self._lock = threading.Lock()
        self._held: set[bytes] = set()
        self._settled: dict[int, Sequence[bytes]] = {}
        """Batches whose end is not written yet, with their messages if they were committed."""
        self._recent: set[bytes] = set()
        """The messages of those."""
        self._lock_file = _locked(path)
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._prepare(source, target)
        except sqlite3.Error as error:
            self._lock_file.close()
            raise WrongUsage(f"{path} cannot be used as a state file: {reason_of(error)}.") from None
        except CommandRefused:
            self._lock_file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock, contextlib.closing(self._database), self._lock_file:
            self._write_settled()

    def claim(self, identity: bytes) -> Known:
        """Tell what is known of a message; a new one is held from now on."""
        with self._lock:
            if identity in self._held:
                return Known.HELD
            if identity in self._recent:
                return Known.COMMITTED
            if self._database.execute("SELECT 1 FROM committed WHERE identity = ?", (identity,)).fetchone():
                return Known.COMMITTED
            self._held.add(identity)
            return Known.NEW

    def release(self, identities: Sequence[bytes]) -> None:
        """Let messages that were not committed be taken again."""
        with self._lock:
            self._held.difference_update(identities)

    def begin(
        self, queue: str, sink: str, identities: Sequence[bytes], message_ids: Sequence[str], now_ms: int
    ) -> int:
        """Note on the disk that these messages are about to be committed; return the number of their batch."""
        with self._lock:
            row = (queue, sink, now_ms, b"".join(identities), " ".join(message_ids))
            self._database.execute("BEGIN IMMEDIATE")
            self._write_settled_rows()
            done = self._database.execute(
                "INSERT INTO batches (queue, sink, begun_ms, identities, message_ids) VALUES (?, ?, ?, ?, ?)",
                row,
            )
            self._database.execute("COMMIT")
            self._forget_settled()
            assert done.lastrowid is not None, "a row that was inserted has a number"
            return done.lastrowid

    def settle(self, batch: int, identities: Sequence[bytes], *, is_committed: bool) -> None:
        """Say what became of a batch. Messages that were not committed stay held until they are released."""
        with self._lock:
            if is_committed:
                self._settled[batch] = identities
                self._recent.update(identities)
                self._held.difference_update(identities)
            else:
                self._settled[batch] = []

    def unsettled(self) -> list[UnsettledBatch]:
        """Return the batches that an earlier import did not settle; their messages are held until they are."""
        with self._lock:
            rows = self._database.execute(
                "SELECT id, queue, sink, begun_ms, identities, message_ids FROM batches ORDER BY id"
            ).fetchall()
            found = []
            for batch, queue, sink, begun_ms, joined, message_ids in rows:
                identities = [
                    joined[at : at + IDENTITY_BYTES] for at in range(0, len(joined), IDENTITY_BYTES)
                ]
                self._held.update(identities)
                found.append(UnsettledBatch(batch, queue, sink, begun_ms, identities, message_ids.split(" ")))
            return found

    def committed(self) -> int:
        """Return how many messages were committed, by this import and those before it."""
        with self._lock:
            (count,) = self._database.execute("SELECT count(*) FROM committed").fetchone()
            return int(count) + len(self._recent)

    def _write_settled(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._write_settled_rows()
        self._database.execute("COMMIT")
        self._forget_settled()

    def _forget_settled(self) -> None:
        self._settled.clear()
        self._recent.clear()

    def _write_settled_rows(self) -> None:
        for batch, identities in self._settled.items():
            rows = [(identity,) for identity in identities]
            self._database.executemany("INSERT OR IGNORE INTO committed (identity) VALUES (?)", rows)
            self._database.execute("DELETE FROM batches WHERE id = ?", (batch,))

    def _prepare(self, source: str, target: str) -> None:
        # In a write-ahead log, each commit is one fsync.
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(_TABLES)
        about = {"version": str(VERSION), "source": source, "target": target}
        for name, value in about.items():
            self._database.execute("INSERT OR IGNORE INTO about (name, value) VALUES (?, ?)", (name, value))
        for name, value in self._database.execute("SELECT name, value FROM about").fetchall():
            if about.get(name, value) != value:
                raise CommandRefused(
                    f"{self.path} is the state of another import: its {name} is {value}, not {about[name]}."
                )


def _locked(path: Path) -> IO[bytes]:
    """Return the lock file of a state file, locked until it is closed."""
    lock = path.with_name(path.name + ".lock")
    try:
        file = lock.open("ab")
    except OSError as error:
        raise WrongUsage(f"{lock} cannot be written: {reason_of(error)}.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise CommandRefused(f"Another import uses the state file {path}.") from None
    return file
