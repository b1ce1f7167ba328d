"""The file of the single node's store: how it is opened, brought to the newest form, and verified whole.

    meta      name · value                       store revision, forgotten revision, sum of the rows, checksum
    kv        key · value · revision · lease     value NULL: the key was deleted (kept a while for watches)
    leases    id · ttl_ms · expires_ms
    identity  store_id                           16 random bytes, of the first start

SQLite has checksums of its log and none of its pages. So each change keeps a sum over all keys that there are (of a
hash of each row, added when it comes and taken when it goes), and a checksum of that sum, the revision and the store's
id. A start reads all rows and compares. That the file did not go back as a whole, `coordination/store_mark` says.

To change the format: raise SCHEMA_VERSION, add the statements that lead from the old version to `_MIGRATIONS`, and a
test that opens a file of the old one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

import xxhash

from quaymaster.coordination.directories import fsync_directory
from quaymaster.coordination.interface import StoreUnusable
from quaymaster.coordination.store_mark import Mark

SCHEMA_VERSION: Final = 3
SUMS_SINCE: Final = 2
"""The schema version since which there is a sum over the rows."""
APPLICATION_ID: Final = 0x514D5331  # "QMS1"
BUSY_TIMEOUT_MS: Final = 5_000
MASK: Final = 2**63 - 1
"""SQLite's integers are signed."""
RESTORE: Final = "Restore the data directory from a backup."

# Statements that lead from schema version n to n + 1.
_MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {
    0: (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB, revision INTEGER NOT NULL, "
        "lease INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
        "CREATE INDEX kv_by_revision ON kv (revision)",
        "CREATE INDEX kv_by_lease ON kv (lease) WHERE lease != 0",
        "CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL, "
        "expires_ms INTEGER NOT NULL)",
        "INSERT INTO meta VALUES ('revision', 0), ('forgotten_revision', 0)",
        f"PRAGMA application_id = {APPLICATION_ID}",
    ),
    1: (
        "CREATE TABLE identity (store_id BLOB NOT NULL)",
        "INSERT INTO identity VALUES (randomblob(16))",
        "INSERT INTO meta VALUES ('row_sum', 0), ('seal', 0)",
    ),
    2: ("UPDATE meta SET name = 'checksum' WHERE name = 'seal'",),
}


def hash_row(key: str, value: bytes, revision: int, lease: int) -> int:
    """Return what a row adds to the sum."""
    head = f"{len(key)} {revision} {lease} {key}".encode()
    return xxhash.xxh3_64_intdigest(head + value) & MASK


def read_meta(connection: sqlite3.Connection, name: str) -> int:
    """Return one of the store's numbers."""
    (value,) = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return int(value)


def add_to_sum(connection: sqlite3.Connection, change: int) -> None:
    """Let the sum be of the rows as the transaction under way leaves them."""
    _write_meta(connection, "row_sum", (read_meta(connection, "row_sum") + change) & MASK)
    write_checksum(connection)


def write_checksum(connection: sqlite3.Connection) -> None:
    """Write the checksum of the store's numbers; last in a transaction that changed one."""
    _write_meta(connection, "checksum", _checksum_of(connection))


def current_mark(connection: sqlite3.Connection) -> Mark:
    """Return the moment that the store is of."""
    (store_id,) = connection.execute("SELECT store_id FROM identity").fetchone()
    return Mark(store_id, read_meta(connection, "revision"), read_meta(connection, "row_sum"))


def peek_mark(path: Path) -> Mark:
    """Return the moment that a file is of, without changing it or its log: closing would write that into it."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        _refuse_foreign_file(connection, path)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return current_mark(connection) if version >= SUMS_SINCE else Mark(bytes(16), 0, 0)
    finally:
        connection.close()


def _checksum_of(connection: sqlite3.Connection) -> int:
    store_id, revision, row_sum = current_mark(connection)
    text = f"{revision} {row_sum} ".encode()
    return xxhash.xxh3_64_intdigest(text + store_id) & MASK


def _write_meta(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


# Opening


def open_connection(path: Path) -> sqlite3.Connection:
    create_private_file(path, may_exist=True)
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
    try:
        _refuse_foreign_file(connection, path)
        _set_pragma(connection, "journal_mode", "WAL", "wal")
        _set_pragma(connection, "synchronous", "FULL", 2)
        _set_pragma(connection, "fullfsync", "1", 1)  # macOS; elsewhere it does nothing
        _set_pragma(connection, "checkpoint_fullfsync", "1", 1)
        (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise StoreUnusable(f"{path} is damaged ({verdict}). {RESTORE}")
        _migrate(connection)
        _verify(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_foreign_file(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if not is_empty and application_id != APPLICATION_ID:
        raise StoreUnusable(f"{path} is a database of another program. Choose another data directory.")
    if version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} has format {version}, this program knows formats up to {SCHEMA_VERSION}: it was written "
            "by a newer Quaymaster. Start that version, or restore a backup made with this one."
        )


def _set_pragma(connection: sqlite3.Connection, name: str, value: str, expected: object) -> None:
    connection.execute(f"PRAGMA {name} = {value}")
    (found,) = connection.execute(f"PRAGMA {name}").fetchone()
    if found != expected:
        raise StoreUnusable(f"SQLite does not take {name}={value} here (it says {found}): not durable.")


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    # Read inside the transaction: another process may have migrated in the meantime.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for step in range(version, SCHEMA_VERSION):
        for statement in _MIGRATIONS[step]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {step + 1}")
    if version < SUMS_SINCE:
        _write_meta(connection, "row_sum", _sum_of_rows(connection))
        write_checksum(connection)
    connection.execute("COMMIT")


def _verify(connection: sqlite3.Connection, path: Path) -> None:
    """Read all rows, and compare them with the sum that the last change left."""
    connection.execute("BEGIN")
    row_sum = _sum_of_rows(connection)
    is_whole = row_sum == read_meta(connection, "row_sum") and _checksum_of(connection) == read_meta(
        connection, "checksum"
    )
    connection.execute("COMMIT")
    if not is_whole:
        raise StoreUnusable(
            f"{path} is damaged: its rows are not those that were written, though SQLite reads them. {RESTORE}"
        )


def _sum_of_rows(connection: sqlite3.Connection) -> int:
    total = 0
    for key, value, revision, lease in connection.execute(
        "SELECT key, value, revision, lease FROM kv WHERE value IS NOT NULL"
    ):
        # A flipped bit may make a row of other types, which SQLite reads all the same.
        total += hash_row(str(key), value, revision, lease) if isinstance(value, bytes) else 1
    return total & MASK


def create_private_file(path: Path, *, may_exist: bool = False) -> None:
    """Make sure that the file exists and only its owner can read it; SQLite gives its WAL the same mode."""
    flags = os.O_CREAT | os.O_RDWR | (0 if may_exist else os.O_EXCL)
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    fsync_directory(path.parent)


def as_unusable(path: Path, error: Exception) -> Exception:
    if isinstance(error, sqlite3.Error | OSError):
        return StoreUnusable(f"{path} cannot be opened: {error}. {RESTORE}")
    return error
