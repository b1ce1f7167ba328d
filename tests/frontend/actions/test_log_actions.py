"""Reading queues as logs over HTTP: bounds, times, ranges in columns and in Arrow's form, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import importlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from frontend.support import ACCOUNT, Answer, Service, serving, until
from quaymaster.core.values.commands.logs import Fetch
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions import log_actions
from quaymaster.frontend.actions.consumer_groups import READER_TAG
from quaymaster.frontend.logs import log_reader
from quaymaster.messaging.encryption import MessageCipher, OpenedMessages
from quaymaster.protocol.logs.log_arrow import arrow_schema, to_record_batch
from quaymaster.protocol.logs.log_columns import COLUMNS, parse_block
from quaymaster.protocol.rpc.metadata_messages import TagQueue


async def ask(service: Service, action: str, **given: Any) -> Answer:
    fields = {"QueueUrl": service.client.url("log"), **given}
    return await service.client.json(action, fields)


async def fetch(service: Service, start: int, stop: int = 1 << 40, **given: Any) -> Answer:
    return await ask(service, "FetchMessages", Partition=0, FromOffset=start, ToOffset=stop, **given)


async def send(service: Service, count: int) -> None:
    for number in range(count):
        answer = await service.client.json(
            "SendMessage", {"QueueUrl": service.client.url("log"), "MessageBody": f"body {number}"}
        )
        assert answer.status == 200, answer


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/vnd.quaymaster.columns"
    return to_record_batch(parse_block(answer.body)).to_pylist()  # type: ignore[no-any-return]


def test_a_log_is_described_by_its_bounds() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 3)

            answer = await ask(service, "DescribeLog")

            assert answer.json == {
                "QueueId": str(queue.queue_id),
                "QueueName": "log",
                "Partitions": [{"Partition": 0, "EarliestOffset": 1, "NextOffset": 4}],
            }

    asyncio.run(scenario())


def test_offsets_are_found_by_time() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 2)
            kept = service.broker.queues[queue.queue_id].messages
            kept[2].sent_ms += 1_000

            every = await ask(service, "FindOffsets", Timestamp=0)
            second = await ask(service, "FindOffsets", Timestamp=kept[1].sent_ms + 1)
            none = await ask(service, "FindOffsets", Timestamp=kept[2].sent_ms + 1)
            wrong = await ask(service, "FindOffsets", Timestamp=-1)

            assert every.json == {"Offsets": [{"Partition": 0, "Offset": 1}]}
            assert second.json["Offsets"][0]["Offset"] == 2
            assert none.json["Offsets"][0]["Offset"] == 3
            assert (wrong.status, wrong.json["__type"]) == (
                400,
                "com.amazon.coral.service#InvalidParameterValueException",
            )

    asyncio.run(scenario())


def test_a_fetched_message_has_all_that_was_sent_with_it() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            sent = await service.client.json(
                "SendMessage",
                {
                    "QueueUrl": service.client.url("log"),
                    "MessageBody": "hello ö",
                    "MessageGroupId": "tenant",
                    "MessageAttributes": {
                        "color": {"DataType": "String", "StringValue": "red"},
                        "blob": {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00").decode()},
                    },
                    "MessageSystemAttributes": {
                        "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}
                    },
                },
            )

            answer = await fetch(service, 1)

            assert answer.headers["x-quaymaster-next-offset"] == "2"
            assert answer.headers["x-amzn-requestid"]
            (row,) = rows(answer)
            stored = service.broker.queues[queue.queue_id].messages[1]
            assert int(row.pop("timestamp").timestamp() * 1_000) == stored.sent_ms
            assert row.pop("sender_id")
            assert row == {
                "queue": "log",
                "partition": 0,
                "offset": 1,
                "key": "tenant",
                "value": "hello ö".encode(),
                "message_id": sent.json["MessageId"],
                "dedup_id": None,
                "attributes": [
                    ("color", {"type": "String", "string_value": "red", "binary_value": None}),
                    ("blob", {"type": "Binary", "string_value": None, "binary_value": b"\x00"}),
                ],
                "system_attributes": [("AWSTraceHeader", "Root=1")],
                "md5_body": sent.json["MD5OfMessageBody"],
            }

    asyncio.run(scenario())


def test_a_range_may_take_several_commands_and_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "FETCH_MESSAGES_MAX", 4)
    monkeypatch.setattr(log_reader, "OPENED_AT_ONCE", 3)

    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            service.broker.fetch_messages_max = 4
            await send(service, 11)

            every = await fetch(service, 1)
            some = await fetch(service, 3, 10)
            few = await fetch(service, 2, MaxBytes=1)
            none = await fetch(service, 12)
            times = await fetch(service, 1, Columns=["offset"], MaxBytes=8 * 16)

            assert [row["value"].decode() for row in rows(every)] == [f"body {at}" for at in range(11)]
            assert every.headers["x-quaymaster-next-offset"] == "12"
            assert [row["offset"] for row in rows(some)] == list(range(3, 10))
            assert [row["offset"] for row in rows(few)] == [2]
            assert few.headers["x-quaymaster-next-offset"] == "3"
            assert rows(none) == []
            assert none.headers["x-quaymaster-next-offset"] == "12"
            assert [row["offset"] for row in rows(times)] == list(range(1, 9))

    asyncio.run(scenario())


def test_of_long_messages_few_are_opened_before_others_get_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    open_run = MessageCipher.open_run

    def watched(self: MessageCipher, messages: Sequence[bytes], into: OpenedMessages) -> None:
        opened.append(len(messages))
        open_run(self, messages, into)

    monkeypatch.setattr(MessageCipher, "open_run", watched)
    bodies = [
        letter * (size << 10) for letter, size in zip("abcdef", (100, 100, 100, 300, 1, 1), strict=True)
    ]

    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            for body in bodies:
                sent = {"QueueUrl": service.client.url("log"), "MessageBody": body}
                assert (await service.client.json("SendMessage", sent)).status == 200

            answer = await fetch(service, 1)

            assert [row["value"].decode() for row in rows(answer)] == bodies
            assert opened == [2, 1, 1, 2]

    asyncio.run(scenario())


def test_arrow_readers_get_a_stream_with_the_exact_schema() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 3)

            answer = await fetch(service, 2, Format="arrow")

            assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
            assert answer.headers["x-quaymaster-next-offset"] == "4"
            table = pa.ipc.open_stream(answer.body).read_all()
            assert table.schema == arrow_schema(COLUMNS)
            assert table.column("value").to_pylist() == [b"body 1", b"body 2"]

    asyncio.run(scenario())


def test_without_pyarrow_the_other_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            monkeypatch.setattr(importlib, "import_module", missing)

            answer = await fetch(service, 1, Format="arrow")

            assert answer.json["__type"] == "com.amazonaws.sqs#UnsupportedOperation"
            assert "pip install quaymaster[spark]" in answer.json["message"]

    asyncio.run(scenario())


def test_only_what_the_columns_need_is_read_and_opened() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 2)
            for message in service.broker.queues[queue.queue_id].messages.values():
                damaged = bytearray(message.new.payload)
                damaged[-1] ^= 1
                message.new.payload = bytes(damaged)
            service.broker.commands.clear()

            times = await fetch(service, 1, Columns=["offset", "timestamp", "queue", "partition"])
            ids = await fetch(service, 1, Columns=["message_id"])
            bodies = await fetch(service, 2, Columns=["value"])

            assert [row["offset"] for row in rows(times)] == [1, 2]
            assert len({row["message_id"] for row in rows(ids)}) == 2
            asked = [command for command in service.broker.commands if isinstance(command, Fetch)]
            assert [command.with_messages for command in asked] == [False, True, True]
            assert bodies.json["__type"] == "com.quaymaster#MessageUnreadable"
            assert bodies.json["Offset"] == 2

    asyncio.run(scenario())


def test_an_offset_that_is_not_kept_is_refused_with_the_one_that_is() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 3)
            del service.broker.queues[queue.queue_id].messages[1]

            answer = await fetch(service, 1)

            assert answer.status == 400
            assert answer.headers["x-amzn-query-error"] == "OffsetOutOfRange;Sender"
            assert answer.json["__type"] == "com.quaymaster#OffsetOutOfRange"
            assert (answer.json["EarliestOffset"], answer.json["NextOffset"]) == (2, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"Partition": 7},
            "Value 7 for parameter Partition is invalid. Reason: The queue has partitions 0 to 0.",
        ),
        ({"ToOffset": 0}, "It must not be below FromOffset"),
        ({"QueueUrl": "nowhere"}, "The specified queue does not exist."),
    ],
)
def test_other_ranges_are_refused(given: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")

            answer = await ask(
                service, "FetchMessages", **{"Partition": 0, "FromOffset": 1, "ToOffset": 9, **given}
            )

            assert answer.status == 400
            assert message in answer.json["message"]

    asyncio.run(scenario())


def test_logs_are_read_by_those_who_may_only() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            service.client.secret += "x"

            answer = await fetch(service, 1)

            assert answer.status == 403
            assert ACCOUNT not in answer.body.decode()

    asyncio.run(scenario())


def test_more_fetches_than_may_wait_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_actions, "FETCHES_WAITING_MAX", 2)

    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            service.broker.is_silent = True
            held = [asyncio.create_task(fetch(service, 1)) for _ in range(2)]
            await until(lambda: len(service.broker.commands) == 2)

            answer = await fetch(service, 1)

            assert answer.status == 503
            for task in held:
                task.cancel()

    asyncio.run(scenario())


def test_a_missing_message_is_an_error_and_not_a_row_less() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 4)
            del service.broker.queues[queue.queue_id].messages[2]

            answer = await fetch(service, 1)

            assert answer.status == 500

    asyncio.run(scenario())


def test_queues_that_keep_nothing_are_not_read_by_offsets() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log")

            answers = [
                await ask(service, "DescribeLog"),
                await ask(service, "FindOffsets", Timestamp=0),
                await fetch(service, 1),
                await ask(service, "CommitOffsets", Offsets=[]),
            ]

            for answer in answers:
                assert answer.json["__type"] == "com.amazonaws.sqs#UnsupportedOperation"
                assert "RetentionMode=Log" in answer.json["message"]

    asyncio.run(scenario())


def test_a_group_has_what_it_committed_and_is_made_by_its_first_commit() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 5)
            url = service.client.url("log@spark")

            missing = await ask(service, "DescribeLog", QueueUrl=url)
            committed = await ask(
                service, "CommitOffsets", QueueUrl=url, Offsets=[{"Partition": 0, "Offset": 4}]
            )
            described = await ask(service, "DescribeLog", QueueUrl=url)
            fetched = await fetch(service, 1, QueueUrl=url, Columns=["queue", "offset"])

            assert missing.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
            assert (committed.status, committed.body) == (200, b"")
            assert described.json["QueueName"] == "log"
            assert described.json["Partitions"] == [
                {"Partition": 0, "EarliestOffset": 1, "NextOffset": 6, "Committed": 4}
            ]
            assert rows(fetched)[0] == {"queue": "log", "offset": 1}

    asyncio.run(scenario())


def test_who_takes_a_group_over_keeps_everybody_else_from_committing() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 5)
            url = service.client.url("log@spark")

            async def commit(offset: int, **given: Any) -> tuple[int, str | None]:
                offsets = [{"Partition": 0, "Offset": offset}]
                answer = await ask(service, "CommitOffsets", QueueUrl=url, Offsets=offsets, **given)
                return answer.status, answer.json["__type"] if answer.body else None

            fenced = (400, "com.quaymaster#GroupTakenOver")
            assert await commit(1, Reader="one", Take=True) == (200, None)
            assert await commit(2, Reader="one") == (200, None)
            assert await commit(2, Reader="two", Take=True) == (200, None)
            assert await commit(3, Reader="one") == fenced
            assert await commit(3, Reader="two", Take=False) == (200, None)
            assert await commit(4) == (200, None)
            assert await commit(5, Reader="one", Take=True) == (200, None)
            assert await commit(5, Reader="two") == fenced

            described = await ask(service, "DescribeLog", QueueUrl=url)
            assert described.json["Partitions"][0]["Committed"] == 5

    asyncio.run(scenario())


def test_a_reader_that_took_a_group_elsewhere_is_known_after_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through another front end, of which this one has not heard yet."""

    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 1)
            url = service.client.url("log@spark")
            queues = service.metadata.queues
            offsets = [{"Partition": 0, "Offset": 1}]
            await ask(service, "CommitOffsets", QueueUrl=url, Offsets=[])
            looked: list[str] = []

            async def refresh(definition: QueueDefinition) -> None:
                looked.append(definition.name)
                await queues.change(TagQueue(definition.account_id, definition.name, {READER_TAG: "one"}))

            monkeypatch.setattr(queues, "refresh", refresh)
            first = await ask(service, "CommitOffsets", QueueUrl=url, Offsets=offsets, Reader="one")
            again = await ask(service, "CommitOffsets", QueueUrl=url, Offsets=offsets, Reader="one")

            assert (first.status, again.status, looked) == (200, 200, ["log@spark"])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"Reader": "a b"}, "It must be 1 to 128 letters, digits and _ . : - characters."),
        ({"Take": True}, "It needs a Reader: who is to have the group."),
        ({"QueueUrl": "log"}, "Offsets are committed for a consumer group"),
        ({"Offsets": [{"Partition": 2, "Offset": 1}]}, "The queue has partitions 0 to 0."),
        ({"Offsets": [{"Partition": 0, "Offset": -1}]}, "Value -1 for parameter Offset is invalid."),
        ({"QueueUrl": "other@spark"}, "The specified queue does not exist."),
    ],
)
def test_other_commits_are_refused(given: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", RetentionMode="Log")

            answer = await ask(service, "CommitOffsets", **{"QueueUrl": "log@spark", "Offsets": [], **given})

            assert answer.status == 400
            assert message in answer.json["message"]

    asyncio.run(scenario())
