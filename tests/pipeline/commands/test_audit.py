"""`quaymaster audit`: search, proof, holds, expiry and erasure, over what the pipeline put into the tables."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.command_line import Run
from harness.pipeline_site import NOW, InProcess, Site
from harness.usage_blocks import FrontEnd

from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.jobs.content_expiry import expire_content
from quaymaster_pipeline.usage.silver import APP as SILVER
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    BLOCKS,
    SUMMED_UP,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table


@pytest.fixture(autouse=True)
def sparks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Let tasks run here, without Spark; give the masters and the memory with which commands asked for it."""
    asked: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def no_spark(_: Path, master: str, driver_memory: str) -> Iterator[InProcess]:
        asked.append((master, driver_memory))
        yield InProcess()

    monkeypatch.setattr(spark, "spark_workers", no_spark)
    return asked


def recorded(data: Path) -> list[UsageRecord]:
    """Fill the tables, and return the records of management actions, newest first."""
    site, one = Site(data), FrontEnd("fe-1")
    site.ship(one.block(60))
    site.run()
    return [record for record in reversed(one.records) if record.category == "management"]


def test_events_are_listed_newest_first_and_no_more_than_asked_for(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)

    as_json = run("audit", "--data", tmp_path, "--account", records[0].account_id, "--json")
    as_table = run("audit", "--data", tmp_path, "--limit", 2)

    events = json.loads(as_json.out)
    wanted = [record.event_id for record in records if record.account_id == records[0].account_id]
    assert [event["event_id"] for event in events] == wanted
    assert events[0]["event_time"].endswith("Z")
    assert len(as_table.out.splitlines()) == 2
    assert "there may be more" in as_table.err


@pytest.mark.parametrize("command", [("audit",), ("audit", "verify"), ("audit", "hold", "list"), ("usage",)])
def test_a_place_without_tables_has_an_empty_answer_and_no_place_has_none(
    tmp_path: Path, run: Run, command: tuple[str, ...]
) -> None:
    absent = run(*command)
    named = run(*command, "--data", tmp_path / "nodir", "--json")
    no_warehouse = run(*command, "--warehouse", tmp_path / "nodir")
    (tmp_path / "quaymaster-data").mkdir()
    empty = run(*command)

    assert (absent.code, named.code, no_warehouse.code) == (3, 3, 3)
    assert "quaymaster-data does not exist: no server was started" in absent.err
    assert "nodir does not exist" in json.loads(named.err)["error"]["message"]
    assert "there are no tables" in no_warehouse.err
    assert (absent.out, named.out, no_warehouse.out) == ("", "", "")
    assert (empty.code, empty.out) == (0, "")


def test_an_intact_chain_is_proved_and_its_head_can_be_kept(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)

    proof = json.loads(run("audit", "verify", "--data", tmp_path, "--json").out)
    head = f"fe-1={proof['heads'][0]['record_hash']}"
    again = run("audit", "verify", "--data", tmp_path, "--head", head)
    forged = run("audit", "verify", "--data", tmp_path, "--head", f"fe-1={'0' * 64}")

    assert (proof["events"], proof["breaks"]) == (len(records), [])
    assert list(proof["heads"][0]) == ["front_end", "epoch", "sequence", "record_hash", "events"]
    assert (again.code, forged.code) == (0, 1)
    assert "is not in the chain any more" in forged.err


def test_a_missing_event_ends_verify_with_1_and_says_where(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)
    table = Site(tmp_path).warehouse.table(AUDIT_EVENTS)
    rows = table.read().sort_by("sequence")
    table.commit("x", 0, table.write("x", rows.slice(1)), removes=table.files())

    done = run("audit", "verify", "--data", tmp_path)

    assert done.code == 1
    assert f"the first is at fe-1 1/{records[-2].sequence}" in done.err


def test_a_break_of_which_nobody_knows_the_place_is_told_in_words(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)
    warehouse = Site(tmp_path).warehouse
    bronze, silver = warehouse.table(BLOCKS), warehouse.table(AUDIT_EVENTS)
    bronze.commit("x", 0, [], removes=bronze.files())
    notes = {SILVER: silver.note(SILVER) | {"heads": {}}}
    for table in (silver, warehouse.table(USAGE_EVENTS)):
        removes = table.files() if table is silver else []
        table.commit("x", 0, [], removes=removes, shared_notes=notes)

    unknown = run("audit", "verify", "--data", tmp_path)
    as_json = run("audit", "verify", "--data", tmp_path, "--json")
    expired = run("audit", "expire", "--data", tmp_path, "--days", 1)
    forged = run("audit", "verify", "--data", tmp_path, "--head", f"fe-1={'0' * 64}")

    missing = f"{len(records)} events are missing: {len(records)} were put in, and 0 have expired"
    where = "in the chain of a front end that is not known"
    assert unknown.err == f"quaymaster: 1 break; the first is {where}: {missing}\n"
    (found,) = as_json.json["breaks"]
    assert (found["front_end"], found["epoch"], found["sequence"]) == (None, None, None)
    assert f"a chain is broken {where} ({missing}); no event expires" in expired.err
    assert "1 break; the first is in the chain of fe-1: the head 0000" in forged.err


def test_what_checks_or_changes_all_events_does_it_in_spark_and_what_shows_some_needs_none(
    tmp_path: Path, run: Run, sparks: list[tuple[str, str]]
) -> None:
    recorded(tmp_path)
    hold = ("audit", "hold", "create", "x", "--data", tmp_path)
    shown = [run(*command, "--data", tmp_path) for command in (("audit",), ("audit", "hold", "list"))]
    shown += [run(*hold), run("audit", "hold", "release", "x", "--data", tmp_path)]
    refused = run("audit", "verify", "--data", tmp_path, "--head", "fe-1=abc")
    before = list(sparks)

    options = ("--data", tmp_path, "--master", "local[3]", "--driver-memory", "2g", "--json")
    proof = run("audit", "verify", *options)
    tried = run("audit", "expire", "--days", 1, "--dry-run", *options)

    assert [done.code for done in shown] == [0] * 4
    assert (refused.code, before) == (1, [])
    assert (proof.json["breaks"], list(tried.json)) == (
        [],
        ["deleted", "stubbed", "held", "before", "dry_run"],
    )
    assert sparks == [("local[3]", "2g")] * 2


def test_a_hold_keeps_events_from_expiring_until_it_is_released(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)
    table = Site(tmp_path).warehouse.table(AUDIT_EVENTS)
    assert table.rows == len(records)
    expire = ("audit", "expire", "--data", tmp_path, "--days", 1, "--json")

    placed = run("audit", "hold", "create", "case-7", "--reason", "a lawsuit", "--data", tmp_path)
    kept = json.loads(run(*expire, "--dry-run").out)
    listed = json.loads(run("audit", "hold", "list", "--data", tmp_path, "--json").out)
    twice = run("audit", "hold", "create", "case-7", "--data", tmp_path)
    released = run("audit", "hold", "release", "case-7", "--data", tmp_path)

    assert (placed.code, released.code, twice.code) == (0, 0, 1)
    assert (kept["deleted"], kept["dry_run"]) == (0, True)
    assert [(hold["name"], hold["reason"], hold["released"]) for hold in listed] == [
        ("case-7", "a lawsuit", None)
    ]
    assert "there is a hold 'case-7' already" in twice.err


def test_an_erasure_says_what_went_what_is_held_and_until_when_blocks_have_it(
    tmp_path: Path, run: Run
) -> None:
    records = recorded(tmp_path)
    held = sum(record.account_id == "000000000002" for record in records)
    principal = records[0].principal_id
    erase = ("audit", "erase", "--data", tmp_path, "--principal", principal)
    run("audit", "hold", "create", "case-7", "--account", "000000000002", "--data", tmp_path)

    tried = run(*erase, "--dry-run", "--json").json
    done = run(*erase)
    again = run(*erase, "--json").json
    proof = run("audit", "verify", "--data", tmp_path)
    listed = run("audit", "--data", tmp_path)

    erased = len(records) - held
    counts = {"quarantined": 0, "held": held}
    # The site's blocks are of 2026-11-22: where the clock is past their 36 days, they expire today.
    assert tried.pop("content_until") >= "2026-12-28"
    assert again.pop("content_until") >= "2026-12-28"
    assert tried == {"events": erased, **counts, "dry_run": True}
    assert done.out == f"{erased} events and 0 rows of quarantine erased, {held} held\n"
    assert "have lost their content by 20" in done.err
    assert again == {"events": 0, **counts, "dry_run": False}
    assert f"{erased} events were erased" in proof.err
    assert sum(line.endswith("erased") for line in listed.out.splitlines()) == erased


def test_an_erasure_says_nothing_of_blocks_without_content(tmp_path: Path, run: Run) -> None:
    recorded(tmp_path)
    expire_content(InProcess(), Site(tmp_path).warehouse, NOW.replace(year=2027))

    by_key = run("audit", "erase", "--data", tmp_path, "--access-key", "AKIA1", "--json")
    shown = run("audit", "erase", "--data", tmp_path, "--access-key", "AKIA1")

    assert (by_key.json["content_until"], by_key.json["events"] > 0) == (None, True)
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--since", "yesterday"), "--since takes a time"),
        (("verify", "--head", "abc"), "FRONT-END=HASH"),
        (("--account", "1", "verify"), "come after its name"),
        (("--storage-option", "A=b", "verify"), "come after its name"),
        (("expire", "--days", "9999999"), "before the year 1"),
        (("erase",), "--principal ARN or --access-key ID, one of them"),
        (("erase", "--principal", "a", "--access-key", "b"), "one of them"),
        (("erase", "--principal", ""), "that is not empty"),
    ],
)
def test_what_cannot_be_right_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("audit", *arguments)

    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "0"), "1 to 10000"),
        (("verify", "--head", "fe-1=abc"), "64 hexadecimal digits"),
        (("hold", "release", "case-7"), "no hold 'case-7'"),
    ],
)
def test_what_is_refused_says_why(tmp_path: Path, run: Run, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "quaymaster-data").mkdir()

    done = run("audit", *arguments)

    assert done.code == 1
    assert message in done.err


def file_removed(table: Table) -> str:
    path = table.files()[0].path
    (Path(table.place.uri) / path).unlink()
    return path


def file_of_junk(table: Table) -> str:
    path = table.files()[0].path
    (Path(table.place.uri) / path).write_bytes(b"junk")
    return path


def log_of_junk(table: Table) -> str:
    path = Path(table.place.uri, "_delta_log", f"{table.version:020}.json")
    path.write_text('{"add":')
    return "_delta_log"


BREAKAGES = (file_removed, file_of_junk, log_of_junk)


@pytest.mark.parametrize("break_it", BREAKAGES)
@pytest.mark.parametrize(
    ("spec", "command"),
    [
        (AUDIT_EVENTS, ("audit",)),
        (AUDIT_EVENTS, ("audit", "verify")),
        (USAGE_HOURLY, ("usage",)),
        (USAGE_HOURLY, ("pipeline", "reconcile")),
        (USAGE_DAILY, ("billing", "invoice", "--month", "2026-11")),
    ],
)
def test_a_broken_table_ends_with_one_line_that_says_which_and_what_to_do(
    tmp_path: Path, run: Run, spec: TableSpec, command: tuple[str, ...], break_it: Callable[[Table], str]
) -> None:
    recorded(tmp_path)
    broken = break_it(Site(tmp_path).warehouse.table(spec))

    done = run(*command, "--data", tmp_path)
    as_json = run(*command, "--data", tmp_path, "--json")

    assert (done.code, as_json.code) == (1, 1)
    *_, line = done.err.splitlines()
    assert line.startswith(f"quaymaster: the table {spec.name} is broken: ")
    assert broken in line
    assert ("pipeline backfill" if spec in SUMMED_UP and break_it is not log_of_junk else "restore") in line
    assert done.err.count("\n") == 1
    assert json.loads(as_json.err)["error"]["message"] == line.removeprefix("quaymaster: ")
