"""Names, URLs and ARNs of queues, in the shapes that clients use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import InvalidParameterValue, QueueDoesNotExist
from quaymaster.core.values.queue_definitions import split_group
from quaymaster.protocol.sqs.queue_names import (
    QueueAddress,
    QueueArn,
    check_group_name,
    check_queue_name,
    is_addressed_name,
    is_fifo_name,
    parse_queue_arn,
    parse_queue_path,
    parse_queue_url,
    queue_url_base,
    render_queue_url,
)

_ACCOUNT = "123456789012"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (f"http://localhost:9324/{_ACCOUNT}/orders", QueueAddress("orders", _ACCOUNT)),
        (
            f"https://sqs.eu-central-1.amazonaws.com/{_ACCOUNT}/a-b_C.fifo",
            QueueAddress("a-b_C.fifo", _ACCOUNT),
        ),
        (f"https://eu-central-1.queue.amazonaws.com/{_ACCOUNT}/orders", QueueAddress("orders", _ACCOUNT)),
        (f"https://queue.amazonaws.com/{_ACCOUNT}/orders", QueueAddress("orders", _ACCOUNT)),
        (f"http://localhost/{_ACCOUNT}/orders/", QueueAddress("orders", _ACCOUNT)),
        (f"http://localhost/{_ACCOUNT}/orders?Action=SendMessage", QueueAddress("orders", _ACCOUNT)),
        (f"/{_ACCOUNT}/orders", QueueAddress("orders", _ACCOUNT)),
        (f"{_ACCOUNT}/orders", QueueAddress("orders", _ACCOUNT)),
        ("http://localhost/queue/orders", QueueAddress("orders")),
        ("http://localhost/queue/eu-central-1/orders", QueueAddress("orders", None, "eu-central-1")),
        (f"http://localhost/queue/{_ACCOUNT}/orders", QueueAddress("orders", _ACCOUNT)),
        (
            f"http://localhost:4566/queue/eu-central-1/{_ACCOUNT}/orders",
            QueueAddress("orders", _ACCOUNT, "eu-central-1"),
        ),
        (f"http://{_ACCOUNT}.queue.localhost/orders", QueueAddress("orders", _ACCOUNT)),
        ("http://localhost/orders", QueueAddress("orders")),
        ("orders", QueueAddress("orders")),
        ("orders.fifo", QueueAddress("orders.fifo")),
        ("queue", QueueAddress("queue")),
        (f"http://h/{_ACCOUNT}/{_ACCOUNT}", QueueAddress(_ACCOUNT, _ACCOUNT)),
    ],
)
def test_a_queue_is_found_by_the_path_of_its_url(url: str, address: QueueAddress) -> None:
    assert parse_queue_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "http://localhost",
        "http://localhost/",
        "http://localhost/not-an-account/orders",
        f"http://localhost/{_ACCOUNT}/or ders",
        f"http://localhost/{_ACCOUNT}/orders.txt",
        f"http://localhost/{_ACCOUNT}/a/b/orders",
        "http://localhost/queue/a/b/orders",
        "http://localhost/a/b/c/d/e",
        f"http://localhost/{_ACCOUNT}/" + "a" * 81,
        f"http://localhost/{_ACCOUNT}/{'a' * 76}.fifo",
        f"http://localhost/{_ACCOUNT}/orders\n",
        "http://localhost/" + "a/" * 10_000,
        "@a",
        "or ders@a",
        "a" * 81 + "@",
    ],
)
def test_what_can_be_no_queue_does_not_exist(url: str) -> None:
    with pytest.raises(QueueDoesNotExist):
        parse_queue_url(url)


@pytest.mark.parametrize("group", ["", "a@b", "a.fifo", "a" * 81, "bad name!", "a\n"])
def test_a_group_that_none_can_be_called_is_refused_with_what_it_can_be(group: str) -> None:
    for parse in (parse_queue_url, parse_queue_path):
        with pytest.raises(InvalidParameterValue) as raised:
            parse(f"/{_ACCOUNT}/log@{group}")
        assert raised.value.message == (
            "The name of a consumer group can only include alphanumeric characters, hyphens, or underscores. "
            "1 to 80 in length"
        )


def test_only_a_name_that_a_queue_or_a_group_can_have_is_addressed() -> None:
    assert all(is_addressed_name(name) for name in ("orders", "orders.fifo", "log@group"))
    assert not any(is_addressed_name(name) for name in ("", "or ders", "log@", "@group"))


def test_the_path_of_a_request_names_a_queue_or_none() -> None:
    assert parse_queue_path(f"/{_ACCOUNT}/orders") == QueueAddress("orders", _ACCOUNT)
    assert parse_queue_path("/orders", f"{_ACCOUNT}.queue.localhost") == QueueAddress("orders", _ACCOUNT)
    assert parse_queue_path("/") is None
    assert parse_queue_path("/a/b/c/d/e/f") is None
    assert parse_queue_path("/" + "a" * 2_000) is None


@given(st.text())
def test_any_text_is_a_queue_or_does_not_exist(text: str) -> None:
    try:
        address = parse_queue_url(text)
    except QueueDoesNotExist:
        return
    except InvalidParameterValue:
        assert "@" in text
        return
    assert 1 <= len(address.name) <= 80


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
    ],
)
def test_another_text_is_no_arn_of_a_queue(text: str) -> None:
    assert parse_queue_arn(text) is None


def test_a_queue_url_has_the_host_that_the_client_used() -> None:
    base = queue_url_base("queue.test:9324", otherwise="http://127.0.0.1:9324")

    assert render_queue_url(base, _ACCOUNT, "orders") == f"http://queue.test:9324/{_ACCOUNT}/orders"
    assert queue_url_base("[::1]:9324", scheme="https", otherwise="x") == "https://[::1]:9324"


def test_a_configured_url_wins_over_the_host() -> None:
    base = queue_url_base("queue.test", public_url="https://sqs.example.com/", otherwise="x")

    assert base == "https://sqs.example.com"


@pytest.mark.parametrize("host", [None, "", "a b", 'h"><script>', "a/b", "h:port", "[::1"])
def test_a_host_that_is_none_is_not_used(host: str | None) -> None:
    assert queue_url_base(host, otherwise="http://127.0.0.1:9324/") == "http://127.0.0.1:9324"


@given(st.text())
def test_a_url_that_was_given_out_is_understood(host: str) -> None:
    base = queue_url_base(host, otherwise="http://127.0.0.1:9324")

    assert parse_queue_url(render_queue_url(base, _ACCOUNT, "orders")) == QueueAddress("orders", _ACCOUNT)


@pytest.mark.parametrize("name", ["log@billing", "log.fifo@a_b-c", "a@" + "b" * 80])
def test_a_consumer_group_is_named_behind_its_queue(name: str) -> None:
    assert parse_queue_url(f"http://localhost/{_ACCOUNT}/{name}").name == name
    queue, group = split_group(name)
    assert f"{queue}@{group}" == name
    check_group_name(group)
    assert is_addressed_name(name)


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
