from __future__ import annotations

import pytest

from quaymaster.protocol.actions.table import SQS_ACTIONS, STS_ACTIONS
from quaymaster.protocol.usage.usage_records import chunks_of
from quaymaster_pipeline.billing.rules import billed_requests_of, billing_class_of

KIB = 1024


@pytest.mark.parametrize(
    ("payload_bytes", "chunks"),
    [
        (0, 1),
        (1, 1),
        (64 * KIB, 1),
        (64 * KIB + 1, 2),
        (10 * 6 * KIB, 1),  # a batch of ten counts its total
        (10 * 64 * KIB, 10),
        (256 * KIB, 4),
        (1024 * KIB, 16),
    ],
)
def test_each_started_64_kib_is_one_request_and_nothing_is_one_too(payload_bytes: int, chunks: int) -> None:
    assert billed_requests_of("123456789012", 200, chunks_of(payload_bytes)) == chunks


@pytest.mark.parametrize("action", sorted(SQS_ACTIONS))
def test_only_actions_on_messages_of_fifo_queues_cost_the_fifo_rate(action: str) -> None:
    on_messages = "Message" in action and "MoveTask" not in action

    assert billing_class_of(action, "fifo") == ("fifo" if on_messages else "standard")
    assert billing_class_of(action, "standard") == "standard"
    assert billing_class_of(action, "log") == "standard"
    assert billing_class_of(action, None) == "standard"


@pytest.mark.parametrize("action", sorted(STS_ACTIONS))
def test_actions_of_sts_are_free(action: str) -> None:
    assert billed_requests_of("123456789012", 200, 1, action=action) == 0
    assert billed_requests_of("123456789012", 200, 1, action="GetQueueUrl") == 1


def test_staging_costs_what_sending_does() -> None:
    assert billing_class_of("StageMessages", "fifo") == "fifo"
    assert billing_class_of("CommitTransaction", "fifo") == "standard"


@pytest.mark.parametrize(
    ("http_status", "billed"),
    [(200, 3), (400, 3), (404, 3), (499, 3), (403, 0), (429, 0), (500, 0), (503, 0), (0, 0)],
)
def test_what_was_refused_or_failed_here_is_not_billed(http_status: int, billed: int) -> None:
    assert billed_requests_of("123456789012", http_status, 3) == billed


@pytest.mark.parametrize("account_id", ["", None])
def test_a_request_of_no_account_is_not_billed(account_id: str | None) -> None:
    assert billed_requests_of(account_id, 200, 1) == 0


def test_a_call_to_an_endpoint_has_a_price_of_its_own_on_any_queue() -> None:
    for queue_type in ("standard", "fifo", "log"):
        assert billing_class_of("Push", queue_type) == "push"
    assert billed_requests_of("000000000000", 200, 3, "push", action="Push") == 3
    assert billed_requests_of("000000000000", 504, 3, "push", action="Push") == 0
