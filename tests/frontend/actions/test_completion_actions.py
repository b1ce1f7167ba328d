"""Completions over HTTP: messages are sent together with the deletion of others, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from frontend.support import Answer, Service, serving, serving_recorded
from quaymaster.core.spread.sends import key_of
from quaymaster.core.values.commands.completions import Complete
from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import NotLeader
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.frontend.actions.queue_actions import check_has_no_outputs
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.frontend.usage.taken_rows import CELLS
from quaymaster.protocol.actions.completion_rules import COMPLETES
from quaymaster.protocol.sqs.checksums import attributes_md5
from quaymaster.protocol.sqs.shapes import MessageAttributeValue


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


async def receive(service: Service, queue: str) -> list[dict[str, Any]]:
    given = {
        "QueueUrl": service.client.url(queue),
        "MaxNumberOfMessages": 10,
        "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
        "VisibilityTimeout": 600,
    }
    answer = await service.client.json("ReceiveMessage", given)
    return answer.json.get("Messages", [])  # type: ignore[no-any-return]


async def handles(service: Service, queue: str, *bodies: str) -> list[str]:
    """Send messages, and return handles of deliveries of them."""
    for body in bodies:
        await service.client.json("SendMessage", {"QueueUrl": service.client.url(queue), "MessageBody": body})
    return [message["ReceiptHandle"] for message in await receive(service, queue)]


async def send(service: Service, queue: str, body: str, handle: str, **given: Any) -> Answer:
    attributes = {**given.pop("MessageAttributes", {}), COMPLETES: text(handle)}
    fields = {
        "QueueUrl": service.client.url(queue),
        "MessageBody": body,
        "MessageAttributes": attributes,
        **given,
    }
    return await service.client.json("SendMessage", fields)


async def send_batch(service: Service, queue: str, *entries: tuple[str, str | None]) -> Answer:
    """Send messages, as (body, handle or None); an entry's id is its index."""
    rendered: list[dict[str, Any]] = []
    for number, (body, handle) in enumerate(entries):
        entry: dict[str, Any] = {"Id": str(number), "MessageBody": body}
        if handle is not None:
            entry["MessageAttributes"] = {COMPLETES: text(handle)}
        rendered.append(entry)
    given = {"QueueUrl": service.client.url(queue), "Entries": rendered}
    return await service.client.json("SendMessageBatch", given)


async def complete(
    service: Service, receipt_handles: list[str], *messages: dict[str, Any], queue: str = "a"
) -> Answer:
    given = {
        "QueueUrl": service.client.url(queue),
        "ReceiptHandles": receipt_handles,
        "Messages": [
            {**message, "QueueUrl": service.client.url(message["QueueUrl"])} for message in messages
        ],
    }
    return await service.client.json("CompleteMessages", given)


def to(queue: str, body: str, **given: Any) -> dict[str, Any]:
    return {"QueueUrl": queue, "MessageBody": body, **given}


def md5(body: str) -> str:
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def test_a_message_that_completes_another_takes_its_place() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            (handle,) = await handles(service, "a", "one")

            sent = await send(service, "b", "two", handle, MessageAttributes={"kind": text("k")})

            given = {
                name: MessageAttributeValue("String", value)
                for name, value in (("kind", "k"), (COMPLETES, handle))
            }
            assert sent.json["MD5OfMessageBody"] == md5("two")
            assert sent.json["MD5OfMessageAttributes"] == attributes_md5(given).hex()
            assert "SequenceNumber" not in sent.json
            (message,) = await receive(service, "b")
            assert (message["Body"], message["MessageId"]) == ("two", sent.json["MessageId"])
            assert message["MessageAttributes"] == {"kind": text("k")}
            assert [type(command) for command in service.broker.commands].count(Complete) == 1

    asyncio.run(scenario())


def test_the_same_completion_again_has_the_same_answer_and_another_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            (handle,) = await handles(service, "a", "one")

            first = await send(service, "b", "two", handle)
            again = await send(service, "b", "two", handle)
            other = await send(service, "b", "three", handle)

            assert first.json == again.json
            assert (other.status, other.json["__type"].partition("#")[2]) == (
                400,
                "InvalidParameterValueException",
            )
            assert handle in other.json["message"]
            assert [message["Body"] for message in await receive(service, "b")] == ["two"]
            assert (service.metrics.messages_sent, service.metrics.messages_deleted) == (2, 1)
            assert service.metrics.messages_duplicate == 1

    asyncio.run(scenario())


def test_an_output_goes_to_the_partition_that_knows_its_deduplication_id() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            once = await service.add_queue("b", DeliveryGuarantee="ExactlyOnce")
            (handle,) = await handles(service, "a", "one")
            given = {"QueueUrl": service.client.url("b"), "MessageBody": "x", "MessageDeduplicationId": "k"}
            assert (await service.client.json("SendMessage", given)).status == 200

            done = await complete(service, [handle], to("b", "x", Id="0", MessageDeduplicationId="k"))

            assert done.status == 200, done.json
            sent = [command for command in service.broker.commands if isinstance(command, Send)][-1]
            (completed,) = (each for each in service.broker.commands if isinstance(each, Complete))
            assert completed.outputs[0].key == key_of(once, sent.messages[0], sent.messages[0])

    asyncio.run(scenario())


def test_several_messages_are_completed_by_messages_to_several_queues() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            await service.add_queue("c.fifo")
            two = await handles(service, "a", "one", "two")

            answer = await complete(
                service,
                two,
                to("b", "three", MessageAttributes={"kind": text("k")}, DelaySeconds=0),
                to("c.fifo", "four", MessageGroupId="g", MessageDeduplicationId="d"),
            )

            assert answer.status == 200
            b, c = answer.json["Messages"]
            assert (b["MD5OfMessageBody"], c["MD5OfMessageBody"]) == (md5("three"), md5("four"))
            assert [message["MessageId"] for message in await receive(service, "b")] == [b["MessageId"]]
            (message,) = await receive(service, "c.fifo")
            assert message["MessageId"] == c["MessageId"]
            assert message["Attributes"]["MessageGroupId"] == "g"
            command = next(one for one in service.broker.commands if isinstance(one, Complete))
            assert [output.arn.rpartition(":")[2] for output in command.outputs] == ["b", "c.fifo"]
            assert command.outputs[1].key != command.outputs[0].key

    asyncio.run(scenario())


def test_a_completion_comes_in_the_query_form_too() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            one, two = await handles(service, "a", "one", "two")

            sent = await service.client.query(
                "SendMessage",
                {
                    "QueueUrl": service.client.url("b"),
                    "MessageBody": "three",
                    "MessageAttribute.1.Name": COMPLETES,
                    "MessageAttribute.1.Value.DataType": "String",
                    "MessageAttribute.1.Value.StringValue": one,
                },
            )
            completed = await service.client.query(
                "CompleteMessages",
                {
                    "QueueUrl": service.client.url("a"),
                    "ReceiptHandle.1": two,
                    "CompleteMessagesRequestEntry.1.QueueUrl": service.client.url("b"),
                    "CompleteMessagesRequestEntry.1.MessageBody": "four",
                },
            )

            assert sent.status == completed.status == 200
            assert b"<SendMessageResponse" in sent.body
            assert b"<CompleteMessagesResponse" in completed.body
            assert md5("four").encode() in completed.body
            assert [message["Body"] for message in await receive(service, "b")] == ["three", "four"]

    asyncio.run(scenario())


def test_entries_of_a_batch_with_one_handle_are_one_unit_and_the_others_go_as_always() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            one, two = await handles(service, "a", "one", "two")
            await send(service, "b", "first", two)

            answer = await send_batch(
                service, "b", ("three", one), ("four", None), ("five", two), ("six", one), ("seven", "wrong")
            )

            assert sorted(entry["Id"] for entry in answer.json["Successful"]) == ["0", "1", "3"]
            failed = {entry["Id"]: entry["Code"] for entry in answer.json["Failed"]}
            assert failed == {"2": "InvalidParameterValue", "4": "ReceiptHandleIsInvalid"}
            bodies = [message["Body"] for message in await receive(service, "b")]
            assert sorted(bodies) == ["first", "four", "six", "three"]
            assert bodies.index("three") < bodies.index("six")
            sums = {entry["Id"]: entry.get("MD5OfMessageAttributes") for entry in answer.json["Successful"]}
            assert sums["0"] == attributes_md5({COMPLETES: MessageAttributeValue("String", one)}).hex()
            assert sums["1"] is None

    asyncio.run(scenario())


def test_what_is_wrong_with_one_message_of_a_unit_fails_all_of_it() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            one, two = await handles(service, "a", "one", "two")

            answer = await send_batch(
                service, "b", ("three", one), ("\x00", one), ("\x00", two), ("\x00", None)
            )

            assert "Successful" not in answer.json or answer.json["Successful"] == []
            assert sorted(entry["Id"] for entry in answer.json["Failed"]) == ["0", "1", "2", "3"]
            assert not any(isinstance(command, Complete) for command in service.broker.commands)

    asyncio.run(scenario())


def test_entries_fail_alone_while_brokers_do_not_answer() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            (one,) = await handles(service, "a", "one")
            service.broker.failure = NotLeader()

            answer = await send_batch(service, "b", ("three", one), ("four", None))

            assert [entry["SenderFault"] for entry in answer.json["Failed"]] == [False, False]

    asyncio.run(scenario())


def test_a_malformed_attribute_fails_its_message() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("b")
            number = {"DataType": "Number", "StringValue": "1"}
            one = await service.client.json(
                "SendMessage",
                {
                    "QueueUrl": service.client.url("b"),
                    "MessageBody": "x",
                    "MessageAttributes": {COMPLETES: number},
                },
            )
            batch = await service.client.json(
                "SendMessageBatch",
                {
                    "QueueUrl": service.client.url("b"),
                    "Entries": [{"Id": "0", "MessageBody": "x", "MessageAttributes": {COMPLETES: number}}],
                },
            )
            unknown = await send(service, "b", "x", "wrong")

            assert (one.status, unknown.status) == (400, 404)
            assert "must be a receipt handle" in one.json["message"]
            assert batch.json["Failed"][0]["Code"] == "InvalidParameterValue"
            assert unknown.json["__type"].endswith("ReceiptHandleIsInvalid")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([], "Messages must be 1 to 100"),
        ([to("b", "")], r"Messages[0]"),
        ([to("b", "x" * (1 << 19)), to("b", "x" * (1 << 19)), to("b", "x")], "at most 1048576 bytes"),
        ([to("missing", "x")], "does not exist"),
    ],
)
def test_a_completion_that_cannot_be_is_refused_by_name(messages: list[dict[str, Any]], what: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("a")
            await service.add_queue("b")
            (one,) = await handles(service, "a", "one")

            answer = await complete(service, [one], *messages)

            assert answer.status == 400
            assert what in answer.json["message"]
            assert not any(isinstance(command, Complete) for command in service.broker.commands)

    asyncio.run(scenario())


def test_handles_are_of_the_queue_and_of_one_partition() -> None:
    async def scenario() -> None:
        async with serving() as service:
            definition = await service.add_queue("a")
            await service.add_queue("b")
            (one,) = await handles(service, "a", "one")
            elsewhere = service.metadata.receipt_handles.mint(definition.queue_id, 3, 1, 3, 1)

            wrong = await complete(service, [one], to("a", "x"), queue="b")
            two_partitions = await complete(service, [one, elsewhere], to("b", "x"))

            assert wrong.json["__type"].endswith("ReceiptHandleIsInvalid")
            assert "one partition" in two_partitions.json["message"]

    asyncio.run(scenario())


def test_messages_of_a_log_are_completed_for_its_groups_and_sent_to_the_log() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            await service.add_queue("b")
            (one,) = await handles(service, "log", "one")

            answer = await complete(service, [one], to("b", "two"), to("log", "three"), queue="log")
            to_group = await complete(service, [one], to("log@default", "two"), queue="log")
            by_attribute = await handles(service, "log")
            sent = await send(service, "b", "four", by_attribute[0])

            assert answer.status == sent.status == 200
            assert to_group.json["__type"].endswith("UnsupportedOperation")
            assert [message["Body"] for message in await receive(service, "b")] == ["two", "four"]

    asyncio.run(scenario())


def test_usage_has_completions_as_an_action_of_their_own() -> None:
    async def scenario() -> None:
        usage = UsageRecorder(now_us=lambda: 1_000_000)
        async with serving_recorded(usage) as service:
            await service.add_queue("a")
            await service.add_queue("b")
            one, two, three = await handles(service, "a", "one", "two", "three")
            usage.take()
            await send(service, "b", "four", one)
            await send(service, "b", "four", one)
            await complete(service, [two], to("b", "five"), to("b", "six"))
            await send_batch(service, "b", ("seven", three), ("eight", None))

            taken = usage.take()

            rows = [taken.cells[at : at + CELLS] for at in range(0, len(taken.cells), CELLS)]
            seen = [(taken.contexts[row[0]].action, *row[6:9]) for row in rows]
            assert seen == [
                ("CompleteMessages", 4, 1, 0),
                ("CompleteMessages", 4, 1, 1),
                ("CompleteMessages", 7, 2, 0),
                ("SendMessageBatch", 10, 1, 0),
            ]

    asyncio.run(scenario())


def test_queue_is_not_deleted_while_messages_that_it_sent_are_under_way() -> None:
    async def scenario() -> None:
        async with serving() as service:
            definition = await service.add_queue("a")
            queue = service.broker.queues[definition.queue_id]
            queue.outputs_under_way = 2
            url = {"QueueUrl": service.client.url("a")}

            refused = await service.client.json("DeleteQueue", url)
            still_there = await service.client.json("GetQueueAttributes", url)
            queue.outputs_under_way = 0
            deleted = await service.client.json("DeleteQueue", url)

            assert (refused.status, still_there.status, deleted.status) == (503, 200, 200)
            assert "2 messages that completions sent" in refused.json["message"]

    asyncio.run(scenario())


def test_partitions_that_are_drained_or_do_not_answer_keep_no_queue_from_being_deleted() -> None:
    table = (
        PartitionPlacement(0, 1, "drained"),
        PartitionPlacement(1, 1, "closed"),
        PartitionPlacement(2, 1, "open"),
    )
    definition = QueueDefinition(7, "0", "q", "active", 1, 0, 0, {}, {}, 0, table)
    asked: list[int] = []

    async def ask(command: Command) -> object:
        assert isinstance(command, AskPartition)
        asked.append(command.partition)
        if command.partition == 1:
            raise NotLeader("")
        return PartitionOutcome(None, True, 0, 0, 0, 1)

    asyncio.run(check_has_no_outputs(ask, definition))

    assert asked == [1, 2]
