"""Which queues and keys are Quaymaster's own."""

from __future__ import annotations

import pytest

from quaymaster.protocol.sqs.internal_queues import is_internal, is_pipeline_key


@pytest.mark.parametrize(
    ("account_id", "name", "expected"),
    [
        ("000000000000", "quaymaster-usage", True),
        ("000000000000", "quaymaster-usage@default", True),
        ("000000000000", "quaymaster-usage-2", False),
        ("000000000000", "orders", False),
        ("111111111111", "quaymaster-usage", False),
    ],
)
def test_internal_queues_are_known_by_account_and_name(account_id: str, name: str, expected: bool) -> None:
    assert is_internal(account_id, name) is expected


@pytest.mark.parametrize(
    ("account_id", "name", "user", "expected"),
    [
        ("000000000000", "pipeline", "", True),
        ("000000000000", "pipeline", "ada", False),
        ("000000000000", "default", "", False),
        ("111111111111", "pipeline", "", False),
    ],
)
def test_the_pipelines_key_is_a_root_key_of_its_name_in_the_internal_account(
    account_id: str, name: str, user: str, expected: bool
) -> None:
    assert is_pipeline_key(account_id, name, user) is expected
