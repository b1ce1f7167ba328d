"""`audit verify`: tasks check the chains of audit events, and the driver puts together where they begin and end.

    audit_events ──some files──▶ content = hash = columns; what is gone has expired or was erased
                 ──front ends by hash, a day at a time──▶ each event has the hash of the one before it
    bronze.blocks ──a file at a time──▶ hashes of last events, spools that were lost, who has more than is there
                 ──front ends by hash, if any has──▶ what is missing at the end

Nothing is written and nothing locked; a pipeline may run meanwhile. A task has in memory rows of a file that were
written together, or a day of the events of some front ends without content. The driver has the files of the tables, a
line for each incarnation, and 100 breaks; an item of work brings BREAKS_OF_ITEM, more where there are few items.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from quaymaster.protocol.usage.usage_records import NO_HASH
from quaymaster_pipeline.audit.audit import ANCHORS, AuditMistake, expired_before
from quaymaster_pipeline.audit.audit_chains import (
    Anchored,
    Break,
    ChainEnds,
    FirstBreaks,
    Lacking,
    Proof,
    judge_ends,
)
from quaymaster_pipeline.audit.chain_tasks import (
    ABSENT,
    ANCHORED,
    CONTENT,
    COUNTS,
    GROUPS,
    KEPT,
    LACKING,
    LINKED,
    LOST,
    RECORDED,
    STRETCHES,
    Day,
    SeenEvents,
    Tails,
    breaks_of,
    content_work,
    expired_losses_work,
    lacking_work,
    link_work,
    stretches_of,
    tail_work,
)
from quaymaster_pipeline.audit.stubs import ERASURES
from quaymaster_pipeline.checks.header_groups import Group
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.audit_heads import heads_in, newest_heads
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    BLOCKS,
    EXPIRED_BLOCKS,
    QUARANTINE,
    USAGE_EVENTS,
)
from quaymaster_pipeline.warehouse.tables import Warehouse

ITEM_EVENTS: Final = 20_000
"""About so many events are an item of work that looks at content; a file is not divided."""
CHAIN_EVENTS: Final = 1_000_000
"""About so many events of a day, without content, a task has in memory."""


class Seen(NamedTuple):
    """What was looked at: the tables as tasks are told of them, the files of events, and how many were put in ever."""

    tables: SeenEvents
    files: list[DataFile]
    put_in: int


def heads_of(kept: Iterable[tuple[str, str]]) -> dict[str, set[bytes]]:
    """Return heads that were kept, (front end, hash as hex) each, by front end. Raises AuditMistake."""
    found: defaultdict[str, set[bytes]] = defaultdict(set)
    for front_end, text in kept:
        found[front_end].add(_hash_of(text))
    return dict(found)


def _hash_of(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != len(NO_HASH):
        raise AuditMistake(f"{text!r} is no hash; a head has {2 * len(NO_HASH)} hexadecimal digits")
    return value


def verify_chains(
    workers: Workers, warehouse: Warehouse, kept: Mapping[str, AbstractSet[bytes]] | None = None
) -> Proof:
    """Check all chains, front end by front end.

    `kept` are heads of before, as `heads_of` gives them. Each must still be in its chain, or have expired.
    """
    wanted = {front_end: set(hashes) for front_end, hashes in (kept or {}).items()}
    seen = look(warehouse)
    proof = Proof()
    breaks = FirstBreaks()
    items = _content_items(seen.files)
    of_content = workers.over(items, content_work(seen.tables, breaks_of(len(items))))
    breaks.take(of_content, CONTENT)
    groups = group_items(seen.files, workers.cores)
    of_links = workers.over(groups, link_work(seen.tables, wanted))
    breaks.take(of_links, LINKED)
    for found in breaks:
        proof.add(found)
    proof.breaks_total = breaks.total

    counts = of_content.counts(COUNTS) + of_links.counts(COUNTS)
    proof.events, proof.stubs, proof.erased = (counts[name] for name in ("events", "stubs", "erased"))
    in_chain = [(row["front_end"], row["hash"]) for row in _lines(of_links.tables(KEPT))]
    for front_end, record_hash in in_chain:
        wanted[front_end].discard(record_hash)
    ends = ChainEnds(
        stretches=stretches_of(of_links.tables(STRETCHES)),
        anchors={row["front_end"]: Anchored(**row) for row in _lines(of_links.tables(ANCHORED))},
        wanted=wanted,
        heads=seen.tables.heads,
        absent={row["front_end"] for row in _lines(of_links.tables(ABSENT))},
    )
    _look_in_bronze(workers, seen, ends)
    judge_ends(ends, proof)
    if not proof.breaks and (missing := seen.put_in - counts["expired"] - proof.events) > 0:
        reason = (
            f"{missing} events are missing: {seen.put_in} were put in, and {counts['expired']} have expired"
        )
        proof.add(Break(None, None, None, None, reason))
    return proof


def look(warehouse: Warehouse) -> Seen:
    """Look at each table once, so that what a table has, those looked at later have, too. A pipeline may run."""
    specs = (USAGE_EVENTS, AUDIT_EVENTS, ANCHORS, ERASURES, QUARANTINE, BLOCKS, EXPIRED_BLOCKS)
    usage, events, anchors, erasures, quarantine, blocks, expired = tables = [
        warehouse.table(spec) for spec in specs
    ]
    # A batch is in usage_events last: what that has, audit_events has had since before. Registrations come before what
    # they register: looked at later, none is missing.
    for table in tables:
        table.refresh()
    of_silver = (usage, events)
    by_date: defaultdict[str, list[str]] = defaultdict(list)
    for file in erasures.files():
        by_date[str(file.partition_value)].append(file.path)
    files = events.files()
    seen = SeenEvents(
        places={table.spec.name: table.place for table in tables},
        events=days_of(files),
        anchors=[file.path for file in anchors.files()],
        erasures=dict(by_date),
        quarantine=[file.path for file in quarantine.files()],
        blocks=blocks.files(),
        expired=[file.path for file in expired.files()],
        heads=newest_heads(heads_in(table) for table in of_silver),
        batch_id=max(table.last_batch(silver.APP) for table in of_silver),
        expired_before=expired_before(events),
    )
    put_in = max(table.note(silver.APP).get("totals", {}).get("audit.rows", 0) for table in of_silver)
    return Seen(seen, files, put_in)


def days_of(files: Iterable[DataFile]) -> list[Day]:
    """Return the days of files, each with its files."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        found[str(file.partition_value)].append(file.path)
    return [Day(date, paths) for date, paths in sorted(found.items())]


def group_items(files: Iterable[DataFile], cores: int) -> list[str]:
    """Return items of work: groups of front ends, each the part of a hash, of which a day fits into memory.

    Each reads all files, so of a table that is not that large there are no more than cores.
    """
    by_day: Counter[str] = Counter()
    for file in files:
        by_day[str(file.partition_value)] += file.rows
    of_memory = _parts(max(by_day.values(), default=0))
    count = max(of_memory, min(cores, _parts(by_day.total())))
    return [json.dumps(Group(number, count)) for number in range(count)]


def _parts(events: int) -> int:
    return max(1, -(-events // CHAIN_EVENTS))


def _content_items(files: Iterable[DataFile]) -> list[str]:
    """Return items of work: files, the small ones of a day with those that follow."""
    items: list[list[tuple[str, str]]] = []
    rows = 0
    for file in sorted(files, key=lambda file: str(file.partition_value)):
        if not items or rows + file.rows > ITEM_EVENTS:
            items.append([])
            rows = 0
        items[-1].append((str(file.partition_value), file.path))
        rows += file.rows
    return [json.dumps(item) for item in items]


def _look_in_bronze(workers: Workers, seen: Seen, ends: ChainEnds) -> None:
    """Look for what bronze has at the ends of chains, and for spools that were lost."""
    last = {owner: stretch.last_sequence for owner, stretch in ends.stretches.items()}
    expired = {name: (one.incarnation, one.sequence) for name, one in ends.anchors.items()}
    tails, tables = Tails(last, expired), seen.tables
    count = _parts(max(seen.put_in, sum(file.rows for file in seen.files)))
    found = workers.over([file.path for file in tables.blocks], tail_work(tables, tails, count))
    of_expired = workers.over(tables.expired, expired_losses_work(tables))
    lost: defaultdict[str, set[int]] = defaultdict(set)
    for row in _lines([*found.tables(LOST), *of_expired.tables(LOST)]):
        lost[row["front_end"]].add(row["incarnation"])
    recorded: defaultdict[tuple[str, int], set[bytes]] = defaultdict(set)
    for row in _lines(found.tables(RECORDED)):
        recorded[row["front_end"], row["incarnation"]].add(row["hash"])
    paths: defaultdict[int, list[str]] = defaultdict(list)
    for row in _lines(found.tables(GROUPS)):
        for group in row["groups"]:
            paths[group].append(row["path"])
    items = [json.dumps([group, count, of_group]) for group, of_group in sorted(paths.items())]
    lacking = _lines(workers.over(items, lacking_work(tables, tails)).tables(LACKING))
    ends.lost, ends.recorded = lost, recorded
    ends.lacking = {(row["front_end"], row["incarnation"]): Lacking(**row) for row in lacking}


def _lines(tables: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    return (row for table in tables for row in table.to_pylist())
