"""Back-offs of messages that an endpoint did not take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.push.calls import PushedMessage, PushRequest, PushSecrets
from quaymaster.core.push.flow import JITTER, PushPlan, backoff_ms

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"
PLAN = PushPlan("https://example.com/hook?token=secret", ARN, backoff_min_ms=10_000, backoff_max_ms=600_000)
EVEN = 0.5


def test_back_off_doubles_with_each_receive_up_to_its_maximum() -> None:
    found = [backoff_ms(PLAN, count, EVEN) for count in (1, 2, 3, 6, 7, 8, 1_000_000)]

    assert found == [10_000, 20_000, 40_000, 320_000, 600_000, 600_000, 600_000]


@given(st.integers(1, 10_000), st.floats(0, 1), st.integers(1_000, 43_200_000), st.integers(0, 43_200_000))
def test_back_off_is_within_its_jitter_and_never_above_the_maximum(
    count: int, luck: float, least_ms: int, more_ms: int
) -> None:
    plan = PushPlan("https://example.com", ARN, backoff_min_ms=least_ms, backoff_max_ms=least_ms + more_ms)

    found = backoff_ms(plan, count, luck)

    assert round(least_ms * (1 - JITTER)) <= found <= least_ms + more_ms
    assert found <= round(backoff_ms(plan, count, EVEN) * (1 + JITTER)) + 1


def test_nothing_secret_is_in_the_texts_of_plans_messages_requests_and_secrets() -> None:
    message = PushedMessage("id", "origin", "handle", "secret", "md5", 0, 1)

    texts = [
        repr(value)
        for value in (
            PLAN,
            message,
            PushSecrets((b"secret",), (("Authorization", "secret"),)),
            PushRequest({"Authorization": "secret"}, b"secret"),
        )
    ]

    assert not any("secret" in text for text in texts if not text.startswith("PushSecrets"))
    assert texts[2] == "PushSecrets(1 keys, 1 headers)"
    assert texts[3] == "PushRequest(6 bytes)"
