"""`pipeline verify` finds nothing in tables that nobody touched, whatever happened, and names each change made."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from harness.built_once import built_once
from harness.forged_blocks import forged
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import HOUR_US, NOON_US, FrontEnd
from harness.usage_faults import NOW as LATER
from harness.usage_faults import run_history

from quaymaster.frontend.usage.incarnations import Incarnation, lost_block
from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster_pipeline.checks import day_plans, header_groups, verification
from quaymaster_pipeline.checks.usage_breaks import BREAKS_MAX, UsageBreak
from quaymaster_pipeline.checks.verification import UsageProof
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.content_expiry import expire_content
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.blocks import BRONZE, MEASURES
from quaymaster_pipeline.usage.bronze import coverage
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.warehouse.data_files import TablePlace
from quaymaster_pipeline.warehouse.schemas import (
    BLOCK_MARKS,
    BLOCKS,
    COVERAGE,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Warehouse

Row = dict[str, Any]


def verify(site: Site) -> UsageProof:
    return verification.verify(InProcess(), site.warehouse)


def rewrite(
    site: Site, spec: TableSpec, change: Callable[[list[Row]], Sequence[Row]], *, note: Row | None = None
) -> None:
    """Change a table as somebody would who can write it. With `note`, what its commits note of bronze, too."""
    table = site.warehouse.table(spec)
    rows = pa.Table.from_pylist(list(change(table.read().to_pylist())), schema=spec.schema)
    shared = {} if note is None else {BRONZE: table.note(BRONZE) | note}
    table.commit(
        "somebody",
        table.last_batch("somebody") + 1,
        table.write("x", rows),
        removes=table.files(),
        shared_notes=shared,
    )


def first(proof: UsageProof) -> UsageBreak:
    assert proof.breaks_total >= len(proof.breaks) > 0
    return proof.breaks[0]


def make(directory: Path) -> Site:
    """Make tables of two front ends in three batches, one of which comes over midnight."""
    site = Site(directory)
    one, two = FrontEnd("a", step_us=400_000_000, bunched_us=4 * HOUR_US), FrontEnd("b", seed=1)
    for rows in (30, 50, 40):
        site.ship(one.block(rows), two.block(rows), two.block(0))
        site.run(now=LATER)
    site.front_ends = (one, two)
    return site


made = built_once(make)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return made(tmp_path)


# Nothing was touched


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_nothing_is_broken_after_kills_full_disks_repetitions_and_blocks_out_of_order(
    tmp_path: Path, seed: int
) -> None:
    site, front_ends, queue = run_history(tmp_path, seed)

    proof = verify(site)

    assert [one.text for one in proof.breaks] == []
    assert proof.blocks == len(queue)
    assert proof.incarnations >= len(front_ends)
    assert proof.rows == proof.requests > 0


def test_tables_that_are_not_there_are_not_broken(tmp_path: Path) -> None:
    proof = verify(Site(tmp_path))

    assert (proof.breaks_total, proof.blocks, proof.rows) == (0, 0, 0)


def test_nothing_is_broken_where_blocks_came_twice_overlap_are_damaged_or_have_rows_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", seed=1), FrontEnd("b")
    copied = FrontEnd("a", seed=2)
    blocks = [one.block(30), two.block(40), one.block(50), one.block(0)]
    bad = forged(two.block(30), lambda rows: setattr(rows, "latency", b"x" + rows.latency[1:]))
    two.previous = sha256(bad).digest()
    damaged = two.block(10)
    damaged = damaged[:-1] + bytes([damaged[-1] ^ 1])
    for shipped in (
        blocks[:1],
        [blocks[1], blocks[0], *blocks[2:]],
        [copied.block(60), copied.block(20), blocks[3]],
        [bad, bad],
        [damaged, two.block(5)],
    ):
        site.ship(*shipped)
        site.run()

    proof = verify(site)

    assert [one.text for one in proof.breaks] == []
    assert (proof.damaged, proof.branched, proof.gaps_total, proof.missing) == (1, 1, 1, 10)
    assert proof.duplicates >= 2
    assert proof.overlaps >= 1


def test_ends_lost_spools_and_what_came_after_them_are_not_broken(tmp_path: Path) -> None:
    site, gone, lost = Site(tmp_path), FrontEnd("gone"), FrontEnd("lost")
    told = lost_block("gone", Incarnation(2, NOON_US, seals=1), "eu-west-1").data
    site.ship(gone.block(5), told, lost.block(5))
    site.run()
    # The next start has an empty disk, and says so in a block that lies in its own chain.
    lost.incarnation, lost.sequence, lost.previous = 1, 0, b"\0" * 32
    said = lost.block(0, seal=Seal(1, None, "lost"))
    lost.incarnation, lost.sequence = 2, 0
    site.ship(said, lost.block(7, dropped=3), gone.block(7), told, gone.block(0, seal=Seal(1, 12, "stopped")))
    site.run()
    gone.incarnation, gone.sequence = 5, 0
    site.ship(gone.block(3))
    site.run()

    proof = verify(site)

    assert [one.text for one in proof.breaks] == []
    assert (proof.incarnations, proof.dropped, proof.gaps_total) == (4, 3, 0)


def test_what_the_queue_no_longer_had_is_a_gap_and_no_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    bounds = FileFeed.bounds
    earliest = 1
    monkeypatch.setattr(FileFeed, "bounds", lambda feed: {0: (earliest, bounds(feed)[0][1])})
    site.ship(one.block(5), one.block(10), two.block(5), two.block(0))
    site.run()
    site.ship(two.block(0), one.block(0), one.block(20), two.block(0))
    earliest = 6
    site.run()

    proof = verify(site)

    assert [one.text for one in proof.breaks] == []
    assert [(gap.front_end, gap.first, gap.end) for gap in proof.gaps] == [("a", 0, 5)]


def test_blocks_without_content_that_has_expired_are_no_break_and_content_that_was_taken_is(
    tmp_path: Path,
) -> None:
    site = made(tmp_path)
    expire_content(InProcess(), site.warehouse, LATER + datetime.timedelta(days=99))
    expired = verify(site)
    one, _ = site.front_ends
    site.ship(one.block(9))
    site.run()

    def without_content(rows: list[Row]) -> list[Row]:
        (last, *_) = (row for row in rows if row["content_bytes"])
        last["content"] = None
        return rows

    rewrite(site, BLOCKS, without_content)

    assert [one.text for one in expired.breaks] == []
    assert expired.expired == expired.blocks
    assert "its content is not there" in first(verify(site)).reason


def test_nothing_is_broken_while_layers_lag_and_after_compaction_and_backfill(tmp_path: Path) -> None:
    site = made(tmp_path)
    one, _ = site.front_ends
    with site.warehouse.ingesting():
        compact(InProcess(), site.warehouse, LATER, keep_hours=0)
        backfill(InProcess(), site.warehouse, 0, 1 << 62)
    compacted = verify(site)
    site.ship(one.block(9))
    warehouse = site.warehouse
    with warehouse.ingesting():
        take_batch(InProcess(), warehouse, site.source, coverage_of(warehouse), LATER)

    lagging = verify(site)

    assert [one.text for one in (*compacted.breaks, *lagging.breaks)] == []
    assert lagging.blocks == compacted.blocks + 1
    assert lagging.rows == compacted.rows == 240


def test_a_run_that_commits_between_looks_at_the_tables_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "COVERAGE_BATCHES", 1)
    site = make(tmp_path)
    one, _ = site.front_ends
    looked_at = Warehouse(site.root)
    place = looked_at.place
    looks: list[str] = []

    def run_then_place(spec: TableSpec) -> TablePlace:
        looks.append(spec.name)
        again = one.block(20)
        site.ship(again, one.block(7), again)
        site.run(now=LATER)
        return place(spec)

    monkeypatch.setattr(looked_at, "place", run_then_place)

    proof = verification.verify(InProcess(), looked_at)

    assert [one.text for one in proof.breaks] == []
    assert len(looks) == 16
    assert proof.requests < proof.rows < sum(file.rows for file in site.warehouse.table(USAGE_EVENTS).files())


def test_many_front_ends_and_days_are_divided_into_tasks_and_give_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verify(site)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(header_groups, "CHAIN_BLOCKS", 2)
    monkeypatch.setattr(day_plans, "SUM_ROWS", 3)

    divided = verification.verify(InProcess(), site.warehouse, lambda *step: told.append(step))

    assert divided == whole
    assert whole.breaks_total == 0
    assert told[-1][0] == told[-1][1] > 5


# Front ends whose chains do not hold


def test_blocks_that_do_not_go_on_from_each_other_are_named(tmp_path: Path) -> None:
    site = Site(tmp_path)
    strange, none, back, beyond, next_one = (FrontEnd(name) for name in "abcde")
    shipped = [
        one.block(10, seal=Seal(1, 10, "stopped") if one is beyond else None)
        for one in (strange, none, back, beyond, next_one)
    ]
    strange.previous = b"x" * 32
    none.previous = b"\0" * 32
    back.sequence = 15
    next_one.incarnation = 2
    shipped += [one.block(5) for one in (strange, none, back, beyond, next_one)]
    site.ship(*shipped)
    site.run()

    found = {one.front_end: (one.incarnation, one.sequence, one.reason) for one in verify(site).breaks}

    assert found == {
        "a": (1, 10, "the block before it is missing or was changed: it names another hash"),
        "b": (1, 10, "it names no block before it, and is not the first one"),
        "c": (1, 15, "it begins at 15; the block before it ends at 10"),
        "d": (1, 10, "records from it on were put in: the incarnation was sealed at 10"),
        "e": (2, 10, "it goes on from a block of incarnation 1"),
    }


def test_a_block_that_names_a_damaged_one_is_told_apart_from_a_break(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    first_block, sign_of_life = one.block(10), one.block(0)
    site.ship(first_block, sign_of_life[:-1] + bytes([sign_of_life[-1] ^ 1]), one.block(5))
    site.run()

    proof = verify(site)

    assert [broken.text for broken in proof.breaks] == []
    assert (proof.damaged, proof.unlinked) == (1, 1)


def test_what_a_spool_lost_is_told_and_the_block_behind_it_may_name_what_was_there(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    one.block(10)
    site.ship(one.block(10), one.block(0))
    site.run()

    proof = verify(site)

    assert [broken.text for broken in proof.breaks] == []
    assert (proof.gaps_total, proof.missing) == (1, 10)


# Somebody changed a table


def changed(name: str, value: Callable[[Any], Any], at: int = 0) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        rows[at] = {**rows[at], name: value(rows[at][name])}
        return rows

    return change


def test_changed_content_is_found_by_its_hash(site: Site) -> None:
    rewrite(site, BLOCKS, changed("content", lambda content: content[:-1] + b"\0"))

    broken = first(verify(site))

    assert "the content has another hash" in broken.reason
    assert (broken.front_end, broken.incarnation, broken.log_offset) == ("a", 1, broken.log_offset)


def test_another_block_in_place_of_one_with_all_its_columns_is_found_by_the_next_ones_link(
    site: Site,
) -> None:
    forger = FrontEnd("a", seed=9, step_us=400_000_000)
    other = Site(site.root.parent / "other")
    other.ship(forger.block(30))
    other.run(now=LATER)
    (row,) = other.warehouse.table(BLOCKS).read().to_pylist()
    kept = ("feed", "log_partition", "log_offset", "batch_id", "taken_time", "closed_until", "ingest_date")

    def change(rows: list[Row]) -> list[Row]:
        return [
            row | {name: one[name] for name in kept} if (one["front_end"], one["seq_lo"]) == ("a", 0) else one
            for one in rows
        ]

    rewrite(site, BLOCKS, change)

    reasons = {one.reason for one in verify(site).breaks if one.table == BLOCKS.name}
    assert "the block before it is missing or was changed: it names another hash" in reasons


@pytest.mark.parametrize(
    "name", ["front_end", "epoch", "rows", "messages", "seal_end", "previous", "low_watermark"]
)
def test_a_changed_column_of_a_header_is_named(site: Site, name: str) -> None:
    rewrite(site, BLOCKS, changed(name, another, at=3))

    broken = first(verify(site))

    assert (broken.table, broken.column) == (BLOCKS.name, name)
    assert broken.reason.startswith(f"its column {name} is ")


@pytest.mark.parametrize("at", range(9))
def test_a_deleted_block_is_named_by_its_place(site: Site, at: int) -> None:
    rewrite(site, BLOCKS, lambda rows: [row for row in rows if row["log_offset"] != at])

    found = {(one.log_partition, one.log_offset): one.reason for one in verify(site).breaks}

    assert found[0, at] in ("it is missing", "it was put in: there is no block that it may be of")
    assert (0, at) in {
        (one.log_partition, one.log_offset) for one in verify(site).breaks if one.reason == "it is missing"
    }


def test_a_block_that_was_put_in_is_named_by_its_place(site: Site) -> None:
    rewrite(site, BLOCKS, lambda rows: [*rows, rows[0]])
    twice = [one.text for one in verify(site).breaks]
    rewrite(site, BLOCKS, lambda rows: [*rows[:-1], rows[0] | {"log_offset": 9, "batch_id": 2}])
    beyond = [one.text for one in verify(site).breaks]

    assert any("it is there twice, or was put in" in text for text in twice)
    assert any("offset 9: it was put in: the table was filled up to offset 9" in text for text in beyond)


def cut_end(site: Site, *, with_note: bool) -> None:
    """Delete the last batch from all tables."""

    def before(rows: list[Row]) -> list[Row]:
        return [row for row in rows if row["batch_id"] < 2]

    left = before(site.warehouse.table(BLOCKS).read().to_pylist())
    measures = {name: sum(row[name] for row in left) for name in MEASURES}
    note = {"next": {"0": 6}, "headers": measures} if with_note else None
    rewrite(site, BLOCKS, before, note=note)
    rewrite(site, USAGE_EVENTS, before)
    with site.warehouse.ingesting():
        backfill(InProcess(), site.warehouse, 0, 1 << 62)


def test_an_end_that_was_cut_off_blocks_and_silver_alike_is_found_by_the_note(site: Site) -> None:
    cut_end(site, with_note=False)

    assert "it and all up to offset 8 are missing" in first(verify(site)).reason


def test_an_end_that_was_cut_off_with_the_note_is_found_by_the_coverage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "COVERAGE_BATCHES", 1)
    site, one = Site(tmp_path), FrontEnd("a")
    for rows in (10, 20, 30):
        site.ship(one.block(rows), one.block(0), one.block(0))
        site.run(now=LATER)
    assert verify(site).breaks_total == 0
    cut_end(site, with_note=True)

    found = [broken for broken in verify(site).breaks if broken.table == COVERAGE.name]

    (broken,) = found
    assert broken.reason == "bronze.blocks has sequences 0 to 30, and had 0 to 60"
    assert (broken.front_end, broken.sequence) == ("a", 30)


def test_a_block_that_silver_leaves_out_by_a_forged_mark_is_named(site: Site) -> None:
    row = next(row for row in site.warehouse.table(BLOCKS).read().to_pylist() if row["log_offset"] == 3)
    table = site.warehouse.table(BLOCK_MARKS)
    mark = {name: row.get(name) for name in BLOCK_MARKS.schema.names} | {"state": "duplicate"}
    table.commit("x", 0, table.write("x", pa.Table.from_pylist([mark], schema=BLOCK_MARKS.schema)))

    assert any(one.reason == "it is marked duplicate; it is new" for one in verify(site).breaks)


def test_a_forged_mark_that_names_no_front_end_is_found(site: Site) -> None:
    row = next(row for row in site.warehouse.table(BLOCKS).read().to_pylist() if row["log_offset"] == 3)
    table = site.warehouse.table(BLOCK_MARKS)
    mark = dict.fromkeys(BLOCK_MARKS.schema.names) | {"state": "duplicate"}
    mark |= {name: row[name] for name in ("batch_id", "log_partition", "log_offset")}
    table.commit("x", 0, table.write("x", pa.Table.from_pylist([mark], schema=BLOCK_MARKS.schema)))

    assert BLOCK_MARKS.name in {one.table for one in verify(site).breaks}


def test_an_event_of_another_account_is_named_with_its_front_end_and_sequence(site: Site) -> None:
    rewrite(site, USAGE_EVENTS, changed("account_id", lambda _: "000000000099", at=17))
    row = site.warehouse.table(USAGE_EVENTS).read().to_pylist()[17]

    broken = first(verify(site))

    assert (broken.front_end, broken.incarnation, broken.sequence) == (
        *(row["front_end"], row["epoch"]),
        row["sequence"],
    )
    assert broken.column == "account_id"
    assert "its column account_id is '000000000099'; its block says '00000000000" in broken.reason


def test_an_event_that_was_deleted_is_named(site: Site) -> None:
    row = site.warehouse.table(USAGE_EVENTS).read().to_pylist()[17]
    rewrite(site, USAGE_EVENTS, lambda rows: rows[:17] + rows[18:])

    broken = first(verify(site))

    assert broken.reason == "it is missing"
    assert (broken.front_end, broken.sequence) == (row["front_end"], row["sequence"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "it is there twice"),
        ({"block_row": 4000}, "it was put in: its block has no such row"),
        ({"log_offset": 77}, "it was put in: there is no block that it may be of"),
        ({"batch_id": 9, "log_offset": 77}, "it was put in: there is no block that it may be of"),
    ],
)
def test_an_event_that_was_put_in_is_named(site: Site, change: Row, reason: str) -> None:
    rewrite(site, USAGE_EVENTS, lambda rows: [*rows, rows[3] | change])

    broken = first(verify(site))

    assert (broken.table, broken.reason) == (USAGE_EVENTS.name, reason)


def test_an_event_of_a_block_that_overlaps_is_compared_if_it_is_there(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a", seed=1).block(30))
    site.run()
    site.ship(FrontEnd("a", seed=1).block(50))
    site.run()
    assert verify(site).overlaps == 1
    rows = site.warehouse.table(USAGE_EVENTS).read().to_pylist()
    at = next(at for at, row in enumerate(rows) if row["sequence"] == 40)
    rewrite(site, USAGE_EVENTS, changed("messages", lambda count: count + 1, at=at))

    broken = first(verify(site))

    assert (broken.sequence, broken.column) == (40, "messages")


def test_a_changed_sum_is_named_by_its_hour_and_account(site: Site) -> None:
    row = site.warehouse.table(USAGE_HOURLY).read().to_pylist()[2]
    rewrite(site, USAGE_HOURLY, changed("billed_requests", lambda count: count - 1, at=2))

    broken = first(verify(site))

    assert broken.hour == row["hour"].strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (broken.account_id, broken.column) == (row["account_id"], "billed_requests")


def test_sums_of_one_key_in_several_rows_are_added_up(site: Site) -> None:
    names = [field.name for field in USAGE_HOURLY.schema if field.type == pa.int64()]
    counted = [
        name for name in names if name not in ("queue_sk", "latency_us_max", "first_batch", "last_batch")
    ]

    def in_two(rows: list[Row]) -> list[Row]:
        parts = [row | dict.fromkeys(counted, 1) for row in rows]
        rest = [row | {name: row[name] - 1 for name in counted} for row in rows]
        return [*parts, *rest]

    rewrite(site, USAGE_HOURLY, in_two)

    assert verify(site).breaks_total == 0


def test_a_hundred_breaks_are_told_and_all_are_counted(site: Site) -> None:
    rewrite(site, USAGE_EVENTS, lambda rows: [row | {"messages": 7_777} for row in rows])

    proof = verify(site)

    assert proof.breaks_total > 240
    assert len(proof.breaks) <= BREAKS_MAX


# Any cell of any column


FREE = {
    USAGE_HOURLY.name: {
        *("first_batch", "last_batch"),  # which batches are in a row: merges and backfills change that
        "duplicates",  # null is 0: rows that were written before there was the column have null
    }
}
"""Columns that say nothing of usage, or in which another value may mean the same."""


def another(value: Any) -> Any:
    """Return another value of the same kind."""
    match value:
        case None:
            return 1
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1])
        case datetime.datetime():
            return value + datetime.timedelta(microseconds=1)
        case datetime.date():
            return value + datetime.timedelta(days=1)
    raise AssertionError(f"no other value is known than {value!r}")


def in_place_of_all(rows: list[Row]) -> Callable[[list[Row]], list[Row]]:
    return lambda _: rows


def cells() -> list[Any]:
    return [
        pytest.param(spec, name, id=f"{spec.name}.{name}")
        for spec in (BLOCKS, USAGE_EVENTS, USAGE_HOURLY)
        for name in spec.schema.names
        if name not in FREE.get(spec.name, ())
    ]


@pytest.mark.parametrize(("spec", "name"), cells())
def test_a_change_of_any_cell_is_found(site: Site, spec: TableSpec, name: str) -> None:
    kind = spec.schema.field(name).type
    rows = site.warehouse.table(spec).read().to_pylist()
    at = Random(f"{spec.name} {name}").randrange(5)
    value = rows[at][name]
    values = [another(value)]
    if value is None and not pa.types.is_integer(kind):
        values = [b"x" if pa.types.is_binary(kind) else "x"]
    if value and name != spec.partition_column:
        values.append(None)

    for written in values:
        rewrite(site, spec, in_place_of_all([*rows[:at], {**rows[at], name: written}, *rows[at + 1 :]]))

        assert verify(site).breaks_total > 0, f"{name} is {written!r}"
