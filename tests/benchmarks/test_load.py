"""The load generator: what it sends is signed, what it counts was answered, latencies are those of the requests."""

from __future__ import annotations

import math
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from bench import histogram, load, servers
from bench.load import Load
from bench.requests import Endpoint, Replies, call
from bench.work import Cycle, Receive, Send, deleted_in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Running]:
    with servers.Running(servers.SERVERS["quaymaster"], tmp_path_factory.mktemp("bench")) as running:
        yield running


def run(server: servers.Running, make_work: load.MakeWork, **options: float | int | None) -> load.Result:
    plan = Load(server.endpoint, **{"connections": 4, "seconds": 20.0, **options})  # type: ignore[arg-type]
    return load.run(plan, make_work, server.pid)


def depth_of(server: servers.Running, url: str) -> int:
    names = ["ApproximateNumberOfMessages"]
    fields = {"QueueUrl": url, "AttributeNames": names}
    return int(call(server.endpoint, "GetQueueAttributes", fields)["Attributes"][names[0]])


def test_every_message_of_a_load_is_stored_once_and_counted(server: servers.Running) -> None:
    url = server.create_queue("counted")

    one = run(server, lambda *_: Send(server.endpoint, url, body_bytes=256), requests_max=70)
    ten = run(
        server, lambda *_: Send(server.endpoint, url, body_bytes=256, batch=10), requests_max=31, drivers=2
    )

    assert (one.failure, ten.failure) == ("", "")
    assert one.messages("send") == 70
    assert ten.messages("send") == 310
    assert depth_of(server, url) == 380
    assert sum(one.tallies["send"].latencies) == 70
    assert one.server_cpu_s >= 0
    assert one.server_bytes_peak > 1 << 20


def test_what_is_received_is_deleted_until_the_queue_is_empty(server: servers.Running) -> None:
    url = server.create_queue("emptied")
    run(server, lambda *_: Send(server.endpoint, url, body_bytes=100, batch=10), requests_max=25)

    result = run(server, lambda *_: Receive(server.endpoint, url, batch=10))

    assert result.failure == ""
    assert result.messages("receive") == result.messages("delete") == 250
    assert depth_of(server, url) == 0


def test_a_receive_without_deletes_ends_at_its_limit(server: servers.Running) -> None:
    url = server.create_queue("in-flight")
    run(server, lambda *_: Send(server.endpoint, url, body_bytes=100, batch=10), requests_max=20)

    result = run(server, lambda *_: Receive(server.endpoint, url, batch=10, delete=False, messages_max=60))

    assert 60 <= result.messages("receive") <= 100
    assert result.messages("delete") == 0


def test_a_cycle_sends_receives_and_deletes_in_turn(server: servers.Running) -> None:
    url = server.create_queue("cycled")

    result = run(
        server, lambda *_: Cycle(server.endpoint, url, body_bytes=100), connections=1, requests_max=30
    )

    assert [result.messages(kind) for kind in ("send", "receive", "delete")] == [10, 10, 10]


def test_large_messages_arrive_whole(server: servers.Running) -> None:
    url = server.create_queue("large")
    run(server, lambda *_: Send(server.endpoint, url, body_bytes=65_536, batch=10), requests_max=8)

    result = run(server, lambda *_: Receive(server.endpoint, url, batch=10))

    assert (result.failure, result.messages("delete")) == ("", 80)


def test_the_message_fields_of_several_drivers_never_repeat(server: servers.Running) -> None:
    url = server.create_queue("once.fifo", {"FifoQueue": "true"})

    def make(number: int, of: int) -> Send:
        return Send(
            *(server.endpoint, url),
            body_bytes=10,
            batch=10,
            fields=lambda n: b',"MessageGroupId":"%d","MessageDeduplicationId":"%d"' % (n % 7, n),
            start=number,
            stride=of,
        )

    result = run(server, make, requests_max=12, drivers=2)

    assert (result.failure, depth_of(server, url)) == ("", 120)


def test_answers_other_than_200_are_failures_and_are_quoted(server: servers.Running) -> None:
    url = server.create_queue("refusing").replace("refusing", "missing")

    result = run(server, lambda *_: Send(server.endpoint, url, body_bytes=10), requests_max=5)

    assert (result.requests, result.failures) == (0, 5)
    assert "QueueDoesNotExist" in result.failure


def answer_one_at_a_time(listener: socket.socket, reply: bytes, answers: int) -> None:
    """Serve a connection for each request, as servers without keep-alive do."""
    for _ in range(answers):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(reply)


def test_a_server_that_closes_after_each_answer_is_connected_to_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        arguments = (listener, reply, 5)
        thread = threading.Thread(target=answer_one_at_a_time, args=arguments)
        thread.start()
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        plan = Load(endpoint, connections=1, seconds=20, requests_max=5)

        result = load.run(plan, lambda *_: Send(endpoint, "http://queue", body_bytes=10))
        thread.join()

    assert (result.requests, result.failures) == (5, 0)


def test_an_open_loop_charges_a_stalled_server_with_the_requests_that_were_due() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts nothing, answers nothing
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        plan = Load(endpoint, connections=2, seconds=0.2, rate=1000)

        result = load.run(plan, lambda *_: Send(endpoint, "http://queue", body_bytes=10))

    assert result.requests == 0
    assert result.late > 100


def test_a_chunked_reply_is_put_together() -> None:
    replies = Replies()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    pieces = [head + b'8\r\n{"Receip\r\n', b'7;x=y\r\ntHandle\r\n2\r\n":\r\n0\r\n', b"\r\n"]
    fed = [replies.feed(piece) for piece in pieces]

    assert fed == [None, None, head + b'{"ReceiptHandle":']


def test_a_reply_may_come_byte_by_byte() -> None:
    replies = Replies()
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"

    fed = [replies.feed(reply[at : at + 1]) for at in range(len(reply))]

    assert fed == [None] * (len(reply) - 1) + [reply]


@pytest.mark.parametrize(
    ("body", "deleted"),
    [
        (b"{}", 1),
        (b'{"Successful":[{"Id":"0"},{"Id":"1"}]}', 2),
        (b'{"Failed":[{"Id":"0","SenderFault":true}],"Successful":[{"Id":"1"}]}', 1),
        (b'{"Successful":[],"Failed":[{"Id":"0","SenderFault":true}]}', 0),
    ],
)
def test_deleted_messages_are_those_that_did_not_fail(body: bytes, deleted: int) -> None:
    assert deleted_in(b"HTTP/1.1 200 OK\r\n\r\n" + body) == deleted


def test_histogram_percentiles_are_within_a_quarter_percent() -> None:
    dice = random.Random(5)
    durations = [int(dice.lognormvariate(7, 2)) for _ in range(20_000)]
    counters = [0] * histogram.BUCKETS
    for duration in durations:
        counters[histogram.bucket_of(duration)] += 1
    durations.sort()

    found = histogram.percentiles_ms(counters, (0.5, 0.99, 0.999, 1.0))

    for share, shown in zip((0.5, 0.99, 0.999, 1.0), found, strict=True):
        exact = durations[math.ceil(share * len(durations)) - 1]
        assert shown is not None
        assert shown * 1000 == pytest.approx(exact, rel=0.0025, abs=1)


def test_histogram_takes_any_duration_and_none() -> None:
    assert histogram.bucket_of(1 << 60) == histogram.BUCKETS - 1
    assert histogram.percentiles_ms([0] * histogram.BUCKETS, (0.5,)) == [None]
