"""The files of the history, written and read by one thread. One that is damaged is set aside, and a new one begun."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from quaymaster.core.monitoring.minutes import VALUES, Minute
from quaymaster.core.monitoring.periods import DAY_S, KEPT_DAYS, LEVELS, Span, level_for
from quaymaster.core.monitoring.queue_statistics import Kept, Summary, summary_of
from quaymaster.core.values.queue_metrics import QueueMetricsRow
from quaymaster.history.layout import (
    ASIDE,
    FORMAT,
    STATE_FILE,
    STATE_SCHEMA,
    SUFFIX,
    day_file,
    day_of,
    insert_minute,
    read,
    roll_up,
    schema_of,
    second_of_day,
)
from quaymaster.monitoring.logs import log_event

OPEN_MAX: Final = 8
"""Files of days that are open for reading at once."""
HOUR_S: Final = 3_600
NAMES_DAYS: Final = KEPT_DAYS[LEVELS[-1]]

log = logging.getLogger(__name__)

_encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(QueueMetricsRow).decode


class QueueName(NamedTuple):
    """What a queue is called."""

    account: str
    name: str


class Closing(NamedTuple):
    """What is written when a minute is closed.

    `rows`: what leaders told of partitions; None: the partition is gone. `names`: of queues that have minutes, at first
    and then once an hour.
    """

    at_s: int
    minutes: Sequence[Minute]
    rows: Mapping[tuple[int, int], QueueMetricsRow | None]
    seen_ms: Mapping[int, int]
    names: Mapping[int, QueueName]


class Restored(NamedTuple):
    """What was known when the last minute was closed."""

    rows: list[QueueMetricsRow]
    seen_ms: dict[int, int]


class NoRoom(Exception):
    """There is too little free space to write anything; the message says how little."""


class HistoryFiles:
    """All of them, in a directory. Every method blocks."""

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int,
        free_bytes_min: Callable[[int], int] = lambda disk_bytes: 0,
        free_bytes: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        """`free_bytes_min`: of a file system of a size, so much is left to others. `free_bytes`: its size and rest."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._free_bytes = free_bytes or _disk_space
        self._state: sqlite3.Connection | None = None
        self._readers: dict[Path, sqlite3.Connection] = {}
        self._closed_s = 0
        self._prepared: set[Path] = set()
        """Files of days that have their tables."""
        self.set_aside: list[str] = []
        """Sentences on files that were damaged."""

    def open(self) -> Restored:
        """Open or make the files, and return what was known last."""
        for level in LEVELS:
            (self._directory / str(level)).mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._directory / STATE_FILE
        try:
            return self._open_state(path)
        except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
            self._set_aside(path, error)
            return self._open_state(path)

    def close(self) -> None:
        """Close all of them."""
        if self._state is not None:
            self._state.close()
            self._state = None
        self._close_readers()

    # Writing

    def write(self, closing: Closing) -> None:
        """Write a minute, what it makes of longer periods, and the state that it leaves.

        Raises:
            NoRoom: there is too little space.
            OSError, sqlite3.OperationalError: it could not be written; nothing of it was.
        """
        self._check_room()
        try:
            self._write(closing)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            damaged = [path for path in self._paths_of(closing) if not _is_sound(path)]
            if not damaged:
                raise sqlite3.OperationalError(str(error)) from error
            for path in damaged:
                self._set_aside(path, error)
            if self._directory / STATE_FILE in damaged:
                self._open_state(self._directory / STATE_FILE)
            self._write(closing)
        self._closed_s = closing.at_s

    def _write(self, closing: Closing) -> None:
        state = self._state
        assert state is not None, "it was opened"
        paths = self._paths_of(closing)[1:]
        schemas = {path: f"day{number}" for number, path in enumerate(paths)}
        try:
            for path, schema in schemas.items():
                if path not in self._prepared or not path.exists():
                    _prepare(path, int(path.parent.name))
                    self._prepared.add(path)
                state.execute(f"ATTACH ? AS {schema}", (str(path),))
            state.execute("BEGIN IMMEDIATE")
            self._write_minutes(state, closing, schemas)
            self._write_state(state, closing)
            state.execute("COMMIT")
        except BaseException:
            if state.in_transaction:
                state.execute("ROLLBACK")
            raise
        finally:
            attached = {name for _, name, _ in state.execute("PRAGMA database_list")}
            for schema in attached & set(schemas.values()):
                state.execute(f"DETACH {schema}")

    def _write_minutes(
        self, state: sqlite3.Connection, closing: Closing, schemas: Mapping[Path, str]
    ) -> None:
        by_file: dict[Path, list[tuple[int | None, ...]]] = {}
        for minute in closing.minutes:
            path = day_file(self._directory, LEVELS[0], minute.at_s)
            by_file.setdefault(path, []).append((second_of_day(minute.at_s), minute.queue_id, *minute.values))
        for path, rows in by_file.items():
            state.executemany(insert_minute(schemas[path]), rows)
        end_s = closing.at_s + 60
        for finer, level in pairwise(LEVELS):
            parts = {minute.at_s // level * level for minute in closing.minutes}
            parts.update(range(self._since_s(closing) // level * level, end_s, level))
            for part_s in sorted(parts):
                if part_s + level > end_s:
                    continue
                source = schemas.get(day_file(self._directory, finer, part_s))
                target = schemas.get(day_file(self._directory, level, part_s))
                if source is not None and target is not None:
                    at = second_of_day(part_s)
                    state.execute(roll_up(source, target, level), (at, at, at + level))

    def _write_state(self, state: sqlite3.Connection, closing: Closing) -> None:
        kept = [(*key, _encode_row(row)) for key, row in closing.rows.items() if row is not None]
        state.executemany("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?)", kept)
        gone = [key for key, row in closing.rows.items() if row is None]
        state.executemany("DELETE FROM partitions WHERE queue = ? AND number = ?", gone)
        state.executemany("INSERT OR REPLACE INTO journals VALUES (?, ?)", closing.seen_ms.items())
        named = [(queue_id, *name, closing.at_s) for queue_id, name in closing.names.items()]
        state.executemany("INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)", named)
        state.execute("DELETE FROM names WHERE last_s < ?", (closing.at_s - NAMES_DAYS * DAY_S,))
        state.execute("DELETE FROM closed")
        state.execute("INSERT INTO closed VALUES (?)", (closing.at_s,))

    def _paths_of(self, closing: Closing) -> list[Path]:
        times = [*(minute.at_s for minute in closing.minutes), self._since_s(closing), closing.at_s]
        days = sorted({at_s // DAY_S * DAY_S for at_s in times})
        files = [day_file(self._directory, level, day_s) for day_s in days for level in LEVELS]
        return [self._directory / STATE_FILE, *files]

    def _since_s(self, closing: Closing) -> int:
        """Return from when on longer periods may be complete that were not at the last minute that was written."""
        return max(self._closed_s, closing.at_s - DAY_S) if self._closed_s else closing.at_s

    def _check_room(self) -> None:
        size, free = self._free_bytes(self._directory)
        least = self._free_bytes_min(size)
        if free < least:
            raise NoRoom(f"{free:,} bytes are free, and {least:,} are left to messages")

    # Reading

    def read(self, queue_ids: Iterable[int], span: Span, *, has_samples: bool = False) -> list[Kept]:
        """Return what is kept of queues in some periods, in order of time; `has_samples`: minutes only."""
        each = self.read_each(queue_ids, span, has_samples=has_samples)
        return sorted((kept for of_queue in each.values() for kept in of_queue), key=lambda kept: kept.at_s)

    def read_each(
        self,
        queue_ids: Iterable[int],
        span: Span,
        *,
        values: Sequence[str] = VALUES,
        has_samples: bool = False,
    ) -> dict[int, list[Kept]]:
        """Return the same by queue, of those of which something is kept; of other values than `values` nothing.

        A hundred queues in one call cost a fifth of what they cost one by one.
        """
        level = LEVELS[0] if has_samples else level_for(span)
        # Of times that nothing can be kept of no file is looked for.
        end_s = min(span.periods_end_s, self._closed_s + 60)
        start_s = max(span.start_s, (self._closed_s // DAY_S - NAMES_DAYS) * DAY_S)
        found: dict[int, list[Kept]] = {}
        for queue_id, kept in self._read_levels(json.dumps(list(queue_ids)), start_s, end_s, level, values):
            found.setdefault(queue_id, []).append(kept)
        return found

    def _read_levels(
        self, queue_ids: str, start_s: int, end_s: int, level: int, values: Sequence[str]
    ) -> Iterator[tuple[int, Kept]]:
        """Yield what is kept at a level, and after the last that is complete at shorter ones."""
        complete_s = (self._closed_s + 60) // level * level
        middle_s = min(end_s, complete_s) if level != LEVELS[0] else end_s
        yield from self._read_level(queue_ids, start_s, middle_s, level, values)
        if max(start_s, middle_s) < end_s:
            shorter = LEVELS[LEVELS.index(level) - 1]
            yield from self._read_levels(queue_ids, max(start_s, middle_s), end_s, shorter, values)

    def _read_level(
        self, queue_ids: str, start_s: int, end_s: int, level: int, values: Sequence[str]
    ) -> Iterator[tuple[int, Kept]]:
        statement = read(level, values)
        places = [VALUES.index(value) for value in values]
        for day_s in range(start_s // DAY_S * DAY_S, end_s if start_s < end_s else 0, DAY_S):
            path = day_file(self._directory, level, day_s)
            times = range(max(start_s, day_s) - day_s, min(end_s, day_s + DAY_S) - day_s, level)
            if path.exists():
                for at_s, queue_id, *found in self._query(path, statement, times, queue_ids):
                    yield queue_id, Kept(day_s + at_s, _summaries(found, level, places))

    def _query(self, path: Path, statement: str, times: range, queue_ids: str) -> list[tuple[int, ...]]:
        try:
            reader = self._readers.get(path)
            if reader is None:
                if len(self._readers) >= OPEN_MAX:
                    self._close_readers()
                reader = self._readers[path] = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            return reader.execute(statement, (json.dumps(list(times)), queue_ids)).fetchall()
        except sqlite3.OperationalError as error:
            log_event(log, logging.WARNING, "history not read", file=str(path), error=str(error))
        except sqlite3.DatabaseError as error:
            self._set_aside(path, error)
        return []

    def ids_of(self, account: str, name: str) -> list[int]:
        """Return the ids of queues that have, or had, a name."""
        assert self._state is not None, "it was opened"
        rows = self._state.execute("SELECT queue FROM names WHERE account = ? AND name = ?", (account, name))
        return [queue_id for (queue_id,) in rows]

    # Space

    def bytes(self) -> int:
        """Return what all files take."""
        return sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())

    def trim(self, now_s: int) -> None:
        """Delete what is older than it is kept, and the oldest minutes while there is more than may be."""
        for level in LEVELS:
            oldest = day_of(now_s - KEPT_DAYS[level] * DAY_S)
            for path in self._days(level):
                if path.name < oldest:
                    self._delete(path)
        if self.bytes() <= self._bytes_max:
            return
        today = day_file(self._directory, LEVELS[0], now_s)
        for path in [*self._asides(), *(path for level in LEVELS for path in self._days(level))]:
            taken = self.bytes()
            if taken <= self._bytes_max or taken - _free_bytes_in(today) <= self._bytes_max:
                return
            if path == today:
                self._delete_hours(path)
            else:
                self._delete(path)

    def _delete_hours(self, path: Path) -> None:
        """Delete the oldest hours of a file while all take more than may be; its space is used again."""
        connection = _connect(path)
        try:
            for hour in range(1, DAY_S // HOUR_S):
                connection.execute("DELETE FROM kept WHERE at < ?", (hour * HOUR_S,))
                if self.bytes() - _free_bytes_in(path) <= self._bytes_max:
                    return
        finally:
            connection.close()

    def _days(self, level: int) -> list[Path]:
        return sorted((self._directory / str(level)).glob(f"*{SUFFIX}"))

    def _asides(self) -> list[Path]:
        return sorted(self._directory.rglob(f"*{ASIDE}"))

    def _delete(self, path: Path) -> None:
        self._close_readers()
        path.unlink(missing_ok=True)

    # What is damaged

    def _open_state(self, path: Path) -> Restored:
        if self._state is not None:
            self._state.close()
        self._state = state = _connect(path)
        _check_format(state)
        state.executescript(STATE_SCHEMA)
        rows = [_decode_row(row) for (row,) in state.execute("SELECT row FROM partitions")]
        seen_ms = dict(state.execute("SELECT journal, seen_ms FROM journals"))
        self._closed_s = next((at_s for (at_s,) in state.execute("SELECT at_s FROM closed")), 0)
        return Restored(rows, seen_ms)

    def _set_aside(self, path: Path, error: Exception) -> None:
        self._prepared.discard(path)
        self._close_readers()
        if self._state is not None and path.name == STATE_FILE:
            self._state.close()
            self._state = None
        aside = path.with_name(path.name + ASIDE)
        os.replace(path, aside)
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
        self.set_aside.append(f"{path} was damaged and is now {aside.name}; what it had is not shown.")
        log_event(
            *(log, logging.WARNING, "history set aside"), file=str(path), aside=aside.name, error=str(error)
        )

    def _close_readers(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _prepare(path: Path, level: int) -> None:
    """Make the file of a day if it is not there. Raises sqlite3.DatabaseError if it is no such file."""
    connection = _connect(path)
    try:
        _check_format(connection)
        connection.executescript(schema_of(level))
    finally:
        connection.close()


def _check_format(connection: sqlite3.Connection) -> None:
    """Give a new file its format. Raises sqlite3.DatabaseError for another one."""
    [number] = connection.execute("PRAGMA user_version").fetchone()
    if number == 0:
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    elif number != FORMAT:
        raise sqlite3.DatabaseError(f"its format is {number}, and this program knows {FORMAT}")


def _is_sound(path: Path) -> bool:
    if not path.exists():
        return True
    connection = sqlite3.connect(path)
    try:
        _check_format(connection)
        return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()


def _summaries(values: Sequence[int | None], level: int, places: Sequence[int]) -> tuple[Summary | None, ...]:
    """Return summaries of all VALUES: of those at `places` what was read, in this order."""
    found: list[Summary | None] = [None] * len(VALUES)
    if level == LEVELS[0]:
        for place, value in zip(places, values, strict=True):
            found[place] = summary_of(value)
        return tuple(found)
    for number, place in enumerate(places):
        samples, total, least, greatest = values[4 * number : 4 * number + 4]
        if samples and total is not None and least is not None and greatest is not None:
            found[place] = Summary(samples, total, least, greatest)
    return tuple(found)


def _free_bytes_in(path: Path) -> int:
    """Return how much of a file holds nothing."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        page_bytes, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count")
        )
        return int(page_bytes * free)
    finally:
        connection.close()


def _disk_space(directory: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(directory)
    return usage.total, usage.free
