"""Offsets and how much of them to take: the arithmetic of a stream, without a server.

What Spark keeps in its checkpoint, by partition of a queue the next offset to read:

    {"version": 1, "81985529216486895/0": 4711, "81985529216486895/1": 12}

A queue is named by its id, so that one made anew under an old name is not taken for the old one. Spark compares
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
    ranges: Sequence[Range],
    *,
    tasks_min: int,
    tasks_max: int,
    task_rows_max: int | None,
    task_rows_good: int,
) -> list[tuple[Range, ...]]:
    """Return what each task reads: the ranges in their order, cut and packed into tasks of about equal size.

    A task has about `task_rows_good` rows or more, unless more tasks are asked for: by `tasks_min`, or since none may
    have more than `task_rows_max`; only the latter makes more tasks than `tasks_max`.
    """
    total = sum(one.rows for one in ranges)
    if total == 0:
        return []
    tasks = min(total, tasks_max, max(tasks_min, -(-total // task_rows_good)))
    rows_max = -(-total // tasks)
    if task_rows_max is not None:
        rows_max = min(rows_max, task_rows_max)
    planned: list[tuple[Range, ...]] = []
    task: list[Range] = []
    room = rows_max
    for one in ranges:
        first = one.first
        while first < one.end:
            end = min(one.end, first + room)
            task.append(replace(one, first=first, end=end))
            room -= end - first
            first = end
            if room == 0:
                planned.append(tuple(task))
                task, room = [], rows_max
    if task:
        planned.append(tuple(task))
    return planned
