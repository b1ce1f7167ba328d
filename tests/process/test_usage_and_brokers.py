"""What a server's usage says was sent and deleted, and what its journal counted: the same, whatever was killed."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path

import pytest
from harness.pipeline_site import Site
from harness.process import QuaymasterProcess
from harness.usage_blocks import write_blocks
from harness.waiting import eventually
from harness.webhooks import Answered, WebhookReceiver

from process.support import Client, running
from process.test_usage import read_blocks
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused
from quaymaster.protocol.usage.usage_blocks import decode_header
from quaymaster_pipeline.checks.brokers.allowances import SKEW_US
from quaymaster_pipeline.checks.brokers.broker_counts import (
    Compared,
    QueueCount,
    compare_brokers,
    write_counts,
)
from quaymaster_pipeline.commands.broker_counts import read_broker_counts
from quaymaster_pipeline.commands.operators import reconcile
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse.schemas import QUEUES
from quaymaster_pipeline.warehouse.tables import Warehouse

SYNC_MS = 100


def use(process: QuaymasterProcess) -> tuple[int, int]:
    """Send and delete in all ways there are; return how many messages."""
    client = Client(process)
    client.send("orders", [f"body {number}" for number in range(23)])
    assert client.call("SendMessage", "orders", MessageBody="one").status == 200
    deleted = 0
    for _ in range(3):
        answer = client.call("ReceiveMessage", "orders", MaxNumberOfMessages=10, VisibilityTimeout=600)
        handles = [message["ReceiptHandle"] for message in answer.fields["Messages"]]
        for _ in range(2):  # the second time they are gone already
            answer = client.call("DeleteMessage", "orders", ReceiptHandle=handles[0])
            assert answer.status == 200
        entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
        assert client.call("DeleteMessageBatch", "orders", Entries=entries).status == 200
        deleted += len(handles)
    client.close()
    return 24, deleted


def compare(process: QuaymasterProcess, directory: Path, counts: list[QueueCount]) -> Compared:
    """Compare what was counted with the usage of all incarnations but the running one."""
    blocks = read_blocks(process)
    running = max(decode_header(block).incarnation for block in blocks)
    ended = [block for block in blocks if decode_header(block).incarnation < running]
    return compare_usage(ended, directory, counts)


def compare_usage(blocks: list[bytes], directory: Path, counts: list[QueueCount]) -> Compared:
    """Compare what was counted after all else with the usage of incarnations that have ended."""
    site = Site(directory)
    write_blocks(site.feed, "all", *blocks)
    site.run(now=datetime.datetime.now(datetime.UTC))
    warehouse = site.warehouse
    # Nothing happens in between: so much later all that was answered is answered by any clock.
    counted = datetime.datetime.now(datetime.UTC) + datetime.timedelta(microseconds=2 * SKEW_US)
    with warehouse.ingesting():
        write_counts(warehouse, counts, counted, counted)
        found = compare_brokers(warehouse, coverage_of(warehouse), now=counted)
    assert found is not None
    return found


def test_what_clients_sent_and_deleted_is_what_both_say(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"usage_sync_ms": str(SYNC_MS)})
    with running(process):
        client = Client(process)
        client.create("dead")
        policy = {"deadLetterTargetArn": arn(client), "maxReceiveCount": 2}
        client.create("orders", RedrivePolicy=json.dumps(policy))
        client.close()
        made = [use(process) for _ in range(2)]
        process.restart()
        made += [use(process)]
        process.restart()

        counts = read_broker_counts(process.data)
        found = compare(process, tmp_path, counts)
        with AdminClient(find_connection(process.data, None)) as admin:
            (front_end,) = admin.call("ListFrontEnds")["front_ends"]
            with pytest.raises(CommandRefused, match="it is gone after 180 s"):
                admin.call("SealFrontEnd", front_end=front_end["front_end"])
            with pytest.raises(CommandRefused, match="No front end 'nobody'"):
                admin.call("SealFrontEnd", front_end="nobody")

    assert front_end["sealed_incarnation"] is None
    sent, deleted = (sum(numbers) for numbers in zip(*made, strict=True))
    by_name = {count.queue_name: count for count in counts}
    assert set(by_name) == {"orders", "dead"}
    assert (by_name["orders"].sends, by_name["orders"].deletions) == (sent, deleted)
    assert (by_name["dead"].sends, by_name["dead"].deletions) == (0, 0)
    assert [one.brokers for one in found.totals] == [sent, deleted]
    assert [(one.usage_low, one.missing, one.surplus, one.allowed) for one in found.totals] == [
        (sent, 0, 0, 0),
        (deleted, 0, 0, 0),
    ]


@pytest.mark.parametrize("retention", ["Delete", "Log"])
def test_what_was_pushed_and_deleted_is_what_both_say(
    tmp_path: Path, receiver: WebhookReceiver, retention: str
) -> None:
    answers = iter([Answered(503), Answered(422)])
    receiver.answer = lambda post: next(answers, Answered())
    process = QuaymasterProcess(tmp_path / "data", settings={"usage_sync_ms": str(SYNC_MS)})
    with running(process):
        client = Client(process)
        retry = '{"minBackoffSeconds":1,"maxBackoffSeconds":1}'
        client.create(
            "orders",
            PushEndpoint=f"{receiver.url}/hook",
            PushFormat="Lambda",
            PushBatchSize="5",
            PushRetryPolicy=retry,
            RetentionMode=retention,
        )
        client.send("orders", [f"body {number}" for number in range(23)])
        consumed = "orders@push" if retention == "Log" else "orders"
        eventually(lambda: len(receiver.posts) > 2 and client.counts(consumed) == 0)
        client.close()
        process.restart()

        counts = read_broker_counts(process.data)
        found = compare(process, tmp_path, counts)

    by_name = {count.queue_name: count for count in counts}
    assert (by_name["orders"].sends, by_name[consumed].deletions) == (23, 23)
    assert [(one.usage_low, one.missing, one.surplus, one.allowed) for one in found.totals] == [
        (23, 0, 0, 0),
        (23, 0, 0, 0),
    ]


def test_a_killed_server_lacks_no_more_usage_than_is_allowed_and_has_none_that_was_not(
    tmp_path: Path,
) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"usage_sync_ms": str(SYNC_MS)})
    with running(process):
        client = Client(process)
        client.create("orders")
        client.close()
        made = []
        for _ in range(2):
            made.append(use(process))
            time.sleep(1.5)
            made.append(use(process))
            process.kill9()
            process.start()
        process.restart()

        counts = read_broker_counts(process.data)
        found = compare(process, tmp_path, counts)

    sent, deleted = (sum(numbers) for numbers in zip(*made, strict=True))
    (orders,) = counts
    assert (orders.sends, orders.deletions) == (sent, deleted)
    assert found.difference == 0
    assert all(one.surplus == 0 and one.usage_high > 0 for one in found.totals)
    assert all(one.missing <= one.allowed for one in found.totals)


def test_which_queues_there_are_is_kept_when_the_brokers_are_asked(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    with running(process):
        client = Client(process)
        client.create("orders")
        client.create("pairs.fifo", FifoQueue="true")
        client.create("events", RetentionMode="Log")
        client.create("events.fifo", RetentionMode="Log", FifoQueue="true")
        assert client.call("ReceiveMessage", "events.fifo@spark").status == 200
        reconcile(data=process.data)
        assert client.call("DeleteQueue", "orders").status == 200
        client.close()
        reconcile(data=process.data)

    table = Warehouse(process.data / "warehouse").table(QUEUES)
    rows = {row["queue_name"]: row for row in table.read().to_pylist()}
    assert {name: (row["queue_type"], row["valid_to"] is None) for name, row in rows.items()} == {
        "orders": ("standard", False),
        "pairs.fifo": ("fifo", True),
        "events": ("log", True),
        "events.fifo": ("fifo", True),
        "events.fifo@spark": ("fifo", True),
    }
    assert rows["orders"]["valid_from"] < rows["orders"]["valid_to"]
    assert {row["account_id"] for row in rows.values()} == {process.env().account_id}


def arn(client: Client) -> str:
    answer = client.call("GetQueueAttributes", "dead", AttributeNames=["QueueArn"])
    text: str = answer.fields["Attributes"]["QueueArn"]
    return text
