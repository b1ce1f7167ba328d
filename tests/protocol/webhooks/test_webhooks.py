"""Signatures as the published `standardwebhooks` package verifies them, and attempts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.protocol.webhooks.attempts import DELAYS_S, KEPT_S, next_attempt_ms, outcome_of
from quaymaster.protocol.webhooks.signing import derived_secret, parse_secret, secret_text, signed_headers

KEY = bytes(range(32))


def now_s() -> int:
    """Return the time that the package compares with."""
    return int(datetime.now(UTC).timestamp())


def test_a_signature_is_what_the_published_library_verifies() -> None:
    secret = derived_secret(KEY, "0123456789abcdef")
    body = '{"AlarmName": "größer"}'.encode()

    headers = signed_headers([secret], "ab" * 16, now_s(), body)

    assert Webhook(secret_text(secret)).verify(body, headers) == {"AlarmName": "größer"}


def test_a_changed_body_another_id_or_an_old_time_is_not_verified() -> None:
    secret = derived_secret(KEY, "a")
    receiver = Webhook(secret_text(secret))
    headers = signed_headers([secret], "ab", now_s(), b"{}")

    for body, sent in (
        (b'{"a": 1}', headers),
        (b"{}", headers | {"webhook-id": "ac"}),
        (b"{}", signed_headers([secret], "ab", now_s() - 3_600, b"{}")),
        (b"{}", signed_headers([derived_secret(KEY, "b")], "ab", now_s(), b"{}")),
    ):
        with pytest.raises(WebhookVerificationError):
            receiver.verify(body, sent)


def test_while_a_secret_is_exchanged_both_are_good() -> None:
    old, new = derived_secret(KEY, "old"), derived_secret(KEY, "new")

    headers = signed_headers([new, old], "ab", now_s(), b"{}")

    assert Webhook(secret_text(old)).verify(b"{}", headers) == {}
    assert Webhook(secret_text(new)).verify(b"{}", headers) == {}


@given(st.binary(min_size=24, max_size=64))
def test_a_secret_is_read_as_it_is_shown(secret: bytes) -> None:
    assert parse_secret(secret_text(secret)) == secret


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_????", "whsec_c2hvcnQ=", secret_text(bytes(65))])
def test_what_is_no_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidParameterValue) as refused:
        parse_secret(text)

    assert not text.removeprefix("whsec_") or text not in refused.value.message


def test_each_target_has_a_secret_of_its_own() -> None:
    assert len({derived_secret(KEY, "a"), derived_secret(KEY, "b"), derived_secret(bytes(32), "a")}) == 3


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "delivered"), (204, "delivered"), (301, "retry"), (404, "retry"), (410, "failed"), (500, "retry")],
)
def test_an_answer_says_whether_to_try_again(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome


def test_attempts_come_later_and_later_and_end_after_a_day() -> None:
    at_ms, delays = 0, []
    for attempt in range(1, 100):
        due_ms = next_attempt_ms(attempt, at_ms, 0)
        if due_ms is None:
            break
        delays.append((due_ms - at_ms) // 1_000)
        at_ms = due_ms

    assert delays[: len(DELAYS_S)] == list(DELAYS_S)
    assert set(delays[len(DELAYS_S) :]) == {3_600}
    assert KEPT_S - 3_600 < sum(delays) <= KEPT_S
