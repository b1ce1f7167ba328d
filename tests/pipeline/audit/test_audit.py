"""Audit: search, the chain of hashes and what breaks it, legal holds, expiry."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import NOON_US, SECOND_US, FrontEnd
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.protocol.usage.usage_blocks import Seal, decode_block
from quaymaster.protocol.usage.usage_records import NO_HASH, UsageRecord, hash_record, hashed_bytes
from quaymaster_pipeline.audit import expiry
from quaymaster_pipeline.audit.audit import ANCHORS, Audit, AuditMistake, Hold, Query
from quaymaster_pipeline.audit.audit_chains import Break, Proof
from quaymaster_pipeline.audit.expiry import Expiry, expire_events
from quaymaster_pipeline.audit.verification import heads_of, verify_chains
from quaymaster_pipeline.jobs.content_expiry import expire_quarantine
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.requests import Opened, Origin, open_blocks, request_rows
from quaymaster_pipeline.usage.rules import audit_rows, records_of
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, BLOCKS, QUARANTINE, TableSpec
from quaymaster_pipeline.warehouse.spools import Spool
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY_S = 86_400
LATER = NOON + timedelta(days=400)


def front_end(name: str = "fe-1", *, days_between: float = 0.0, seed: int = 3) -> FrontEnd:
    step_us = round(days_between * DAY_S * SECOND_US) or SECOND_US
    half_a_day_us = DAY_S * SECOND_US // 2
    return FrontEnd(
        name,
        seed=seed,
        step_us=step_us,
        time_us=NOON_US,
        bunched_us=half_a_day_us if step_us > SECOND_US else 0,
    )


def managed(*front_ends: FrontEnd) -> list[UsageRecord]:
    """Return the records of management actions, newest first."""
    records = [record for one in front_ends for record in one.records if record.category == "management"]
    return sorted(
        records, key=lambda record: (record.event_time_us, record.front_end, record.sequence), reverse=True
    )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def shipped(site: Site, *front_ends: FrontEnd, rows: int = 40, blocks: int = 3) -> Audit:
    """Add the events of blocks of these front ends to the table, as the pipeline does, but without its other tables."""
    table = site.warehouse.table(AUDIT_EVENTS)
    for _ in range(blocks):
        batch_id = table.last_batch("test") + 1
        decoded = [decode_block(one.block(rows)) for one in front_ends]
        found = request_rows([Opened(block, Origin(0, batch_id, batch_id)) for block in decoded])
        events = audit_rows(found.filter(pc.equal(found.column("category"), "management")))
        table.commit("test", batch_id, table.write("test", events))
    return Audit(site.warehouse)


def piped(site: Site, *front_ends: FrontEnd, seal: Seal | None = None) -> Audit:
    """Ship a block of these front ends through the whole pipeline."""
    site.ship(*(one.block(40, seal=seal) for one in front_ends))
    site.run(now=LATER)
    return Audit(site.warehouse)


def verified(site: Site, kept: Iterable[tuple[str, str]] = ()) -> Proof:
    """Return the proof of the events as they are now; tasks run here."""
    return verify_chains(InProcess(), site.warehouse, heads_of(kept))


def expired(site: Site, before: datetime, *, is_dry_run: bool = False) -> Expiry:
    return expire_events(InProcess(), site.warehouse, before, LATER, is_dry_run=is_dry_run)


@pytest.mark.parametrize("rows_in_memory", [0, 1 << 16])
def test_an_expiry_judges_all_events_and_reads_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_in_memory: int
) -> None:
    site, front_ends = Site(tmp_path), (FrontEnd("a"), FrontEnd("b"))
    shipped(site, *front_ends)
    events = site.warehouse.table(AUDIT_EVENTS)
    read: Counter[str] = Counter()

    def counted(place: TablePlace, spec: TableSpec, path: str, *more: Any, **limits: Any) -> Any:
        read[path] += 1
        return read_row_groups(place, spec, path, *more, **limits)

    monkeypatch.setattr(expiry, "read_row_groups", counted)
    monkeypatch.setattr(expiry, "Spool", lambda schema: Spool(schema, rows_in_memory))

    done = expired(site, LATER, is_dry_run=True)

    assert done == Expiry(events.rows, 0, 0)
    assert read == {file.path: 1 for file in events.files()}


def rewrite(site: Site, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Audit:
    """Change the events as somebody would who can write the table."""
    table = site.warehouse.table(AUDIT_EVENTS)
    rows = table.read().sort_by([(name, "ascending") for name in ("front_end", "epoch", "sequence")])
    written = pa.Table.from_pylist(change(rows.to_pylist()), schema=AUDIT_EVENTS.schema)
    table.commit(
        "somebody", table.last_batch("somebody") + 1, table.write("x", written), removes=table.files()
    )
    return Audit(site.warehouse)


def test_events_are_found_newest_first(site: Site) -> None:
    one, other = front_end("fe-1"), front_end("fe-2", seed=4)
    audit = shipped(site, one, other)

    found = audit.search(Query(limit=10))

    expected = managed(one, other)[:10]
    assert [event["event_id"] for event in found] == [record.event_id for record in expected]
    assert found[0]["event_name"] == "CreateQueue"
    assert found[0]["request_parameters"] == '{"QueueName":"q"}'
    assert found[0]["source_ip_address"] == "10.0.0.1"


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (Query(account="000000000002"), lambda record: record.account_id == "000000000002"),
        (Query(queue="queue-2"), lambda record: record.queue_name == "queue-2"),
        (Query(action="DeleteQueue"), lambda record: False),
        (Query(principal="arn:aws:iam::1:user/u"), lambda record: True),
        (Query(principal="arn:aws:iam::1:user/v"), lambda record: False),
        (
            Query(since=NOON + timedelta(days=3), until=NOON + timedelta(days=9)),
            lambda record: (
                NOON_US + 3 * DAY_S * SECOND_US <= record.event_time_us < NOON_US + 9 * DAY_S * SECOND_US
            ),
        ),
    ],
)
def test_a_search_finds_what_it_asks_for_and_nothing_else(
    site: Site, query: Query, wanted: Callable[[UsageRecord], bool]
) -> None:
    one = front_end(days_between=0.1)
    audit = shipped(site, one)

    found = audit.search(query)

    assert [event["event_id"] for event in found] == [r.event_id for r in managed(one) if wanted(r)]


def test_a_search_for_changes_leaves_out_what_only_reads(site: Site) -> None:
    shipped(site, front_end())
    audit = rewrite(site, lambda rows: [{**row, "read_only": at % 2 == 0} for at, row in enumerate(rows)])

    found = audit.search(Query(changes_only=True, limit=1000))

    everything = audit.search(Query(limit=1000))
    assert found == [event for event in everything if not event["read_only"]]
    assert 0 < len(found) < len(everything)


@pytest.mark.parametrize("limit", [0, 10_001])
def test_a_search_without_bound_is_refused(site: Site, limit: int) -> None:
    with pytest.raises(AuditMistake, match="1 to 10000"):
        Audit(site.warehouse).search(Query(limit=limit))


def test_an_untouched_chain_holds_over_blocks_days_and_incarnations(site: Site) -> None:
    one, other = front_end("fe-1", days_between=0.1), front_end("fe-2", seed=4)
    piped(site, one, other)
    piped(site, one)
    one.incarnation, one.sequence = 2, 0
    piped(site, one)

    proof = verified(site)

    assert (proof.breaks, proof.breaks_total) == ([], 0)
    assert proof.events == len(managed(one, other))
    heads = {head.front_end: (head.incarnation, head.record_hash) for head in proof.heads}
    last = {record.front_end: record for record in reversed(managed(one, other))}
    assert heads == {name: (record.incarnation, record.record_hash.hex()) for name, record in last.items()}


def test_a_warehouse_without_events_has_nothing_to_prove(site: Site) -> None:
    proof = verified(site)

    assert (proof.events, proof.breaks, proof.heads) == (0, [], [])


def test_bronze_gives_back_the_records_that_were_hashed(site: Site) -> None:
    one = front_end()
    piped(site, one)

    rows = request_rows(open_blocks(site.warehouse.table(BLOCKS).read())[0])

    found = sorted(records_of(rows), key=lambda record: record.sequence)
    assert found == one.records
    chained = [record for record in found if record.category == "management"]
    assert [hash_record(record) for record in chained] == [record.record_hash for record in chained]
    assert audit_rows(rows.slice(0, 0)).num_rows == 0


def damaged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Somebody put bytes there that are no record, with their hash."""
    data = b"\xc1"
    return [*rows[:2], {**rows[2], "record": data, "record_hash": sha256(data).digest()}, *rows[3:]]


CHANGES: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "a column": lambda rows: [*rows[:2], {**rows[2], "principal_id": "mallory"}, *rows[3:]],
    "parameters": lambda rows: [*rows[:2], {**rows[2], "request_parameters": "{}"}, *rows[3:]],
    "the record": lambda rows: [*rows[:2], {**rows[2], "record": rows[3]["record"]}, *rows[3:]],
    "no record": lambda rows: [*rows[:2], {**rows[2], "record": None}, *rows[3:]],
    "a pretended stub": lambda rows: [*rows[:2], {**rows[2], "record": None, "event_name": None}, *rows[3:]],
    "no record's bytes": damaged,
    "twice": lambda rows: [*rows[:3], rows[2], *rows[3:]],
}
ABSENT: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "one deleted": lambda rows: rows[:2] + rows[3:],
    "the first deleted": lambda rows: rows[1:],
    "several deleted": lambda rows: rows[:1] + rows[4:],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_event_is_named(site: Site, change: Any) -> None:
    one = front_end()
    shipped(site, one)
    third = managed(one)[-3]

    rewrite(site, change)
    proof = verified(site)

    assert proof.breaks
    assert (proof.breaks[0].front_end, proof.breaks[0].sequence) == ("fe-1", third.sequence)


@pytest.mark.parametrize("change", ABSENT.values(), ids=ABSENT)
def test_a_missing_event_breaks_the_chain_at_the_one_after_it(site: Site, change: Any) -> None:
    one = front_end()
    shipped(site, one)

    rewrite(site, change)
    proof = verified(site)

    assert proof.breaks_total == 1
    assert "missing" in proof.breaks[0].reason


def forge(row: dict[str, Any], prev_hash: bytes) -> dict[str, Any]:
    """Return an event with another principal, hashed anew."""
    record = msgspec.msgpack.decode(row["record"], type=UsageRecord)
    forged = msgspec.structs.replace(record, principal_id="mallory", prev_hash=prev_hash)
    data = hashed_bytes(forged)
    changes = {"record": data, "record_hash": sha256(data).digest(), "prev_hash": prev_hash}
    return {**row, **changes, "principal_id": "mallory"}


def test_an_event_that_was_forged_with_its_hash_breaks_the_chain_after_it(site: Site) -> None:
    one = front_end()
    shipped(site, one)
    fourth = managed(one)[-4]

    rewrite(site, lambda rows: [*rows[:2], forge(rows[2], rows[2]["prev_hash"]), *rows[3:]])
    proof = verified(site)

    assert [(found.sequence, "changed" in found.reason) for found in proof.breaks] == [
        (fourth.sequence, True)
    ]


def test_a_chain_that_was_forged_whole_shows_against_a_head_that_was_kept(site: Site) -> None:
    def forge_all(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        forged: list[dict[str, Any]] = []
        for row in rows:
            forged.append(forge(row, forged[-1]["record_hash"] if forged else NO_HASH))
        return forged

    shipped(site, front_end())
    before = verified(site).heads[0]

    rewrite(site, forge_all)

    assert verified(site).breaks == []
    found = verified(site, [("fe-1", before.record_hash)]).breaks
    assert found == [
        Break("fe-1", None, None, None, f"the head {before.record_hash} is not in the chain any more")
    ]


def test_a_head_that_was_kept_stays_in_the_chain_as_it_grows(site: Site) -> None:
    one = front_end()
    shipped(site, one)
    head = verified(site).heads[0]

    shipped(site, one)

    assert verified(site, [("fe-1", head.record_hash)]).breaks == []
    with pytest.raises(AuditMistake, match="64 hexadecimal digits"):
        verified(site, [("fe-1", "abc")])


def test_a_chain_begins_anew_only_after_an_incarnation_whose_spool_was_lost(site: Site) -> None:
    one = front_end()
    piped(site, one)
    one.incarnation, one.sequence, one.audit_hash = 2, 0, NO_HASH
    piped(site, one)

    assert [found.incarnation for found in verified(site).breaks] == [2]

    one.incarnation, one.sequence, one.audit_hash = 3, 0, NO_HASH
    piped(site, one, seal=Seal(2, None, "lost"))
    assert [found.incarnation for found in verified(site).breaks] == [2]


def two_incarnations(site: Site) -> list[tuple[int, int]]:
    """Ship an incarnation whose spool was lost, the next, and another front end; return the places of fe-1's events."""
    one, other = front_end(), front_end("fe-2", seed=4)
    piped(site, one, other)
    places = [(1, record.sequence) for record in managed(one)]
    one.incarnation, one.sequence, one.audit_hash = 2, 0, NO_HASH
    before = len(one.records)
    piped(site, one, seal=Seal(1, None, "lost"))
    piped(site, one)
    places += [(2, record.sequence) for record in one.records[before:] if record.category == "management"]
    assert verified(site).breaks == []
    return sorted(places)


def vandalize(site: Site, spec: TableSpec, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Delete rows as a tool for Delta tables does that knows nothing of the pipeline's notes."""
    table = site.warehouse.table(spec)
    rows = table.read()
    kept = rows.filter(pa.array([keep(row) for row in rows.to_pylist()], pa.bool_()))
    write_deltalake(table.place.uri, kept, mode="overwrite")


def place_of(row: dict[str, Any]) -> tuple[int, int]:
    return row["epoch"], row["sequence"]


def has_event(block: dict[str, Any], place: tuple[int, int]) -> bool:
    return bool(block["epoch"] == place[0] and block["seq_lo"] <= place[1] < block["seq_hi"])


@pytest.mark.parametrize("at", [-1, -2], ids=["the last", "the last two"])
@pytest.mark.parametrize("incarnation", [1, 2])
def test_events_cut_off_an_incarnations_end_are_found_by_what_bronze_has(
    site: Site, incarnation: int, at: int
) -> None:
    places = [place for place in two_incarnations(site) if place[0] == incarnation]
    cut = places[at:]

    vandalize(site, AUDIT_EVENTS, lambda row: row["front_end"] == "fe-2" or place_of(row) not in cut)

    (found,) = verified(site).breaks
    assert (found.front_end, found.incarnation, found.sequence) == ("fe-1", *cut[0])
    assert f"{len(cut)} events from it up to {incarnation}/{cut[-1][1]} are missing" in found.reason


@pytest.mark.parametrize("how", ["rows", "table"])
def test_that_all_events_are_gone_is_found_for_each_incarnation(site: Site, how: str) -> None:
    two_incarnations(site)
    if how == "rows":
        vandalize(site, AUDIT_EVENTS, lambda row: False)
    else:
        shutil.rmtree(site.warehouse.place(AUDIT_EVENTS).uri)

    proof = verified(site)

    assert [(found.front_end, found.incarnation) for found in proof.breaks] == [
        ("fe-1", 1),
        ("fe-1", 2),
        ("fe-2", 1),
    ]
    assert all("are missing" in found.reason for found in proof.breaks)


def test_events_cut_off_bronze_and_silver_are_found_by_the_heads_that_commits_carry(site: Site) -> None:
    last = two_incarnations(site)[-1]
    vandalize(site, AUDIT_EVENTS, lambda row: row["front_end"] == "fe-2" or place_of(row) < last)
    vandalize(site, BLOCKS, lambda row: row["front_end"] == "fe-2" or not has_event(row, last))

    (found,) = verified(site).breaks

    assert (found.front_end, found.incarnation, found.sequence) == ("fe-1", *last)
    assert "it was the last event" in found.reason


def test_events_cut_off_an_incarnation_before_the_last_are_found_by_their_count(site: Site) -> None:
    last = max(place for place in two_incarnations(site) if place[0] == 1)
    vandalize(site, AUDIT_EVENTS, lambda row: row["front_end"] == "fe-2" or place_of(row) != last)
    vandalize(site, BLOCKS, lambda row: row["front_end"] == "fe-2" or not has_event(row, last))

    (found,) = verified(site).breaks

    assert found.reason.startswith("1 events are missing")


def test_a_chain_that_was_forged_whole_is_not_what_bronze_has(site: Site) -> None:
    piped(site, front_end())

    rewrite(site, lambda rows: [*rows[:-1], forge(rows[-1], rows[-1]["prev_hash"])])

    assert [found.reason for found in verified(site).breaks] == ["it is not the event that bronze.blocks has"]


def test_a_batch_that_is_not_in_silver_yet_is_not_missed(site: Site) -> None:
    one = front_end()
    piped(site, one)
    site.ship(one.block(40))
    warehouse = site.warehouse
    pipeline = site.pipeline(warehouse, now=LATER)
    take_batch(InProcess(), warehouse, FileFeed(site.feed), pipeline.coverage, LATER)

    assert verified(site).breaks == []


def test_events_in_quarantine_are_not_missed(site: Site) -> None:
    one = front_end()
    site.ship(one.block(40))
    one.time_us += 30 * DAY_S * SECOND_US  # a clock that is wrong
    site.ship(one.block(40))
    site.run(now=NOON + timedelta(hours=1))

    assert site.warehouse.table(QUARANTINE).rows == 40
    assert verified(site).breaks == []


@pytest.mark.parametrize("ahead", ["first", "between", "last"])
def test_chains_hold_over_events_in_quarantine_also_once_these_have_expired(site: Site, ahead: str) -> None:
    one = front_end()
    site.ship(one.block(40))
    for part in ("first", "between", "last"):
        right_us = one.time_us
        one.time_us += 30 * DAY_S * SECOND_US if part == ahead else 0
        site.ship(one.block(40))
        one.time_us = right_us + 40 * SECOND_US
    site.run(now=NOON + timedelta(days=1))
    in_quarantine = site.warehouse.table(QUARANTINE).read(["record_hash"]).column("record_hash").to_pylist()

    fresh = verified(site)
    expire_quarantine(InProcess(), site.warehouse, NOON + timedelta(days=500))
    old = verified(site)
    events_expired = expired(site, NOON + timedelta(seconds=60))
    anchored = verified(site)

    kept = site.warehouse.table(QUARANTINE).read(["record_hash", "raw"]).to_pylist()
    assert sum(map(bool, in_quarantine)) > 0
    assert sorted(row["record_hash"] for row in kept) == sorted(filter(None, in_quarantine))
    assert {row["raw"] for row in kept} == {None}
    assert (fresh.breaks, old.breaks, anchored.breaks) == ([], [], [])
    assert events_expired.deleted > 0


def test_an_event_that_was_deleted_next_to_one_in_quarantine_is_missed(site: Site) -> None:
    one = front_end()
    site.ship(one.block(40))
    right_us = one.time_us
    one.time_us += 30 * DAY_S * SECOND_US
    site.ship(one.block(40))
    one.time_us = right_us
    site.ship(one.block(40))
    site.run(now=NOON + timedelta(days=1))

    rewrite(site, lambda rows: [row for row in rows if row["sequence"] >= 80 or row["sequence"] < 20])

    assert [found.reason for found in verified(site).breaks] == [
        "an event before it is missing, or was put in or changed"
    ]


def test_what_expired_is_not_missed(site: Site) -> None:
    piped(site, front_end(days_between=0.5))

    done = expired(site, LATER)

    assert done.deleted > 0
    assert site.warehouse.table(AUDIT_EVENTS).rows == 0
    assert verified(site).breaks == []


def hold(name: str = "case-7", account: str | None = None, **times: datetime | None) -> Hold:
    return Hold(name, account, times.get("since"), times.get("until"), "a lawsuit", NOON, None)


def test_expired_events_are_gone_and_the_chain_goes_on_from_where_they_ended(site: Site) -> None:
    one = front_end(days_between=0.5)
    audit = shipped(site, one)
    head = verified(site).heads[0]
    cut = NOON + timedelta(days=20)
    old = [r for r in managed(one) if r.event_time_us < NOON_US + 20 * DAY_S * SECOND_US]

    tried = expired(site, cut, is_dry_run=True)
    before = len(audit.search(Query(limit=10_000)))
    done = expired(site, cut)
    again = expired(site, cut)

    assert tried == done == Expiry(len(old), 0, 0)
    assert again == Expiry(0, 0, 0)
    audit = Audit(site.warehouse)
    assert len(audit.search(Query(limit=10_000))) == before - len(old)
    assert verified(site, [("fe-1", head.record_hash), ("fe-1", old[0].record_hash.hex())]).breaks == []


def test_what_a_hold_keeps_stays_until_it_is_released(site: Site) -> None:
    one = front_end(days_between=0.5)
    audit = shipped(site, one)
    cut = NOON + timedelta(days=30)
    audit.place_hold(
        hold(account="000000000002", since=NOON + timedelta(days=3), until=NOON + timedelta(days=28))
    )
    old = [r for r in managed(one) if r.event_time_us < NOON_US + 30 * DAY_S * SECOND_US]
    held = [
        record
        for record in old
        if record.account_id == "000000000002"
        and NOON_US + 3 * DAY_S * SECOND_US <= record.event_time_us < NOON_US + 28 * DAY_S * SECOND_US
    ]
    after_first = [record for record in old if record.sequence > held[-1].sequence]

    done = expired(site, cut)
    audit = Audit(site.warehouse)
    found = {event["event_id"] for event in audit.search(Query(until=cut, limit=10_000))}
    proof = verified(site)

    assert done == Expiry(len(old) - len(after_first) - 1, len(after_first) - len(held) + 1, len(held))
    assert found == {record.event_id for record in held}
    assert (proof.breaks, proof.stubs) == ([], done.stubbed)

    audit.release_hold("case-7", LATER)
    assert audit.holds()[0].released == LATER
    assert expired(site, cut) == Expiry(len(after_first) + 1, 0, 0)
    assert verified(site).breaks == []


@settings(max_examples=8)
@given(st.integers(0, 15), st.integers(0, 15), st.integers(0, 15), st.sampled_from([None, "000000000001"]))
def test_whatever_expires_the_chain_holds_and_held_events_stay(
    tmp_path_factory: pytest.TempPathFactory, since: int, length: int, cut: int, account: str | None
) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    audit = shipped(site, front_end(days_between=0.25), blocks=1, rows=60)
    days = [NOON + timedelta(days=day) for day in (since, since + length + 1, cut)]
    audit.place_hold(hold(account=account, since=days[0], until=days[1]))
    wanted = Query(account=account, since=days[0], until=days[1], limit=10_000)
    held = audit.search(wanted)

    expired(site, days[2])

    audit = Audit(site.warehouse)
    assert verified(site).breaks == []
    assert audit.search(wanted) == held
    others = audit.search(Query(until=days[2], limit=10_000))
    assert all(event in held for event in others)


def test_an_expiry_that_was_interrupted_is_done_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(site, front_end(days_between=0.5))
    cut = NOON + timedelta(days=20)
    tried = expired(site, cut, is_dry_run=True)
    write_anchors = expiry._write_anchors

    def killed(*arguments: Any) -> None:
        write_anchors(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(expiry, "_write_anchors", killed)
        with pytest.raises(KeyboardInterrupt):
            expired(site, cut)

    assert verified(site).breaks == []
    assert expired(site, cut) == tried
    assert verified(site).breaks == []


def test_nothing_expires_while_a_chain_is_broken(site: Site) -> None:
    shipped(site, front_end(days_between=0.5))
    rewrite(site, ABSENT["one deleted"])

    with pytest.raises(AuditMistake, match="no event expires"):
        expired(site, LATER)


def test_events_expire_while_the_pipeline_takes_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    one = front_end(days_between=0.5)
    shipped(site, one)
    commit = Table.commit
    ran: list[str] = []

    def interrupted(table: Table, *arguments: Any, **named: Any) -> bool:
        if not ran:
            ran.append(table.spec.name)
            site.ship(one.block(40))
            site.run(now=LATER)
        return commit(table, *arguments, **named)

    with site.warehouse.ingesting(), monkeypatch.context() as patched:
        # The run beside it is this process's.
        patched.setattr(Site, "run", lambda site, now: site.pipeline(site.warehouse, now=now).catch_up())
        patched.setattr(Table, "commit", interrupted)
        done = expired(site, NOON + timedelta(days=20))

    proof = verified(site)
    assert ran == ["ops.audit_anchors"]
    assert done.deleted > 0
    assert proof.breaks == []
    managed = [record for record in one.records if record.category == "management"]
    assert proof.events == len(managed) - done.deleted


def test_old_files_of_holds_and_anchors_are_deleted_and_what_they_say_stays(site: Site) -> None:
    audit = shipped(site, front_end(days_between=0.5))
    for name in ("one", "two"):
        audit.place_hold(hold(name, "999999999999"))
    expired(site, NOON + timedelta(days=20))

    deleted = Audit(site.warehouse).delete_old_files(0)

    assert deleted == 1
    assert [found.name for found in Audit(site.warehouse).holds()] == ["one", "two"]
    assert verified(site).breaks == []


def test_the_pipeline_goes_on_after_events_expired(site: Site) -> None:
    one = front_end(days_between=0.5)
    piped(site, one)
    expired(site, NOON + timedelta(days=10))

    audit = piped(site, one)

    assert verified(site).breaks == []
    assert audit.search(Query(limit=1))[0]["event_id"] == managed(one)[0].event_id


def test_a_hold_that_means_nothing_or_is_there_is_refused(tmp_path: Path) -> None:
    audit = Audit(Warehouse(tmp_path))
    audit.place_hold(hold())

    for bad, message in (
        (hold(), "already"),
        (hold("", None), "1 to 200"),
        (hold("x", since=NOON, until=NOON), "later than"),
    ):
        with pytest.raises(AuditMistake, match=message):
            audit.place_hold(bad)
    with pytest.raises(AuditMistake, match="no hold 'other'"):
        audit.release_hold("other", NOON)
    assert [found.name for found in audit.holds()] == ["case-7"]


def paths_of(site: Site) -> dict[str, str]:
    """Return the files of events by their day, of which each has one."""
    files = site.warehouse.table(AUDIT_EVENTS).files()
    found = {str(file.partition_value): file.path for file in files}
    assert len(found) == len(files)
    return found


def test_files_that_have_only_expired_events_are_dropped_unread_and_later_ones_stay_as_they_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(site, front_end(days_between=0.05), rows=120, blocks=1)
    before = paths_of(site)
    items: list[str] = []
    expiring_work = expiry.expiring_work

    def watched(*arguments: Any) -> Callable[[str], Any]:
        work = expiring_work(*arguments)

        def noted(item: str) -> Any:
            items.append(item)
            return work(item)

        return noted

    monkeypatch.setattr(expiry, "expiring_work", watched)

    done = expired(site, NOON + timedelta(days=3))

    days = sorted(before)
    assert items == [before["2026-11-25"]]
    after = paths_of(site)
    assert list(after) == [day for day in days if day >= "2026-11-25"]
    assert [day for day in after if after[day] != before[day]] == ["2026-11-25"]
    assert (done.deleted > 5, done.stubbed, done.held) == (True, 0, 0)
    assert verified(site).breaks == []


def test_files_of_which_a_hold_keeps_some_events_are_written_again_and_none_of_which_it_keeps_all(
    site: Site,
) -> None:
    shipped(site, front_end(days_between=0.02), rows=300, blocks=1)
    before = paths_of(site)
    Audit(site.warehouse).place_hold(hold(since=NOON + timedelta(days=1), until=NOON + timedelta(days=3)))

    done = expired(site, NOON + timedelta(days=2.5))

    after = paths_of(site)
    assert (done.deleted > 0, done.stubbed, done.held > 0) == (True, 0, True)
    assert sorted(before.keys() - after.keys()) == ["2026-11-22"]
    assert [day for day in after if after[day] != before[day]] == ["2026-11-23"]
    times = site.warehouse.table(AUDIT_EVENTS).read(["event_time"]).column("event_time").to_pylist()
    assert min(times) >= NOON + timedelta(days=1)
    assert verified(site).breaks == []


def test_an_expiry_whose_files_others_replaced_is_planned_again_and_leaves_anchors_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(site, front_end(days_between=0.5))
    cut = NOON + timedelta(days=20)
    tried = expired(site, cut, is_dry_run=True)
    commit = Table.commit
    replaced: list[str] = []

    def interrupted(table: Table, app: str, *arguments: Any, **named: Any) -> bool:
        if table.spec is AUDIT_EVENTS and app == "audit" and not replaced:
            replaced.append(app)
            rewrite(site, lambda rows: rows)
        return commit(table, app, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", interrupted)
        done = expired(site, cut)

    assert (done, replaced) == (tried, ["audit"])
    (anchor,) = site.warehouse.table(ANCHORS).read().to_pylist()
    assert anchor["events"] == done.deleted > 0
    assert expired(site, cut) == Expiry(0, 0, 0)
    assert verified(site).breaks == []


def test_a_hold_that_is_placed_while_events_expire_keeps_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(site, front_end(days_between=0.5), rows=120, blocks=1)
    before = paths_of(site)
    over = InProcess.over

    def placing(workers: InProcess, *arguments: Any) -> Any:
        answers = over(workers, *arguments)
        audit = Audit(site.warehouse)
        if not audit.holds() and answers.tables("anchors"):
            # In an object store no lock keeps it out.
            audit._write_holds([hold()])
        return answers

    monkeypatch.setattr(InProcess, "over", placing)
    done = expired(site, NOON + timedelta(days=20))

    assert (done.deleted, done.stubbed, done.held > 0) == (0, 0, True)
    assert paths_of(site) == before
