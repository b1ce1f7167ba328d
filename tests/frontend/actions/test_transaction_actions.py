"""Transactions over HTTP: staged messages are sent by their commit, and what is wrong is refused by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from frontend.support import Answer, Service, serving
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.messages import prefix_bytes, split_prefix


async def ask(service: Service, action: str, **given: Any) -> Answer:
    fields = {"QueueUrl": service.client.url("orders"), "SinkId": "sink", "BatchId": 1, **given}
    return await service.client.json(action, fields)


async def stage(service: Service, *bodies: str, first: int = 0, name: str = "0/1", **given: Any) -> Answer:
    messages = [{"MessageBody": body, **given} for body in bodies]
    return await ask(service, "StageMessages", Stage=name, FirstIndex=first, Messages=messages)


async def receive(service: Service, queue: str = "orders") -> list[dict[str, Any]]:
    answer = await service.client.json(
        "ReceiveMessage",
        {
            "QueueUrl": service.client.url(queue),
            "MaxNumberOfMessages": 10,
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["All"],
        },
    )
    return answer.json.get("Messages", [])  # type: ignore[no-any-return]


def test_a_transaction_is_received_once_it_is_committed() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            first = await stage(service, "a", "b")
            again = await stage(service, "b", "c", first=1)
            before = await receive(service)

            committed = await ask(service, "CommitTransaction", Stages=[{"Stage": "0/1", "Count": 3}])
            once_more = await ask(service, "CommitTransaction", Stages=[{"Stage": "0/1", "Count": 3}])
            late = await stage(service, "d", name="0/2")
            aborted = await ask(service, "AbortTransaction")

            assert first.json == {"Staged": 2, "AlreadyCommitted": False}
            assert again.json == {"Staged": 3, "AlreadyCommitted": False}
            assert before == []
            assert committed.json == {"Committed": 3, "AlreadyCommitted": False}
            assert once_more.json["AlreadyCommitted"] is True
            assert late.json == {"Staged": 0, "AlreadyCommitted": True}
            assert aborted.json == {"Aborted": False}
            assert [message["Body"] for message in await receive(service)] == ["a", "b", "c"]
            assert service.metrics.messages_sent == 3

    asyncio.run(scenario())


def test_one_request_stages_and_commits() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("orders")
            entry = {"MessageBody": "a", "OriginMessageId": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"}
            given = {"Stage": "0", "FirstIndex": 0, "Messages": [entry, {"MessageBody": "b"}], "Commit": True}

            sent = await ask(service, "StageMessages", **given, Deduplicate=False)
            again = await ask(service, "StageMessages", **given)

            assert sent.json == {"Staged": 2, "AlreadyCommitted": False, "Committed": 2}
            assert again.json == {"Staged": 2, "AlreadyCommitted": True, "Committed": 2}
            first, second = (one for one in service.broker.commands if isinstance(one, StageMessages))
            assert (first.commit, first.deduplicate) == (True, False)
            assert (second.commit, second.deduplicate) == (True, True)
            assert service.metrics.messages_sent == 2
            answer = await service.client.json(
                "ReceiveMessage",
                {
                    "QueueUrl": service.client.url("orders"),
                    "MaxNumberOfMessages": 10,
                    "AttributeNames": ["OriginMessageId"],
                },
            )
            with_origin, without = answer.json["Messages"]
            assert with_origin["Body"] == "a"
            assert with_origin["Attributes"]["OriginMessageId"] == entry["OriginMessageId"]
            assert with_origin["MessageId"] != entry["OriginMessageId"]
            assert without["Attributes"]["OriginMessageId"] == without["MessageId"]
            stored = service.broker.queues[queue.queue_id].messages
            assert [len(message.new.payload) for message in stored.values()] == [
                len(stored[2].new.payload) + 16,
                len(stored[2].new.payload),
            ]

    asyncio.run(scenario())


def test_a_commit_that_a_broker_of_before_only_stages_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            service.broker.ignores_commits = True

            refused = await ask(
                service,
                "StageMessages",
                Stage="0",
                FirstIndex=0,
                Messages=[{"MessageBody": "a"}],
                Commit=True,
            )

            assert refused.json["__type"] == "com.amazonaws.sqs#UnsupportedOperation"
            assert await receive(service) == []
            assert service.metrics.messages_sent == 0

    asyncio.run(scenario())


def test_an_aborted_transaction_has_nothing_to_commit() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            await stage(service, "a")

            aborted = await ask(service, "AbortTransaction")
            refused = await ask(service, "CommitTransaction", Stages=[{"Stage": "0/1", "Count": 1}])

            assert aborted.json == {"Aborted": True}
            assert refused.status == 400
            assert refused.headers["x-amzn-query-error"] == "StageNotFound;Sender"
            assert (refused.json["__type"], refused.json["Stage"]) == ("com.quaymaster#StageNotFound", "0/1")

    asyncio.run(scenario())


def test_staged_messages_are_stored_as_sent_ones_but_for_the_hash_of_retries() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
            url = service.client.url("orders.fifo")
            attributes = {"colour": {"DataType": "String", "StringValue": "red"}}
            message = {"MessageBody": "a", "MessageGroupId": "g", "MessageAttributes": attributes}

            await ask(service, "StageMessages", QueueUrl=url, Stage="0", FirstIndex=0, Messages=[message] * 2)

            (staged,) = [one for one in service.broker.commands if isinstance(one, StageMessages)]
            for new in staged.messages:
                assert split_prefix(new.flags, new.payload) == (new.group, new.dedup, None)
                assert (new.retry, new.may_be_retry) == (None, True)
            assert len({new.message_id for new in staged.messages}) == 2
            assert len({new.payload[: prefix_bytes(new.flags)] for new in staged.messages}) == 1
            await ask(service, "CommitTransaction", QueueUrl=url, Stages=[{"Stage": "0", "Count": 2}])
            (received,) = await receive(service, "orders.fifo")
            assert received["MessageAttributes"] == attributes
            assert received["Attributes"]["MessageGroupId"] == "g"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given", "message"),
    [
        ("StageMessages", {"SinkId": "a b"}, "parameter SinkId"),
        ("StageMessages", {"BatchId": -1}, "parameter BatchId"),
        ("StageMessages", {"Messages": []}, "1 to 1000"),
        ("StageMessages", {"Messages": [{"MessageBody": "x" * 1_000_000}] * 3}, "2097152 bytes"),
        ("StageMessages", {"Messages": [{"MessageBody": "x", "OriginMessageId": "1"}]}, "must be a UUID"),
        ("StageMessages", {"Deduplicate": False}, "It needs Commit"),
        (
            "StageMessages",
            {"Messages": [{"MessageBody": "x"}] * 100 + [{"MessageBody": ""}]},
            "Messages[100]: ",
        ),
        ("CommitTransaction", {"Stages": [{"Stage": "0", "Count": -1}]}, "parameter Count"),
        ("AbortTransaction", {"SinkId": ""}, "parameter SinkId"),
    ],
)
def test_what_is_wrong_is_refused_by_name(action: str, given: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            fields: dict[str, Any] = {"Stages": []} if action == "CommitTransaction" else {}
            if action == "StageMessages":
                fields = {"Stage": "0", "FirstIndex": 0, "Messages": [{"MessageBody": "x"}]}

            answer = await ask(service, action, **{**fields, **given})

            assert answer.status == 400
            assert message in answer.json["message"]

    asyncio.run(scenario())


def test_a_consumer_group_takes_no_transaction() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")

            answer = await ask(service, "AbortTransaction", QueueUrl=service.client.url("log@a"))

            assert answer.json["__type"] == "com.amazonaws.sqs#UnsupportedOperation"

    asyncio.run(scenario())
