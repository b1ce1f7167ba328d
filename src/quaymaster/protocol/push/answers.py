"""What an endpoint's answer means for the messages of the call, and for the endpoint.

    2xx                        taken: deleted, but for those that `batchItemFailures` names
    400, 409, 413, 415, 422    these messages are not wanted; the endpoint works
    410                        no calls are wanted for an hour
    all else, and no answer    the endpoint cannot take calls now; Retry-After says for how long

    {"batchItemFailures": [{"itemIdentifier": "the messageId; of CloudEvents the id"}]}

A list that cannot be read, or names a message that was not in the call, fails all of the call, as with Lambda: nothing
is deleted that may not have been worked on. An empty answer, `{}` and null name none. In a FIFO queue a message that
failed also fails what follows it in its group.

Source: AWS Lambda Developer Guide, "Implementing partial batch responses"; RFC 9110, 10.2.3 (Retry-After).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from quaymaster.core.push.calls import PushedMessage
from quaymaster.core.push.flow import RETRY_AFTER_MS_MAX, Judged, PushPlan

REJECTS: Final = frozenset((400, 409, 413, 415, 422))
GONE: Final = 410
FUNCTION_ERROR_HEADER: Final = "x-amz-function-error"
FAILURES: Final = "batchItemFailures"
IDENTIFIER: Final = "itemIdentifier"
_SECONDS: Final = re.compile(r"[0-9]{1,10}")


class _Unreadable(Exception):
    """The list of failures is none."""


def judge(
    plan: PushPlan,
    messages: Sequence[PushedMessage],
    status: int | None,
    headers: Mapping[str, str],
    body: bytes,
) -> Judged:
    """Return what an answer means. `status` None: there was none. Names of `headers` are in lower case."""
    everything = frozenset(range(len(messages)))
    if status is None:
        return Judged("fails", everything)
    if 200 <= status < 300:
        try:
            failed = _failures(plan, messages, headers, body)
        except _Unreadable:
            return Judged("works", everything)
        return Judged("works", _with_followers(messages, failed) if plan.is_fifo else failed)
    if status in REJECTS:
        return Judged("rejects", everything)
    if status == GONE:
        return Judged("gone", everything)
    return Judged("fails", everything, retry_after_ms(headers))


def retry_after_ms(headers: Mapping[str, str]) -> int:
    """Return for how many ms an answer asks for a pause, at most RETRY_AFTER_MS_MAX; 0: it does not, or in no time.

    A date is compared with the answer's own, so that the clocks of both sides need not agree.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return min(int(text) * 1_000, RETRY_AFTER_MS_MAX)
    try:
        pause = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError, OverflowError):  # TypeError: only one of them has a time zone
        return 0
    return max(0, min(int(pause.total_seconds() * 1_000), RETRY_AFTER_MS_MAX))


def _failures(
    plan: PushPlan, messages: Sequence[PushedMessage], headers: Mapping[str, str], body: bytes
) -> frozenset[int]:
    """Return the positions of the messages that an answer names as failed; _Unreadable: all of them."""
    is_lambda = plan.format == "Lambda"
    if is_lambda and FUNCTION_ERROR_HEADER in headers:
        raise _Unreadable
    if not body.strip():
        return frozenset()
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        if is_lambda or "json" in headers.get("content-type", "").lower():
            raise _Unreadable from None
        return frozenset()  # a text for people
    named = answer.get(FAILURES) if isinstance(answer, dict) else None
    if named is None:
        return frozenset()
    if not isinstance(named, list):
        raise _Unreadable
    places: dict[str, list[int]] = {}
    for place, message in enumerate(messages):
        places.setdefault(message.message_id if is_lambda else message.origin_id, []).append(place)
    failed: set[int] = set()
    for item in named:
        failed.update(_places_of(item, places))
    return frozenset(failed)


def _places_of(item: Any, places: Mapping[str, list[int]]) -> list[int]:
    identifier = item.get(IDENTIFIER) if isinstance(item, dict) else None
    if not isinstance(identifier, str) or identifier not in places:
        raise _Unreadable
    return places[identifier]


def _with_followers(messages: Sequence[PushedMessage], failed: frozenset[int]) -> frozenset[int]:
    """Return the failed messages, and those behind one of them in its group."""
    blocked: set[str | None] = set()
    all_failed = set(failed)
    for place, message in enumerate(messages):
        if place in failed:
            blocked.add(message.group_id)
        elif message.group_id in blocked:
            all_failed.add(place)
    return frozenset(all_failed)
