"""What endpoints' answers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.push.test_requests import ARN, message
from quaymaster.core.push.flow import Judged, PushFormat, PushPlan
from quaymaster.protocol.push.answers import judge, retry_after_ms
from quaymaster.protocol.push.handshake import HANDSHAKE_METHOD, Permission, handshake_headers, permission_of

MESSAGES = [message(1), message(2), message(3)]
ALL = frozenset({0, 1, 2})
DATE = "Sat, 31 Jan 2026 08:00:00 GMT"


def judged(
    status: int | None = 200,
    body: Any = b"",
    headers: dict[str, str] | None = None,
    push_format: PushFormat = "Lambda",
) -> Judged:
    plan = PushPlan("https://example.com", ARN, push_format, 10)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(plan, MESSAGES, status, headers or {}, content)


def failures(*identifiers: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in identifiers]}


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_what_was_taken_is_deleted(status: int) -> None:
    assert judged(status) == Judged("works", frozenset())


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
def test_messages_that_are_not_wanted_back_off_while_the_endpoint_works(status: int) -> None:
    assert judged(status, headers={"retry-after": "5"}) == Judged("rejects", ALL)


def test_an_endpoint_that_is_gone_says_so() -> None:
    assert judged(410) == Judged("gone", ALL)


@pytest.mark.parametrize("status", [None, 100, 301, 302, 307, 401, 403, 404, 408, 429, 431, 500, 503, 599])
def test_anything_else_is_a_failure_of_the_endpoint(status: int | None) -> None:
    assert judged(status) == Judged("fails", ALL)


def test_an_endpoint_may_ask_for_a_pause() -> None:
    assert judged(429, headers={"retry-after": "7"}) == Judged("fails", ALL, 7_000)
    assert judged(503, headers={"retry-after": "999999"}) == Judged("fails", ALL, 3_600_000)


@pytest.mark.parametrize(
    ("headers", "pause_ms"),
    [
        ({}, 0),
        ({"retry-after": "0"}, 0),
        ({"retry-after": " 12 "}, 12_000),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "Sat, 31 Jan 2026 08:00:30 GMT", "date": DATE}, 30_000),
        ({"retry-after": "Sat, 31 Jan 2026 07:00:00 GMT", "date": DATE}, 0),
        ({"retry-after": "Sun, 01 Feb 2026 08:00:00 GMT", "date": DATE}, 3_600_000),
        ({"retry-after": "Sat, 31 Jan 2026 08:00:30 GMT"}, 0),
        ({"retry-after": "Sat, 31 Jan 2026 08:00:30 -0000", "date": DATE}, 0),
        ({"retry-after": "Sat, 31 Jan 99999999999999999999 08:00:30 GMT", "date": DATE}, 0),
    ],
)
def test_a_pause_is_in_seconds_or_until_a_date_by_the_answers_own_clock(
    headers: dict[str, str], pause_ms: int
) -> None:
    assert retry_after_ms(headers) == pause_ms


@given(st.text(), st.text())
def test_any_words_ask_for_a_pause_of_an_hour_at_most(text: str, date: str) -> None:
    assert 0 <= retry_after_ms({"retry-after": text, "date": date}) <= 3_600_000


@pytest.mark.parametrize(
    "body", [b"", b"  ", {}, b"null", {"batchItemFailures": []}, {"batchItemFailures": None}, [], {"a": 1}, 7]
)
def test_an_answer_that_names_no_failure_has_none(body: Any) -> None:
    assert judged(body=body) == Judged("works", frozenset())


def test_messages_that_are_named_as_failed_back_off_alone() -> None:
    by_message_id = failures(MESSAGES[1].message_id)
    by_event_id = failures(MESSAGES[0].origin_id, MESSAGES[2].origin_id)

    assert judged(body=by_message_id).failed == {1}
    assert judged(body=by_event_id, push_format="CloudEventsJson").failed == {0, 2}


@pytest.mark.parametrize(
    "body",
    [
        b"OK",
        b"\xff",
        b"{",
        b"[" * 100_000,
        {"batchItemFailures": "m"},
        {"batchItemFailures": {}},
        {"batchItemFailures": ["m"]},
        {"batchItemFailures": [{"id": "m"}]},
        failures(""),
        failures(None),
        failures(7),
        failures(MESSAGES[0].message_id, "of another call"),
    ],
)
def test_a_list_of_failures_that_cannot_be_read_fails_all(body: Any) -> None:
    assert judged(body=body) == Judged("works", ALL)


def test_an_error_of_a_function_fails_all() -> None:
    headers = {"x-amz-function-error": "Unhandled"}

    assert judged(headers=headers) == Judged("works", ALL)
    assert judged(headers=headers, push_format="CloudEvents") == Judged("works", frozenset())


def test_receivers_of_events_may_answer_with_a_text() -> None:
    json_type = {"content-type": "application/json"}

    assert judged(body=b"OK", push_format="CloudEventsJson").failed == frozenset()
    assert judged(body=b"OK", headers=json_type, push_format="CloudEventsJson").failed == ALL


def test_in_a_fifo_queue_what_follows_a_failure_in_its_group_fails_too() -> None:
    plan = PushPlan("https://example.com", ARN, "Lambda", 10, is_fifo=True)
    groups = ["a", "b", "a", "b", "a"]
    messages = [message(number, group_id=group) for number, group in enumerate(groups)]

    answer = judge(plan, messages, 200, {}, json.dumps(failures(messages[2].message_id)).encode())

    assert answer == Judged("works", frozenset({2, 4}))


@given(st.none() | st.integers(100, 599), st.dictionaries(st.text(), st.text()), st.binary())
def test_any_answer_is_judged(status: int | None, headers: dict[str, str], body: bytes) -> None:
    answer = judged(status, body, headers)

    assert answer.failed <= ALL
    assert (answer.verdict == "works") == (status is not None and 200 <= status < 300)


def test_an_endpoint_is_asked_whether_it_wants_calls() -> None:
    assert HANDSHAKE_METHOD == "OPTIONS"
    assert handshake_headers("push.example.com") == {"WebHook-Request-Origin": "push.example.com"}


@pytest.mark.parametrize(
    ("status", "allowed", "is_allowed"),
    [
        (200, "push.example.com", True),
        (204, " PUSH.example.com ", True),
        (200, "*", True),
        (200, "example.com", False),
        (200, "", False),
        (200, None, False),
        (302, "*", False),
        (405, "*", False),
        (None, "*", False),
    ],
)
def test_calls_are_allowed_by_an_answer_that_names_who_asked(
    status: int | None, allowed: str | None, is_allowed: bool
) -> None:
    headers = {} if allowed is None else {"webhook-allowed-origin": allowed}

    permission = permission_of("push.example.com", status, headers)

    assert (permission.refusal == "") is is_allowed
    assert permission.calls_per_minute is None
    assert is_allowed or permission.refusal == (
        f"it answered the handshake with status {status}, and does not allow calls"
    )


@pytest.mark.parametrize(
    ("rate", "calls_per_minute"),
    [
        ("*", None),
        (" * ", None),
        ("1", 1),
        (" 120 ", 120),
        ("007", 7),
        ("999999999", 999_999_999),
        ("9" * 5_000, None),
    ],
)
def test_an_answer_says_how_many_calls_a_minute_it_allows(rate: str, calls_per_minute: int | None) -> None:
    headers = {"webhook-allowed-origin": "*", "webhook-allowed-rate": rate}

    assert permission_of("push.example.com", 200, headers) == Permission("", calls_per_minute)


@pytest.mark.parametrize(
    "rate", ["", "0", "00", "-1", "+5", "1.5", "100/min", "many", "12 0", "١٢", "x" * 500]
)
def test_an_answer_whose_rate_is_no_number_allows_nothing(rate: str) -> None:
    headers = {"webhook-allowed-origin": "*", "webhook-allowed-rate": rate}

    permission = permission_of("push.example.com", 200, headers)

    assert permission.refusal == (
        f"it answered the handshake with the WebHook-Allowed-Rate {rate[:32]!r}, "
        "which is neither a number of calls above 0 nor *"
    )
    assert permission.calls_per_minute is None
