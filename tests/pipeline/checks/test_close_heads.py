"""Closes record the last block of each incarnation: an end that was cut off or replaced later shows against them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.built_once import built_once
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks import close_heads
from quaymaster_pipeline.checks.block_links import ChainedBlock
from quaymaster_pipeline.checks.close_heads import CloseHead, HeadRange, digest_of_heads, judge_heads
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.upkeep import compact, end_day
from quaymaster_pipeline.usage.sequences import BlockRange, IncarnationId
from quaymaster_pipeline.warehouse.closes import DayClose, read_closes
from quaymaster_pipeline.warehouse.schemas import BLOCKS, CLOSE_HEADS
from quaymaster_pipeline.warehouse.tables import Table

THE_25TH = datetime.datetime(2026, 11, 25, 6, tzinfo=datetime.UTC)
THE_27TH = THE_25TH + datetime.timedelta(days=2)
WORKERS = InProcess()


@built_once
def used(directory: Path) -> tuple[Site, dict[str, FrontEnd]]:
    """Return a site with days of three front ends, closed twice; one of them has blocks in one close only."""
    site = Site(directory)
    known = {name: FrontEnd(name, step_us=1_800_000_000) for name in "abc"}
    site.ship(*(known[name].block(48) for name in "abab"))
    site.run(now=THE_25TH)
    close_days(WORKERS, site.warehouse, THE_25TH)
    site.ship(*(known[name].block(60) for name in "ab"), known["c"].block(150))
    site.run(now=THE_27TH)
    close_days(WORKERS, site.warehouse, THE_27TH)
    return site, known


def reasons(site: Site) -> str:
    return "\n".join(one.text for one in verify(WORKERS, site.warehouse).breaks)


def heads_in(site: Site) -> list[tuple[int, str, int]]:
    rows = site.warehouse.table(CLOSE_HEADS).read().to_pylist()
    return sorted((row["number"], row["front_end"], row["sequence"]) for row in rows)


def test_a_close_records_the_last_blocks_of_incarnations_that_moved(tmp_path: Path) -> None:
    site, _ = used(tmp_path)

    closes = [close for close in read_closes(site.warehouse) if close.heads]

    assert heads_in(site) == [(0, "a", 96), (0, "b", 96), (1, "a", 156), (1, "b", 156), (1, "c", 150)]
    assert [(close.number, close.heads) for close in closes] == [(0, 2), (1, 3)]
    assert reasons(site) == ""


def test_an_end_that_was_cut_off_after_the_close_is_named(tmp_path: Path) -> None:
    site, _ = used(tmp_path)
    table = site.warehouse.table(BLOCKS)
    rows = table.read()
    is_last = pc.and_(pc.equal(rows.column("front_end"), "a"), pc.equal(rows.column("seq_hi"), 156))
    kept = rows.filter(pc.invert(is_last))
    table.commit("somebody", None, table.write("x", kept), removes=table.files())

    found = [one for one in verify(WORKERS, site.warehouse).breaks if "close 1" in one.reason]

    assert [(one.table, one.front_end, one.incarnation, one.sequence) for one in found] == [
        (BLOCKS.name, "a", 1, 156)
    ]
    assert "it was cut off or changed" in found[0].reason


@pytest.mark.parametrize(
    "change", ["a SHA-256", "no SHA-256", "no batch", "no number", "a row less", "a row more"]
)
def test_heads_that_were_changed_are_told_by_the_close(tmp_path: Path, change: str) -> None:
    site, _ = used(tmp_path)
    table = site.warehouse.table(CLOSE_HEADS)
    rows = sorted(table.read().to_pylist(), key=lambda row: (row["number"], row["front_end"]))
    match change:
        case "a SHA-256":
            rows[0]["sha256"] = bytes(32)
        case "no SHA-256":
            rows[0]["sha256"] = None
        case "no batch":
            rows[0]["batch_id"] = None
        case "no number":
            rows[0]["number"] = None
        case "a row less":
            del rows[0]
        case _:
            rows.append(rows[0] | {"front_end": "z"})
    written = table.write("x", pa.Table.from_pylist(rows, schema=CLOSE_HEADS.schema))
    table.commit("somebody", None, written, removes=table.files())

    assert "ops.close_heads: heads of close 0 were changed, deleted or put in: it had 2" in reasons(site)


def test_heads_of_a_killed_close_are_no_break_and_are_added_before_old_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, known = used(tmp_path)
    site.ship(*(known[name].block(60) for name in "abc"))
    site.run(now=THE_27TH)
    late = THE_27TH + datetime.timedelta(days=2)
    commit = Table.commit

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec == CLOSE_HEADS:
            raise KeyboardInterrupt
        return commit(table, *arguments, **named)

    end_day(site.warehouse, late)
    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            close_days(WORKERS, site.warehouse, late)
    before = reasons(site), len(heads_in(site))
    end_day(site.warehouse, late + datetime.timedelta(days=2))

    assert before == ("", 5)
    assert len(heads_in(site)) == 8
    assert reasons(site) == ""


def test_heads_are_the_same_however_many_tasks_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = used(tmp_path / "a")
    monkeypatch.setattr(close_heads, "HEADERS_PER_SHARE", 1)
    monkeypatch.setattr(close_heads, "_WAITING_ROWS", 1)
    other, _ = used(tmp_path / "b")

    here, there = ([close.heads_hash for close in read_closes(site.warehouse)] for site in (one, other))

    assert here == there


def test_compaction_leaves_heads_alone_and_those_of_compacted_blocks_are_the_same(tmp_path: Path) -> None:
    site, _ = used(tmp_path)
    files = {file.path for file in site.warehouse.table(CLOSE_HEADS).files()}

    compact(WORKERS, site.warehouse, THE_27TH)

    assert {file.path for file in site.warehouse.table(CLOSE_HEADS).files()} == files
    assert reasons(site) == ""


def test_a_close_of_an_earlier_program_has_no_heads_and_its_hash_is_of_what_it_has(tmp_path: Path) -> None:
    site, _ = used(tmp_path)
    close = read_closes(site.warehouse)[0]._replace(heads=None, heads_hash=None)

    fields = close.to_json()

    assert {"heads", "heads_hash"}.isdisjoint(fields)
    assert DayClose.from_json(fields) == close


# judge_heads


OWNER = IncarnationId("a", 1)
RANGES = [HeadRange(0, 0, 3), HeadRange(2, 4, 9)]


def block(batch: int, seq_hi: int, *, digest: bytes = b"", offset: int = 0, low_us: int = 0) -> ChainedBlock:
    of = BlockRange(OWNER, max(0, seq_hi - 10), seq_hi, digest or bytes([seq_hi]) * 32, low_us)
    return ChainedBlock(batch, 0, offset, of, b"", 0, None, None)


def head(number: int, batch: int, sequence: int) -> tuple[int, CloseHead]:
    return number, CloseHead(OWNER, sequence, batch, bytes([sequence]) * 32)


RIGHT = [block(1, 10), block(3, 20, offset=1), block(5, 30, offset=2), block(12, 40, offset=3)]
HEADS = [head(0, 3, 20), head(2, 5, 30)]


@pytest.mark.parametrize(
    ("blocks", "heads", "window", "found"),
    [
        (RIGHT, HEADS, (-1, 100), []),
        (RIGHT[:2], HEADS, (-1, 100), [30]),  # the end is cut off
        ([RIGHT[0], *RIGHT[2:]], HEADS, (-1, 100), [20]),  # the end of an earlier close is
        ([*RIGHT[:2], block(5, 30, digest=b"x" * 32)], HEADS, (-1, 100), [30]),  # it was replaced
        ([*RIGHT, block(6, 35, offset=9)], HEADS, (-1, 100), [30]),  # something was put in behind it
        (RIGHT, HEADS[:1], (-1, 100), [20]),  # as in a close that had none of it: where it begins
        (RIGHT[2:], HEADS, (3, 100), []),  # what is before it has expired
        (RIGHT[3:], HEADS, (3, 100), [30]),
        (RIGHT[:2], HEADS, (-1, 3), []),  # these expire
        (RIGHT[:1], HEADS, (-1, 3), [20]),
        (RIGHT[:1], HEADS, (-1, 1), []),  # some of a close's do, and its last block is among the others
        ([*RIGHT, block(7, 30, offset=9, low_us=-1)], HEADS, (-1, 100), []),  # one that came again
    ],
)
def test_heads_are_the_last_blocks_of_the_batches_that_are_there(
    blocks: list[ChainedBlock], heads: list[tuple[int, CloseHead]], window: tuple[int, int], found: list[int]
) -> None:
    breaks = list(judge_heads(blocks, heads, RANGES, *window))

    assert [one.sequence for one in breaks] == found


def test_batches_that_no_close_had_are_not_judged() -> None:
    assert list(judge_heads(RIGHT, [], [], -1, 100)) == []
    assert list(judge_heads([block(4, 30)], [], [HeadRange(1, 5, 9)], -1, 100)) == []


def test_the_digest_of_heads_is_of_their_order_and_of_all_columns() -> None:
    rows = pa.Table.from_pylist(
        [
            {
                "number": 0,
                "through_batch": 3,
                "front_end": name,
                "epoch": 1,
                "sequence": 5,
                "batch_id": 2,
                "sha256": b"x",
            }
            for name in "ab"
        ],
        schema=CLOSE_HEADS.schema,
    )
    digest = digest_of_heads(rows)

    assert digest_of_heads(rows.take([1, 0])) == digest
    for name in ("epoch", "sequence", "batch_id"):
        changed = rows.set_column(rows.schema.names.index(name), name, pa.array([1, 9], pa.int64()))
        assert digest_of_heads(changed) != digest
