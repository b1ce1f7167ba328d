"""Names of queues and consumer groups, and ARNs."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.queue_names import (
    QueueArn,
    check_group_name,
    check_queue_name,
    group_name,
    is_addressed_name,
    is_fifo_name,
    parse_queue_arn,
    split_group,
)

_ACCOUNT = "123456789012"


def test_only_a_name_that_a_queue_or_a_group_can_have_is_addressed() -> None:
    assert all(is_addressed_name(name) for name in ("orders", "orders.fifo", "log@group"))
    assert not any(is_addressed_name(name) for name in ("", "or ders", "log@", "@group"))


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 80])
def test_a_standard_queue_may_have_this_name(name: str) -> None:
    check_queue_name(name, fifo=False)
    assert not is_fifo_name(name)


@pytest.mark.parametrize("name", ["", "x" * 81, "a.b", "a b", "a/b", "orders.fifo", "é", "a\n"])
def test_a_standard_queue_may_not_have_this_name(name: str) -> None:
    with pytest.raises(InvalidParameterValue) as raised:
        check_queue_name(name, fifo=False)

    assert raised.value.message == (
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
    )


def test_the_name_of_a_fifo_queue_ends_with_fifo_and_that_counts() -> None:
    check_queue_name("x" * 75 + ".fifo", fifo=True)
    assert is_fifo_name("orders.fifo")

    for name in (".fifo", "orders", "orders.fifo.fifo", "x" * 76 + ".fifo", "orders.FIFO"):
        with pytest.raises(InvalidParameterValue) as raised:
            check_queue_name(name, fifo=True)
        assert raised.value.message.startswith("The name of a FIFO queue can only include")


def test_an_arn_is_taken_apart_and_put_together() -> None:
    text = f"arn:aws:sqs:eu-central-1:{_ACCOUNT}:orders.fifo"

    arn = parse_queue_arn(text)

    assert arn == QueueArn("eu-central-1", _ACCOUNT, "orders.fifo")
    assert str(arn) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dummy",
        f"arn:aws:sns:eu-central-1:{_ACCOUNT}:orders",
        f"arn:other:sqs:eu-central-1:{_ACCOUNT}:orders",
        f"arn:aws:sqs::{_ACCOUNT}:orders",
        "arn:aws:sqs:eu-central-1:12:orders",
        f"arn:aws:sqs:eu-central-1:{_ACCOUNT}:or ders",
        f"arn:aws:sqs:eu-central-1:{_ACCOUNT}:orders:more",
        f"arn:aws:sqs:eu-central-1:{_ACCOUNT}:orders@billing",
        f"arn:aws:sqs:eu-central-1:{_ACCOUNT}",
    ],
)
def test_another_text_is_no_arn_of_a_queue(text: str) -> None:
    assert parse_queue_arn(text) is None


@pytest.mark.parametrize(
    "name", ["", "a b", "log@", "@billing", "log@a.b", "log@a@b", "a" * 81, "a@" + "b" * 81]
)
def test_what_no_queue_and_no_group_may_be_called_is_no_addressed_name(name: str) -> None:
    assert not is_addressed_name(name)


@pytest.mark.parametrize("group", ["", "a.b", "a@b", "a" * 81, "a\n"])
def test_what_can_be_no_group_is_refused(group: str) -> None:
    with pytest.raises(InvalidParameterValue, match="name of a consumer group"):
        check_group_name(group)


def test_a_name_without_a_group_has_none() -> None:
    assert split_group("log") == ("log", "")


def test_a_consumer_group_is_named_after_its_log() -> None:
    assert group_name("orders", "billing") == "orders@billing"
