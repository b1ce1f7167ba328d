"""Consuming over the SQS API: what is asked, and what is made of answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from push.model import ModelAnswer, ModelCall, ModelEndpoint, define, run
from quaymaster.core.push.calls import Deleted, PushedMessage
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.net.outbound.failures import OutboundFailed
from quaymaster.protocol.sqs.request_signing import Signer
from quaymaster.push.sqs_consumer import SQSAccess, SQSConsumer

URL = "http://127.0.0.1:9324/000000000000/orders"
QUEUE = define()
RECEIVED = {
    "MessageId": "m-1",
    "ReceiptHandle": "handle",
    "Body": "body",
    "MD5OfBody": "0" * 32,
    "MD5OfMessageAttributes": "1" * 32,
    "Attributes": {
        "SentTimestamp": "1700000000000",
        "ApproximateReceiveCount": "3",
        "MessageGroupId": "g",
        "OriginMessageId": "o-1",
    },
    "MessageAttributes": {
        "colour": {"DataType": "String", "StringValue": "red"},
        "key": {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00").decode()},
    },
}


def consuming(
    answer: Callable[[str, dict[str, Any]], Any], **others: int
) -> tuple[SQSConsumer, ModelEndpoint]:
    def answer_call(call: ModelCall) -> ModelAnswer:
        given = answer(call.headers["x-amz-target"].partition(".")[2], json.loads(call.body))
        if isinstance(given, ModelAnswer):
            return given
        return ModelAnswer(200, {}, json.dumps(given).encode())

    service = ModelEndpoint(answer_call)
    signer = Signer("AKIA", "secret", "us-east-1", None, "sqs")
    access = SQSAccess("http://127.0.0.1:9324", signer)
    consumer = SQSConsumer(access, service, URL, **{"batch_size": 1, "timeout_ms": 30_000, **others})
    return consumer, service


def asked(service: ModelEndpoint) -> list[tuple[str, dict[str, Any]]]:
    return [(call.headers["x-amz-target"].partition(".")[2], json.loads(call.body)) for call in service.calls]


def message(handle: str = "handle") -> PushedMessage:
    return PushedMessage("m", "o", handle, "body", "0" * 32, 0, 1)


def refusal(status: int, kind: str, text: str) -> ModelAnswer:
    return ModelAnswer(status, {}, json.dumps({"__type": kind, "message": text}).encode())


def test_messages_are_received_with_all_that_they_have() -> None:
    async def scenario() -> None:
        consumer, service = consuming(lambda action, given: {"Messages": [RECEIVED]})

        (found,) = await consumer.receive(QUEUE, 5, 35_500)

        assert found == PushedMessage(
            message_id="m-1",
            origin_id="o-1",
            receipt_handle="handle",
            body="body",
            body_md5="0" * 32,
            sent_ms=1_700_000_000_000,
            delivery_count=3,
            group_id="g",
            attributes=(("colour", "String", "red"), ("key", "Binary", b"\x00")),
            attributes_md5="1" * 32,
            system={
                "SentTimestamp": "1700000000000",
                "ApproximateReceiveCount": "3",
                "MessageGroupId": "g",
            },
        )
        ((action, given),) = asked(service)
        assert action == "ReceiveMessage"
        assert (given["MaxNumberOfMessages"], given["VisibilityTimeout"]) == (5, 36)
        assert given["WaitTimeSeconds"] == 0
        (call,) = service.calls
        assert "authorization" in call.headers

    run(scenario())


def test_a_service_without_origin_ids_is_asked_without_them_from_then_on() -> None:
    async def scenario() -> None:
        def answer(action: str, given: dict[str, Any]) -> Any:
            if "OriginMessageId" in given["MessageSystemAttributeNames"]:
                return refusal(400, "InvalidAttributeName", "Unknown Attribute OriginMessageId.")
            return {"Messages": [{**RECEIVED, "Attributes": {}, "MessageAttributes": None}]}

        consumer, service = consuming(answer)

        (first,) = await consumer.receive(QUEUE, 1, 30_000)
        await consumer.receive(QUEUE, 1, 30_000)

        assert (first.origin_id, first.delivery_count, first.group_id) == ("m-1", 1, None)
        assert len(service.calls) == 3

    run(scenario())


def test_a_wait_keeps_what_it_received_for_the_next_receive() -> None:
    async def scenario() -> None:
        answers = iter([{}, {"Messages": [RECEIVED]}])
        consumer, service = consuming(lambda action, given: next(answers), batch_size=3)

        assert await consumer.wait(QUEUE, 60_000)
        (kept,) = await consumer.receive(QUEUE, 3, 35_000)

        assert kept.message_id == "m-1"
        assert [given["WaitTimeSeconds"] for _, given in asked(service)] == [20, 20]
        assert asked(service)[1][1]["MaxNumberOfMessages"] == 3

    run(scenario())


def test_a_wait_that_is_over_has_nothing() -> None:
    async def scenario() -> None:
        consumer, _ = consuming(lambda action, given: {})

        assert not await consumer.wait(QUEUE, 0)

    run(scenario())


def test_what_was_kept_for_too_long_or_is_too_much_is_visible_again() -> None:
    async def scenario() -> None:
        consumer, service = consuming(
            lambda action, given: {"Messages": [RECEIVED] * given.get("MaxNumberOfMessages", 0)}, batch_size=3
        )
        await consumer.wait(QUEUE, 60_000)
        assert len(await consumer.receive(QUEUE, 1, 35_000)) == 1

        await consumer.wait(QUEUE, 60_000)
        assert len(await consumer.receive(QUEUE, 10, 35_000)) == 1, "the endpoint is probed: one is enough"

        await consumer.wait(QUEUE, 60_000)
        consumer._kept_at_s -= 5
        assert await consumer.receive(QUEUE, 10, 35_000) == []

        await consumer.wait(QUEUE, 60_000)
        consumer._kept_at_s -= 36  # another consumer may have them
        assert await consumer.receive(QUEUE, 10, 35_000) == []

        hidden = [given for action, given in asked(service) if action == "ChangeMessageVisibilityBatch"]
        assert [[entry["VisibilityTimeout"] for entry in given["Entries"]] for given in hidden] == [
            [0, 0],
            [0, 0, 0],
        ]

    run(scenario())


@pytest.mark.parametrize(
    "reply", [{}, refusal(503, "ServiceUnavailable", "later"), refusal(400, "QueueDoesNotExist", "gone")]
)
def test_what_is_kept_at_the_end_is_visible_again_if_that_can_be(reply: Any) -> None:
    async def scenario() -> None:
        consumer, service = consuming(
            lambda action, given: {"Messages": [RECEIVED]} if action == "ReceiveMessage" else reply
        )
        await consumer.close()
        await consumer.wait(QUEUE, 60_000)
        await consumer.close()
        await consumer.close()

        assert [action for action, _ in asked(service)] == [
            "ReceiveMessage",
            "ChangeMessageVisibilityBatch",
        ]

    run(scenario())


def test_messages_are_deleted_and_hidden_in_batches() -> None:
    async def scenario() -> None:
        consumer, service = consuming(
            lambda action, given: {"Successful": [{"Id": entry["Id"]} for entry in given["Entries"]]}
        )

        deleted = await consumer.delete(QUEUE, [message("a"), message("b")])
        await consumer.hide(QUEUE, [message("a")], [1_500])

        assert deleted == Deleted(2)
        (_, deletion), (_, hiding) = asked(service)
        assert [entry["ReceiptHandle"] for entry in deletion["Entries"]] == ["a", "b"]
        assert hiding["Entries"] == [{"Id": "0", "ReceiptHandle": "a", "VisibilityTimeout": 2}]

    run(scenario())


@pytest.mark.parametrize("is_fault", [True, False])
def test_an_entry_that_is_the_callers_fault_is_left_alone_and_one_of_the_service_is_tried_again(
    is_fault: bool,
) -> None:
    async def scenario() -> None:
        failed = {"Id": "0", "SenderFault": is_fault, "Code": "x", "Message": "why"}
        consumer, _ = consuming(lambda action, given: {"Failed": [failed]})

        if is_fault:
            assert await consumer.delete(QUEUE, [message()]) == Deleted(0)
        else:
            with pytest.raises(NotNow, match="why"):
                await consumer.delete(QUEUE, [message()])

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(503, "ServiceUnavailable", "later"), NotNow),
        (refusal(400, "RequestThrottled", "slowly"), NotNow),
        (refusal(400, "com.amazonaws.sqs#QueueDoesNotExist", "gone"), CallerError),
        (ModelAnswer(200, {}, b"<html>"), NotNow),
    ],
)
def test_errors_say_whether_to_try_again(answer: ModelAnswer, error: type[Exception]) -> None:
    async def scenario() -> None:
        consumer, _ = consuming(lambda action, given: answer)

        with pytest.raises(error):
            await consumer.receive(QUEUE, 1, 30_000)

    run(scenario())


def test_a_service_that_is_away_is_tried_again() -> None:
    async def scenario() -> None:
        def away(action: str, given: dict[str, Any]) -> Any:
            raise OutboundFailed("no connection")

        consumer, _ = consuming(away)

        with pytest.raises(NotNow, match="no connection"):
            await consumer.delete(QUEUE, [message()])

    run(scenario())


def test_its_queue_is_given() -> None:
    async def scenario() -> None:
        consumer, _ = consuming(lambda action, given: {})

        assert await consumer.consumed(QUEUE) == QUEUE
        with pytest.raises(AssertionError):
            await consumer.find("a", "b")
        with pytest.raises(AssertionError):
            await consumer.refresh(QUEUE)

    run(scenario())
