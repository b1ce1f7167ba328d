"""What is in the files: their tables, and the statements that read and write them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from quaymaster.core.monitoring.minutes import COUNTERS, GAUGES, VALUES
from quaymaster.core.monitoring.periods import DAY_S, LEVELS

STATE_FILE: Final = "state.sqlite"
FORMAT: Final = 1
"""`PRAGMA user_version` of each file. Another one is set aside, as what is damaged."""
SUFFIX: Final = ".sqlite"
ASIDE: Final = ".damaged"
PARTS: Final = ("samples", "total", "least", "greatest")

STATE_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS partitions (queue INTEGER, number INTEGER, row BLOB, PRIMARY KEY (queue, number))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journals (journal INTEGER PRIMARY KEY, seen_ms INTEGER);
CREATE TABLE IF NOT EXISTS names (queue INTEGER PRIMARY KEY, account TEXT, name TEXT, last_s INTEGER);
CREATE INDEX IF NOT EXISTS by_name ON names (account, name);
CREATE TABLE IF NOT EXISTS closed (at_s INTEGER);
"""
_MINUTE_COLUMNS: Final = ", ".join(VALUES)
MINUTE_SCHEMA: Final = (
    f"CREATE TABLE IF NOT EXISTS kept (at INTEGER, queue INTEGER, {_MINUTE_COLUMNS}, PRIMARY KEY (at, queue)) "
    "WITHOUT ROWID;"
)
PART_COLUMNS: Final = ", ".join(f"{value}_{part}" for value in VALUES for part in PARTS)
PART_SCHEMA: Final = (
    f"CREATE TABLE IF NOT EXISTS kept (at INTEGER, queue INTEGER, {PART_COLUMNS}, PRIMARY KEY (at, queue)) "
    "WITHOUT ROWID;"
)


def schema_of(level: int) -> str:
    """Return the tables of a file of a day."""
    return MINUTE_SCHEMA if level == LEVELS[0] else PART_SCHEMA


def insert_minute(schema: str) -> str:
    """Return what adds a minute: counts are added to those that are there, gauges take their place."""
    marks = ", ".join("?" * (2 + len(VALUES)))
    gauges = [f"{name} = coalesce(excluded.{name}, {name})" for name in GAUGES]
    counters = [f"{name} = coalesce({name}, 0) + coalesce(excluded.{name}, 0)" for name in COUNTERS]
    return (
        f"INSERT INTO {schema}.kept (at, queue, {_MINUTE_COLUMNS}) VALUES ({marks}) "  # noqa: S608 -- our own names
        f"ON CONFLICT (at, queue) DO UPDATE SET {', '.join(gauges + counters)}"
    )


def roll_up(source: str, target: str, level: int) -> str:
    """Return what puts what is kept in a file together, for the next longer level. Parameters: at, from, to."""
    if level == LEVELS[1]:
        columns = [f"count({name}), sum({name}), min({name}), max({name})" for name in VALUES]
    else:
        columns = [
            f"sum({name}_samples), sum({name}_total), min({name}_least), max({name}_greatest)"
            for name in VALUES
        ]
    return (
        f"INSERT OR REPLACE INTO {target}.kept SELECT ?, queue, {', '.join(columns)} "  # noqa: S608 -- our own names
        f"FROM {source}.kept WHERE at >= ? AND at < ? GROUP BY queue"
    )


def read(level: int, values: Sequence[str]) -> str:
    """Return what reads values of VALUES: (at, queue, ...). Parameters: times, and queues, as arrays of JSON."""
    parts = [""] if level == LEVELS[0] else [f"_{part}" for part in PARTS]
    columns = ", ".join(f"{value}{part}" for value in values for part in parts)
    return (
        f"SELECT at, queue, {columns} FROM kept WHERE at IN (SELECT value FROM json_each(?)) "  # noqa: S608 -- our own names
        "AND queue IN (SELECT value FROM json_each(?)) ORDER BY at"
    )


def day_of(at_s: int) -> str:
    """Return the UTC day of a moment, as files are named."""
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))


def day_file(directory: Path, level: int, at_s: int) -> Path:
    """Return the file that has a moment."""
    return directory / str(level) / f"{day_of(at_s)}{SUFFIX}"


def second_of_day(at_s: int) -> int:
    """Return where in its day a moment is."""
    return at_s % DAY_S
