"""PurgeQueue: all messages go, the queue stays."""

from __future__ import annotations

import time
from typing import Any

from harness.sqs import Endpoint

from .conftest import MakeQueue, StartServer
from .support import bodies, counts_of, delete, receive_none, receive_one, refused, send, unique


def test_purge_deletes_messages_visible_in_flight_and_delayed(sqs: Any, queue: str) -> None:
    send(sqs, queue, "in flight", "visible")
    send(sqs, queue, "delayed", DelaySeconds=1)
    receive_one(sqs, queue, VisibilityTimeout=1)

    sqs.purge_queue(QueueUrl=queue)

    assert counts_of(sqs, queue) == (0, 0, 0)
    time.sleep(1.3)
    receive_none(sqs, queue)


def test_messages_sent_after_a_purge_stay(sqs: Any, queue: str) -> None:
    send(sqs, queue, "old")

    sqs.purge_queue(QueueUrl=queue)
    send(sqs, queue, "new")

    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == ["new"]


def test_handle_from_before_a_purge_deletes_nothing(sqs: Any, queue: str) -> None:
    send(sqs, queue, "old")
    old = receive_one(sqs, queue)
    sqs.purge_queue(QueueUrl=queue)
    send(sqs, queue, "new")

    delete(sqs, queue, old)

    assert receive_one(sqs, queue)["Body"] == "new"


def test_purge_frees_groups_and_deduplication_ids(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue()
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    send(sqs, url, "old", **ids)
    receive_one(sqs, url)

    sqs.purge_queue(QueueUrl=url)
    send(sqs, url, "new", **ids)

    assert bodies(sqs.receive_message(QueueUrl=url)) == ["new"]


def test_queue_is_purged_once_in_60_seconds_only(start_server: StartServer) -> None:
    sqs = start_server().client()
    url = sqs.create_queue(QueueName="mine")["QueueUrl"]
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)

    with refused(
        "AWS.SimpleQueueService.PurgeQueueInProgress",
        status=403,
        shape="PurgeQueueInProgress",
        message="Only one PurgeQueue operation on mine is allowed every 60 seconds.",
    ):
        sqs.purge_queue(QueueUrl=url)

    sqs.purge_queue(QueueUrl=other)


def test_purging_a_missing_queue_is_refused(server: Endpoint, sqs: Any) -> None:
    with refused("AWS.SimpleQueueService.NonExistentQueue", shape="QueueDoesNotExist"):
        sqs.purge_queue(QueueUrl=server.queue_url(unique()))
