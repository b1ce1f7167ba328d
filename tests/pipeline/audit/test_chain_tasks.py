"""The proof of audit events in tasks: divided in any way it is the same, and the driver gets no rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.built_once import built_once
from harness.pipeline_site import NOW, InProcess, Site
from harness.usage_blocks import HOUR_US, FrontEnd

from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster.protocol.usage.usage_records import NO_HASH
from quaymaster_pipeline.audit import chain_tasks, verification
from quaymaster_pipeline.audit.audit_chains import Proof
from quaymaster_pipeline.audit.chain_tasks import breaks_of
from quaymaster_pipeline.audit.erasure import Subject, erase
from quaymaster_pipeline.audit.expiry import expire_events
from quaymaster_pipeline.audit.verification import group_items, heads_of, verify_chains
from quaymaster_pipeline.checks.usage_breaks import BREAKS_MAX, BREAKS_OF_ITEM
from quaymaster_pipeline.usage.requests import changes_of
from quaymaster_pipeline.usage.tasks import Answers
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, BLOCKS

LATER = NOW + timedelta(days=400)
Rows = list[dict[str, Any]]


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["front_end"] or "", row["epoch"] or 0, row["sequence"] or 0


@built_once
def changed_site(directory: Path) -> Site:
    """Return a site with events of three front ends, some expired and some erased, over days and incarnations."""
    site = Site(directory)
    front_ends = [
        FrontEnd(f"fe-{number}", seed=number, step_us=HOUR_US, bunched_us=4 * HOUR_US) for number in range(3)
    ]
    for _ in range(2):
        site.ship(*(one.block(40) for one in front_ends))
        site.run(now=LATER)
    erase(InProcess(), site.warehouse, Subject("access-key", "AKIA1"), NOW, operator="somebody")
    front_ends[0].incarnation, front_ends[0].sequence = 2, 0
    front_ends[1].incarnation, front_ends[1].sequence, front_ends[1].audit_hash = 2, 0, NO_HASH
    site.ship(front_ends[1].block(20, seal=Seal(1, None, "lost")), *(one.block(40) for one in front_ends))
    site.run(now=LATER)
    expire_events(InProcess(), site.warehouse, NOW + timedelta(days=1), LATER)
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return changed_site(tmp_path)


def proof_of(site: Site, kept: tuple[str, str] = ("fe-2", "00" * 32)) -> Proof:
    return verify_chains(InProcess(), site.warehouse, heads_of([kept]))


def divided(monkeypatch: pytest.MonkeyPatch, events: int = 1) -> None:
    """Let a task take few events."""
    monkeypatch.setattr(verification, "ITEM_EVENTS", events)
    monkeypatch.setattr(verification, "CHAIN_EVENTS", events)


def rewrite(site: Site, change: Callable[[Rows], Rows], files: int = 1) -> None:
    """Change the events as somebody would who can write the table, and spread them over so many files of each day."""
    table = site.warehouse.table(AUDIT_EVENTS)
    rows = change(sorted(table.read().to_pylist(), key=order))
    adds = []
    for first in range(files):
        mine = pa.Table.from_pylist(rows[first::files], schema=AUDIT_EVENTS.schema)
        adds += table.write("x", mine)
    table.commit("somebody", table.last_batch("somebody") + 1, adds, removes=table.files())


def with_content(rows: Rows) -> int:
    """Return the row of an event with content, and two of its incarnation before it."""
    return next(
        at
        for at, row in enumerate(rows)
        if at > 2 and row["record"] and rows[at - 2]["epoch"] == row["epoch"]
    )


def changed(**changes: Any) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        at = with_content(rows)
        return [*rows[:at], {**rows[at], **changes}, *rows[at + 1 :]]

    return change


def taken_out(rows: Rows) -> Rows:
    at = with_content(rows)
    return rows[: at - 1] + rows[at:]


def taken_out_and_changed(rows: Rows) -> Rows:
    at = with_content(rows)
    return [*rows[: at - 1], {**rows[at], "principal_id": "mallory"}, *rows[at + 1 :]]


def twice(rows: Rows) -> Rows:
    at = with_content(rows)
    return [*rows, rows[at]]


def cut_off(rows: Rows) -> Rows:
    last = max(place for place in map(order, rows) if place[0] == "fe-2")
    return [row for row in rows if order(row) != last]


def incarnation_gone(rows: Rows) -> Rows:
    return [row for row in rows if order(row)[:2] != ("fe-0", 2)]


def stub_without_place(rows: Rows) -> Rows:
    nothing = dict.fromkeys(rows[0])
    kept = {name: rows[0][name] for name in ("event_date", "event_time")}
    return [*rows, nothing | kept]


BROKEN: dict[str, tuple[Callable[[Rows], Rows], list[str]]] = {
    "nothing": (lambda rows: rows, []),
    "a column": (changed(principal_id="mallory"), ["its column principal_id was changed"]),
    "a status too large for a record": (changed(http_status=32_000), ["its column http_status was changed"]),
    "a number": (changed(http_status=None), ["its column http_status was changed"]),
    "the record": (changed(record=b"\xc1"), ["its content was changed: it has another hash"]),
    "no record": (changed(record=None), ["its content is gone, and was not erased"]),
    "a pretended stub": (
        changed(record=None, event_name=None),
        ["its content is gone, and it had not expired"],
    ),
    "a stub without its place": (stub_without_place, ["its place in the chain is gone"]),
    "one taken out": (taken_out, ["an event before it is missing, or was put in or changed"]),
    # Both would be wrong with the same event: that is one break.
    "one taken out, the next changed": (taken_out_and_changed, ["its column principal_id was changed"]),
    "twice": (twice, ["it is there twice, or its time was changed"]),
    "cut off": (cut_off, ["1 events from it up to 1/"]),
    "an incarnation gone": (incarnation_gone, ["events from it up to 2/"]),
}


@pytest.mark.parametrize(("change", "reasons"), BROKEN.values(), ids=BROKEN)
def test_a_proof_divided_into_many_tasks_is_the_same_as_one_of_a_single_task(
    site: Site, monkeypatch: pytest.MonkeyPatch, change: Callable[[Rows], Rows], reasons: list[str]
) -> None:
    rewrite(site, change)
    whole = proof_of(site)
    rewrite(site, lambda rows: rows, files=7)

    divided(monkeypatch)
    apart = proof_of(site)

    assert len(group_items(site.warehouse.table(AUDIT_EVENTS).files(), 2)) > 3
    assert apart == whole
    *found, lost = [one.reason for one in whole.breaks]
    assert "is not in the chain any more" in lost
    assert len(found) == len(reasons) == whole.breaks_total - 1
    assert all(wanted in reason for wanted, reason in zip(reasons, found, strict=True))
    assert whole.erased > 0


def test_a_kept_head_is_found_in_whatever_group_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = [(head.front_end, head.record_hash) for head in proof_of(site).heads]
    rows = site.warehouse.table(AUDIT_EVENTS).read(["front_end", "record_hash"]).to_pylist()
    kept = [*heads, *((row["front_end"], row["record_hash"].hex()) for row in rows)]

    divided(monkeypatch)

    assert verify_chains(InProcess(), site.warehouse, heads_of(kept)).breaks == []
    others = [("fe-0", record_hash) for front_end, record_hash in heads if front_end == "fe-1"]
    assert verify_chains(InProcess(), site.warehouse, heads_of(others)).breaks_total == 1


def test_what_is_missing_without_a_trace_in_bronze_is_found_when_divided(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(site, cut_off)
    blocks = site.warehouse.table(BLOCKS)
    blocks.commit("somebody", 0, [], removes=blocks.files())

    whole = proof_of(site)
    divided(monkeypatch)

    assert proof_of(site) == whole
    assert any("it was the last event" in found.reason for found in whole.breaks)


def test_a_chain_that_is_broken_already_is_not_blamed_for_its_end_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(rows: Rows) -> Rows:
        of_one = [row for row in cut_off(rows) if row["front_end"] == "fe-2"]
        others = [row for row in rows if row["front_end"] != "fe-2"]
        return [*others, *of_one[:-1], {**of_one[-1], "queue_name": "other"}]

    rewrite(site, change)
    blocks = site.warehouse.table(BLOCKS)
    blocks.commit("somebody", 0, [], removes=blocks.files())

    whole = [one.reason for one in proof_of(site).breaks]
    divided(monkeypatch)

    assert [one.reason for one in proof_of(site).breaks] == whole
    assert not any("it was the last event" in reason for reason in whole)


def many(tmp_path: Path, events: int) -> Site:
    """Give a site of one block with so many requests."""
    site = Site(tmp_path / str(events))
    site.ship(FrontEnd("fe-1").block(events))
    site.run(now=LATER)
    return site


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the sizes of what tasks answer."""
    sizes: list[int] = []
    over = InProcess.over

    def measured(workers: InProcess, *arguments: Any) -> Answers:
        answers = over(workers, *arguments)
        sizes.append(sum(len(what) + len(data) for what, data in answers._lines))
        return answers

    monkeypatch.setattr(InProcess, "over", measured)
    return sizes


@pytest.mark.parametrize("act", ["verify", "expire"])
def test_what_the_driver_gets_does_not_grow_with_events(
    tmp_path: Path, answered: list[int], act: str
) -> None:
    sizes = []
    for events in (200, 4000):
        site = many(tmp_path, events)
        answered.clear()
        if act == "verify":
            assert proof_of(site).events > events // 8
        else:
            assert expire_events(InProcess(), site.warehouse, LATER, LATER).deleted > events // 8
        sizes.append(sum(answered))

    # Numbers have more digits, and sums compress otherwise.
    assert sizes[1] < sizes[0] + 100


def test_breaks_beyond_the_first_are_counted_and_not_sent(tmp_path: Path, answered: list[int]) -> None:
    site = many(tmp_path, 4000)
    rewrite(site, lambda rows: [{**row, "user_agent": f"agent {at}"} for at, row in enumerate(rows)])
    answered.clear()

    proof = proof_of(site)

    assert proof.breaks_total == proof.events + 1
    assert len(proof.breaks) == BREAKS_MAX
    sequences = [found.sequence for found in proof.breaks]
    assert (
        sequences
        == sorted(row["sequence"] for row in site.warehouse.table(AUDIT_EVENTS).read().to_pylist())[:100]
    )
    assert sum(answered) < 200 * BREAKS_MAX


def test_an_item_of_many_brings_few_breaks_and_a_single_one_all_that_are_told() -> None:
    assert [breaks_of(items) for items in (0, 1, 3, 1000)] == [BREAKS_MAX, BREAKS_MAX, 33, BREAKS_OF_ITEM]


def test_events_are_divided_so_that_a_day_of_a_group_fits_and_no_core_reads_in_vain() -> None:
    def files(*rows: int) -> list[DataFile]:
        return [DataFile("", 0, count, f"2026-11-{day + 1:02}", {}) for day, count in enumerate(rows)]

    some = verification.CHAIN_EVENTS
    assert len(group_items([], 8)) == 1
    assert len(group_items(files(some // 2, some // 2), 8)) == 1
    assert len(group_items(files(*[some] * 4), 8)) == 4
    assert len(group_items(files(*[some] * 20), 8)) == 8
    assert len(group_items(files(20 * some, some), 8)) == 20


def test_only_blocks_at_the_ends_of_chains_are_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def counted(blocks: Any) -> Any:
        opened.append(blocks.num_rows)
        return changes_of(blocks)

    monkeypatch.setattr(chain_tasks, "changes_of", counted)
    incarnations = 5

    assert proof_of(site).breaks_total == 1
    assert 0 < sum(opened) <= incarnations < site.warehouse.table(BLOCKS).rows
