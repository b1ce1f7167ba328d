"""The proof that no audit event was changed, taken out or put in: each has the hash of the one before it.

    event 7 ── record_hash ──▶ prev_hash of event 8 ── record_hash ──▶ prev_hash of event 9 ── record_hash = head

An incarnation goes on from the one before, or from the anchor of what has expired; after a spool was lost it begins
again. That there were more events at the end is known from bronze.
"""

from __future__ import annotations

import datetime
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quaymaster.protocol.usage.usage_records import NO_HASH
from quaymaster_pipeline.checks.usage_breaks import BREAKS_MAX, differing
from quaymaster_pipeline.usage.audit_heads import Heads
from quaymaster_pipeline.usage.tasks import Answers, answer_counts, answer_table
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TIME

LINKS: Final = ("front_end", "epoch", "sequence", "event_time", "prev_hash", "record_hash")
"""The columns by which links are checked."""
IN_ORDER: Final = [(name, "ascending") for name in LINKS[:3]]
"""How events of a day are sorted for that."""
MISSING: Final = "an event before it is missing, or was put in or changed"
_TWICE: Final = "it is there twice, or its time was changed"
_REPLACED: Final = f"it is not the event that {BLOCKS.name} has"


class Break(NamedTuple):
    """A place where a chain does not hold; None for what is not known of it."""

    front_end: str | None
    incarnation: int | None
    sequence: int | None
    event_time: datetime.datetime | None
    reason: str

    @property
    def where(self) -> str:
        """The place in words, to follow `broken` or `the first is`."""
        if self.front_end is None:
            return "in the chain of a front end that is not known"
        if self.incarnation is None:
            return f"in the chain of {self.front_end}"
        return f"at {self.front_end} {self.incarnation}/{self.sequence}"


class Head(NamedTuple):
    """The end of a front end's chain. Kept elsewhere, its hash proves later that nothing before it was rewritten."""

    front_end: str
    incarnation: int
    sequence: int
    record_hash: str
    events: int


@dataclass(slots=True)
class Proof:
    """What `verify_chains` found. `breaks` has the first ones in the order of the chains.

    Of `events`, `stubs` have no content any more since they expired, and `erased` since that was asked for.
    """

    events: int = 0
    stubs: int = 0
    erased: int = 0
    breaks_total: int = 0
    breaks: list[Break] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)

    def add(self, found: Break) -> None:
        """Count a break, and keep it if there is room."""
        self.breaks_total += 1
        if len(self.breaks) < BREAKS_MAX:
            self.breaks.append(found)


_BREAK_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("day", "front_end")),
        *((name, pa.int64()) for name in ("incarnation", "sequence")),
        ("event_time", TIME),
        ("reason", pa.string()),
    ]
)


class FirstBreaks:
    """The first breaks of events, in the order of days and of the chains in each, and how many there are."""

    def __init__(self, most: int = BREAKS_MAX) -> None:
        self.total = 0
        self._most = most
        self._found: list[tuple[str, Break]] = []

    def add(self, day: str, found: Break) -> None:
        """Count a break of an event of a day, and keep it if it is among the first."""
        self.total += 1
        self._found.append((day, found))
        if len(self._found) > 4 * self._most:
            self._found = self._first()

    def __iter__(self) -> Iterator[Break]:
        return (found for _, found in self._first())

    def _first(self) -> list[tuple[str, Break]]:
        return heapq.nsmallest(self._most, self._found, key=_order)

    def answers(self, what: str) -> Iterator[Any]:
        """Yield what a task answers."""
        if self.total:
            rows = [{"day": day, **found._asdict()} for day, found in self._first()]
            yield answer_table(what, pa.Table.from_pylist(rows, schema=_BREAK_SCHEMA))
            yield answer_counts(f"{what} in all", {"total": self.total})

    def take(self, answers: Answers, what: str) -> None:
        """Add what tasks answered."""
        total = self.total + answers.counts(f"{what} in all")["total"]
        for table in answers.tables(what):
            for row in table.to_pylist():
                self.add(row.pop("day"), Break(**row))
        self.total = total


def _order(one: tuple[str, Break]) -> tuple[Any, ...]:
    day, found = one
    place = (-1 if number is None else number for number in (found.incarnation, found.sequence))
    return (day, found.front_end or "", *place)


class Stretch(NamedTuple):
    """The events of one incarnation of a front end: the first, the last, and how many there are."""

    front_end: str
    incarnation: int
    first_sequence: int
    first_time: datetime.datetime | None
    first_prev: bytes | None
    last_sequence: int
    last_time: datetime.datetime | None
    last_hash: bytes | None
    events: int


class Links:
    """Checks the links within incarnations, given a day at a time.

    Within an incarnation, days come in the order of the chain; incarnations are put together at the end, since a clock
    that was set back may lie between them.
    """

    def __init__(self) -> None:
        self.stretches: dict[tuple[str, int], Stretch] = {}

    def take(self, rows: Any) -> dict[int, str]:
        """Look at the events of a day, IN_ORDER, and return what is wrong with them, by their row."""
        if not rows.num_rows:
            return {}
        sequences = rows.column("sequence").to_numpy()
        begins = run_begins(rows, LINKS[:2])
        ends = np.append(begins[1:], rows.num_rows)
        goes_on = np.ones(rows.num_rows, np.bool_)
        goes_on[begins] = False
        is_twice, is_apart = np.zeros_like(goes_on), np.zeros_like(goes_on)
        is_twice[1:] = sequences[1:] <= sequences[:-1]
        before, after = rows.column("record_hash").slice(0, rows.num_rows - 1), rows.column("prev_hash")
        is_apart[1:] = differing(after.slice(1), before).to_numpy()
        wrong = np.flatnonzero(goes_on & (is_twice | is_apart)).tolist()
        reasons = {at: _TWICE if is_twice[at] else MISSING for at in wrong}
        firsts, lasts = (rows.take(pa.array(places)).to_pylist() for places in (begins, ends - 1))
        for begin, end, first, last in zip(begins.tolist(), ends.tolist(), firsts, lasts, strict=True):
            reason = self._take_run(first, last, end - begin)
            if reason is not None:
                reasons[begin] = reason
        return reasons

    def _take_run(self, first: Mapping[str, Any], last: Mapping[str, Any], events: int) -> str | None:
        """Add events of one incarnation that follow each other; return what is wrong with the first of them."""
        owner = first["front_end"], first["epoch"]
        known = self.stretches.get(owner)
        reason = None
        if known is None:
            known = Stretch(
                *owner, first["sequence"], first["event_time"], first["prev_hash"], -1, None, None, 0
            )
        elif first["sequence"] <= known.last_sequence:
            reason = _TWICE
        elif first["prev_hash"] != known.last_hash:
            reason = MISSING
        self.stretches[owner] = known._replace(
            last_sequence=last["sequence"],
            last_time=last["event_time"],
            last_hash=last["record_hash"],
            events=known.events + events,
        )
        return reason


def run_begins(rows: Any, names: Iterable[str]) -> Any:
    """Return at which rows a run of the same values of these columns begins."""
    is_new = np.zeros(rows.num_rows, np.bool_)
    is_new[:1] = True
    for name in names:
        column = rows.column(name)
        if pa.types.is_string(column.type):
            column = column.combine_chunks().dictionary_encode().indices
        values = column.to_numpy()
        is_new[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(is_new)


class Anchored(NamedTuple):
    """Up to where a front end's events expired, and the last that expired before the first that is there, if any."""

    front_end: str
    incarnation: int
    sequence: int
    record_hash: bytes
    before_incarnation: int | None
    before_hash: bytes | None


class Lacking(NamedTuple):
    """Events at the end of an incarnation that bronze has, and silver has not."""

    front_end: str
    incarnation: int
    first: int
    first_time: datetime.datetime | None
    last: int
    events: int


@dataclass(slots=True)
class ChainEnds:
    """What is known of each front end's chain besides its links: a line for each incarnation.

    `absent` are front ends whose last event, by `heads`, is not there, though all links hold; `wanted` are heads that
    were kept and are nowhere in the chain; `recorded` are hashes that bronze has of the last event of an incarnation.
    """

    stretches: Mapping[tuple[str, int], Stretch]
    anchors: Mapping[str, Anchored]
    wanted: Mapping[str, set[bytes]]
    heads: Heads
    absent: set[str]
    lost: Mapping[str, set[int]] = field(default_factory=dict)
    recorded: Mapping[tuple[str, int], set[bytes]] = field(default_factory=dict)
    lacking: Mapping[tuple[str, int], Lacking] = field(default_factory=dict)


def judge_ends(ends: ChainEnds, proof: Proof) -> None:
    """Put the incarnations of each front end together, and look for what was to be there."""
    of_one: defaultdict[str, list[Stretch]] = defaultdict(list)
    for _, stretch in sorted(ends.stretches.items(), key=lambda item: item[0]):
        of_one[stretch.front_end].append(stretch)
    lacking: defaultdict[str, list[Lacking]] = defaultdict(list)
    for _, one in sorted(ends.lacking.items(), key=lambda item: item[0]):
        lacking[one.front_end].append(one)
    names = {*of_one, *lacking, *ends.anchors, *ends.wanted, *ends.absent}
    for front_end in sorted(names):
        stretches = of_one.get(front_end, [])
        found = [
            *_judge_joints(ends, front_end, stretches),
            *(_lacking_break(one) for one in lacking.get(front_end, ())),
        ]
        if not found and front_end in ends.absent:
            found += _judge_head(front_end, ends)
        for lost in sorted(ends.wanted.get(front_end, ())):
            reason = f"the head {lost.hex()} is not in the chain any more"
            found.append(Break(front_end, None, None, None, reason))
        for one_break in found:
            proof.add(one_break)
        proof.heads += _head_of(front_end, stretches, ends.anchors.get(front_end))


def _judge_joints(ends: ChainEnds, front_end: str, stretches: Iterable[Stretch]) -> Iterator[Break]:
    """Yield incarnations that do not go on from the one before, and those whose last event is not that of bronze."""
    anchor = ends.anchors.get(front_end)
    since, expected = -1, NO_HASH
    if anchor is not None and anchor.before_incarnation is not None:
        since, expected = anchor.before_incarnation, anchor.before_hash or b""
    for one in stretches:
        is_lost = any(since <= lost < one.incarnation for lost in ends.lost.get(front_end, ()))
        begins_anew = is_lost and one.first_prev == NO_HASH
        if one.first_prev != expected and not begins_anew:
            yield Break(front_end, one.incarnation, one.first_sequence, one.first_time, MISSING)
        recorded = ends.recorded.get((front_end, one.incarnation))
        if recorded and one.last_hash not in recorded:
            yield Break(front_end, one.incarnation, one.last_sequence, one.last_time, _REPLACED)
        since, expected = one.incarnation, one.last_hash or b""


def _lacking_break(one: Lacking) -> Break:
    span = f"{one.events} events from it up to {one.incarnation}/{one.last}"
    reason = f"{span} are missing; {BLOCKS.name} has them"
    return Break(one.front_end, one.incarnation, one.first, one.first_time, reason)


def _judge_head(front_end: str, ends: ChainEnds) -> Iterator[Break]:
    incarnation, sequence, record_hash = ends.heads[front_end]
    anchor = ends.anchors.get(front_end)
    if anchor is None or (incarnation, sequence) > (anchor.incarnation, anchor.sequence):
        reason = f"it was the last event, with the hash {record_hash}, and is missing or changed"
        yield Break(front_end, incarnation, sequence, None, reason)


def _head_of(front_end: str, stretches: list[Stretch], anchor: Anchored | None) -> Iterator[Head]:
    events = sum(one.events for one in stretches)
    if stretches:
        last = stretches[-1]
        last_hash = (last.last_hash or b"").hex()
        yield Head(front_end, last.incarnation, last.last_sequence, last_hash, events)
    elif anchor is not None:
        yield Head(front_end, anchor.incarnation, anchor.sequence, anchor.record_hash.hex(), events)
