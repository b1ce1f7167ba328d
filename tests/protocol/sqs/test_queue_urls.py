"""Names, URLs and ARNs of queues, in the shapes that clients use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import InvalidParameterValue, QueueDoesNotExist
from quaymaster.core.values.queues.queue_names import check_group_name, is_addressed_name, split_group
from quaymaster.protocol.sqs.queue_urls import (
    QueueAddress,
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
