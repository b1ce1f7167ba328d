"""Attributes SQS does not have: Durability, ReplicationMode, PushSigning."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import MakeQueue
from .support import attributes_of, bodies, refused, send, unique


@pytest.mark.parametrize("value", ["Memory", "Async", "Sync"])
def test_durability_is_chosen_per_queue(sqs: Any, make_queue: MakeQueue, value: str) -> None:
    url = make_queue(Durability=value)

    send(sqs, url, "m")

    assert attributes_of(sqs, url, "Durability") == {"Durability": value}
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)) == ["m"]


def test_durability_is_sync_unless_chosen(sqs: Any, queue: str) -> None:
    assert attributes_of(sqs, queue, "Durability") == {"Durability": "Sync"}


def test_durability_can_be_changed(sqs: Any, queue: str) -> None:
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Durability": "Async"})

    assert attributes_of(sqs, queue, "Durability") == {"Durability": "Async"}


def test_other_durability_is_refused(sqs: Any, queue: str) -> None:
    with refused("InvalidAttributeValue", containing="Durability"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Durability": "Forever"})


def test_receivers_of_pushed_messages_may_have_a_public_key_only(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(PushSigning="Ed25519", PushEndpoint="https://example.com/orders")

    shown = attributes_of(sqs, url, "PushPublicKey", "PushSigning")

    assert shown["PushSigning"] == "Ed25519"
    assert shown["PushPublicKey"].startswith("whpk_")
    with refused("InvalidAttributeValue", containing="PushSigning"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"PushSigning": "RSA"})
    with refused("InvalidAttributeName", containing="PushPublicKey"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"PushPublicKey": "whpk_"})


def test_a_queue_may_have_equal_partitions_from_its_creation_on(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(ReplicationMode="Peers")

    send(sqs, url, "m")

    assert attributes_of(sqs, url, "ReplicationMode") == {"ReplicationMode": "Peers"}
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)) == ["m"]
    with refused("InvalidAttributeValue", containing="ReplicationMode"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"ReplicationMode": "Leader"})


@pytest.mark.parametrize("other", [{}, {"RetentionMode": "Log"}])
def test_partitions_of_ordered_queues_are_not_equal(sqs: Any, other: dict[str, str]) -> None:
    attributes = {"FifoQueue": "true", "ReplicationMode": "Peers", **other}

    with refused("InvalidAttributeValue", containing="ReplicationMode"):
        sqs.create_queue(QueueName=f"{unique()}.fifo", Attributes=attributes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ReplicationMode", "Leader"), ("DeliveryGuarantee", "AtLeastOnce"), ("RetentionMode", "Delete")],
)
def test_value_that_is_the_only_one_yet_is_taken(
    sqs: Any, make_queue: MakeQueue, name: str, value: str
) -> None:
    url = make_queue(**{name: value})

    assert attributes_of(sqs, url, name) == {name: value}
