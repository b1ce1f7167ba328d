"""`quaymaster audit`: search, proof, holds and expiry, over what the pipeline put into the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.pipeline_site import Site
from harness.usage_blocks import FrontEnd

from quaymaster.pipeline.schemas import AUDIT_EVENTS
from quaymaster.protocol.usage_records import UsageRecord

from .conftest import Run


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


def test_without_anything_it_searches_in_the_place_that_all_commands_mean(run: Run) -> None:
    done = run("audit")

    assert (done.code, done.out) == (0, "")


def test_an_intact_chain_is_proved_and_its_head_can_be_kept(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)

    proof = json.loads(run("audit", "verify", "--data", tmp_path, "--json").out)
    head = f"fe-1={proof['heads'][0]['record_hash']}"
    again = run("audit", "verify", "--data", tmp_path, "--head", head)
    forged = run("audit", "verify", "--data", tmp_path, "--head", f"fe-1={'0' * 64}")

    assert (proof["events"], proof["breaks"]) == (len(records), [])
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


def test_a_hold_keeps_events_from_expiring_until_it_is_released(tmp_path: Path, run: Run) -> None:
    records = recorded(tmp_path)
    table = Site(tmp_path).warehouse.table(AUDIT_EVENTS)
    assert table.rows == len(records)
    expire = ("audit", "expire", "--data", tmp_path, "--days", 1, "--json")

    placed = run("audit", "hold", "case-7", "--reason", "a lawsuit", "--data", tmp_path)
    kept = json.loads(run(*expire, "--dry-run").out)
    listed = json.loads(run("audit", "holds", "--data", tmp_path, "--json").out)
    twice = run("audit", "hold", "case-7", "--data", tmp_path)
    released = run("audit", "release", "case-7", "--data", tmp_path)

    assert (placed.code, released.code, twice.code) == (0, 0, 1)
    assert (kept["deleted"], kept["dry_run"]) == (0, True)
    assert [(hold["name"], hold["reason"], hold["released"]) for hold in listed] == [
        ("case-7", "a lawsuit", None)
    ]
    assert "there is a hold 'case-7' already" in twice.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--since", "yesterday"), "--since takes a time"),
        (("verify", "--head", "abc"), "FRONT-END=HASH"),
        (("--account", "1", "verify"), "come after its name"),
        (("expire", "--days", "9999999"), "before the year 1"),
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
        (("release", "case-7"), "no hold 'case-7'"),
    ],
)
def test_what_is_refused_says_why(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("audit", *arguments)

    assert done.code == 1
    assert message in done.err
