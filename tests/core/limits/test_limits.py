"""What limits are on, and which of them hold for a request."""

from __future__ import annotations

import json

import pytest

from quaymaster.core.limits.limits import Limit, LimitName, LimitTable, check_limit
from quaymaster.core.values.errors import InvalidParameterValue

ACCOUNT, OTHER = "111111111111", "222222222222"


@pytest.mark.parametrize(
    "name",
    [
        LimitName(ACCOUNT),
        LimitName(ACCOUNT, action="SendMessage"),
        LimitName(ACCOUNT, "jobs"),
        LimitName(ACCOUNT, "jobs.fifo", "ReceiveMessage"),
    ],
)
def test_a_name_is_read_back_from_its_text(name: LimitName) -> None:
    assert LimitName.parse(name.text()) == name


@pytest.mark.parametrize(
    ("requests", "bytes_per_s"),
    [(None, None), (0, None), (10_000_001, None), (None, 1_023), (1, 10**12 + 1)],
)
def test_rates_that_cannot_be_are_refused(requests: int | None, bytes_per_s: int | None) -> None:
    with pytest.raises(InvalidParameterValue):
        check_limit(requests, bytes_per_s)


def test_a_limit_has_requests_or_bytes_or_both() -> None:
    assert check_limit(50, None).fields() == {"requests": 50}
    assert check_limit(None, 1_024).fields() == {"bytes": 1_024}
    assert check_limit(1, 10**12) == Limit(1, 10**12)


def test_a_table_has_the_limits_of_each_account_in_order_and_forgets_those_that_are_removed() -> None:
    table = LimitTable()
    heard: list[tuple[LimitName, Limit | None]] = []
    table.set(LimitName(ACCOUNT, "jobs"), Limit(1))
    table.on_change = lambda name, limit: heard.append((name, limit))
    table.set(LimitName(ACCOUNT, "", "SendMessage"), Limit(2))
    table.set(LimitName(ACCOUNT), Limit(3))
    table.set(LimitName(OTHER), Limit(4))

    assert [limit.requests for _, limit in table.of_account(ACCOUNT)] == [3, 2, 1]
    assert (len(table), table.count(ACCOUNT), [*table.accounts()]) == (4, 3, [ACCOUNT, OTHER])
    assert [*table.accounts(ACCOUNT)] == [OTHER]
    table.set(LimitName(ACCOUNT), None)
    table.set(LimitName(ACCOUNT, "", "SendMessage"), None)
    table.set(LimitName(ACCOUNT, "other"), None)
    table.set(LimitName(OTHER), None)
    assert table.get(LimitName(ACCOUNT, "jobs")) == Limit(1)
    assert table.get(LimitName(OTHER)) is None
    assert (len(table), table.count(OTHER), [*table.accounts()]) == (1, 0, [ACCOUNT])
    assert heard[0] == (LimitName(ACCOUNT, "", "SendMessage"), Limit(2))
    assert heard[-1] == (LimitName(OTHER), None)


def test_effective_limits_are_those_of_the_caller_and_of_the_queue() -> None:
    table = LimitTable()
    table.set(LimitName(ACCOUNT), Limit(100, 5_000))
    table.set(LimitName(ACCOUNT, "jobs", "SendMessage"), Limit(7))
    table.set(LimitName(OTHER, "", "SendMessage"), Limit(None, 2_000))

    assert json.loads(table.effective(ACCOUNT, ACCOUNT, "jobs")) == {
        "Account": {"*": {"Requests": 100, "Bytes": 5_000}},
        "Queue": {"SendMessage": {"Requests": 7}},
    }
    assert json.loads(table.effective(OTHER, ACCOUNT, "jobs")) == {
        "Account": {"SendMessage": {"Bytes": 2_000}},
        "Queue": {"SendMessage": {"Requests": 7}},
    }
    assert table.effective("333333333333", OTHER, "q") == "{}"


def test_limits_of_an_account_are_shown_once_when_no_queue_is_named() -> None:
    table = LimitTable()
    table.set(LimitName(ACCOUNT), Limit(100))
    table.set(LimitName(ACCOUNT, "jobs"), Limit(7))

    assert json.loads(table.effective(ACCOUNT, ACCOUNT, "")) == {"Account": {"*": {"Requests": 100}}}
