"""`quaymaster import` between real servers: each message is there once, whenever the importer is killed.

The messages that a killed importer had are visible again at their source after 2 seconds: the proxy asks for that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.between import Between, PassingCall
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint, endpoint_of, take_messages
from harness.waiting import PATIENCE_S, eventually

COUNT = 60
HIDDEN_S = 2


class Place(NamedTuple):
    """A running server, and a client of its."""

    process: QuaymasterProcess
    endpoint: Endpoint
    sqs: Any

    def make(self, name: str, **attributes: str) -> str:
        url: str = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def url(self, name: str) -> str:
        url: str = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        return url

    def arn(self, name: str) -> str:
        return self.attributes(name)["QueueArn"]

    def attributes(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.sqs.get_queue_attributes(
            QueueUrl=self.url(name), AttributeNames=["All"]
        )["Attributes"]
        return found

    def messages(self, name: str) -> int:
        """Return how many messages a queue has, in whatever state."""
        return sum(
            int(value)
            for key, value in self.attributes(name).items()
            if key.startswith("ApproximateNumberOf")
        )

    def send(self, name: str, count: int = COUNT, *, first: int = 0) -> dict[str, str]:
        """Send messages with numbers from `first` on; return their bodies by id."""
        sent: dict[str, str] = {}
        for start in range(first, first + count, 10):
            entries = [
                {"Id": str(number), "MessageBody": f"m{number:04}"}
                | ({"MessageGroupId": f"g{number % 3}"} if name.endswith(".fifo") else {})
                for number in range(start, min(first + count, start + 10))
            ]
            answer = self.sqs.send_message_batch(QueueUrl=self.url(name), Entries=entries)
            sent |= {one["MessageId"]: f"m{int(one['Id']):04}" for one in answer["Successful"]}
        return sent

    def take(self, name: str) -> list[Any]:
        """Receive and delete all messages; return them."""
        return take_messages(self.sqs, self.url(name))


def by_origin(messages: list[Any]) -> dict[str, str]:
    """Return bodies by the ids of origin, which must be there once each."""
    found = [message["Attributes"]["OriginMessageId"] for message in messages]
    assert len(found) == len(set(found)), "a message is there twice"
    return dict(zip(found, (message["Body"] for message in messages), strict=True))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """A server to import from, which verifies no signatures, and one to import to."""
    started: list[Place] = []
    try:
        for name, settings in (("source", {"authentication": "open"}), ("target", {})):
            process = QuaymasterProcess(
                tmp_path_factory.mktemp(name) / "data",
                settings={"queue_name_reuse_s": "0", "purge_interval_s": "0", **settings},
            )
            process.start()
            endpoint = endpoint_of(process)
            started.append(Place(process, endpoint, endpoint.client()))
        yield started[0], started[1]
    finally:
        for place in started:
            place.process.stop()


@pytest.fixture
def source(places: tuple[Place, Place]) -> Iterator[Place]:
    yield from without_queues(places[0])


@pytest.fixture
def target(places: tuple[Place, Place]) -> Iterator[Place]:
    yield from without_queues(places[1])


def without_queues(place: Place) -> Iterator[Place]:
    yield place
    for url in place.sqs.list_queues().get("QueueUrls", []):
        place.sqs.delete_queue(QueueUrl=url)


class Importer:
    """Runs of the command for one state file."""

    def __init__(self, source: str, target: Place, state: Path, *, target_url: str | None = None) -> None:
        self._source = source
        env = target.process.env()
        self._target_url = target_url or target.endpoint.url
        self._variables = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": env.access_key_id,
            "AWS_SECRET_ACCESS_KEY": env.secret_access_key,
            "AWS_REGION": env.region,
        }
        self.state = state

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "quaymaster.cli.main", "import", "--from", self._source]
        command += ["--endpoint-url", self._target_url, "--state", str(self.state), *arguments]
        return subprocess.Popen(
            command, env=self._variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run the command to its end; return what it says."""
        running = self.start(*arguments)
        out, err = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == code, (running.returncode, out, err)
        return out + err


def quick_to_return(call: PassingCall) -> None:
    """Let messages be visible again soon."""
    if call.action == "ReceiveMessage" and call.answer is None:
        call.fields["VisibilityTimeout"] = HIDDEN_S


def test_queues_come_with_attributes_tags_dead_letters_and_messages(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("dead")
    policy = {"deadLetterTargetArn": source.arn("dead"), "maxReceiveCount": 3}
    source.make("orders", RedrivePolicy=json.dumps(policy), VisibilityTimeout="77")
    source.sqs.tag_queue(QueueUrl=source.url("orders"), Tags={"team": "x"})
    source.make("first.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    sent, in_order = source.send("orders"), source.send("first.fifo")
    dead = source.send("dead", 3)
    importer = Importer(source.endpoint.url, target, tmp_path / "state")

    planned = json.loads(importer.run("--dry-run", "--json"))
    assert {each["name"]: sum(each["messages"].values()) for each in planned["queues"]} == {
        "dead": 3,
        "first.fifo": COUNT,
        "orders": COUNT,
    }
    assert [each["kind"] for each in planned["differences"]] == ["missing"] * 3
    assert not target.sqs.list_queues().get("QueueUrls")

    done = json.loads(importer.run("--json"))

    assert done == {"imported": 2 * COUNT + 3, "deleted_again": 0, "refused": [], "unfinished": []}
    attributes = target.attributes("orders")
    assert attributes["VisibilityTimeout"] == "77"
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"] == target.arn("dead")
    assert target.sqs.list_queue_tags(QueueUrl=target.url("orders"))["Tags"] == {"team": "x"}
    assert by_origin(target.take("orders")) == sent
    assert by_origin(target.take("dead")) == dead
    arrived = target.take("first.fifo")
    assert by_origin(arrived) == in_order
    for group in ("g0", "g1", "g2"):
        bodies = [each["Body"] for each in arrived if each["Attributes"]["MessageGroupId"] == group]
        assert bodies == sorted(bodies)
        assert len(bodies) == COUNT // 3
    assert [source.messages(name) for name in ("orders", "dead", "first.fifo")] == [0, 0, 0]
    again = json.loads(importer.run("--json"))
    assert again["imported"] == 0


def test_messages_keep_attributes_and_the_ids_they_had_before(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    attributes = {
        "colour": {"DataType": "String", "StringValue": "rot"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }
    trace = {
        "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}
    }
    sent = source.sqs.send_message(
        QueueUrl=source.url("orders"),
        MessageBody="grün",
        MessageAttributes=attributes,
        MessageSystemAttributes=trace,
    )

    Importer(source.endpoint.url, target, tmp_path / "state").run()

    (message,) = target.sqs.receive_message(
        QueueUrl=target.url("orders"),
        MessageAttributeNames=["All"],
        AttributeNames=["All", "OriginMessageId"],
    )["Messages"]
    assert message["Body"] == "grün"
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["OriginMessageId"] == sent["MessageId"] != message["MessageId"]
    assert message["Attributes"]["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]


def test_ids_that_were_used_again_hours_later_are_all_imported(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("first.fifo", FifoQueue="true", DeduplicationScope="messageGroup")
    url = source.url("first.fifo")
    for group in ("a", "b"):
        source.sqs.send_message(
            QueueUrl=url, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="same"
        )
    target.make("first.fifo", FifoQueue="true", DeduplicationScope="queue")

    said = Importer(source.endpoint.url, target, tmp_path / "state").run()

    assert "DeduplicationScope is messageGroup there and queue here" in said
    assert sorted(each["Body"] for each in target.take("first.fifo")) == ["a", "b"]


class Killer:
    """Kills the importer at a call of an action, before it goes on or before it is answered."""

    def __init__(self) -> None:
        self.victim: subprocess.Popen[str] | None = None
        self.step: tuple[str, bool, int] | None = None
        self._seen = 0

    def aim(self, victim: subprocess.Popen[str], step: tuple[str, bool, int]) -> None:
        """Kill this one when an action is called so many times."""
        self._seen, self.victim, self.step = 0, victim, step

    def __call__(self, call: PassingCall) -> None:
        quick_to_return(call)
        if self.victim is None or self.step is None:
            return
        action, is_answered, times = self.step
        if (call.action, call.answer is not None) == (action, is_answered):
            self._seen += 1
            if self._seen == times:
                self.step = None
                self.victim.kill()
                self.victim.wait(PATIENCE_S)
                if not is_answered:
                    raise ConnectionError("the call does not go on")


STEPS = [
    (action, is_answered, times)
    for action, times in (("ReceiveMessage", 2), ("StageMessages", 1), ("DeleteMessageBatch", 2))
    for is_answered in (False, True)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["orders", "first.fifo"])
def test_each_message_is_there_once_though_the_importer_is_killed_at_each_step(
    source: Place, target: Place, tmp_path: Path, name: str
) -> None:
    is_fifo = name.endswith(".fifo")
    source.make(name, **({"FifoQueue": "true", "ContentBasedDeduplication": "true"} if is_fifo else {}))
    killer = Killer()
    sent: dict[str, str] = {}
    with (
        Between(source.endpoint.url, killer) as there,
        Between(target.endpoint.url, killer) as here,
    ):
        importer = Importer(there.url, target, tmp_path / "state", target_url=here.url)
        for step in STEPS:
            sent |= source.send(name, 40, first=len(sent))
            victim = importer.start()
            killer.aim(victim, step)
            victim.communicate(timeout=PATIENCE_S)
            assert victim.returncode == -9, step

        importer.run()

    arrived = target.take(name)
    assert by_origin(arrived) == sent
    assert source.messages(name) == 0
    for group in {each["Attributes"].get("MessageGroupId") for each in arrived} - {None}:
        bodies = [each["Body"] for each in arrived if each["Attributes"]["MessageGroupId"] == group]
        assert bodies == sorted(bodies)


def test_a_message_that_died_there_after_it_was_committed_here_is_not_imported_again(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("dead")
    policy = json.dumps({"deadLetterTargetArn": source.arn("dead"), "maxReceiveCount": 1})
    source.make("orders", RedrivePolicy=policy)
    sent = source.send("orders", 5)
    killer = Killer()
    with Between(source.endpoint.url, killer) as there:
        importer = Importer(there.url, target, tmp_path / "state")
        victim = importer.start()
        killer.aim(victim, ("DeleteMessageBatch", False, 1))
        victim.communicate(timeout=PATIENCE_S)
        assert victim.returncode == -9

        done = json.loads(importer.run("--json"))

    assert (done["imported"], done["deleted_again"]) == (0, 5)
    assert by_origin(target.take("orders")) == sent
    assert target.messages("dead") == 0
    assert [source.messages(name) for name in ("orders", "dead")] == [0, 0]


def test_a_request_of_a_killed_importer_that_arrives_late_stores_nothing(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    sent = source.send("orders", 5)
    is_staged, may_go_on = threading.Event(), threading.Event()

    def hold_the_first(call: PassingCall) -> None:
        if call.action == "StageMessages" and call.answer is None and not is_staged.is_set():
            is_staged.set()
            assert may_go_on.wait(PATIENCE_S)

    with (
        Between(source.endpoint.url, quick_to_return) as there,
        Between(target.endpoint.url, hold_the_first) as here,
    ):
        importer = Importer(there.url, target, tmp_path / "state", target_url=here.url)
        victim = importer.start()
        assert is_staged.wait(PATIENCE_S)
        victim.kill()
        victim.communicate()
        importer.run()
        assert by_origin(target.take("orders")) == sent

        may_go_on.set()
        eventually(
            lambda: [
                call for call in here.calls if call.action == "StageMessages" and call.answer is not None
            ][1:],
            "the late request is answered",
        )

    late = next(
        call.answer
        for call in reversed(here.calls)
        if call.action == "StageMessages" and call.answer is not None
    )
    assert late == {"Staged": 0, "AlreadyCommitted": True, "Committed": 0}
    assert target.messages("orders") == 0


def test_messages_that_come_again_while_they_are_held_are_there_once(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    sent = source.send("orders", 30)
    seen: list[str] = []
    is_held, came_again = threading.Lock(), threading.Event()

    def watch(call: PassingCall) -> None:
        quick_to_return(call)
        if call.action == "ReceiveMessage" and call.answer is not None:
            ids = [message["MessageId"] for message in call.answer.get("Messages", [])]
            if set(ids) & set(seen):
                came_again.set()
            seen.extend(ids)

    def hold(call: PassingCall) -> None:
        # One worker waits; the others go on, and receive what it holds.
        if call.action == "StageMessages" and call.answer is None and is_held.acquire(blocking=False):
            assert came_again.wait(PATIENCE_S)

    with Between(source.endpoint.url, watch) as there, Between(target.endpoint.url, hold) as here:
        Importer(there.url, target, tmp_path / "state", target_url=here.url).run("--workers", "3")

    assert by_origin(target.take("orders")) == sent
    assert source.messages("orders") == 0


def test_a_commit_whose_answers_are_lost_is_asked_for_until_it_is_known(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    sent = source.send("orders", 20)
    lost: list[str] = []

    def lose(call: PassingCall) -> None:
        if call.action == "StageMessages" and call.answer is not None and len(lost) < 3:
            lost.append(call.action)
            raise ConnectionError("the answer is lost")

    with Between(target.endpoint.url, lose) as here:
        importer = Importer(source.endpoint.url, target, tmp_path / "state", target_url=here.url)
        done = json.loads(importer.run("--json", "--workers", "1"))

    assert len(lost) == 3
    assert done["imported"] == 20
    assert by_origin(target.take("orders")) == sent


def test_two_importers_with_one_state_file_are_one_too_many(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    importer = Importer(source.endpoint.url, target, tmp_path / "state")
    first = importer.start("--follow")
    eventually(lambda: target.sqs.list_queues(QueueNamePrefix="orders").get("QueueUrls"), "the first runs")
    eventually(importer.state.exists, "it has its state file")

    said = importer.run(code=1)

    assert "Another import uses the state file" in said
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 130


def test_two_importers_share_a_standard_queue_while_none_is_killed(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    target.make("orders")
    sent = source.send("orders", 300)
    running = [
        Importer(source.endpoint.url, target, tmp_path / f"state-{number}").start("--json")
        for number in range(2)
    ]

    done = [json.loads(each.communicate(timeout=PATIENCE_S)[0]) for each in running]

    assert sum(each["imported"] for each in done) == 300
    assert by_origin(target.take("orders")) == sent


def test_a_message_that_cannot_be_here_stays_there_and_the_others_come(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    target.make("orders", MaximumMessageSize="1024")
    sent = source.send("orders", 20)
    large = source.sqs.send_message(QueueUrl=source.url("orders"), MessageBody="x" * 2_000)["MessageId"]

    said = Importer(source.endpoint.url, target, tmp_path / "state").run(code=1)

    assert f"message {large} stays there" in said
    assert by_origin(target.take("orders")) == sent
    assert source.messages("orders") == 1


def test_it_follows_until_the_source_was_empty_for_so_long(
    source: Place, target: Place, tmp_path: Path
) -> None:
    source.make("orders")
    sent = source.send("orders", 10)
    importer = Importer(source.endpoint.url, target, tmp_path / "state")
    following = importer.start("--follow", "--idle-seconds", "3", "--json")
    eventually(lambda: source.messages("orders") == 0, "the first messages are moved")
    sent |= source.send("orders", 10, first=10)

    out, _ = following.communicate(timeout=PATIENCE_S)

    assert json.loads(out)["imported"] == 20
    assert by_origin(target.take("orders")) == sent
