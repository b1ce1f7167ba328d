"""Offsets and how much of them to take: the arithmetic of a stream, without a server.

What Spark keeps in its checkpoint, by partition of a queue the next offset to read:

    {"version": 1, "81985529216486895/0": 4711, "81985529216486895/1": 12}

A queue is named by its id, so that one created again under an old name is not taken for the old one. Spark compares
offsets as texts, so they are always rendered in one order. A partition enters with an empty range, at the offset
where its reading begins: what a batch reads is therefore said whole by its two offsets, however often it is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_quaymaster.errors import AnswerIsWrong

VERSION = 1
_VERSION_NAME = "version"

# By "<queue id>/<partition>".
Offsets = dict[str, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition to read, half open; picklable, for executors."""

    url: str
    queue_id: str
    partition: int
    first: int
    end: int
    live: int = 0
    """From here on they are read from the server, below it from the archive."""

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def key(self) -> str:
        """The name of its partition in offsets."""
        return key_of(self.queue_id, self.partition)


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Into how many tasks a read is cut."""

    tasks_min: int = 1
    tasks_usual: int = 1
    """As many as there are cores: with fewer, some would stand idle."""
    tasks_max: int = 10_000
    rows_max: int | None = None
    """No task has more rows, even if that makes more tasks than `tasks_max`."""
    bytes_max: int = 32 << 20
    """No task has more bytes, by estimate, unless that makes more tasks than `tasks_max`."""
    # A task costs some 25 ms: with fewer rows and bytes than these, more tasks cost more than they save.
    rows_good: int = 10_000
    bytes_good: int = 4 << 20


def key_of(queue_id: str, partition: int) -> str:
    """Return the name of a partition in offsets."""
    return f"{queue_id}/{partition}"


def render_offsets(offsets: Mapping[str, int]) -> dict[str, int]:
    """Return what Spark keeps; equal offsets give equal JSON."""
    return {_VERSION_NAME: VERSION} | {key: offsets[key] for key in sorted(offsets)}


def parse_offsets(kept: Mapping[str, Any]) -> Offsets:
    """Return the offsets that Spark kept; raises AnswerIsWrong for those of a newer connector or a stranger."""
    version = kept.get(_VERSION_NAME)
    if version != VERSION:
        raise AnswerIsWrong(
            f"the checkpoint has offsets of version {version!r}, this connector knows {VERSION}: it was written by a "
            "newer connector or by another source"
        )
    offsets = {key: value for key, value in kept.items() if key != _VERSION_NAME}
    for key, value in offsets.items():
        queue_id, slash, partition = key.partition("/")
        if not (queue_id and slash and partition.isdigit()) or type(value) is not int or value < 0:
            raise AnswerIsWrong(f"the checkpoint has an offset that is none: {key!r}: {value!r}")
    return offsets


def share(available: Mapping[str, int], limit: int, turn: int = 0) -> dict[str, int]:
    """Return how many rows to take of each partition, `limit` in all or all there is.

    All get the same where they have as much; what the small ones leave goes to the large ones. So a burst in one
    queue does not hold up the others. With more partitions than rows, `turn` says with which to begin; it grows by
    what was taken, and so everyone's turn comes.
    """
    wanted = {key: rows for key, rows in sorted(available.items()) if rows > 0}
    taken: dict[str, int] = dict.fromkeys(available, 0)
    if limit < len(wanted):
        keys = list(wanted)
        for number in range(limit):
            taken[keys[(turn + number) % len(keys)]] = 1
        return taken
    # Smallest first: one pass finds everybody's share.
    for number, key in enumerate(sorted(wanted, key=lambda key: wanted[key])):
        taken[key] = min(wanted[key], limit // (len(wanted) - number))
        limit -= taken[key]
    return taken


def share_bytes(
    available: Mapping[str, int], row_bytes: Mapping[str, float], limit: int, turn: int = 0
) -> dict[str, int]:
    """Return how many rows of each partition are about `limit` bytes in all; at least one row if there is any.

    `row_bytes` is the size of an average row of each partition, above 0.
    """
    sizes = {key: -int(-rows * row_bytes[key] // 1) for key, rows in available.items()}
    bytes_taken = share(sizes, limit, turn)
    taken = {key: min(rows, int(bytes_taken[key] / row_bytes[key])) for key, rows in available.items()}
    return taken if any(taken.values()) else share(available, 1, turn)


def plan_tasks(
    ranges: Sequence[Range], row_bytes: Mapping[str, float], limits: TaskLimits
) -> list[tuple[Range, ...]]:
    """Return what each task reads: the ranges in their order, cut and packed into tasks of about equal size.

    `row_bytes` is the size of an average row of each partition, by its key; where some are missing, rows are counted
    instead. Without `rows_max` there are at most `tasks_max` tasks, and at least `tasks_min` if there are as many rows.
    """
    rows = sum(one.rows for one in ranges)
    if rows == 0:
        return []
    is_sized = all(one.key in row_bytes for one in ranges if one.rows)
    weights = [max(1, round(row_bytes[one.key])) if is_sized and one.rows else 1 for one in ranges]
    total = sum(one.rows * weight for one, weight in zip(ranges, weights, strict=True))
    tasks = _tasks_wanted(rows, total if is_sized else None, limits)
    planned: dict[int, list[Range]] = {}
    # A row belongs to the task in whose share of all bytes it begins. Integers, so that no row is counted twice.
    before = 0
    for one, weight in zip(ranges, weights, strict=True):
        first = one.first
        while first < one.end:
            task = (before + (first - one.first) * weight) * tasks // total
            share_end = (task + 1) * total
            end = one.first - ((before * tasks - share_end) // (weight * tasks))
            end = min(one.end, end)
            planned.setdefault(task, []).append(replace(one, first=first, end=end))
            first = end
        before += one.rows * weight
    if len(planned) < min(rows, limits.tasks_min):
        # A few rows are larger than many others together: as many tasks as are asked for count more.
        return plan_tasks(ranges, {}, limits)
    return [piece for task in planned.values() for piece in _in_pieces(task, limits.rows_max)]


def _tasks_wanted(rows: int, total_bytes: int | None, limits: TaskLimits) -> int:
    tasks = max(limits.tasks_min, min(limits.tasks_usual, -(-rows // limits.rows_good)))
    if total_bytes is not None:
        if total_bytes > limits.bytes_good:
            tasks = max(tasks, limits.tasks_usual)
        tasks = max(tasks, -(-total_bytes // limits.bytes_max))
    return min(tasks, limits.tasks_max)


def _in_pieces(task: list[Range], rows_max: int | None) -> list[tuple[Range, ...]]:
    """Return a task as several of at most `rows_max` rows each."""
    rows = sum(one.rows for one in task)
    pieces = 1 if rows_max is None else -(-rows // rows_max)
    if pieces == 1:
        return [tuple(task)]
    planned: list[tuple[Range, ...]] = []
    piece: list[Range] = []
    piece_rows = room = -(-rows // pieces)
    for one in task:
        first = one.first
        while first < one.end:
            end = min(one.end, first + room)
            piece.append(replace(one, first=first, end=end))
            room -= end - first
            first = end
            if room == 0:
                planned.append(tuple(piece))
                piece, room = [], piece_rows
    return [*planned, tuple(piece)] if piece else planned
