"""Erasure: what a principal or an access key did leaves the tables, the chains hold, and nothing brings it back."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from harness.built_once import built_once
from harness.killed_jobs import killed_before
from harness.object_store import object_store
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import HOUR_US, FrontEnd, context_of

from quaymaster.protocol.usage.usage_blocks import inflate_block
from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster.protocol.usage.usage_rows import CorruptBlock
from quaymaster_pipeline.audit.audit import Audit, Hold, Query
from quaymaster_pipeline.audit.audit_chains import Break, Proof
from quaymaster_pipeline.audit.erasure import Erased, Subject, erase
from quaymaster_pipeline.audit.expiry import Expiry, expire_events
from quaymaster_pipeline.audit.stubs import ERASURES, STUB_COLUMNS, keyed_hash
from quaymaster_pipeline.audit.verification import heads_of, verify_chains
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.content_expiry import expire_content, expire_quarantine
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS, QUARANTINE, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

PRINCIPAL, KEY, ADDRESS, AGENT = "arn:aws:iam::2:user/leaving", "AKIALEAVING", "203.0.113.77", "agent-leaving"
WORDS = tuple(text.encode() for text in (PRINCIPAL, KEY, ADDRESS, AGENT))
OF_PRINCIPAL, OF_KEY = Subject("principal", PRINCIPAL), Subject("access-key", KEY)
OPERATOR = "someone@somewhere"
LATER = NOW + datetime.timedelta(days=CONTENT_DAYS + 1)
STUB = STUB_COLUMNS[AUDIT_EVENTS.name]


def leaving(action: str, queue: int = 0) -> Any:
    return msgspec.structs.replace(
        context_of(action, queue),
        principal_id=PRINCIPAL,
        access_key_id=KEY,
        source_ip=ADDRESS,
        user_agent=AGENT,
    )


def front_end(name: str = "fe-1", *, seed: int = 5) -> FrontEnd:
    """Return one with requests of somebody who stays, and of who leaves."""
    besides = tuple(leaving(action, queue) for action in ("CreateQueue", "SendMessage") for queue in range(2))
    return FrontEnd(name, seed=seed, besides=besides)


def erased_from(site: Site, subject: Subject = OF_PRINCIPAL, **options: bool) -> Erased:
    return erase(InProcess(), site.warehouse, subject, NOW, operator=OPERATOR, **options)


def verified(site: Site, kept: Iterable[tuple[str, str]] = ()) -> Proof:
    """Return the proof of the events as they are now; tasks run here."""
    return verify_chains(InProcess(), site.warehouse, heads_of(kept))


def managed(one: FrontEnd, principal: str | None = None) -> list[UsageRecord]:
    """Return the records of management actions, of all or of a principal."""
    return [
        record
        for record in one.records
        if record.category == "management" and principal in (None, record.principal_id)
    ]


def events(site: Site) -> list[dict[str, Any]]:
    rows = site.warehouse.table(AUDIT_EVENTS).read().to_pylist()
    return sorted(rows, key=lambda row: (row["front_end"], row["epoch"], row["sequence"]))


def versions(site: Site) -> list[int]:
    return [site.warehouse.table(spec).version for spec in (AUDIT_EVENTS, QUARANTINE, ERASURES)]


@built_once
def shipped(directory: Path) -> tuple[Site, FrontEnd]:
    """Return a site with events of several batches."""
    site, one = Site(directory), front_end()
    for _ in range(3):
        site.ship(one.block(60))
        site.run()
    return site, one


@pytest.fixture
def made(tmp_path: Path) -> tuple[Site, FrontEnd]:
    return shipped(tmp_path)


@pytest.fixture
def site(made: tuple[Site, FrontEnd]) -> Site:
    return made[0]


@pytest.fixture
def one(made: tuple[Site, FrontEnd]) -> FrontEnd:
    return made[1]


@pytest.mark.parametrize("subject", [OF_PRINCIPAL, OF_KEY], ids=["principal", "access key"])
def test_an_erased_event_keeps_its_place_name_and_hashes_and_nothing_else(
    site: Site, one: FrontEnd, subject: Subject
) -> None:
    before = events(site)

    done = erased_from(site, subject)

    assert done == Erased(len(managed(one, PRINCIPAL)), 0, 0)
    assert 3 < done.events < len(before) - 3
    kept = {*STUB, "event_date"}
    for was, now in zip(before, events(site), strict=True):
        is_mine = was["principal_id"] == PRINCIPAL
        assert now == ({name: was[name] if name in kept else None for name in was} if is_mine else was)


def test_the_chain_of_erased_events_is_still_checked_link_by_link(site: Site, one: FrontEnd) -> None:
    (head,) = verified(site).heads

    done = erased_from(site)
    proof = verified(site, [("fe-1", head.record_hash)])

    assert (proof.breaks, proof.erased, proof.stubs) == ([], done.events, 0)
    assert (proof.events, proof.heads) == (len(managed(one)), [head])


def test_the_search_shows_that_an_erased_event_was_there_and_finds_it_by_no_name(site: Site) -> None:
    count = len(events(site))

    erased_from(site)

    audit = Audit(site.warehouse)
    assert len(audit.search(Query(limit=1000))) == count
    assert audit.search(Query(principal=PRINCIPAL, limit=1000)) == []


def test_events_that_a_killed_run_decided_are_erased_as_well(site: Site, one: FrontEnd) -> None:
    site.ship(one.block(60))
    with killed_before(AUDIT_EVENTS):
        site.run()
    before = len(events(site))

    done = erased_from(site)
    site.run()

    assert done.events == len(managed(one, PRINCIPAL))
    assert len(events(site)) == len(managed(one)) > before
    assert all(row["principal_id"] != PRINCIPAL for row in events(site))
    assert verified(site).breaks == []


def test_a_second_erasure_changes_nothing(site: Site) -> None:
    erased_from(site)
    before = versions(site)

    again = erased_from(site)

    assert again == Erased(0, 0, 0)
    assert versions(site) == before


def test_a_dry_run_counts_and_changes_nothing(site: Site) -> None:
    before = versions(site)

    tried = erased_from(site, is_dry_run=True)

    assert versions(site) == before
    assert tried == erased_from(site)


def test_an_erasure_is_registered_without_the_names(site: Site) -> None:
    done = erased_from(site)

    rows = site.warehouse.table(ERASURES).read().to_pylist()
    assert len(rows) == done.events
    (act,) = {(row["erasure_id"], row["hash_key"], row["subject_hash"], row["operator_hash"]) for row in rows}
    _, key, subject, operator = act
    assert subject == keyed_hash(key, f"principal {PRINCIPAL}")
    assert operator == keyed_hash(key, OPERATOR)
    assert {row["erased_time"] for row in rows} == {NOW}
    assert {row["subject_kind"] for row in rows} == {"principal"}


def hold(account: str | None = None, **times: datetime.datetime) -> Hold:
    return Hold("case-7", account, times.get("since"), times.get("until"), "a lawsuit", NOW, None)


def test_what_a_hold_keeps_is_not_erased_until_it_is_released(site: Site, one: FrontEnd) -> None:
    mine = managed(one, PRINCIPAL)
    held = [record for record in mine if record.account_id == "000000000002"]
    assert 0 < len(held) < len(mine)
    Audit(site.warehouse).place_hold(hold("000000000002"))

    tried, done = erased_from(site, is_dry_run=True), erased_from(site)
    found = Audit(site.warehouse).search(Query(principal=PRINCIPAL, limit=1000))
    proof = verified(site)

    assert tried == done == Erased(len(mine) - len(held), 0, len(held))
    assert {event["event_id"] for event in found} == {record.event_id for record in held}
    assert (proof.breaks, proof.erased) == ([], done.events)
    Audit(site.warehouse).release_hold("case-7", NOW)
    assert erased_from(site) == Erased(len(held), 0, 0)
    assert verified(site).breaks == []


def test_a_hold_that_is_placed_while_events_are_erased_keeps_them(
    site: Site, one: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = InProcess.over

    def placing(workers: InProcess, *arguments: Any) -> Any:
        answers = over(workers, *arguments)
        audit = Audit(site.warehouse)
        if not audit.holds():
            # In an object store no lock keeps it out.
            audit._write_holds([hold()])
        return answers

    monkeypatch.setattr(InProcess, "over", placing)
    done = erased_from(site)

    assert done == Erased(0, 0, len(managed(one, PRINCIPAL)))
    assert site.warehouse.table(ERASURES).version == -1


Rows = list[dict[str, Any]]


def rewrite(site: Site, change: Callable[[Rows], Rows]) -> list[Break]:
    """Change the events as somebody would who can write the table, and return what verify says."""
    table = site.warehouse.table(AUDIT_EVENTS)
    written = pa.Table.from_pylist(change(events(site)), schema=AUDIT_EVENTS.schema)
    table.commit("somebody", 0, table.write("x", written), removes=table.files())
    return verified(site).breaks


def emptied(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name in (*STUB, "event_date") else None for name, value in row.items()}


def first(rows: Rows, is_stub: bool) -> int:
    return next(at for at, row in enumerate(rows) if at and (row["record"] is None) is is_stub)


def changed(is_stub: bool, **changes: Any) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        at = first(rows, is_stub)
        return [*rows[:at], {**rows[at], **changes}, *rows[at + 1 :]]

    return change


def emptied_by_hand(rows: Rows) -> Rows:
    at = first(rows, False)
    return [*rows[:at], emptied(rows[at]), *rows[at + 1 :]]


def stub_deleted(rows: Rows) -> Rows:
    at = first(rows, True)
    return rows[:at] + rows[at + 1 :]


TAMPERED: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "an event emptied as a stub is": (emptied_by_hand, "its content is gone, and was not erased"),
    "only the record gone": (changed(False, record=None), "its content is gone, and was not erased"),
    "a stub of another name": (changed(True, event_name="DeleteQueue"), "was not erased"),
    "a stub of another hash": (changed(True, record_hash=b"\1" * 32), "was not erased"),
    "a stub of another time": (changed(True, event_time=NOW), "was not erased"),
    "a stub with a principal": (changed(True, principal_id="mallory"), "its column principal_id was filled"),
    "a stub deleted": (stub_deleted, "an event before it is missing"),
}


@pytest.mark.parametrize(("change", "reason"), TAMPERED.values(), ids=TAMPERED)
def test_what_somebody_emptied_or_changed_is_a_break_next_to_what_was_erased(
    site: Site, change: Callable[[Rows], Rows], reason: str
) -> None:
    erased_from(site)

    (found, *_) = rewrite(site, change)

    assert reason in found.reason


def test_stubs_without_their_registrations_are_breaks(site: Site) -> None:
    done = erased_from(site)
    table = site.warehouse.table(ERASURES)
    table.commit("somebody", 0, [], removes=table.files())

    proof = verified(site)

    assert (proof.breaks_total, proof.erased) == (done.events, 0)


def test_erased_events_expire_and_then_their_registrations(site: Site, one: FrontEnd) -> None:
    registered = erased_from(site).events

    done = expire_events(InProcess(), site.warehouse, LATER, LATER)
    # A verification may run next to it, and have read the events before.
    after_first = site.warehouse.table(ERASURES).rows
    again = expire_events(InProcess(), site.warehouse, LATER, LATER)

    assert (done, again) == (Expiry(len(managed(one)), 0, 0), Expiry(0, 0, 0))
    assert (after_first, site.warehouse.table(ERASURES).rows) == (registered, 0)
    assert verified(site).breaks == []


def test_registrations_stay_as_long_as_a_stub_of_their_day(site: Site, one: FrontEnd) -> None:
    registered = erased_from(site).events
    middle = datetime.datetime.fromtimestamp(one.records[90].event_time_us / 1_000_000, datetime.UTC)

    for _ in range(2):
        expire_events(InProcess(), site.warehouse, middle, LATER)

    assert site.warehouse.table(ERASURES).rows == registered
    assert verified(site).breaks == []


def test_a_backfill_brings_no_erased_event_back(site: Site) -> None:
    erased_from(site)
    before = events(site)

    backfill(InProcess(), site.warehouse, 0, 1 << 62)

    assert events(site) == before


def test_events_in_an_object_store_are_erased(site: Site, one: FrontEnd) -> None:
    with object_store() as store:
        warehouse = Warehouse("s3://bucket/warehouse", store.storage_options)
        Pipeline(InProcess(), warehouse, FileFeed(site.feed), clock=lambda: NOW).catch_up()

        done = erase(InProcess(), warehouse, OF_PRINCIPAL, NOW, operator=OPERATOR)
        proof = verify_chains(InProcess(), Warehouse(warehouse.root, store.storage_options))

    assert done.events == len(managed(one, PRINCIPAL))
    assert (proof.breaks, proof.erased) == ([], done.events)


def with_quarantine(site: Site, one: FrontEnd) -> list[UsageRecord]:
    """Ship a block of a clock that is wrong, and one that is damaged; return the records of the first."""
    before = len(one.records)
    one.time_us += 30 * 24 * HOUR_US
    damaged = FrontEnd("fe-2").block(3)
    site.ship(one.block(60), damaged[:-1] + bytes([damaged[-1] ^ 1]))
    site.run()
    one.time_us -= 30 * 24 * HOUR_US
    return one.records[before:]


def test_what_quarantine_recorded_of_the_subject_is_erased(site: Site, one: FrontEnd) -> None:
    records = with_quarantine(site, one)
    mine = {record.sequence for record in records if record.principal_id == PRINCIPAL}

    done = erased_from(site)

    rows = site.warehouse.table(QUARANTINE).read().to_pylist()
    assert (done.quarantined, len(rows)) == (len(mine), 61)
    assert {row["sequence"] for row in rows if row["raw"] is None} == mine
    assert {row["raw_bytes"] == 0 for row in rows if row["sequence"] in mine} == {True}
    assert all(len(row["raw"]) == row["raw_bytes"] for row in rows if row["raw"] is not None)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5
    assert erased_from(site) == Erased(0, 0, 0)


def test_what_quarantine_recorded_stays_under_a_hold(site: Site, one: FrontEnd) -> None:
    records = with_quarantine(site, one)
    held = {r.sequence for r in records if r.principal_id == PRINCIPAL and r.account_id == "000000000002"}
    Audit(site.warehouse).place_hold(hold("000000000002", since=NOW + datetime.timedelta(days=20)))

    done = erased_from(site)

    rows = site.warehouse.table(QUARANTINE).read().to_pylist()
    kept = {row["sequence"] for row in rows if row["raw"] is not None and PRINCIPAL.encode() in row["raw"]}
    assert (kept, done.held) == (held, len(held))


def test_events_are_erased_while_a_pipeline_runs_and_compacts(
    site: Site, one: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Table.commit
    ran: list[str] = []

    def interrupted(table: Table, *arguments: Any, **named: Any) -> bool:
        if not ran:
            ran.append(table.spec.name)
            compact(InProcess(), site.warehouse, NOW)
            site.ship(one.block(60))
            site.run()
        return commit(table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", interrupted)
        done = erased_from(site)

    assert ran == [ERASURES.name]
    assert done.events == len(managed(one, PRINCIPAL))
    assert (verified(site).breaks, erased_from(site)) == ([], Erased(0, 0, 0))
    assert site.usage() == expected_usage(one)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("is_after", [False, True], ids=["before the commit", "after it"])
def test_an_erasure_that_was_killed_is_done_again(
    site: Site, one: FrontEnd, monkeypatch: pytest.MonkeyPatch, at: int, is_after: bool
) -> None:
    with_quarantine(site, one)
    commit = Table.commit
    commits: list[str] = []

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        commits.append(table.spec.name)
        if len(commits) == at + 1 and not is_after:
            raise KeyboardInterrupt
        done = commit(table, *arguments, **named)
        if len(commits) == at + 1:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            erased_from(site)

    assert commits == [ERASURES.name, QUARANTINE.name, ERASURES.name, AUDIT_EVENTS.name][: at + 1]
    assert verified(site).breaks == []
    erased_from(site)
    proof = verified(site)
    assert (proof.breaks, proof.erased) == ([], len([r for r in managed(one, PRINCIPAL) if r.sequence < 180]))
    assert erased_from(site) == Erased(0, 0, 0)


def test_a_batch_that_was_killed_in_silver_does_not_bring_erased_events_back(
    site: Site, one: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Table.commit

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is USAGE_EVENTS:
            raise KeyboardInterrupt
        return commit(table, *arguments, **named)

    site.ship(one.block(60))
    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            site.run()
    done = erased_from(site)

    site.run()

    assert done.events == len(managed(one, PRINCIPAL))
    assert erased_from(site) == Erased(0, 0, 0)
    assert verified(site).breaks == []
    assert site.usage() == expected_usage(one)


def words_in(root: Path) -> set[tuple[str, bytes]]:
    """Return in which table's files WORDS are: in their bytes, in all that Parquet and blocks have compressed."""
    found = set()
    for path in root.rglob("*"):
        if path.is_file():
            where = "/".join(path.relative_to(root).parts[:2])
            texts = [path.read_bytes(), *(cells_of(path) if path.suffix == ".parquet" else ())]
            found |= {(where, word) for text in texts for word in WORDS if word in text}
    return found


def cells_of(path: Path) -> Iterator[bytes]:
    """Yield all values of a Parquet file, and what is inside of blocks."""
    for name, column in zip(
        *(lambda rows: (rows.column_names, rows.columns))(pq.read_table(path)), strict=True
    ):
        for value in column.to_pylist():
            if isinstance(value, bytes):
                yield value
                if name in ("content", "raw"):
                    try:
                        yield inflate_block(value)[1] or b""
                    except CorruptBlock:
                        continue
            elif value is not None:
                yield str(value).encode()


def everything_expires(site: Site, now: datetime.datetime) -> None:
    """Let contents expire, and delete all files that no table has now; logs get checkpoints."""
    expire_content(InProcess(), site.warehouse, now)
    expire_quarantine(InProcess(), site.warehouse, now)
    for log in site.root.rglob("_delta_log"):
        DeltaTable(log.parent).create_checkpoint()
    compact(InProcess(), site.warehouse, now, keep_hours=0)
    Audit(site.warehouse).delete_old_files(0)


def test_expiry_and_erasure_leave_no_address_in_any_byte(site: Site, one: FrontEnd) -> None:
    with_quarantine(site, one)
    before = words_in(site.root)

    erased_from(site)
    everything_expires(site, NOW)
    erased = words_in(site.root)
    everything_expires(site, LATER)

    tables = ("bronze/blocks", "silver/audit_events", "silver/quarantine")
    assert before == {(table, word) for table in tables for word in WORDS}
    assert erased == {("bronze/blocks", word) for word in WORDS}
    assert words_in(site.root) == set()
    assert list(site.root.rglob("*.checkpoint.parquet"))
    assert verified(site).breaks == []


def test_late_duplicates_of_erased_blocks_bring_nothing_back(tmp_path: Path) -> None:
    site, one = Site(tmp_path), front_end()
    first_block = one.block(60)
    longer = front_end().block(80)
    site.ship(first_block)
    site.run()
    erased_from(site)
    everything_expires(site, LATER)
    before = events(site)

    site.ship(first_block)
    site.run(now=LATER)
    of_duplicate = events(site), words_in(site.root)
    breaks = verified(site).breaks
    site.ship(longer)
    site.run(now=LATER)
    of_overlap = erased_from(site)

    assert of_duplicate == (before, {("bronze/blocks", word) for word in WORDS})
    assert breaks == []
    # What overlaps is new from where the first block ended; the rest may be other content, and is quarantined.
    assert all(row["principal_id"] != PRINCIPAL for row in events(site))
    assert of_overlap.quarantined > 0
    everything_expires(site, LATER + datetime.timedelta(days=CONTENT_DAYS + 1))
    assert words_in(site.root) == set()
