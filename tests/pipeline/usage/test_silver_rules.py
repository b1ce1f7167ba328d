"""Rules of silver: edges of hours and chunks, rates, and what goes to quarantine, told why."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.usage_blocks import HOUR_US, NOON_US, FrontEnd

from quaymaster.protocol.actions.acts import ADMIN_CHANGES, ADMIN_LOOKS, NOTED_CHANGES
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.usage.usage_blocks import decode_block
from quaymaster_pipeline.billing.rules import billed_requests_of, billing_class_of
from quaymaster_pipeline.usage.gold import merge_usage, partial_usage
from quaymaster_pipeline.usage.requests import Opened, Origin, open_block, request_rows
from quaymaster_pipeline.usage.rules import asked_keys, asked_names, refine
from quaymaster_pipeline.warehouse.schemas import HOUR_KEYS, OP_NAMES
from quaymaster_pipeline.warehouse.times import DAY_US

ORIGIN = Origin(0, 7, 3)


def bronze(count: int = 40, **changed: Any) -> pa.Table:
    """Return rows of bronze, with the columns given replaced in the first row."""
    rows = request_rows([Opened(open_block(FrontEnd("a").block(count)), ORIGIN)])
    for name, value in changed.items():
        at = rows.schema.get_field_index(name)
        kind = rows.schema.field(name).type
        values = [
            pa.scalar(value, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.scalar(value, kind)
        ]
        column = pa.chunked_array([pa.array([values[0].as_py()], kind), *rows.column(name).slice(1).chunks])
        rows = rows.set_column(at, rows.schema.field(name), column)
    return rows


def test_rows_of_bronze_are_the_records_of_the_block() -> None:
    data = FrontEnd("a").block(60)
    rows = request_rows([Opened(open_block(data), ORIGIN)])

    for name, values in decode_block(data).columns().items():
        stored = "epoch" if name == "incarnation" else name
        column = rows.column(name.removesuffix("_us") if name.endswith("_time_us") else stored)
        found = column.cast(pa.int64()) if name.endswith("_time_us") else column
        assert found.to_pylist() == list(values), name
    assert rows.column("block_row").to_pylist() == list(range(60))
    assert set(rows.column("log_offset").to_pylist()) == {7}


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("identity", {"front_end": ""}),
        ("identity", {"sequence": -1}),
        ("time", {"event_time": 5}),
        ("time", {"event_time": NOON_US + 2 * DAY_US}),
        ("account", {"account_id": "12345678901x"}),
        ("status", {"http_status": 99}),
        ("status", {"http_status": 600}),
        ("status", {"http_status": None}),
        ("counts", {"chunks": 0}),
        ("counts", {"payload_bytes": -1}),
    ],
)
def test_a_row_that_breaks_a_rule_goes_to_quarantine_with_all_it_says(
    rule: str, changed: dict[str, Any]
) -> None:
    silver = refine(bronze(**changed), now_us=NOON_US, closed_until_us=0)

    (row,) = silver.quarantine.to_pylist()
    assert (row["rule"], row["log_offset"], row["block_row"], row["batch_id"]) == (rule, 7, 0, 3)
    assert json.loads(row["raw"])["request_id"]
    assert silver.usage.num_rows == 39


def test_a_request_counts_in_the_hour_in_which_it_was_answered() -> None:
    front_end = FrontEnd("a", time_us=NOON_US - 2, step_us=1)
    silver = refine(
        request_rows([Opened(open_block(front_end.block(4)), ORIGIN)]), now_us=NOON_US, closed_until_us=0
    )

    hours = silver.usage.column("hour").cast(pa.int64()).to_pylist()
    assert hours == [NOON_US - HOUR_US] * 2 + [NOON_US] * 2


def test_a_row_of_a_closed_hour_is_late() -> None:
    silver = refine(bronze(), now_us=NOON_US, closed_until_us=NOON_US + 3_000_000)

    assert silver.usage.column("is_late").to_pylist() == [True] * 3 + [False] * 37


def test_messages_of_fifo_queues_are_at_their_own_rate_and_managing_is_not() -> None:
    usage = refine(bronze(300), now_us=NOON_US, closed_until_us=0).usage.to_pylist()

    at_fifo_rate = {row["action"] for row in usage if row["billing_class"] == "fifo"}
    assert at_fifo_rate == {"SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage"}
    assert all((row["queue_type"] == "fifo") >= (row["billing_class"] == "fifo") for row in usage)


def test_actions_and_queues_that_were_not_recognised_have_one_name() -> None:
    rows = bronze(action="Unheard", queue_id=0, queue_name="", account_id="")

    first = refine(rows, now_us=NOON_US, closed_until_us=0).usage.slice(0, 1).to_pylist()[0]

    assert (first["action"], first["op"], first["queue_sk"], first["queue_name"]) == ("Unknown", 0, 0, "")
    assert first["account_sk"] == -1  # 0 is an account


def test_sums_do_not_depend_on_how_rows_were_parted() -> None:
    usage = refine(bronze(500), now_us=NOON_US, closed_until_us=0).usage

    whole = merge_usage([partial_usage(usage)])
    parts = merge_usage([partial_usage(usage.slice(at, 37)) for at in range(0, 500, 37)])

    assert whole.equals(parts)
    assert pc.sum(whole.column("requests")).as_py() == 500
    assert len(whole.group_by(list(HOUR_KEYS)).aggregate([])) == whole.num_rows


def test_numbers_of_actions_stay_what_they_are() -> None:
    assert OP_NAMES[:4] == ("Unknown", "SendMessage", "SendMessageBatch", "ReceiveMessage")
    assert (OP_NAMES.index("CommitOffsets"), OP_NAMES.index("OtherAct")) == (27, 57)
    assert len(set(OP_NAMES)) == len(OP_NAMES)


@pytest.mark.parametrize("http_status", [200, 204, 301, 400, 403, 404, 429, 499, 500, 503])
@pytest.mark.parametrize("account_id", ["000000000001", ""])
@pytest.mark.parametrize(
    ("action", "queue_type"),
    [("SendMessage", "fifo"), ("TagQueue", "fifo"), ("SendMessage", "log"), ("AssumeRole", "")],
)
def test_a_row_is_billed_as_the_rules_of_billing_say(
    http_status: int, account_id: str, action: str, queue_type: str
) -> None:
    rows = bronze(
        1, http_status=http_status, account_id=account_id, action=action, queue_type=queue_type, chunks=3
    )

    (row,) = refine(rows, now_us=NOON_US, closed_until_us=0).usage.to_pylist()

    assert row["chunks"] == 3
    assert row["billed_requests"] == billed_requests_of(account_id, http_status, 3, action=action)
    assert row["billing_class"] == billing_class_of(action, queue_type)


def test_acts_of_operators_are_audit_events_and_not_billed() -> None:
    rows = bronze(1, protocol="admin", action="RotateAccessKey", category="management", chunks=1)

    silver = refine(rows, now_us=NOON_US, closed_until_us=0)

    (used,), (event,) = silver.usage.to_pylist(), silver.audit.to_pylist()
    assert (used["action"], used["billed_requests"]) == ("RotateAccessKey", 0)
    assert (event["event_name"], event["source_ip_address"]) == ("RotateAccessKey", "10.0.0.1")
    assert billed_requests_of(used["account_id"], 200, 1, "admin") == 0


def test_requests_to_sts_are_audit_events_of_sts_and_free() -> None:
    rows = bronze(1, action="AssumeRole", category="management", queue_id=0, queue_type="", chunks=1)

    silver = refine(rows, now_us=NOON_US, closed_until_us=0)

    (used,), (event,) = silver.usage.to_pylist(), silver.audit.to_pylist()
    assert (used["action"], used["billed_requests"]) == ("AssumeRole", 0)
    assert (event["event_name"], event["event_source"]) == ("AssumeRole", "sts.amazonaws.com")
    others = refine(bronze(1, category="management"), now_us=NOON_US, closed_until_us=0)
    assert others.audit.column("event_source").to_pylist() == ["sqs.amazonaws.com"]


def test_numbers_of_all_that_records_can_name_are_known() -> None:
    assert set(OP_NAMES) >= ACTIONS.keys() | ADMIN_CHANGES | ADMIN_LOOKS | NOTED_CHANGES


def test_queues_that_were_not_found_are_told_apart_by_bounded_names() -> None:
    names = pa.array(["a", "b", "a", "", None, "no such name", "x" * 81, "log@group", "(others)"])

    asked = asked_names(names)
    keys = asked_keys(asked).to_pylist()

    invalid = ["(invalid)"] * 2
    assert asked.to_pylist() == ["a", "b", "a", "", "", *invalid, "log@group", "(others)"]
    assert keys[3] == keys[4] == 0
    assert keys[0] == keys[2]
    assert len({*keys}) == 6
    assert all(-(2**62) <= key < 0 for key in keys if key)


def test_requests_for_queues_that_were_not_found_are_summed_up_by_the_names_asked_for() -> None:
    parts = [
        partial_usage(refine(bronze(1, queue_id=0, queue_name=name), now_us=NOON_US, closed_until_us=0).usage)
        for name in ("lost", "missing", "lost", "no such name", "")
    ]

    found = merge_usage(parts).to_pylist()

    assert {row["queue_name"]: row["requests"] for row in found} == {
        "lost": 2,
        "missing": 1,
        "(invalid)": 1,
        "": 1,
    }


@pytest.mark.parametrize("time_us", [253_402_300_800_000_000, 1 << 62, -(1 << 62)])
def test_a_time_that_python_has_no_date_for_is_in_quarantine_as_a_number(time_us: int) -> None:
    front_end = FrontEnd("a", time_us=time_us)
    rows = request_rows([Opened(open_block(front_end.block(3)), ORIGIN)])

    found = [
        json.loads(raw)
        for raw in refine(rows, now_us=NOON_US, closed_until_us=0).quarantine.column("raw").to_pylist()
    ]

    assert [one["event_time"] for one in found] == [None] * 3
    assert [one["event_time_us"] for one in found] == [one.event_time_us for one in front_end.records]
