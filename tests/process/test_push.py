"""Push from end to end: a real server, real receivers, and what comes of kills, stops and endpoints that are away."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path

from harness.forked_programs import run_program
from harness.monitoring import families_of
from harness.process import QuaymasterProcess
from harness.running_cell import RoleProcess
from harness.waiting import PATIENCE_S, eventually
from harness.webhooks import Answered, Post, WebhookReceiver

from process.conftest import Connect
from process.support import Client, bodies, running

QUICK = '{"minBackoffSeconds":1,"maxBackoffSeconds":2}'


def pushed_to(receiver: WebhookReceiver, **more: str) -> dict[str, str]:
    return {"PushEndpoint": f"{receiver.url}/hook", "PushRetryPolicy": QUICK, **more}


def state_of(client: Client, queue: str) -> str:
    answer = client.call("GetQueueAttributes", queue, AttributeNames=["PushState"])
    assert answer.status == 200, answer
    state: str = answer.fields["Attributes"]["PushState"]
    return state


def metric(process: QuaymasterProcess | RoleProcess, name: str, **labels: str) -> float:
    """Return the sum of the samples of the admin port's metrics that have these labels, perhaps among others."""
    return sum(
        sample.value
        for family in families_of(process)
        for sample in family.samples
        if sample.name == f"quaymaster_push_{name}" and labels.items() <= sample.labels.items()
    )


class Held:
    """Holds the answers of a receiver until the test lets them go."""

    def __init__(self, receiver: WebhookReceiver) -> None:
        self._may_answer = threading.Event()
        self._receiver = receiver
        receiver.answer = self._wait

    def release(self) -> None:
        self._receiver.answer = lambda post: Answered()
        self._may_answer.set()

    def _wait(self, post: Post) -> Answered:
        self._may_answer.wait(PATIENCE_S)
        return Answered()


def test_each_message_is_posted_once_and_deleted_and_the_state_is_told(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders", **pushed_to(receiver))

        ids = client.send("orders", bodies(50))
        eventually(lambda: client.counts("orders") == 0)

        assert Counter(receiver.ids) == Counter(ids)
        assert {post.body.decode() for post in receiver.posts} == set(bodies(50))
        assert all("webhook-signature" in post.headers for post in receiver.posts)
        eventually(lambda: state_of(client, "orders") == "active")
        assert metric(process, "requests_total", result="delivered") == 50
        assert metric(process, "queues", state="active") == 1


def test_a_fifo_group_is_posted_in_order_also_where_a_call_failed(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    failing = {3: 2, 8: 1}

    def answer(post: Post) -> Answered:
        number = int(post.body)
        failing[number] = failing.get(number, 0) - 1
        return Answered(503 if failing[number] >= 0 else 200)

    receiver.answer = answer
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create(
            "orders.fifo", FifoQueue="true", ContentBasedDeduplication="true", **pushed_to(receiver)
        )
        for number in range(12):
            sent = client.call(
                "SendMessage", "orders.fifo", MessageBody=str(number), MessageGroupId=str(number % 2)
            )
            assert sent.status == 200, sent
        eventually(lambda: client.counts("orders.fifo") == 0)

    for group in (0, 1):
        posted = [int(post.body) for post in receiver.posts if int(post.body) % 2 == group]
        assert posted == sorted(posted)
        assert set(posted) == set(range(group, 12, 2))


def test_a_log_is_pushed_through_its_own_group_and_keeps_its_messages(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("events", RetentionMode="Log", **pushed_to(receiver))

        ids = client.send("events", bodies(20))
        eventually(lambda: set(receiver.ids) == set(ids))

        assert client.take_all("events") == sorted(bodies(20)), "the default group has them, too"


def test_queues_of_other_guarantees_are_pushed_as_those_promise(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    failing = threading.Event()
    receiver.answer = lambda post: Answered(500 if failing.is_set() else 200)
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)

        def push_all(guarantee: str) -> None:
            client.create(guarantee, DeliveryGuarantee=guarantee, **pushed_to(receiver))
            ids = client.send(guarantee, bodies(20))
            eventually(lambda: client.counts(guarantee) == 0)
            eventually(lambda: set(ids) <= set(receiver.ids))

        push_all("AtMostOnce")
        push_all("ExactlyOnce")
        failing.set()
        (lost,) = client.send("AtMostOnce", ["called once"])
        (kept,) = client.send("ExactlyOnce", ["called again"])
        eventually(lambda: receiver.ids.count(kept) > 1)

        assert receiver.ids.count(lost) == 1
        assert client.counts("AtMostOnce") == 0


def test_a_message_whose_answer_was_lost_with_the_server_is_posted_again_under_the_same_id(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders", **pushed_to(receiver, PushTimeoutSeconds="1"))

        def kill(post: Post) -> Answered:
            os.kill(process.pid, signal.SIGKILL)  # after the endpoint took it, before the server can know
            return Answered()

        receiver.answer = kill
        (message_id,) = client.send("orders", ["hello"])
        eventually(lambda: not process.is_running)
        receiver.answer = lambda post: Answered()
        process.kill9()
        process.start()
        client = connect(process)
        eventually(lambda: client.counts("orders") == 0)

    assert len(receiver.posts) >= 2
    assert set(receiver.ids) == {message_id}
    assert {post.body for post in receiver.posts} == {b"hello"}


def test_a_server_that_was_stopped_for_ten_seconds_goes_on_and_loses_nothing(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders", **pushed_to(receiver, PushTimeoutSeconds="2"))
        held = Held(receiver)
        ids = client.send("orders", bodies(30))
        eventually(lambda: receiver.posts)

        os.kill(process.pid, signal.SIGSTOP)
        threading.Event().wait(10.0)  # what it is about: calls and messages time out meanwhile
        held.release()
        os.kill(process.pid, signal.SIGCONT)

        eventually(lambda: client.counts("orders") == 0)
        assert set(receiver.ids) == set(ids)


def test_an_endpoint_that_is_down_is_unreachable_and_gets_all_when_it_is_back(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        receiver.stop()
        client.create("dead")
        dead = json.dumps(
            {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead", "maxReceiveCount": 3}
        )
        client.create("orders", **pushed_to(receiver, RedrivePolicy=dead))
        ids = client.send("orders", bodies(100))
        eventually(lambda: state_of(client, "orders") == "unreachable")
        assert metric(process, "queues", state="unreachable") == 1

        receiver.start()
        eventually(lambda: client.counts("orders") == 0)
        eventually(lambda: state_of(client, "orders") == "active")

        posted, dead_count = set(receiver.ids), client.counts("dead")
        assert len(posted) + dead_count == len(ids)
        tried = metric(process, "requests_total", result="failed")
        assert 3 * dead_count <= tried, "who died was tried three times"


def test_attributes_that_change_hold_for_the_next_call(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders")
        (first,) = client.send("orders", ["first"])

        def change(**attributes: str) -> None:
            answer = client.call("SetQueueAttributes", "orders", Attributes=attributes)
            assert answer.status == 200, answer

        change(**pushed_to(receiver, PushHeaders='{"Authorization":"Bearer one"}'))
        eventually(lambda: client.counts("orders") == 0)
        change(PushFormat="Lambda", PushBatchSize="10")
        eventually(lambda: metric(process, "queues", state="active") == 1)
        client.send("orders", ["second"])
        eventually(lambda: client.counts("orders") == 0)
        change(PushEndpoint="")
        eventually(lambda: metric(process, "queues", state="active") == 0)
        client.send("orders", ["third"])

        assert client.take_all("orders") == ["third"]
        assert receiver.ids[0] == first
        assert [post.headers["authorization"] for post in receiver.posts] == ["Bearer one"] * 2


def test_workers_share_the_queues_and_push_each_message_once(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data", settings={"workers": "2"})) as process:
        client = connect(process)
        ids: list[str] = []
        for number in range(8):
            client.create(f"orders-{number}", **pushed_to(receiver))
            ids += client.send(f"orders-{number}", bodies(10))
        eventually(lambda: all(client.counts(f"orders-{number}") == 0 for number in range(8)))

        assert Counter(receiver.ids) == Counter(ids)
        for worker in (0, 1):
            assert metric(process, "queues", state="active", worker=str(worker)) >= 1


def test_a_queue_that_is_split_goes_on_being_pushed(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders", **pushed_to(receiver))
        held = Held(receiver)
        ids = client.send("orders", bodies(30))
        eventually(lambda: receiver.posts)

        done = run_program(["queue", "split", "orders", "--into", "2", "--data", str(process.data)])
        assert done.returncode == 0, done.stderr
        ids += client.send("orders", bodies(30, "later"))
        held.release()
        eventually(lambda: client.counts("orders") == 0)

        assert set(receiver.ids) == set(ids)
