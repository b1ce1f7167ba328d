"""What `quaymaster top` shows: queues with rates between two looks, sorted and filtered, and the cell.

Nothing is asked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

SORTS: Final = ("visible", "in_flight", "age_s", "sent_per_s", "deleted_per_s", "name")
"""Fields of a `QueueRow` by which rows can be sorted: numbers with the largest first, names from A on."""
PROCESS_COLUMNS: Final = ("process", "role", "zone", "state", "cpu", "memory", "disk", "leads")
JOURNAL_COLUMNS: Final = ("journal", "leader", "epoch", "followers")
BAR_CELLS: Final = 16
FULL: Final = 10_000_000
"""So many messages fill a bar, whose length grows with the logarithm of their number."""
PARTS: Final = ("█", "▒", "░")
"""Of a bar: visible, in flight, delayed."""


class QueueRow(NamedTuple):
    """A queue as it is shown. Rates are means since the look before, None at the first one."""

    name: str
    visible: int
    in_flight: int
    delayed: int
    age_s: float | None
    """Of the oldest message; None: there is none."""
    sent_per_s: float | None
    deleted_per_s: float | None


class Look(NamedTuple):
    """What a server answered at a time: its state, the queues of the account and its alarms, as the APIs give them."""

    at_ms: int
    status: Mapping[str, Any]
    queues: Sequence[Mapping[str, Any]]
    alarms: Sequence[Mapping[str, Any]] | None
    """None: no console answers."""
    cell: Mapping[str, Any] | None = None
    """Its processes and journals, as the admin API gives them; None: no console answers."""


def process_rows(cell: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the processes of a cell as texts, by PROCESS_COLUMNS."""
    return [
        (
            one["name"],
            one["role"],
            one["zone"] or "-",
            "live" if one["is_live"] else "gone",
            share_text(one["cpu"]),
            share_text(one["memory"]),
            share_text(one["disk"]),
            " ".join(one["leads"]) or "-",
        )
        for one in ([] if cell is None else cell["processes"])
    ]


def journal_rows(cell: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the journals of a cell as texts, by JOURNAL_COLUMNS."""
    return [
        (
            one["name"],
            one["leader"] or (f"- (last {last})" if (last := one.get("last_leader")) else "-"),
            "-" if one["epoch"] is None else str(one["epoch"]),
            " ".join(
                f"{each['name']} {'?' if each['lag_records'] is None else '+' + str(each['lag_records'])}"
                for each in one["followers"]
            )
            or "-",
        )
        for one in ([] if cell is None else cell["journals"])
    ]


def share_text(share: float | None) -> str:
    """Return a part of one in percent; a dash where it is not known."""
    return "-" if share is None else f"{share:.0%}"


def rows_of(now: Look, before: Look | None) -> list[QueueRow]:
    """Return the rows of a look, with rates since the one before."""
    known = {} if before is None else {queue["queue_id"]: queue for queue in before.queues}
    passed_s = 0.0 if before is None else (now.at_ms - before.at_ms) / 1000
    return [
        QueueRow(
            queue["name"],
            queue["visible"],
            queue["in_flight"],
            queue["delayed"],
            # None, or 0, where there is no message.
            max(0.0, (now.at_ms - queue["oldest_sent_ms"]) / 1000) if queue["oldest_sent_ms"] else None,
            _rate("sends", queue, known.get(queue["queue_id"]), passed_s),
            _rate("deletions", queue, known.get(queue["queue_id"]), passed_s),
        )
        for queue in now.queues
    ]


def _rate(
    field: str, now: Mapping[str, Any], before: Mapping[str, Any] | None, passed_s: float
) -> float | None:
    # Counts of a journal that was cut to an older state begin further down: that is no negative rate.
    if before is None or passed_s <= 0 or now[field] < before[field]:
        return None
    return float((now[field] - before[field]) / passed_s)


def arrange(rows: Iterable[QueueRow], sort: str, part: str = "") -> list[QueueRow]:
    """Return the rows whose names contain `part`, in the order of SORTS; equal ones by their names."""
    chosen = sorted((row for row in rows if part.lower() in row.name.lower()), key=lambda row: row.name)
    if sort != "name":
        chosen.sort(key=lambda row: getattr(row, sort) or 0, reverse=True)
    return chosen


def depth_bar(row: QueueRow) -> str:
    """Return a queue's depth as text: one message takes an eighth of the bar, ten million all of it."""
    counts = (row.visible, row.in_flight, row.delayed)
    total = sum(counts)
    if not total:
        return ""
    share = 1 / 8 + 7 / 8 * min(1.0, math.log10(total) / math.log10(FULL))
    cells = max(1, round(BAR_CELLS * share))
    bar = ""
    for count, part in zip(counts, PARTS, strict=True):
        bar += part * (max(1, round(cells * count / total)) if count else 0)
    return bar[:BAR_CELLS]


def age_text(seconds: float | None) -> str:
    """Return an age in its largest unit, as in `3 min`; a dash for none."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds / length)} {unit}"
    return f"{int(seconds)} s"


def rate_text(rate: float | None) -> str:
    """Return messages a second; a dash where that is not known."""
    return "-" if rate is None else f"{rate:.1f}/s" if rate < 100 else f"{rate:,.0f}/s"


def as_json(now: Look, before: Look | None, sort: str, part: str) -> dict[str, Any]:
    """Return all of it as `--json` prints it."""
    return {
        "taken_ms": now.at_ms,
        "process": {name: now.status[name] for name in ("version", "state", "ready", "reason")},
        "queues": [row._asdict() for row in arrange(rows_of(now, before), sort, part)],
        "alerts": None
        if now.alarms is None
        else [
            {"name": alarm["AlarmName"], "state": alarm["StateValue"], "reason": alarm.get("StateReason", "")}
            for alarm in now.alarms
        ],
        "cell": now.cell,
    }
