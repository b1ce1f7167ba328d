"""The proof that no usage was changed: blocks are those that came, silver what they give, gold and bills their sums.

    bronze.blocks ──a file at a time──▶ content = hash = columns;  rows of usage_events = those made again from content
                  ──front ends by hash──▶ each block has the hash of the one before it; marks; ops.coverage;
                                          the last block of each incarnation is the one that closes recorded
    offsets ──▶ dense up to the position that the commits note;  headers add up to what they note
    usage_events ──a day at a time──▶ sums = usage_hourly
    ops.closes ──a chain──▶ closed files of usage_daily have their SHA-256, their sums, and all blocks are there
    gold.invoices ──commits' notes──▶ none is missing or other;  lines = rows = what closed days come to

Nothing is written and nothing locked. A run may commit meanwhile: each table is looked at once, gold first and blocks
last, so whatever a table has, those before it have, too. What later batches brought is left out.

Tasks read; the driver has the files of four tables, a line for each batch in each file of bronze, 100 breaks and 100
gaps. A task has some blocks and their rows in memory, the headers of CHAIN_BLOCKS, or SUM_ROWS rows of gold. Of a
table on which many breaks were made, each file brings BREAKS_OF_ITEM at most.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from quaymaster_pipeline.checks.block_checks import (
    BatchPlace,
    in_order,
    judge_places,
    judge_totals,
)
from quaymaster_pipeline.checks.close_checks import (
    closed_file_work,
    judge_closed_blocks,
    judge_closed_files,
    judge_closes,
    judge_expired_days,
    judge_expired_hours,
    judge_last_close,
    plan_closed_files,
)
from quaymaster_pipeline.checks.close_heads import heads_work, plan_heads
from quaymaster_pipeline.checks.day_plans import plan_days
from quaymaster_pipeline.checks.gold_checks import judge_files
from quaymaster_pipeline.checks.header_groups import plan_groups
from quaymaster_pipeline.checks.invoice_checks import (
    FINAL_INVOICES,
    invoice_check_work,
    judge_invoices,
    look_at_invoices,
    plan_invoices,
)
from quaymaster_pipeline.checks.silver_checks import (
    BlockPlaces,
    EventFile,
    read_events,
    rows_of_no_block,
)
from quaymaster_pipeline.checks.usage_breaks import BREAKS_MAX, GAPS_MAX, Findings, UsageBreak
from quaymaster_pipeline.checks.verification_tasks import (
    EXPIRED_IN_CHAINS,
    GAPS,
    MATCHED,
    PLACES,
    UNLINKED,
    SeenTables,
    UsageGap,
    block_work,
    chain_work,
    gold_work,
)
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.blocks import BRONZE, DAMAGED, MEASURES
from quaymaster_pipeline.usage.expired import (
    LAST_BATCH,
    ExpiredBlocks,
    ExpiredUsage,
    expired_blocks,
    expired_usage,
)
from quaymaster_pipeline.usage.tasks import Answers, Workers
from quaymaster_pipeline.warehouse.closes import APP as CLOSE_APP
from quaymaster_pipeline.warehouse.closes import all_closes, closes_of, noted_heads, noted_in
from quaymaster_pipeline.warehouse.data_files import DataFile, hash_of_file
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import (
    BLOCK_MARKS,
    BLOCKS,
    CLOSE_HEADS,
    CLOSES,
    COVERAGE,
    EXPIRED_BLOCKS,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
)
from quaymaster_pipeline.warehouse.steps import Steps, Watch, unwatched
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse

LOOKS_MAX: Final = 3
"""Rows expire once a day."""


@dataclass(slots=True)
class UsageProof:
    """What `verify` found. `breaks` has the first ones: of blocks, of silver, of gold, and of what they add up to.

    `blocks` have a row in bronze; `expired` ones of them no content; those in `expired_headers` have no row any more.
    `rows` are those of usage_events, `requests` those of gold, `closes` days that were closed, also again with late
    usage, `invoices` final ones. `branched`: incarnations of which there were two at a time, as after a disk was
    copied; links and ends of these prove nothing. `unlinked`: blocks whose predecessor may be one of the damaged ones.
    `compared_batch` is the last batch that silver has. Hours of days before `hours_from` have expired; None: none have.
    """

    blocks: int = 0
    damaged: int = 0
    expired: int = 0
    expired_headers: int = 0
    duplicates: int = 0
    overlaps: int = 0
    rows: int = 0
    requests: int = 0
    closes: int = 0
    invoices: int = 0
    incarnations: int = 0
    branched: int = 0
    dropped: int = 0
    unlinked: int = 0
    missing: int = 0
    gaps_total: int = 0
    gaps: list[UsageGap] = field(default_factory=list)
    compared_batch: int = -1
    hours_from: str | None = None
    breaks_total: int = 0
    breaks: list[UsageBreak] = field(default_factory=list)

    def add(self, found: UsageBreak) -> None:
        """Count a further break, and keep it if there is room."""
        self.breaks_total += 1
        if len(self.breaks) < BREAKS_MAX:
            self.breaks.append(found)

    def summary(self) -> list[tuple[str, Any]]:
        """Return what there is to say in lines: a name and a value."""
        lists = ("gaps", "breaks")
        fields = [(one.name, getattr(self, one.name)) for one in dataclasses.fields(self)]
        lines = [(name.replace("_", " "), value) for name, value in fields if name not in lists]
        return lines + [("gap", f"{gap[0]} {gap[1]}: {gap[2]} to {gap[3]}") for gap in self.gaps]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it, with the names of columns."""
        return dataclasses.asdict(self) | {
            name: [
                {"epoch" if key == "incarnation" else key: value for key, value in one._asdict().items()}
                for one in found
            ]
            for name, found in (("gaps", self.gaps), ("breaks", self.breaks))
        }


def verify(workers: Workers, warehouse: Warehouse, watch: Watch = unwatched) -> UsageProof:
    """Check blocks, silver and gold, and return what was found. A step is a file, a group of front ends, or a day.

    Raises:
        CommitConflict: rows expired again and again meanwhile.
    """
    invoices = look_at_invoices(warehouse)
    seen = _look_between_expiries(warehouse)
    files = _plan_files(seen)
    groups = plan_groups(seen.blocks, workers.cores)
    days = plan_days(seen.events, seen.hours, seen.expired_usage)
    daily = [file.path for file in seen.daily]
    closed = plan_closed_files(seen.closes, daily)
    heads = plan_heads(seen.closes, seen.heads, seen.expired.through)
    issued = plan_invoices(invoices, workers.cores)
    work = (files, groups, days, closed, heads, issued)
    steps = Steps(sum(map(len, work)), watch)
    on_done = None if watch is unwatched else steps.take
    findings, unlinked = Findings(BREAKS_MAX), Findings(BREAKS_MAX, UNLINKED)

    of_files = workers.over(files, block_work(seen), on_done)
    findings.take(of_files)
    places = in_order(of_files.tables(PLACES))
    findings.add_all(judge_places(places, seen.note, seen.last_batch, seen.expired))

    of_chains = workers.over(groups, chain_work(seen), on_done)
    findings.take(of_chains)
    unlinked.take(of_chains)
    damaged = seen.expired.damaged + findings.counts[DAMAGED]
    if seen.expired.unlinked + unlinked.breaks_total > damaged:  # each of those may be one that is named
        findings.add_all(unlinked.breaks)
        findings.breaks_total += unlinked.breaks_total - len(unlinked.breaks)
    _find_rows_of_no_block(workers, findings, seen, places)

    of_gold = gold_work(seen.places[USAGE_EVENTS.name], seen.places[USAGE_HOURLY.name], seen.gold_batch)
    findings.take(workers.over(days, of_gold, on_done))
    findings.add_all(judge_files(seen.hours, findings.counts))

    findings.take(workers.over(closed, closed_file_work(seen.places[USAGE_DAILY.name]), on_done))
    findings.take(workers.over(heads, heads_work(seen.places[CLOSE_HEADS.name]), on_done))
    findings.add_all(judge_closes(seen.closes, seen.last_close))
    findings.add_all(judge_last_close(seen.closes, seen.noted_closes, seen.later_closes))
    findings.add_all(_judge_batches_of_tables(seen))
    findings.add_all(judge_closed_files(seen.closes, daily))
    findings.add_all(judge_closed_blocks(seen.closes, _blocks_of(places), seen.expired))
    days_of_hours = {str(file.partition_value) for file in seen.hours}
    findings.add_all(
        judge_expired_days(
            seen.closes,
            days_of_hours,
            findings.counts,
            seen.expired_usage,
            _unclosed_days(seen),
            seen.expired_hours,
        )
    )
    findings.add_all(judge_expired_hours(seen.closes, seen.expired_hours))

    of_invoices = invoice_check_work(invoices, seen.closes, seen.daily)
    judge_invoices(invoices, workers.over(issued, of_invoices, on_done), findings)

    findings.add_all(judge_totals(findings.counts, seen.note, seen.expired.headers))
    findings.add_all(_judge_expired(findings.counts, seen))
    findings.add_all(_judge_silver_total(seen))
    findings.add_all(_judge_gold_totals(findings.counts, seen))
    return _proof_of(findings, of_chains, seen, unlinked.breaks_total)


def compare_hours_of(
    workers: Workers,
    events: Table,
    hourly: Table,
    files: tuple[Sequence[DataFile], Sequence[DataFile]],
    batch_id: int,
) -> list[UsageBreak]:
    """Return where hours are not the sums of requests of batches up to one: of some days, by the files of both."""
    requests, hours = files
    findings = Findings(BREAKS_MAX)
    findings.take(workers.over(plan_days(requests, hours), gold_work(events.place, hourly.place, batch_id)))
    findings.add_all(judge_files(hours, findings.counts))
    return findings.breaks


def _look_between_expiries(warehouse: Warehouse) -> SeenTables:
    """Look at each table so that no rows expire in between: some tables would have what others have not."""
    for _ in range(LOOKS_MAX):
        before, hours_before = _expired(warehouse), _expired_hours(warehouse)
        seen = _look(warehouse)
        if (seen.expired.through, seen.expired_hours) == (before.through, hours_before):
            return seen
    raise CommitConflict(
        f"rows of {BLOCKS.name} or {USAGE_HOURLY.name} expired while they were looked at, again and again"
    )


def _expired(warehouse: Warehouse) -> ExpiredBlocks:
    return expired_blocks(Table(EXPIRED_BLOCKS, warehouse.place(EXPIRED_BLOCKS)))


def _expired_hours(warehouse: Warehouse) -> ExpiredUsage:
    return expired_usage(Table(USAGE_HOURLY, warehouse.place(USAGE_HOURLY)))


def _look(warehouse: Warehouse) -> SeenTables:
    """Look at each table once, so that what a table has, those looked at later have, too."""
    # Opened again, one after the other: what others opened before is of an earlier version.
    tables = [
        Table(spec, warehouse.place(spec))
        for spec in (
            *(USAGE_DAILY, CLOSES, CLOSE_HEADS, USAGE_HOURLY, USAGE_EVENTS, COVERAGE, BLOCK_MARKS, BLOCKS),
        )
    ]
    daily, closes, heads, hourly, events, coverage, marks, blocks = tables
    rows, last_close = closes_of(daily, closes)
    # They follow the commit of usage_daily, too.
    missing = noted_heads(daily) if heads.last_batch(CLOSE_APP) < last_close else []
    expired = _expired(warehouse)
    # Rows of ops.closes follow the commit of usage_daily that closed the days: a new one may have come in between.
    latest = Table(USAGE_DAILY, warehouse.place(USAGE_DAILY)).last_batch(CLOSE_APP)
    return SeenTables(
        places={table.spec.name: table.place for table in tables},
        blocks=expired.remaining(blocks.files()),
        marks=marks.files(),
        coverage=coverage.files(),
        heads=[*heads.files(), *missing],
        events=events.files(),
        hours=hourly.files(),
        note=blocks.note(BRONZE),
        silver_totals=events.note(silver.APP).get("totals", {}),
        last_batch=blocks.last_batch(BRONZE),
        silver_batch=events.last_batch(silver.APP),
        gold_batch=hourly.last_batch(gold.APP),
        coverage_batch=coverage.last_batch(BRONZE),
        daily=daily.files(),
        closes=rows,
        last_close=last_close,
        noted_closes=noted_in(daily),
        later_closes=[close for close in all_closes(closes) if close.number > latest],
        daily_batch=daily.last_batch(gold.APP),
        expired=expired,
        expired_usage=expired_usage(events),
        expired_hours=expired_usage(hourly),
    )


def _blocks_of(places: Iterable[BatchPlace]) -> Counter[int]:
    """Return how many blocks each batch has."""
    found: Counter[int] = Counter()
    for place in places:
        found[place.batch_id] += place.high - place.low
    return found


def _proof_of(findings: Findings, of_chains: Answers, seen: SeenTables, unlinked: int) -> UsageProof:
    counts = findings.counts
    gaps = [UsageGap(*row.values()) for table in of_chains.tables(GAPS) for row in table.to_pylist()]
    names = ("blocks", "damaged", "expired", "duplicates", "overlaps")
    more = ("incarnations", "branched", "dropped", "missing", "gaps_total", "requests")
    return UsageProof(
        **{name: counts[name] for name in (*names, *more)},
        rows=sum(file.rows for file in seen.events),
        closes=len(seen.closes),
        invoices=counts[FINAL_INVOICES],
        expired_headers=seen.expired.blocks,
        unlinked=unlinked,
        gaps=sorted(gaps)[:GAPS_MAX],
        compared_batch=seen.silver_batch,
        hours_from=seen.expired_hours.before or None,
        breaks_total=findings.breaks_total,
        breaks=findings.breaks,
    )


# Planning and judging


def _plan_files(seen: SeenTables) -> list[str]:
    """Return items of work: files of bronze, and the files of silver that may have rows of their batches."""
    bounds = [file.bounds.get("batch_id", (NO_BATCH, LAST_BATCH)) for file in seen.events]
    firsts, lasts = (np.array([pair[side] for pair in bounds], np.int64) for side in (0, 1))
    items = []
    for file in seen.blocks:
        low, high = file.bounds.get("batch_id", (NO_BATCH, LAST_BATCH))
        meets = np.flatnonzero((firsts <= high) & (low <= lasts)).tolist()
        events = [(seen.events[at].path, seen.events[at].partition_value) for at in meets]
        items.append(json.dumps([file.path, file.partition_value, events]))
    return items


def _find_rows_of_no_block(
    workers: Workers, findings: Findings, seen: SeenTables, places: Sequence[BatchPlace]
) -> None:
    """Look for rows of silver of which there is no block, if fewer were met than there are."""
    rows = sum(file.rows for file in seen.events)
    if findings.counts[MATCHED] == rows:
        return
    known = BlockPlaces.of(places)
    place, before = seen.places[USAGE_EVENTS.name], findings.breaks_total

    def work(item: str) -> Iterator[Any]:
        names = ["front_end", "epoch", "sequence", "log_partition", "log_offset", "batch_id"]
        found = Findings()
        for rows in read_events(place, EventFile(*json.loads(item)), names):
            found.add_all(rows_of_no_block(rows, known))
        yield from found.answers()

    items = [json.dumps([file.path, file.partition_value]) for file in seen.events]
    findings.take(workers.over(items, work))
    if findings.breaks_total == before:
        reason = (
            f"of its {rows} rows, {findings.counts[MATCHED]} are found by what its files say of themselves"
        )
        findings.add(UsageBreak(USAGE_EVENTS.name, reason))


def _judge_silver_total(seen: SeenTables) -> Iterator[UsageBreak]:
    found, said = sum(file.rows for file in seen.events), seen.silver_totals.get("usage.rows", 0)
    said -= seen.expired_usage.counts.get("rows", 0)
    if found != said:
        yield UsageBreak(USAGE_EVENTS.name, f"it has {found} rows; {said} were put in")
    taken = seen.note.get("headers", {}).get("rows", 0)
    said = seen.silver_totals.get("blocks.rows", 0)
    if said > taken or (seen.silver_batch == seen.last_batch and said != taken):
        reason = f"its blocks had {taken} rows in all; silver was made of {said}"
        yield UsageBreak(BLOCKS.name, reason)


def _unclosed_days(seen: SeenTables) -> set[str]:
    """Return the days that have usage which came after the last close."""
    through = max((close.through_batch for close in seen.closes), default=NO_BATCH)
    return {
        str(file.partition_value)
        for file in seen.hours
        if file.bounds.get("last_batch", (0, LAST_BATCH))[1] > through
    }


def _judge_expired(counts: Mapping[str, int], seen: SeenTables) -> Iterator[UsageBreak]:
    """Yield where ops.expired_blocks is not as its commit notes: its files, and how many blocks it is of."""
    expired = seen.expired
    for path in sorted(expired.files.keys() | set(expired.paths)):
        if path not in expired.paths or hash_of_file(expired.place, path).hex() != expired.files.get(path):
            yield UsageBreak(EXPIRED_BLOCKS.name, f"the file {path} was changed, put in or deleted")
    found, said = counts.get(EXPIRED_IN_CHAINS, 0), seen.expired.blocks - seen.expired.damaged
    if found != said:
        yield UsageBreak(EXPIRED_BLOCKS.name, f"its incarnations had {found} blocks; {said} have expired")


def _judge_gold_totals(counts: Mapping[str, int], seen: SeenTables) -> Iterator[UsageBreak]:
    """Yield what gold does not add up to, by what silver has noted of its rows: also of blocks without content."""
    if seen.gold_batch != seen.silver_batch:
        return
    for measure in MEASURES:
        found = counts.get(f"gold.{measure}", 0) + seen.expired_hours.counts.get(measure, 0)
        said = seen.silver_totals.get(f"usage.{measure}", 0)
        if found != said:
            yield UsageBreak(
                USAGE_HOURLY.name, f"it has {found} {measure} in all; {said} were put into silver"
            )


def _judge_batches_of_tables(seen: SeenTables) -> Iterator[UsageBreak]:
    """Yield tables that lack batches that others of them have had: one was deleted, or is an old one."""
    through = max((close.through_batch for close in (*seen.closes, *seen.later_closes)), default=NO_BATCH)
    needed = max(through, seen.daily_batch)
    for spec, batch in ((USAGE_HOURLY, seen.gold_batch), (USAGE_EVENTS, seen.silver_batch)):
        if batch < needed:
            reason = f"it has batches up to {batch}; others that are made of it have {needed}"
            yield UsageBreak(spec.name, reason)
        needed = max(needed, batch)
