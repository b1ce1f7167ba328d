"""What makes a row of bronze a row of silver: the rules it must obey, and how it is counted. Pure, over Arrow columns.

Version 2: requests for queues that were not found go by the name that was asked for.

Raise RULE_VERSION when a rule or a count changes; rows keep the version that they were made by.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.actions.table import MONITORING_ACTIONS, STS_ACTIONS
from quaymaster.protocol.usage.usage_records import UsageRecord, hashed_bytes
from quaymaster_pipeline.billing.rules import (
    ANSWERED_STATUS_END,
    ANSWERED_STATUS_MIN,
    FIFO_ACTIONS,
    FREE_ACTIONS,
    PUSH_ACTIONS,
    REFUSED_STATUSES,
    UNBILLED_PROTOCOL,
)
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    OP_NAMES,
    QUARANTINE,
    REQUEST_COLUMNS,
    USAGE_EVENTS,
)
from quaymaster_pipeline.warehouse.tables import within
from quaymaster_pipeline.warehouse.times import DAY_US, HOUR_US

RULE_VERSION = 3
NOBODY_KEY = -1
"""The `account_sk` of requests that no account made; 0 is that of account 000000000000."""
AUDIT_EVENT_VERSION = "1.10"
"""CloudTrail's version whose words audit events use."""
INVALID_NAME = "(invalid)"
_ASKED = r"^(?:[A-Za-z0-9_-]{1,80}(?:\.fifo)?(?:@[A-Za-z0-9_-]{1,80})?|\(others\))?$"
EARLIEST_US = 1_577_836_800_000_000
"""2020-01-01: a clock that says less is not set."""
_DATES_US: Final = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The years 1 to 9999, of which Python has dates."""
AHEAD_US = DAY_US
"""A time further than this ahead of the pipeline's clock is no time."""


class Silver(NamedTuple):
    """What became of rows of bronze: rows of usage_events, audit_events and quarantine, with their partition column."""

    usage: Any
    audit: Any
    quarantine: Any


def _matches(texts: Any, pattern: str) -> Any:
    """Return which texts match, null where there is none. Each different one is looked at once."""
    different = pc.unique(texts)
    return pc.match_substring_regex(different, pattern).take(pc.index_in(texts, different))


IDENTITY: Final = "identity"
"""The rule that a request has a place of its own: a front end, an incarnation and a sequence."""


REPEATED: Final = "repeated"
"""The rule that a request comes once: it has the place of one whose content has expired, so it may be the same."""


class _Rule(NamedTuple):
    name: str
    is_broken: Callable[[Any, int], Any]
    reason: str


def _micros(rows: Any, name: str) -> Any:
    return rows.column(name).cast(pa.int64())


RULES = (
    _Rule(
        IDENTITY,
        lambda rows, now_us: pc.or_(
            pc.equal(pc.fill_null(rows.column("front_end"), ""), ""),
            pc.or_(pc.less(rows.column("epoch"), 0), pc.less(rows.column("sequence"), 0)),
        ),
        "front end, incarnation or sequence is missing",
    ),
    _Rule(
        "time",
        lambda rows, now_us: pc.or_(
            pc.less(_micros(rows, "event_time"), EARLIEST_US),
            pc.greater(_micros(rows, "event_time"), now_us + AHEAD_US),
        ),
        "the time is before 2020, or more than a day ahead",
    ),
    _Rule(
        "account",
        lambda rows, now_us: pc.invert(_matches(rows.column("account_id"), r"^(?:[0-9]{12})?$")),
        "the account is not 12 digits",
    ),
    _Rule(
        "status",
        lambda rows, now_us: pc.or_(
            pc.less(rows.column("http_status"), 100), pc.greater(rows.column("http_status"), 599)
        ),
        "the HTTP status is not between 100 and 599",
    ),
    _Rule(
        "counts",
        lambda rows, now_us: pc.or_(
            pc.less(rows.column("chunks"), 1),
            pc.or_(pc.less(rows.column("message_count"), 0), pc.less(rows.column("payload_bytes"), 0)),
        ),
        "a count is negative, or there is no chunk",
    ),
)


def refine(rows: Any, *, now_us: int, closed_until_us: int) -> Silver:
    """Return what rows of bronze are in silver. Each is in usage or in quarantine, once.

    Rows older than `closed_until_us` are late: their hour was closed when they came.
    """
    remaining = rows
    quarantined = [QUARANTINE.schema.empty_table()]
    for rule in RULES:
        broken = pc.fill_null(rule.is_broken(remaining, now_us), True)
        if pc.any(broken).as_py():
            quarantined.append(quarantine_rows(remaining.filter(broken), rule.name, rule.reason, now_us))
            remaining = remaining.filter(pc.invert(broken))
    return Silver(
        usage_rows(remaining, closed_until_us=closed_until_us),
        audit_rows(remaining.filter(pc.equal(remaining.column("category"), "management"))),
        pa.concat_tables(quarantined),
    )


def usage_rows(rows: Any, *, closed_until_us: int = 0) -> Any:
    """Return the rows of usage_events that these rows of bronze are."""
    count = rows.num_rows
    event_us = _micros(rows, "event_time")
    hour_us = pc.multiply(pc.divide(event_us, HOUR_US), HOUR_US)
    account = rows.column("account_id")
    action = rows.column("action")
    op = pc.fill_null(pc.index_in(action, pa.array(OP_NAMES)), 0)
    has_queue = pc.greater(rows.column("queue_id"), 0)
    no_text = pa.scalar("")
    asked = pc.if_else(has_queue, no_text, pc.fill_null(rows.column("queue_name"), ""))
    names = pc.if_else(has_queue, rows.column("queue_name"), asked_names(asked))
    at_fifo_rate = pc.and_(
        pc.equal(rows.column("queue_type"), "fifo"), pc.is_in(action, pa.array(sorted(FIFO_ACTIONS)))
    )
    columns = {
        "hour": hour_us,
        "queue_name": names,
        "queue_type": pc.if_else(has_queue, rows.column("queue_type"), no_text),
        "action": pc.if_else(pc.equal(op, 0), OP_NAMES[0], action),
        "account_sk": pc.if_else(pc.equal(account, ""), str(NOBODY_KEY), account).cast(pa.int64()),
        "queue_sk": pc.if_else(has_queue, rows.column("queue_id"), asked_keys(asked_names(asked))),
        "op": op,
        "billing_class": pc.if_else(
            pc.is_in(action, pa.array(sorted(PUSH_ACTIONS))),
            "push",
            pc.if_else(at_fifo_rate, "fifo", "standard"),
        ),
        "billed_requests": pc.if_else(_is_billed(rows), rows.column("chunks"), 0),
        "messages": rows.column("message_count"),
        "duplicates": pc.fill_null(rows.column("duplicate_count"), 0),
        "bytes": rows.column("payload_bytes"),
        "bytes_in": rows.column("request_bytes"),
        "bytes_out": rows.column("response_bytes"),
        "is_late": pc.less(event_us, closed_until_us),
        "rule_version": pa.repeat(pa.scalar(RULE_VERSION, pa.int16()), count),
        "event_date": pc.divide(event_us, DAY_US).cast(pa.int32()),
    }
    return _as(USAGE_EVENTS.schema, rows, columns)


def asked_names(names: Any) -> Any:
    """Return names of queues that were not found, as front ends bound them; those that no queue can have are one."""
    names = pc.fill_null(names, "")
    return pc.if_else(_matches(names, _ASKED), names, INVALID_NAME)


def asked_keys(names: Any) -> Any:
    """Return a number by which names of queues that were not found are told apart: below 0; 0 for no name."""
    different = pc.unique(names)
    keys = [_asked_key(name) if name else 0 for name in different.to_pylist()]
    return pa.array(keys, pa.int64()).take(pc.index_in(names, different))


def _asked_key(name: str) -> int:
    digest = blake2b(name.encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest) >> 2)


def _is_billed(rows: Any) -> Any:
    """Return which rows are billed, as `billing/rules.billed_requests_of` says."""
    status = rows.column("http_status")
    is_answered = pc.and_(pc.greater_equal(status, ANSWERED_STATUS_MIN), pc.less(status, ANSWERED_STATUS_END))
    is_refused = pc.is_in(status, pa.array(sorted(REFUSED_STATUSES), status.type))
    has_account = pc.not_equal(pc.fill_null(rows.column("account_id"), ""), "")
    of_operator = pc.equal(pc.fill_null(rows.column("protocol"), ""), UNBILLED_PROTOCOL)
    is_free = pc.or_(of_operator, pc.is_in(rows.column("action"), pa.array(sorted(FREE_ACTIONS))))
    return pc.and_not(pc.and_(has_account, pc.and_not(is_answered, is_refused)), is_free)


def audit_rows(rows: Any) -> Any:
    """Return the rows of audit_events that these rows of bronze are."""
    count = rows.num_rows

    def repeated(value: Any) -> Any:
        return pa.repeat(pa.scalar(value), count)

    columns = {
        "event_version": repeated(AUDIT_EVENT_VERSION),
        "event_source": pc.if_else(
            pc.is_in(rows.column("action"), pa.array(sorted(STS_ACTIONS))),
            "sts.amazonaws.com",
            pc.if_else(
                pc.is_in(rows.column("action"), pa.array(sorted(MONITORING_ACTIONS))),
                "monitoring.amazonaws.com",
                "sqs.amazonaws.com",
            ),
        ),
        "event_name": rows.column("action"),
        "event_category": repeated("Management"),
        "event_type": repeated("AwsApiCall"),
        "aws_region": rows.column("region"),
        "recipient_account_id": rows.column("account_id"),
        "source_ip_address": rows.column("source_ip"),
        "error_message": pa.nulls(count, pa.string()),
        "request_parameters": rows.column("request_params"),
        "management_event": repeated(True),
        "event_date": pc.divide(_micros(rows, "event_time"), DAY_US).cast(pa.int32()),
        "record": pa.array([hashed_bytes(record) for record in records_of(rows)], pa.binary()),
    }
    return _as(AUDIT_EVENTS.schema, rows, columns)


def records_of(rows: Any) -> list[UsageRecord]:
    """Return rows of bronze as the records that they were made of."""
    columns = []
    for name in UsageRecord.__struct_fields__:
        is_time = name in ("event_time_us", "received_time_us")
        stored = "epoch" if name == "incarnation" else name
        column = _micros(rows, name.removesuffix("_us")) if is_time else rows.column(stored)
        columns.append(column.to_pylist())
    return [UsageRecord(*values) for values in zip(*columns, strict=True)]


def quarantine_rows(rows: Any, rule: str, reason: str, now_us: int) -> Any:
    """Return the rows of quarantine that these rows of bronze are, with all that was recorded as JSON.

    Not of repeated ones: a disk that came back may have any number of them, and their block has it.
    """
    count = rows.num_rows
    raw = pa.nulls(count, pa.binary()) if rule == REPEATED else _raw(rows)
    columns = {
        "rule": pa.repeat(rule, count),
        "reason": pa.repeat(reason, count),
        "raw": raw,
        "raw_bytes": pc.fill_null(pc.binary_length(raw), 0),
        "quarantine_date": pa.repeat(pa.scalar(now_us // DAY_US, pa.int32()), count),
    }
    return _as(QUARANTINE.schema, rows, columns)


def _raw(rows: Any) -> Any:
    records = _told_times(rows.select([field.name for field in REQUEST_COLUMNS])).to_pylist()
    return pa.array([json.dumps(record, default=_as_text).encode() for record in records], pa.binary())


def are_links(rows: Any) -> Any:
    """Return which rows of quarantine are events of an audit chain that is without them, as a mask.

    A row that has the place of another one is none: that one is in the chain.
    """
    is_event = pc.greater(pc.fill_null(pc.binary_length(rows.column("record_hash")), 0), 0)
    return pc.and_not(is_event, pc.is_in(rows.column("rule"), pa.array([IDENTITY, REPEATED])))


def _told_times(rows: Any) -> Any:
    """Return rows with times that Python has no date for as numbers of microseconds, under a name of their own."""
    for field in rows.schema:
        if not pa.types.is_timestamp(field.type):
            continue
        micros = rows.column(field.name).cast(pa.int64())
        is_no_date = pc.fill_null(pc.invert(within(micros, *_DATES_US)), False)
        if pc.any(is_no_date).as_py():
            at = rows.schema.get_field_index(field.name)
            nothing = pa.scalar(None, field.type)
            rows = rows.set_column(at, field, pc.if_else(is_no_date, nothing, rows.column(field.name)))
            told = pc.if_else(is_no_date, micros, pa.scalar(None, pa.int64()))
            rows = rows.append_column(f"{field.name}_us", told)
    return rows


def _as(schema: Any, rows: Any, columns: dict[str, Any]) -> Any:
    """Return a table of this schema: columns that were worked out, and else those of bronze."""
    found = [columns[field.name] if field.name in columns else rows.column(field.name) for field in schema]
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(found, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
