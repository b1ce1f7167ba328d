"""What a cell records of its clients' requests while a front end and the usage queue's leader are killed under them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from harness.local_cluster import LocalCluster
from harness.waiting import eventually

from process.support import running_thread
from process.test_usage import UNSYNCED_S, check_incarnations
from process.test_usage_and_brokers import compare_usage
from pyspark_quaymaster import DefaultSource
from quaymaster.cli.local.cluster import read_cluster
from quaymaster.cli.local.plan import ETCD_PREFIX
from quaymaster.cli.local.status import COORDINATION_TIMEOUT_MS
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE
from quaymaster.protocol.usage.usage_blocks import UsageBlock, decode_block, parse_block_text
from quaymaster_pipeline.commands.broker_counts import read_broker_counts
from quaymaster_pipeline.commands.usage_queue import find_usage_queue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

QUEUES = [f"orders-{number}" for number in range(4)]
TRAFFIC_S = 1.0
"""So long there are requests before, between and after faults, besides those while a fault is mended."""
REQUEST_TIMEOUT_S = 15
PAUSE_S = 0.02
HIDDEN_S = 3_600
"""Nothing that was received is received again."""


@dataclass
class Answered:
    """A request whose answer came, and what it said was done."""

    status: int
    at_s: float
    sends: int = 0
    deletions: int = 0


@dataclass
class Customer:
    """Sends, receives and deletes through one front end, and notes each answer by its request's id."""

    endpoint_url: str
    credentials: Mapping[str, str]
    seed: int
    answered: dict[str, Answered] = field(default_factory=dict)
    unanswered: int = 0
    maybe_sent: int = 0
    deleted: set[str] = field(default_factory=set)
    maybe_deleted: set[str] = field(default_factory=set)
    """Messages, by their ids."""
    is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._client = boto3.client(
            "sqs",
            endpoint_url=self.endpoint_url,
            region_name=self.credentials["region"],
            aws_access_key_id=self.credentials["access_key_id"],
            aws_secret_access_key=self.credentials["secret_access_key"],
            # Each answer is to be seen, also one after which an SDK would ask again.
            config=Config(retries={"total_max_attempts": 1}, read_timeout=REQUEST_TIMEOUT_S),
        )

    def run(self) -> None:
        """Work until `is_over`."""
        chance = random.Random(self.seed)
        while not self.is_over.is_set():
            queue = f"{self.endpoint_url}/{self.credentials['account_id']}/{chance.choice(QUEUES)}"
            self._send(queue, chance.randrange(11))
            self._take(queue, is_batch=chance.random() < 0.5)
            time.sleep(PAUSE_S)

    def ask(self, action: str, **fields: Any) -> tuple[Answered, dict[str, Any]] | None:
        """Make one request; None when no answer came."""
        try:
            told = getattr(self._client, action)(**fields)
        except ClientError as error:
            told = dict(error.response)
        except BotoCoreError:
            self.unanswered += 1
            return None
        about = told["ResponseMetadata"]
        answered = Answered(about["HTTPStatusCode"], time.monotonic())
        self.answered[about["HTTPHeaders"]["x-amzn-requestid"]] = answered
        return answered, told

    def _send(self, queue: str, count: int) -> None:
        """Send so many messages in a batch, or one alone if 0."""
        if count == 0:
            got = self.ask("send_message", QueueUrl=queue, MessageBody="alone")
            sent = 1 if got is not None and got[0].status == 200 else 0
        else:
            entries = [{"Id": str(number), "MessageBody": f"body {number}"} for number in range(count)]
            got = self.ask("send_message_batch", QueueUrl=queue, Entries=entries)
            sent = len(got[1].get("Successful", [])) if got is not None else 0
        if got is not None:
            got[0].sends = sent
        self.maybe_sent += max(count, 1) - sent

    def _take(self, queue: str, *, is_batch: bool) -> None:
        """Receive, and delete what came, at once or one by one."""
        got = self.ask("receive_message", QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=HIDDEN_S)
        messages = got[1].get("Messages", []) if got is not None else []
        handles = {message["MessageId"]: message["ReceiptHandle"] for message in messages}
        if is_batch and handles:
            entries = [{"Id": name, "ReceiptHandle": handle} for name, handle in handles.items()]
            got = self.ask("delete_message_batch", QueueUrl=queue, Entries=entries)
            done = {one["Id"] for one in got[1].get("Successful", [])} if got is not None else set()
            self._note_deleted(got, done, set(handles))
            return
        for name, handle in handles.items():
            got = self.ask("delete_message", QueueUrl=queue, ReceiptHandle=handle)
            done = {name} if got is not None and got[0].status == 200 else set()
            self._note_deleted(got, done, {name})

    def _note_deleted(
        self, got: tuple[Answered, dict[str, Any]] | None, done: set[str], asked: set[str]
    ) -> None:
        if got is not None:
            got[0].deletions = len(done)
        self.deleted |= done
        self.maybe_deleted |= asked - done


@contextmanager
def working(*customers: Customer) -> Iterator[None]:
    """Let them work while the block runs."""
    with ExitStack() as stack:
        for customer in customers:
            stack.enter_context(running_thread(customer.run, customer.is_over.set))
        yield


def journal_of_usage(cluster: LocalCluster) -> int:
    """Return which journal has the usage queue."""

    async def find() -> int:
        plan = read_cluster(cluster.directory).plan
        assert plan.etcd is not None, "it is a cell"
        access = EtcdAccess([plan.etcd.endpoint])
        store = EtcdCoordination(access, root=ETCD_PREFIX, timeout_ms=COORDINATION_TIMEOUT_MS)
        try:
            queue = await QueueRows(store).find(INTERNAL_ACCOUNT, USAGE_QUEUE)
        finally:
            await store.close()
        assert queue is not None, "the cell records usage"
        return queue.partitions[0].journal_id

    return asyncio.run(find())


def usage_blocks(cluster: LocalCluster) -> list[bytes]:
    """Read the usage queue by its offsets, so that what is there twice is seen twice."""
    found = find_usage_queue(cluster.directory)
    source = DefaultSource(
        {
            "endpointUrl": found.endpoint_url,
            "region": found.region,
            "accessKeyId": found.access_key_id,
            "secretAccessKey": found.secret_access_key,
            "queue": found.queue_url,
        }
    )
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    texts = pa.Table.from_batches(batches).column("value").to_pylist() if batches else []
    return [parse_block_text(text.decode()) for text in texts]


def running_incarnations(cluster: LocalCluster) -> dict[str, int]:
    """Return by front end the incarnation that runs."""
    with AdminClient(find_connection(cluster.directory, None)) as admin:
        rows = admin.call("ListFrontEnds")["front_ends"]
    return {row["front_end"]: row["incarnation"] for row in rows}


def ended_blocks(cluster: LocalCluster, incarnations: int) -> dict[bytes, UsageBlock]:
    """Return all blocks of incarnations that have ended, as soon as so many are there to their end; none twice."""
    running = running_incarnations(cluster)
    found: list[bytes] = []

    def are_ended() -> bool:
        found[:] = usage_blocks(cluster)
        headers = [decode_block(block).header for block in found]
        ended = {(one.front_end, one.incarnation) for one in headers if one.seal is not None}
        return len({one for one in ended if one[1] < running[one[0]]}) == incarnations

    eventually(are_ended, f"the usage of {incarnations} incarnations is in the queue")
    assert len(set(found)) == len(found), "a block is in the queue twice"
    blocks = {block: decode_block(block) for block in found}
    return {
        data: block
        for data, block in blocks.items()
        if block.header.incarnation < running[block.header.front_end]
    }


@pytest.mark.timeout(600)
def test_usage_is_what_was_answered_although_its_leader_and_a_front_end_are_killed(tmp_path: Path) -> None:
    options = ("--metadata", "1", "--managers", "1", "--set", "usage_sync_ms=100")
    with LocalCluster.started(tmp_path / "cell", "--port", "0", *options) as cluster:
        processes = {process["name"]: process for process in cluster.status()["processes"]}
        stays, dies = (
            Customer(f"http://{processes[name]['address']}", cluster.credentials, seed)
            for seed, name in enumerate(("frontend-1", "frontend-2"))
        )
        for queue in QUEUES:
            assert stays.ask("create_queue", QueueName=queue) is not None
        journal = journal_of_usage(cluster)
        led = cluster.status()["journals"][journal]

        with working(stays, dies):
            time.sleep(TRAFFIC_S)
            cluster.run("kill", led["leader"])
            time.sleep(UNSYNCED_S + TRAFFIC_S)
            killed_s = time.monotonic()
            os.kill(processes["frontend-2"]["pid"], signal.SIGKILL)
            cluster.run("restart", led["leader"])
            cluster.run("restart", "frontend-2")
            time.sleep(TRAFFIC_S)
        led_then = cluster.status()["journals"][journal]
        for front_end in ("frontend-1", "frontend-2"):
            cluster.run("restart", front_end)
        blocks = ended_blocks(cluster, incarnations=3)
        counts = read_broker_counts(cluster.directory)

    assert led_then["epoch"] > led["epoch"]
    reasons: Counter[tuple[str, str]] = Counter()
    for name in ("frontend-1", "frontend-2"):
        mine = [block for block in blocks.values() if block.header.front_end == name]
        check_incarnations(mine)
        reasons.update((name, block.header.seal.reason) for block in mine if block.header.seal is not None)
    assert reasons == {
        ("frontend-1", "stopped"): 1,
        ("frontend-2", "stopped"): 1,
        ("frontend-2", "crashed"): 1,
    }

    records = [record for block in blocks.values() for record in block.records()]
    statuses = {record.request_id: record.http_status for record in records}
    assert len(statuses) == len(records), "a request was recorded twice"
    lost = {name: one for name, one in dies.answered.items() if name not in statuses}
    for customer in (stays, dies):
        assert {name: one.status for name, one in customer.answered.items() if name not in lost} == {
            name: status for name, status in statuses.items() if name in customer.answered
        }
    # What the killed front end had answered before its last fsync is there.
    assert all(killed_s - UNSYNCED_S < one.at_s < killed_s + REQUEST_TIMEOUT_S for one in lost.values())
    assert sum(one.at_s < killed_s - UNSYNCED_S for one in dies.answered.values()) > 0
    unknown = set(statuses) - set(stays.answered) - set(dies.answered)
    assert len(unknown) <= stays.unanswered + dies.unanswered

    answered = [*stays.answered.values(), *dies.answered.values()]
    sent, maybe_sent = sum(one.sends for one in answered), stays.maybe_sent + dies.maybe_sent
    deleted = stays.deleted | dies.deleted
    maybe_deleted = (stays.maybe_deleted | dies.maybe_deleted) - deleted
    assert {count.queue_name for count in counts} == set(QUEUES)
    assert sent <= sum(count.sends for count in counts) <= sent + maybe_sent
    assert len(deleted) <= sum(count.deletions for count in counts) <= len(deleted) + len(maybe_deleted)
    assert min(count.sends for count in counts) > 0
    assert min(count.deletions for count in counts) > 0
    sends, deletions = compare_usage(list(blocks), tmp_path, counts).totals
    assert (sends.surplus, deletions.surplus) == (0, 0)
    assert sends.missing <= sum(one.sends for one in lost.values()) + maybe_sent
    assert deletions.missing <= sum(one.deletions for one in lost.values()) + len(maybe_deleted)
    assert (sends.difference, deletions.difference) == (0, 0)
