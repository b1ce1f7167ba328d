"""Stretches of a key, cut by what the footers of Parquet files say, so that tasks need not exchange rows.

    row groups      [1 .. 4] [5 .. 8] [9 .. 12] [2 .. 3, came late]
    stretches       below 5           | from 5 on
    their files     first and fourth  | second and third

Every value lies in just one stretch, wherever its rows are: whoever reads a stretch's files and leaves out what is
not in it has all rows of each of its values. Keys that grow with time, as sequences and UUIDv7 do, make stretches of
few files. Keys in no order make stretches that each read all files: right, but dear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What a footer says of the key in one row group."""

    path: str
    low: Any
    high: Any
    rows: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values from `low` on and below `high`, None without a bound, and the files that may have some."""

    low: Any
    high: Any
    paths: tuple[str, ...]

    def condition(self, name: str) -> str:
        """Return what SQL asks of a row's column for it to be in this stretch."""
        bounds = ((">=", self.low), ("<", self.high))
        asked = [f"{name} {sign} {literal(bound)}" for sign, bound in bounds if bound is not None]
        return " and ".join(asked) or "true"


def read_row_groups(paths: Iterable[Path], name: str) -> list[RowGroup]:
    """Return what the footers say of a column.

    Raises:
        ValueError: a row group says nothing of it, or has rows without a value, which are in no stretch.
    """
    found = []
    for path in paths:
        footer = pq.read_metadata(path)
        column = footer.schema.to_arrow_schema().get_field_index(name)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            known = group.column(column).statistics
            if known is None or not known.has_min_max or known.null_count:
                raise ValueError(f"row group {number} of {path} does not bound {name} for all of its rows")
            found.append(RowGroup(str(path), known.min, known.max, group.num_rows))
    return found


def cut(groups: Sequence[RowGroup], rows_min: int) -> list[Stretch]:
    """Return stretches that together hold every value once, each of about so many rows.

    There are more in one where a single value has them, and fewer where row groups lie across a bound; the last has
    what is left.
    """
    bounds: list[Any] = []
    waiting, last = 0, None
    for group in sorted(groups, key=lambda group: group.low):
        if waiting >= rows_min and group.low > last:
            bounds.append(group.low)
            waiting = 0
        waiting += group.rows
        last = group.low
    return [Stretch(low, high, _files(groups, low, high)) for low, high in pairwise([None, *bounds, None])]


def _files(groups: Sequence[RowGroup], low: Any, high: Any) -> tuple[str, ...]:
    found = (
        group.path
        for group in groups
        if (high is None or group.low < high) and (low is None or group.high >= low)
    )
    return tuple(dict.fromkeys(found))


def literal(value: Any) -> str:
    """Return a value of a footer as SQL."""
    if isinstance(value, int):
        return str(value)
    quoted = "'" + str(value).replace("'", "''") + "'"
    return quoted if isinstance(value, str) else f"timestamptz {quoted}"
