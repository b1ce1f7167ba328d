"""The work of `audit verify` in tasks: content of files, links of front ends by hash, and what bronze has besides.

Each answers at most a line for each incarnation of its front ends, and the first of its breaks.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.audit.audit import ANCHORS
from quaymaster_pipeline.audit.audit_chains import (
    IN_ORDER,
    LINKS,
    Anchored,
    Break,
    FirstBreaks,
    Lacking,
    Links,
    Stretch,
)
from quaymaster_pipeline.audit.chain_content import check_content
from quaymaster_pipeline.audit.stubs import ERASURES, registered_stubs
from quaymaster_pipeline.checks.header_groups import Group
from quaymaster_pipeline.checks.usage_breaks import BREAKS_MAX, BREAKS_OF_ITEM
from quaymaster_pipeline.usage.audit_heads import Heads
from quaymaster_pipeline.usage.requests import changes_of
from quaymaster_pipeline.usage.rules import are_links
from quaymaster_pipeline.usage.tasks import answer_counts, answer_table
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_file, read_row_groups
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, BLOCKS, EXPIRED_BLOCKS, QUARANTINE, TIME

CONTENT, LINKED, COUNTS = "content", "links", "counts"
STRETCHES, ANCHORED, ABSENT, KEPT, LOST, RECORDED, GROUPS, LACKING = (
    *("stretches", "anchored", "absent", "kept", "lost", "recorded", "groups", "lacking"),
)
"""Under which names tasks answer."""
_TEXT, _NUMBER, _BYTES = pa.string(), pa.int64(), pa.binary()
_STRETCH_SCHEMA: Final = pa.schema(
    [
        *(("front_end", _TEXT), ("incarnation", _NUMBER)),
        *(("first_sequence", _NUMBER), ("first_time", TIME), ("first_prev", _BYTES)),
        *(("last_sequence", _NUMBER), ("last_time", TIME), ("last_hash", _BYTES), ("events", _NUMBER)),
    ]
)
_ANCHORED_SCHEMA: Final = pa.schema(
    [
        *(("front_end", _TEXT), ("incarnation", _NUMBER), ("sequence", _NUMBER), ("record_hash", _BYTES)),
        *(("before_incarnation", _NUMBER), ("before_hash", _BYTES)),
    ]
)
_LACKING_SCHEMA: Final = pa.schema(
    [
        *(("front_end", _TEXT), ("incarnation", _NUMBER)),
        *(("first", _NUMBER), ("first_time", TIME), ("last", _NUMBER), ("events", _NUMBER)),
    ]
)
_LINK_SCHEMA: Final = pa.schema(
    [*(AUDIT_EVENTS.schema.field(name) for name in LINKS), ("file", _NUMBER), ("row", _NUMBER)]
)
_NAME_SCHEMA: Final = pa.schema([("front_end", _TEXT)])
_HASH_SCHEMA: Final = pa.schema([("front_end", _TEXT), ("incarnation", _NUMBER), ("hash", _BYTES)])
_SEAL_SCHEMA: Final = pa.schema([("front_end", _TEXT), ("incarnation", _NUMBER)])
_BRIDGE: Final = ("front_end", "rule", "prev_hash", "record_hash")
_HEADER: Final = ("batch_id", "front_end", "epoch", "seq_hi")
_OPENED: Final = ("log_partition", "log_offset", "batch_id", "rows", "content")


class Day(NamedTuple):
    """A date, and its files of audit events."""

    date: str
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class SeenEvents:
    """One version of each table, as tasks are told of it; the notes of their commits.

    `events` are the days with their files, `erasures` files by date. Up to `batch_id` silver has all of bronze.
    """

    places: Mapping[str, TablePlace]
    events: Sequence[Day]
    anchors: Sequence[str]
    erasures: Mapping[str, Sequence[str]]
    quarantine: Sequence[str]
    blocks: Sequence[DataFile]
    expired: Sequence[str]
    heads: Heads
    batch_id: int
    expired_before: datetime.datetime | None

    def paths(self) -> list[tuple[str, str]]:
        """Return all files of events, each after its date."""
        return [(day.date, path) for day in self.events for path in day.paths]


def breaks_of(items: int) -> int:
    """Return how many breaks an item of work answers, where there are so many items."""
    return max(BREAKS_OF_ITEM, BREAKS_MAX // max(1, items))


# Content


def content_work(seen: SeenEvents, most: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: check the content of the events of some files."""
    reader = _ContentReader(seen)

    def work(item: str) -> Iterator[Any]:
        counts, breaks = Counter[str](), FirstBreaks(most)
        for date, path in json.loads(item):
            for rows, found in reader.read(date, path):
                counts.update(found.counts, events=rows.num_rows)
                places = sorted(found.reasons)
                for at, one in zip(places, _places(rows, places), strict=True):
                    breaks.add(date, Break(*one, found.reasons[at]))
        yield answer_counts(COUNTS, counts)
        yield from breaks.answers(CONTENT)

    return work


class _ContentReader:
    """Reads events with what is wrong with their content."""

    def __init__(self, seen: SeenEvents) -> None:
        self._place = seen.places[AUDIT_EVENTS.name]
        self._of_erasures = seen.places[ERASURES.name]
        self._erasures = seen.erasures
        self._expired_before = seen.expired_before
        self._date = ""
        self._registered: set[bytes] | None = None

    def read(self, date: str, path: str) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of a file, as many at a time as were written together, and what is wrong with these."""
        if date != self._date:
            self._date, self._registered = date, None
        for rows in read_row_groups(self._place, AUDIT_EVENTS, path):
            yield rows, check_content(rows, self._expired_before, self._of_date)

    def _of_date(self) -> set[bytes]:
        if self._registered is None:
            self._registered = registered_stubs(self._of_erasures, self._erasures.get(self._date, ()))
        return self._registered


def _places(rows: Any, at: Sequence[int]) -> list[tuple[Any, Any, Any, Any]]:
    """Return front end, incarnation, sequence and time of some rows."""
    taken = rows.select(LINKS[:4]).take(pa.array(at, pa.int64()))
    front_ends, *numbers, times = (column.to_pylist() for column in taken.columns)
    return list(zip(front_ends, *numbers, times, strict=True))


# Links


def link_work(seen: SeenEvents, kept: Mapping[str, set[bytes]]) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: check the links of the front ends of a group, day by day, and look for heads."""

    def work(item: str) -> Iterator[Any]:
        chains = _GroupChains(seen, kept, Group.of_item(item))
        for day in seen.events:
            chains.take(day)
        yield from chains.answers()

    return work


class _GroupChains:
    """The chains of a group of front ends. A day of their events is in memory, without content."""

    def __init__(self, seen: SeenEvents, kept: Mapping[str, set[bytes]], group: Group) -> None:
        self._seen = seen
        self._group = group
        self._wanted = {name: set(kept[name]) for name in self._mine(kept)}
        self._absent = {name: seen.heads[name] for name in self._mine(seen.heads)}
        self._looked_for = pa.array(
            {
                *(bytes.fromhex(head[2]) for head in self._absent.values()),
                *(one for hashes in self._wanted.values() for one in hashes),
            },
            _BYTES,
        )
        self._links = Links()
        self._bridges = self._read_bridges()
        self._breaks = FirstBreaks(breaks_of(group.groups))
        self._broken: set[str] = set()
        self._found: list[tuple[str, bytes]] = []

    def _mine(self, names: Collection[str]) -> list[str]:
        if not names:
            return []
        all_names = pa.array(names, _TEXT)
        return list(all_names.filter(self._group.are_in(all_names)).to_pylist())

    def take(self, day: Day) -> None:
        """Look at the events of the next day."""
        rows = self._read(day)
        self._look_for_heads(rows)
        reasons = self._links.take(rows)
        if reasons:
            self._add(day, rows, reasons)

    def _read(self, day: Day) -> Any:
        """Return what links need of a day's events, IN_ORDER, each with its file and its row in that."""
        parts = [_LINK_SCHEMA.empty_table()]
        place = self._seen.places[AUDIT_EVENTS.name]
        for number, path in enumerate(day.paths):
            first = 0
            for rows in read_row_groups(place, AUDIT_EVENTS, path, LINKS):
                is_mine = self._are_mine(rows)
                for name in LINKS[1:3]:  # what has no place is missing where it should be
                    is_mine = pc.and_(is_mine, pc.is_valid(rows.column(name)))
                places = pa.array(range(first, first + rows.num_rows), _NUMBER)
                numbered = rows.append_column("file", pa.repeat(pa.scalar(number, _NUMBER), rows.num_rows))
                parts.append(numbered.append_column("row", places).filter(is_mine))
                first += rows.num_rows
        return self._bridged(pa.concat_tables(parts)).sort_by(IN_ORDER)

    def _read_bridges(self) -> dict[bytes, bytes]:
        """Return the hashes of events that broke a rule, each with the hash of the event before it."""
        bridges: dict[bytes, bytes] = {}
        place = self._seen.places[QUARANTINE.name]
        for path in self._seen.quarantine:
            for rows in read_row_groups(place, QUARANTINE, path, _BRIDGE):
                rows = rows.filter(pc.and_(are_links(rows), self._are_mine(rows)))
                hashes = (rows.column(name).to_pylist() for name in ("record_hash", "prev_hash"))
                bridges.update(zip(*hashes, strict=True))
        return bridges

    def _are_mine(self, rows: Any) -> Any:
        return self._group.are_in(rows.column("front_end"))

    def _bridged(self, rows: Any) -> Any:
        """Return events as following the last one that is not in quarantine: a chain holds over those that are."""
        if not self._bridges:
            return rows
        previous = rows.column("prev_hash").combine_chunks()
        follows = pc.is_in(previous, pa.array(list(self._bridges), _BYTES))
        found = [self._before(one) for one in previous.filter(follows).to_pylist()]
        at = rows.schema.get_field_index("prev_hash")
        return rows.set_column(
            at, rows.schema.field(at), pc.replace_with_mask(previous, follows, pa.array(found, _BYTES))
        )

    def _before(self, one: bytes) -> bytes:
        """Return the hash of the last event before this one, itself included, that is not in quarantine."""
        for _ in range(len(self._bridges)):  # a table that was changed may have a circle
            if one not in self._bridges:
                break
            one = self._bridges[one]
        return one

    def _look_for_heads(self, rows: Any) -> None:
        if not len(self._looked_for):
            return
        hashes = pc.fill_null(rows.column("record_hash"), b"")
        found = rows.filter(pc.is_in(hashes, self._looked_for)).select([*LINKS[:3], "record_hash"])
        for front_end, *place, record_hash in zip(
            *(column.to_pylist() for column in found.columns), strict=True
        ):
            if self._absent.get(front_end) == (*place, (record_hash or b"").hex()):
                del self._absent[front_end]
            if record_hash in self._wanted.get(front_end, ()):
                self._found.append((front_end, record_hash))
                self._wanted[front_end].discard(record_hash)

    def _add(self, day: Day, rows: Any, reasons: Mapping[int, str]) -> None:
        """Count broken links. What is wrong with an event's content comes before its link, and is told elsewhere."""
        at = sorted(reasons)
        files, numbers = (rows.column(name).take(pa.array(at)).to_pylist() for name in ("file", "row"))
        changed = self._changed(day, set(files))
        for row, one, *where in zip(at, _places(rows, at), files, numbers, strict=True):
            self._broken.add(one[0])
            if tuple(where) not in changed:
                self._breaks.add(day.date, Break(*one, reasons[row]))

    def _changed(self, day: Day, files: set[int]) -> set[tuple[int, int]]:
        """Return the events of these files of a day whose content is wrong, as file and row."""
        reader, found = _ContentReader(self._seen), set[tuple[int, int]]()
        for number in sorted(files):
            first = 0
            for rows, content in reader.read(day.date, day.paths[number]):
                found.update((number, first + at) for at in content.reasons)
                first += rows.num_rows
        return found

    def answers(self) -> Iterator[Any]:
        """Yield what the task answers."""
        self._find_changed_of_absent()
        stretches = [one._asdict() for one in self._links.stretches.values()]
        yield answer_table(STRETCHES, pa.Table.from_pylist(stretches, schema=_STRETCH_SCHEMA))
        yield from self._anchored()
        absent = [{"front_end": name} for name in sorted(self._absent)]
        if absent:
            yield answer_table(ABSENT, pa.Table.from_pylist(absent, schema=_NAME_SCHEMA))
        if self._found:
            found = [{"front_end": name, "hash": record_hash} for name, record_hash in self._found]
            yield answer_table(KEPT, pa.Table.from_pylist(found, schema=_HASH_SCHEMA))
        yield from self._breaks.answers(LINKED)

    def _find_changed_of_absent(self) -> None:
        """Forget front ends without their last event whose chains are broken elsewhere: that is told already."""
        for name in self._broken:
            self._absent.pop(name, None)
        if not self._absent.keys() & {name for name, _ in self._links.stretches}:
            return
        reader = _ContentReader(self._seen)
        for date, path in self._seen.paths():
            for rows, content in reader.read(date, path):
                for name, *_ in _places(rows, list(content.reasons)):
                    self._absent.pop(name, None)

    def _anchored(self) -> Iterator[Any]:
        """Yield the anchors by which these chains begin and end, and how many events expired."""
        first: dict[str, tuple[int, int]] = {}
        for (front_end, incarnation), stretch in self._links.stretches.items():
            begin = incarnation, stretch.first_sequence
            first[front_end] = min(first.get(front_end, begin), begin)
        newest: dict[str, tuple[int, int, bytes]] = {}
        before: dict[str, tuple[int, int, bytes]] = {}
        expired = 0
        for path in self._seen.anchors:
            rows = read_file(self._seen.places[ANCHORS.name], ANCHORS, path)
            rows = rows.filter(self._group.are_in(rows.column("front_end")))
            for row in rows.to_pylist():
                front_end, place = row["front_end"], (row["epoch"], row["sequence"])
                one = *place, row["record_hash"]
                expired += row["events"]
                newest[front_end] = max(newest.get(front_end, one), one)
                if front_end in first and place < first[front_end]:
                    before[front_end] = max(before.get(front_end, one), one)
                if row["record_hash"] in self._wanted.get(front_end, ()):
                    self._found.append((front_end, row["record_hash"]))
        lines = [
            Anchored(name, *place, *(before[name][::2] if name in before else (None, None)))._asdict()
            for name, place in newest.items()
        ]
        yield answer_counts(COUNTS, {"expired": expired})
        if lines:
            yield answer_table(ANCHORED, pa.Table.from_pylist(lines, schema=_ANCHORED_SCHEMA))


# What bronze has

Places = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Tails:
    """Where chains end, by which is known what bronze has besides: last sequences, and up to where events expired."""

    last: Places
    expired: Mapping[str, tuple[int, int]]

    def may_tell(self, front_end: str | None, incarnation: int | None, end: int | None) -> bool:
        """Return whether a block that ends there has the last event of its incarnation, or may have later ones.

        A block of which that is not known may. That the columns are those of the content, `pipeline verify` checks.
        """
        if front_end is None or incarnation is None or end is None:
            return True
        last = self.last.get((front_end, incarnation))
        return end > last if last is not None else not self.has_expired(front_end, incarnation, end - 1)

    def has_expired(self, front_end: str, incarnation: int, sequence: int) -> bool:
        """Return whether an event at this place has expired."""
        return (incarnation, sequence) <= self.expired.get(front_end, (-1, -1))

    def lacks(self, front_end: str, incarnation: int, sequence: int) -> bool:
        """Return whether an event at this place was to be there, and is not: it would be the last."""
        last = self.last.get((front_end, incarnation))
        is_after = last is None or sequence > last
        return is_after and not self.has_expired(front_end, incarnation, sequence)


def tail_work(seen: SeenEvents, tails: Tails, groups: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file of bronze: tell lost spools, hashes of last events, groups that lack some."""
    place, batch_id = seen.places[BLOCKS.name], seen.batch_id

    def work(path: str) -> Iterator[Any]:
        recorded: set[tuple[str, int, bytes]] = set()
        lacking: set[str] = set()
        yield from _lost_spools(place, path)
        for event in _management_of(place, path, batch_id, tails):
            front_end, incarnation, sequence, _, record_hash = event
            if sequence == tails.last.get((front_end, incarnation)):
                recorded.add((front_end, incarnation, record_hash))
            elif tails.lacks(front_end, incarnation, sequence):
                lacking.add(front_end)
        if recorded:
            lines = [dict(zip(_HASH_SCHEMA.names, one, strict=True)) for one in sorted(recorded)]
            yield answer_table(RECORDED, pa.Table.from_pylist(lines, schema=_HASH_SCHEMA))
        if lacking:
            names = pa.array(sorted(lacking), _TEXT)
            mine = [number for number in range(groups) if pc.any(Group(number, groups).are_in(names)).as_py()]
            yield answer_table(GROUPS, pa.table({"path": [path], "groups": [mine]}))

    return work


def _lost_spools(place: TablePlace, path: str) -> Iterator[Any]:
    """Yield the incarnations of front ends that lost their spool, after which a chain begins again."""
    lost: set[tuple[str, int]] = set()
    for rows in read_row_groups(place, BLOCKS, path, ["front_end", "seal_epoch", "seal_reason"]):
        rows = rows.filter(pc.equal(rows.column("seal_reason"), "lost"))
        lost.update(_pairs(rows, "seal_epoch"))
    yield from _answer_lost(lost)


def expired_losses_work(seen: SeenEvents) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file of ops.expired_blocks: tell lost spools of which no block is there now."""
    place = seen.places[EXPIRED_BLOCKS.name]

    def work(path: str) -> Iterator[Any]:
        lost: set[tuple[str, int]] = set()
        for rows in read_row_groups(place, EXPIRED_BLOCKS, path, ["front_end", "epoch", "is_lost"]):
            lost.update(_pairs(rows.filter(rows.column("is_lost")), "epoch"))
        yield from _answer_lost(lost)

    return work


def _pairs(rows: Any, incarnation: str) -> Iterator[tuple[str, int]]:
    return zip(*(rows.column(name).to_pylist() for name in ("front_end", incarnation)), strict=True)


def _answer_lost(lost: set[tuple[str, int]]) -> Iterator[Any]:
    if lost:
        lines = [dict(zip(_SEAL_SCHEMA.names, one, strict=True)) for one in sorted(lost)]
        yield answer_table(LOST, pa.Table.from_pylist(lines, schema=_SEAL_SCHEMA))


def _management_of(place: TablePlace, path: str, batch_id: int, tails: Tails) -> Iterator[tuple[Any, ...]]:
    """Yield management requests that a file of bronze has at the ends of chains: place, time and hash of each."""
    masks: dict[int, Any] = {}
    for group, rows in enumerate(read_row_groups(place, BLOCKS, path, _HEADER)):
        columns = (rows.column(name).to_pylist() for name in _HEADER)
        mask = [
            batch is not None and batch <= batch_id and tails.may_tell(*block)
            for batch, *block in zip(*columns, strict=True)
        ]
        if any(mask):
            masks[group] = pa.array(mask)
    names = ("front_end", "epoch", "sequence", "event_time", "record_hash")
    for group, blocks in zip(masks, read_row_groups(place, BLOCKS, path, _OPENED, groups=masks), strict=True):
        for found in changes_of(blocks.filter(masks[group])):
            yield from zip(*(found.column(name).to_pylist() for name in names), strict=True)


def lacking_work(seen: SeenEvents, tails: Tails) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: count the events that bronze has, and silver has not, of front ends of a group."""
    place, of_quarantine, batch_id = seen.places[BLOCKS.name], seen.places[QUARANTINE.name], seen.batch_id

    def work(item: str) -> Iterator[Any]:
        number, count, paths = json.loads(item)
        group = Group(number, count)
        found: defaultdict[tuple[str, int], dict[int, datetime.datetime]] = defaultdict(dict)
        for path in paths:
            mine: dict[str, bool] = {}
            for front_end, incarnation, sequence, time, _ in _management_of(place, path, batch_id, tails):
                if front_end not in mine:
                    mine[front_end] = bool(group.are_in(pa.array([front_end]))[0].as_py())
                if mine[front_end] and tails.lacks(front_end, incarnation, sequence):
                    found[front_end, incarnation][sequence] = time
        # What broke a rule is not among the events.
        for path in seen.quarantine:
            for rows in read_row_groups(of_quarantine, QUARANTINE, path, LINKS[:3]):
                rows = rows.filter(group.are_in(rows.column("front_end")))
                for front_end, incarnation, sequence in zip(
                    *(column.to_pylist() for column in rows.columns), strict=True
                ):
                    found.get((front_end, incarnation), {}).pop(sequence, None)
        lines = [
            Lacking(*owner, min(times), times[min(times)], max(times), len(times))._asdict()
            for owner, times in sorted(found.items())
            if times
        ]
        yield answer_table(LACKING, pa.Table.from_pylist(lines, schema=_LACKING_SCHEMA))

    return work


def stretches_of(tables: Sequence[Any]) -> dict[tuple[str, int], Stretch]:
    """Return what tasks answered of incarnations."""
    found = (Stretch(*row.values()) for table in tables for row in table.to_pylist())
    return {(one.front_end, one.incarnation): one for one in found}
