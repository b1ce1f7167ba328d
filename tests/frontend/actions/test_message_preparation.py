"""Which sends are looked for among those that are stored: retries, and first attempts that may be replayed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quaymaster.frontend.actions.message_preparation import MessagePreparation
from quaymaster.protocol.sqs.canonical_requests import render_time

NOW_MS = 1_800_000_000_999


def may_be_retry(attempt: bytes | None, age_s: int | None) -> bool:
    """Return what the broker is told of a request that says which attempt it is, and was signed so long ago."""
    preparation = MessagePreparation(cast("Any", None), remembers_sends=True, now_ms=lambda: NOW_MS)
    fields = {b"amz-sdk-invocation-id": b"5e8a0f3c"}
    if attempt is not None:
        fields[b"amz-sdk-request"] = attempt
    if age_s is not None:
        fields[b"x-amz-date"] = render_time(NOW_MS - age_s * 1000).encode()
    call = cast("Any", SimpleNamespace(request=SimpleNamespace(first=fields)))
    return preparation._invocation(call).may_be_retry


@pytest.mark.parametrize(
    ("attempt", "is_sought"),
    [
        (b"attempt=1", False),
        (b"attempt=1; max=3", False),
        (b"ttl=20; attempt=1; max=9", False),
        (b"attempt=2; max=3", True),
        (b"attempt=10", True),
        (b"", True),
        (None, True),
    ],
)
def test_all_but_first_attempts_are_sought(attempt: bytes | None, is_sought: bool) -> None:
    assert may_be_retry(attempt, 0) == is_sought


@pytest.mark.parametrize(
    ("age_s", "is_sought"),
    [
        (-600, True),
        (-2, True),
        (-1, False),
        (0, False),
        (2, False),
        (3, True),
        (800, True),
        (None, True),
    ],
)
def test_a_first_attempt_that_was_not_signed_just_now_may_be_one_that_is_sent_again(
    age_s: int | None, is_sought: bool
) -> None:
    assert may_be_retry(b"attempt=1; max=3", age_s) == is_sought


def test_a_client_that_names_no_invocation_has_no_retries() -> None:
    preparation = MessagePreparation(cast("Any", None), remembers_sends=True, now_ms=lambda: NOW_MS)

    assert preparation._invocation(cast("Any", SimpleNamespace(request=SimpleNamespace(first={})))).id is None
