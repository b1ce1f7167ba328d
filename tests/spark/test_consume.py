"""`mode=consume` against the real server, its engine played: drivers die at each step, others receive, time passes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.forked_programs import run_program
from harness.waiting import eventually
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_quaymaster import SCHEMA
from pyspark_quaymaster.consume import ConsumeReader
from pyspark_quaymaster.errors import (
    CheckpointIsOld,
    ClaimIsLost,
    DataIsLost,
    GroupIsTaken,
    OptionIsInvalid,
    RequestRefused,
)
from pyspark_quaymaster.options import parse_consume_options

from .test_server import Server

Row = tuple[int, str, bytes]
BY_GROUP = {
    "ContentBasedDeduplication": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
HERE = {"endpointUrl": "http://x", "region": "us-east-1", "accessKeyId": "a", "secretAccessKey": "b"}


PLAYED: list[Played] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End the drivers of a test with it."""
    yield
    while PLAYED:
        PLAYED.pop().reader.stop()


class DriverDied(Exception):
    """The driver was killed at a step."""


class Played:
    """A query as Spark's engine runs it: a log of offsets, one of commits, and a sink that goes by batch.

    `dies_at`: the step at which the driver is killed, once.
    """

    def __init__(self, server: Server, queue: str, **options: str) -> None:
        self.options = {**server.options, "mode": "consume", "queue": queue, **options}
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0
        self.sink: dict[int, list[Row]] = {}
        self.readings: dict[int, list[list[Row]]] = {}
        self.dies_at: str | None = None
        self.deaths: list[str] = []
        self.reader = self._new_reader()
        PLAYED.append(self)

    def _new_reader(self) -> ConsumeReader:
        return ConsumeReader(parse_consume_options(self.options), SCHEMA)

    def restart(self) -> None:
        """Kill the driver, whose thread ends with its process, and start another one with the same checkpoint."""
        self.reader.stop()  # tells the server nothing: connections and the thread end, as with the process
        self.reader = self._new_reader()

    def step(self, name: str) -> None:
        if self.dies_at == name:
            self.dies_at = None
            self.deaths.append(name)
            raise DriverDied(name)

    def run(self) -> None:
        """Run until nothing is claimed any more; a driver that dies is started again."""
        while True:
            try:
                if not self.trigger():
                    return
            except DriverDied:
                self.restart()

    def trigger(self) -> bool:
        """Run one batch, or repeat the one that was not committed; return whether there was one."""
        if not self.offsets:
            self.offsets.append(self.reader.initialOffset())
            self.committed = 1
        if self.committed == len(self.offsets):
            start = self.offsets[-1]
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start:
                return False
            self.step("claimed")
            self.offsets.append(end)
            self.step("logged")
        self.batch()
        return True

    def batch(self) -> None:
        number = len(self.offsets) - 1
        rows: list[Row] = []
        for partition in self.reader.partitions(self.offsets[-2], self.offsets[-1]):
            for found in self.reader.read(partition):
                rows += [(row["offset"], row["message_id"], row["value"]) for row in found.to_pylist()]
            self.step("reading")
        self.readings.setdefault(number, []).append(rows)
        self.sink[number] = rows
        self.step("sunk")
        self.committed = len(self.offsets)
        self.step("committed")

    @property
    def bodies(self) -> list[str]:
        """What the sink has, in the order of the batches."""
        return [row[2].decode() for number in sorted(self.sink) for row in self.sink[number]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("consume") / "data")
    yield made
    made.process.stop()


def make(server: Server, count: int = 0, *, fifo: bool = False, **attributes: str) -> str:
    name = f"plain-{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"
    server.create(name, **({"FifoQueue": "true"} if fifo else {}), **attributes)
    server.send(name, *[f"body {number}" for number in range(count)])
    return name


def receive(server: Server, queue: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    answer = server.sqs.receive_message(
        QueueUrl=server.endpoint.queue_url(queue), MaxNumberOfMessages=count, **more
    )
    return answer.get("Messages", [])  # type: ignore[no-any-return]


def left(server: Server, queue: str) -> tuple[int, int]:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = server.sqs.get_queue_attributes(QueueUrl=server.endpoint.queue_url(queue), AttributeNames=names)[
        "Attributes"
    ]
    return int(found[names[0]]), int(found[names[1]])


def test_rows_come_once_in_batches_and_are_deleted_when_the_next_one_begins(server: Server) -> None:
    queue = make(server, 25)
    played = Played(server, queue, maxOffsetsPerTrigger="10")

    assert played.trigger()
    assert left(server, queue) == (15, 10)
    assert played.trigger()
    assert left(server, queue) == (5, 10)
    played.run()

    assert left(server, queue) == (0, 0)
    assert [len(rows) for rows in played.sink.values()] == [10, 10, 5]
    assert sorted(played.bodies) == sorted(f"body {number}" for number in range(25))
    assert played.offsets[-1] == {"version": 1, next(iter(played.offsets[0].keys() - {"version"})): 3}


@pytest.mark.parametrize("step", ["claimed", "logged", "reading", "sunk", "committed"])
@pytest.mark.parametrize("batch", [1, 2])
def test_driver_that_dies_at_any_step_gives_an_idempotent_sink_each_row_once(
    server: Server, step: str, batch: int
) -> None:
    queue = make(server, 30)
    played = Played(server, queue, maxOffsetsPerTrigger="10", maxTasks="2", minPartitions="2")
    for _ in range(batch - 1):
        played.trigger()
    played.dies_at = step

    played.run()

    assert played.deaths == [step]
    assert sorted(played.bodies) == sorted(f"body {number}" for number in range(30))
    assert all(readings.count(readings[0]) == len(readings) for readings in played.readings.values())
    assert left(server, queue) == (0, 0)


def test_batch_is_repeated_identically_after_a_pause_longer_than_its_claim(server: Server) -> None:
    queue = make(server, 20)
    played = Played(server, queue, maxOffsetsPerTrigger="10", claimTimeout="10s")
    played.dies_at = "sunk"
    with pytest.raises(DriverDied):
        played.trigger()
    played.restart()
    eventually(lambda: left(server, queue) == (20, 0), "the claim has lapsed")

    played.run()

    assert len(played.readings[1]) == 2
    assert played.readings[1][0] == played.readings[1][1]
    assert sorted(played.bodies) == sorted(f"body {number}" for number in range(20))


def test_rival_that_receives_of_a_lapsed_claim_makes_its_batch_empty_and_its_rows_come_later(
    server: Server,
) -> None:
    queue = make(server, 10)
    played = Played(server, queue, claimTimeout="10s")
    played.dies_at = "logged"
    with pytest.raises(DriverDied):
        played.trigger()
    played.restart()
    eventually(lambda: left(server, queue) == (10, 0), "the claim has lapsed")
    theirs = receive(server, queue, 3)
    for message in theirs:
        server.sqs.delete_message(
            QueueUrl=server.endpoint.queue_url(queue), ReceiptHandle=message["ReceiptHandle"]
        )

    played.run()

    assert played.sink[1] == []
    assert sorted([*played.bodies, *[message["Body"] for message in theirs]]) == sorted(
        f"body {number}" for number in range(10)
    )
    assert left(server, queue) == (0, 0)


def test_lost_claim_ends_a_query_that_is_to_fail(server: Server) -> None:
    queue = make(server, 10)
    played = Played(server, queue, lostClaim="fail")
    played.dies_at = "logged"
    with pytest.raises(DriverDied):
        played.trigger()
    played.restart()
    listed = command(server, "list", queue)
    released = command(server, "release", queue, "spark")

    with pytest.raises(ClaimIsLost, match="lostClaim=redeliver"):
        played.trigger()

    assert listed.startswith("0\tspark\t0\t1\tgrowing\t10\t")
    assert released == "10 messages released\n"
    assert left(server, queue) == (10, 0)


def command(server: Server, *words: str) -> str:
    """Return what a command of `quaymaster queue claims` prints."""
    done = run_program(["queue", "claims", *words, "--data", str(server.process.data)])
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(server: Server, action: str, queue: str, **fields: Any) -> dict[str, Any]:
    from pyspark_quaymaster.client import Client

    with Client(server.endpoint_of_connector) as client:
        url = server.endpoint.queue_url(queue)
        return client._call(f"Quaymaster.{action}", {"QueueUrl": url, **fields})


def test_claim_that_is_released_while_it_is_read_fails_the_batch_and_its_rows_come_later(
    server: Server,
) -> None:
    queue = make(server, 10)
    played = Played(server, queue)
    played.offsets = [played.reader.initialOffset()]
    played.offsets.append(played.reader.latestOffset(played.offsets[0], ReadMaxRows(10)))
    (partition,) = played.reader.partitions(*played.offsets)
    call(server, "ReleaseClaims", queue, Consumer="spark")

    with pytest.raises(ClaimIsLost, match="Start the query again"):
        list(played.reader.read(partition))
    played.committed = 1
    played.restart()
    played.run()

    assert played.sink[1] == []
    assert sorted(played.bodies) == sorted(f"body {number}" for number in range(10))


def test_driver_that_was_replaced_is_told_so(server: Server) -> None:
    queue = make(server, 30)
    old, new = (Played(server, queue, maxOffsetsPerTrigger="10") for _ in range(2))
    old.trigger()
    new.trigger()

    with pytest.raises(GroupIsTaken, match="consumerGroup of its own"):
        old.trigger()

    new.run()
    assert {*old.bodies, *new.bodies} == {f"body {number}" for number in range(30)}


def test_queries_with_names_of_their_own_share_a_queue(server: Server) -> None:
    queue = make(server, 40)
    queries = [Played(server, queue, maxOffsetsPerTrigger="10", consumerGroup=name) for name in "ab"]

    while True:
        ran = [one.trigger() for one in queries]
        if not any(ran):
            break

    assert all(one.sink for one in queries)
    assert sorted(queries[0].bodies + queries[1].bodies) == sorted(f"body {n}" for n in range(40))


def test_checkpoint_that_is_older_than_what_is_settled_is_refused(server: Server) -> None:
    queue = make(server, 30)
    played = Played(server, queue, maxOffsetsPerTrigger="10")
    played.run()
    before = played.offsets
    played.offsets = before[:2]
    played.committed = 2
    played.restart()
    with pytest.raises(CheckpointIsOld, match="all up to 3"):
        played.trigger()

    played.committed = 1
    played.restart()
    with pytest.raises(CheckpointIsOld, match="new checkpoint"):
        played.trigger()


def test_new_checkpoint_begins_at_what_is_settled(server: Server) -> None:
    queue = make(server, 20)
    first = Played(server, queue, maxOffsetsPerTrigger="10")
    first.trigger()
    first.trigger()
    first.restart()

    second = Played(server, queue)
    second.run()

    assert {key: value for key, value in second.offsets[0].items() if key != "version"} == {
        key: 1 for key in second.offsets[0] if key != "version"
    }
    assert second.bodies == [row[2].decode() for row in first.sink[2]], "what was not settled comes again"


def test_queue_made_anew_is_not_taken_for_the_old_one(server: Server) -> None:
    queue = make(server, 5)
    played = Played(server, queue)
    played.trigger()
    server.sqs.delete_queue(QueueUrl=server.endpoint.queue_url(queue))
    server.create(queue)
    played.restart()

    with pytest.raises(DataIsLost, match="created again"):
        played.trigger()


def test_fifo_groups_keep_their_order_and_are_locked_until_their_batch_is_through(server: Server) -> None:
    queue = make(server, fifo=True)
    url = server.endpoint.queue_url(queue)
    for number in range(12):
        server.sqs.send_message(
            QueueUrl=url,
            MessageBody=f"{number % 3}/{number}",
            MessageGroupId=str(number % 3),
            MessageDeduplicationId=str(number),
        )
    played = Played(server, queue, maxOffsetsPerTrigger="5")

    played.trigger()
    locked = receive(server, queue)
    played.dies_at = "sunk"
    played.run()

    assert not {message["Body"].partition("/")[0] for message in locked} & {
        row[2].decode().partition("/")[0] for row in played.sink[1]
    }
    assert len(played.bodies) + len(locked) >= 12
    for group in "012":
        mine = [int(body.partition("/")[2]) for body in played.bodies if body.startswith(group)]
        assert mine == sorted(mine)


def test_available_now_ends_at_the_count_seen_at_its_start(server: Server) -> None:
    queue = make(server, 15)
    played = Played(server, queue, maxOffsetsPerTrigger="10")
    played.reader.prepareForTriggerAvailableNow()
    played.trigger()
    server.send(queue, *[f"later {number}" for number in range(20)])

    played.run()

    assert len(played.bodies) == 15
    assert left(server, queue) == (20, 0)


def test_trigger_once_claims_all_there_is(server: Server) -> None:
    queue = make(server, 2_300)
    played = Played(server, queue)

    end = played.reader.latestOffset(played.reader.initialOffset(), ReadAllAvailable())

    assert left(server, queue) == (0, 2_300)
    (claimed,) = call(server, "DescribeClaims", queue)["Partitions"][0]["Consumers"]
    assert [claim["Count"] for claim in claimed["Claims"]] == [2_300]
    assert set(end.values()) == {1}


def test_thread_of_the_driver_holds_a_claim_that_is_read_for_long(server: Server) -> None:
    queue = make(server, 5)
    played = Played(server, queue, claimTimeout="10s")
    played.trigger()

    def left_ms() -> int:
        (consumer,) = call(server, "DescribeClaims", queue)["Partitions"][0]["Consumers"]
        return int(consumer["Claims"][0]["MillisecondsLeft"])

    eventually(lambda: left_ms() < 8_000, "the deadline comes near")
    eventually(lambda: left_ms() > 9_000, "the claim is held again")

    played.reader.stop()
    assert left(server, queue) == (0, 5)


def test_claims_are_held_though_the_queue_of_another_one_is_gone(server: Server) -> None:
    queues = {server.endpoint.queue_url(queue): queue for queue in (make(server, 5), make(server, 5))}
    played = Played(server, next(iter(queues.values())), claimTimeout="10s")
    del played.options["queue"]
    played.options["queues"] = ",".join(queues.values())
    played.restart()
    played.trigger()
    holder = played.reader._holder
    assert holder is not None
    gone, kept = [claim.url for claim, _ in holder._claims.values()]  # in the order they are extended in
    server.sqs.delete_queue(QueueUrl=gone)

    def left_ms() -> int:
        (consumer,) = call(server, "DescribeClaims", queues[kept])["Partitions"][0]["Consumers"]
        return int(consumer["Claims"][0]["MillisecondsLeft"])

    eventually(lambda: left_ms() < 8_000, "the deadline comes near")
    eventually(lambda: left_ms() > 9_000, "the claim is held again")


def test_thread_of_a_replaced_driver_ends_its_query(server: Server) -> None:
    queue = make(server, 5)
    played = Played(server, queue, claimTimeout="10s")
    played.trigger()
    other = Played(server, queue, claimTimeout="10s")
    other.trigger()
    holder = played.reader._holder
    assert holder is not None

    eventually(lambda: holder.failure is not None, "the thread is told")

    with pytest.raises(GroupIsTaken):
        played.trigger()
    other.reader.stop()


def test_several_queues_share_a_batch(server: Server) -> None:
    queues = [make(server, 8) for _ in range(3)]
    played = Played(server, queues[0], maxOffsetsPerTrigger="12")
    del played.options["queue"]
    played.options["queues"] = ",".join(queues)
    played.restart()

    played.trigger()
    assert len(played.sink[1]) == 12
    played.run()

    assert len(played.bodies) == 24


@pytest.mark.parametrize("is_fifo", [False, True])
def test_queue_that_is_split_is_consumed_whole(server: Server, is_fifo: bool) -> None:
    queue = make(server, 0, fifo=is_fifo, **(BY_GROUP if is_fifo else {}))
    numbers = iter(range(100))

    def send(count: int) -> None:
        for number in [next(numbers) for _ in range(count)]:
            group = {"MessageGroupId": f"g{number % 5}"} if is_fifo else {}
            url = server.endpoint.queue_url(queue)
            server.sqs.send_message(QueueUrl=url, MessageBody=f"body {number}", **group)

    send(30)
    played = Played(server, queue, maxOffsetsPerTrigger="10")
    played.trigger()
    done = run_program(["queue", "split", queue, "--into", "2", "--data", str(server.process.data)])
    assert done.returncode == 0, done.stderr
    send(30)
    played.dies_at = "logged"

    def has_all() -> bool:
        played.run()
        return len(played.bodies) >= 60

    eventually(has_all, "all of it is consumed")

    assert sorted(played.bodies) == sorted(f"body {number}" for number in range(60))
    for group in range(5) if is_fifo else ():
        mine = [int(body.split()[1]) for body in played.bodies]
        assert (of := [number for number in mine if number % 5 == group]) == sorted(of)
    assert left(server, queue) == (0, 0)


def test_queues_without_claims_are_refused_with_the_servers_words(server: Server) -> None:
    log = server.make_log()

    with pytest.raises(RequestRefused, match="can be read again"):
        Played(server, log).trigger()


def test_server_killed_between_batches_loses_and_repeats_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        queue = make(server, 30)
        played = Played(server, queue, maxOffsetsPerTrigger="10")
        played.trigger()
        server.kill()
        played.options |= server.options
        played.dies_at = "logged"
        with pytest.raises(DriverDied):
            played.trigger()
        server.kill()
        played.options |= server.options
        played.restart()

        played.run()

        assert sorted(played.bodies) == sorted(f"body {number}" for number in range(30))
    finally:
        server.process.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets is for mode=log"),
        ({"queuePattern": "a.*"}, "queuePattern is for mode=log"),
        ({"lostClaim": "skip"}, "lostClaim is redeliver or fail"),
        ({"claimTimeout": "5s"}, "claimTimeout is from 10s to 12h"),
        ({"consumerGroup": "a b"}, "consumerGroup has 1 to 80"),
        ({"queue": "a", "queues": "a,b"}, "exactly one of queue"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, str], said: str) -> None:
    given = {"mode": "consume", "queue": "a", **HERE, **options}
    with pytest.raises(OptionIsInvalid, match=said):
        parse_consume_options(given)


def test_options_have_defaults() -> None:
    found = parse_consume_options({"mode": "consume", "queue": "a", **HERE})

    assert (found.queues, found.consumer, found.rows_per_trigger_max) == (("a",), "spark", 10_000)
    assert (found.claim_timeout_s, found.fails_on_lost_claim) == (300, False)
