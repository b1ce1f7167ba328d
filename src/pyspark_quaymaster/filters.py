"""What the filters of a query say of where its rows lie: `pushdown=true`, for batch reads.

Filters only narrow what is read; Spark applies each of them to the rows all the same. So what is not known here, or
cannot be told exactly, is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyspark_quaymaster.client import Log
from pyspark_quaymaster.offsets import Offsets, key_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where the rows lie that filters let through: in these queues and partitions (None: any), of [first, end)."""

    queues: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    since_ms: int | None = None
    """Sent at this time or later."""

    def narrowed(
        self, start: Offsets, end: Offsets, since: Mapping[str, int], logs: Mapping[str, Log]
    ) -> tuple[Offsets, Offsets]:
        """Return the part of [start, end) that is wanted. `since` has the first offsets of `since_ms`."""
        starts, ends = dict(start), dict(end)
        for log in logs.values():
            for number in log.partitions:
                key = key_of(log.queue_id, number)
                is_out = self.queues is not None and log.name not in self.queues
                is_out = is_out or (self.partitions is not None and number not in self.partitions)
                starts[key] = max(start[key], self.first, since.get(key, 0))
                ends[key] = (
                    starts[key] if is_out else end[key] if self.end is None else min(end[key], self.end)
                )
        return starts, ends


@dataclass(slots=True)
class _Found:
    queues: list[frozenset[str]] = field(default_factory=list)
    partitions: list[frozenset[int]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    since_ms: list[int] = field(default_factory=list)


def wanted_by(filters: Sequence[Filter]) -> Wanted:
    """Return where the rows lie that all of the filters let through."""
    found = _Found()
    for one in filters:
        column = getattr(one, "attribute", ())
        if isinstance(one, EqualTo | In) and column in (("queue",), ("partition",)):
            values = one.value if isinstance(one, In) else (one.value,)
            if column == ("queue",):
                found.queues.append(frozenset(values))
            else:
                found.partitions.append(frozenset(values))
        elif column == ("offset",):
            _take_offset(found, one)
        elif column == ("timestamp",) and isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            _take_time(found, one.value)
    return Wanted(
        frozenset.intersection(*found.queues) if found.queues else None,
        frozenset.intersection(*found.partitions) if found.partitions else None,
        max(found.firsts, default=0),
        min(found.ends, default=None),
        max(found.since_ms, default=None),
    )


def _take_offset(found: _Found, one: Filter) -> None:
    match one:
        case EqualTo(_, int(offset)):
            found.firsts.append(offset)
            found.ends.append(offset + 1)
        case GreaterThan(_, int(offset)):
            found.firsts.append(offset + 1)
        case GreaterThanOrEqual(_, int(offset)):
            found.firsts.append(offset)
        case LessThan(_, int(offset)):
            found.ends.append(offset)
        case LessThanOrEqual(_, int(offset)):
            found.ends.append(offset + 1)


def _take_time(found: _Found, value: Any) -> None:
    # A time without a zone is in the session's, which is not known here.
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        found.since_ms.append(max(0, int(value.timestamp() * 1000)))
