"""Sending, receiving, deleting and hiding messages over HTTP, in both wire forms."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from frontend.support import ACCOUNT, Service, serving, until
from quaymaster.core.values.commands.messages import NewMessage, Receive, Send
from quaymaster.core.values.messages import HAS_RETRY, encode_moved, hash_dedup


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


async def receive_one(service: Service, name: str, **more: Any) -> dict[str, Any]:
    answer = await service.client.json("ReceiveMessage", {"QueueUrl": service.client.url(name), **more})
    (message,) = answer.json["Messages"]
    assert isinstance(message, dict)
    return message


def test_a_message_sent_as_json_is_received_and_deleted() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("jobs")
            url = service.client.url("jobs")

            sent = await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "hello ö"})
            got = await receive_one(service, "jobs")
            deleted = await service.client.json(
                "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": got["ReceiptHandle"]}
            )

            assert sent.status == 200
            assert sent.json["MD5OfMessageBody"] == md5("hello ö")
            assert sent.json.keys() == {"MD5OfMessageBody", "MessageId"}
            assert got["Body"] == "hello ö"
            assert got["MD5OfBody"] == md5("hello ö")
            assert got["MessageId"] == sent.json["MessageId"]
            assert "Attributes" not in got
            assert (deleted.status, deleted.body) == (200, b"")
            assert service.broker.queues[queue.queue_id].messages == {}

    asyncio.run(scenario())


def test_a_message_sent_as_query_is_received_and_deleted() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            client = service.client

            sent = await client.query("SendMessage", {"MessageBody": "a<b"}, f"/{ACCOUNT}/jobs")
            got = await client.request("GET", f"/{ACCOUNT}/jobs?Action=ReceiveMessage&AttributeName.1=All")
            handle = got.value("ReceiveMessageResult/Message/ReceiptHandle")
            assert handle is not None
            deleted = await client.query(
                "DeleteMessage", {"QueueUrl": client.url("jobs"), "ReceiptHandle": handle}
            )
            empty = await client.query("ReceiveMessage", {"QueueUrl": client.url("jobs")})

            assert sent.headers["content-type"] == "text/xml"
            assert sent.value("SendMessageResult/MD5OfMessageBody") == md5("a<b")
            assert got.value("ReceiveMessageResult/Message/Body") == "a<b"
            assert deleted.xml.tag == "DeleteMessageResponse"
            assert deleted.value("ResponseMetadata/RequestId") == deleted.headers["x-amzn-requestid"]
            assert b"<ReceiveMessageResult/>" in empty.body

    asyncio.run(scenario())


def test_attributes_come_back_with_the_sum_of_what_was_asked_for() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", VisibilityTimeout="0")
            attributes = {
                "color": {"DataType": "String", "StringValue": "red"},
                "count": {"DataType": "Number", "StringValue": "7"},
                "blob": {"DataType": "Binary.png", "BinaryValue": base64.b64encode(b"\x00\xff").decode()},
            }
            sent = await service.client.json(
                "SendMessage",
                {
                    "QueueUrl": service.client.url("jobs"),
                    "MessageBody": "x",
                    "MessageAttributes": attributes,
                },
            )

            every = await receive_one(service, "jobs", MessageAttributeNames=["All"])
            one = await receive_one(service, "jobs", MessageAttributeNames=["col.*"])
            none = await receive_one(service, "jobs", MessageAttributeNames=["other"])
            unasked = await receive_one(service, "jobs")

            assert every["MessageAttributes"] == attributes
            assert every["MD5OfMessageAttributes"] == sent.json["MD5OfMessageAttributes"]
            assert one["MessageAttributes"].keys() == {"color"}
            assert one["MD5OfMessageAttributes"] != sent.json["MD5OfMessageAttributes"]
            assert "MessageAttributes" not in none
            assert "MD5OfMessageAttributes" not in none
            assert "MessageAttributes" not in unasked

    asyncio.run(scenario())


def test_system_attributes_say_who_sent_when_and_how_often_it_was_received() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", VisibilityTimeout="0")
            sent = await service.client.json(
                "SendMessage",
                {
                    "QueueUrl": service.client.url("jobs"),
                    "MessageBody": "x",
                    "MessageGroupId": "tenant-1",
                    "MessageSystemAttributes": {
                        "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-a"}
                    },
                },
            )

            await receive_one(service, "jobs")
            got = await receive_one(service, "jobs", AttributeNames=["All"])
            some = await receive_one(service, "jobs", MessageSystemAttributeNames=["SenderId"])

            attributes = got["Attributes"]
            assert len(sent.json["MD5OfMessageSystemAttributes"]) == 32
            assert attributes["SenderId"] == sender_of(service)
            assert attributes["ApproximateReceiveCount"] == "2"
            assert attributes["AWSTraceHeader"] == "Root=1-a"
            assert attributes["MessageGroupId"] == "tenant-1"
            assert int(attributes["SentTimestamp"]) <= int(attributes["ApproximateFirstReceiveTimestamp"])
            assert "SequenceNumber" not in attributes
            assert some["Attributes"] == {"SenderId": sender_of(service)}

    asyncio.run(scenario())


def test_the_trace_header_of_the_request_becomes_an_attribute() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            sent = await service.client.json(
                "SendMessage",
                {"QueueUrl": service.client.url("jobs"), "MessageBody": "x"},
                {"X-Amzn-Trace-Id": "Root=1-5759e988"},
            )
            got = await receive_one(service, "jobs", AttributeNames=["AWSTraceHeader"])

            assert got["Attributes"] == {"AWSTraceHeader": "Root=1-5759e988"}
            assert "MD5OfMessageSystemAttributes" not in sent.json

    asyncio.run(scenario())


def test_fifo_messages_have_sequence_numbers_that_begin_as_those_of_sqs_and_grow() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs.fifo")
            url = service.client.url("jobs.fifo")

            numbers = []
            for n in range(3):
                sent = await service.client.json(
                    "SendMessage",
                    {
                        "QueueUrl": url,
                        "MessageBody": "x",
                        "MessageGroupId": "g",
                        "MessageDeduplicationId": f"d{n}",
                    },
                )
                numbers.append(sent.json["SequenceNumber"])
            got = await receive_one(service, "jobs.fifo", AttributeNames=["All"])

            assert numbers[0] == "18849496460467696129"
            assert [len(number) for number in numbers] == [20, 20, 20]
            assert numbers == sorted(set(numbers))
            assert got["Attributes"]["SequenceNumber"] == numbers[0]
            assert got["Attributes"]["MessageDeduplicationId"] == "d0"
            assert got["Attributes"]["MessageGroupId"] == "g"

    asyncio.run(scenario())


def test_content_based_deduplication_uses_the_sha256_of_the_body() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs.fifo", ContentBasedDeduplication="true")
            send = {
                "QueueUrl": service.client.url("jobs.fifo"),
                "MessageBody": "same",
                "MessageGroupId": "g",
            }

            first = await service.client.json("SendMessage", send)
            second = await service.client.json("SendMessage", send)
            by_id = await service.client.json(
                "SendMessage",
                {**send, "MessageBody": "o", "MessageDeduplicationId": hashlib.sha256(b"same").hexdigest()},
            )

            assert second.json["MessageId"] == first.json["MessageId"]
            assert second.json["SequenceNumber"] == first.json["SequenceNumber"]
            assert by_id.json["MessageId"] == first.json["MessageId"]
            assert service.metrics.messages_sent == 1
            assert service.metrics.messages_duplicate == 2

    asyncio.run(scenario())


def test_deduplication_id_is_stored_as_a_keyed_hash_where_the_queue_has_keyed_ids() -> None:
    async def scenario() -> None:
        async with serving() as service:
            unkeyed = [hash_dedup(hashlib.sha256(b"same").hexdigest(), group) for group in (None, "g")]
            found: dict[str, list[bytes | None]] = {}
            attributes_of: dict[str, dict[str, str]] = {
                "one.fifo": {},
                "two.fifo": {},
                "grouped.fifo": {"DeduplicationScope": "messageGroup"},
            }
            for name, attributes in attributes_of.items():
                queue = await service.add_queue(name, ContentBasedDeduplication="true", **attributes)
                assert queue.has_keyed_ids
                before = len(sent_messages(service))
                for _ in range(2):
                    await service.client.json(
                        "SendMessage",
                        {"QueueUrl": service.client.url(name), "MessageBody": "same", "MessageGroupId": "g"},
                    )
                found[name] = [message.dedup for message in sent_messages(service)[before:]]
            first = [hashes[0] for hashes in found.values()]

            assert all(len(set(hashes)) == 1 for hashes in found.values())
            assert len({*first, *unkeyed}) == 5

    asyncio.run(scenario())


def test_deduplication_can_be_per_group() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs.fifo", DeduplicationScope="messageGroup")
            send = {
                "QueueUrl": service.client.url("jobs.fifo"),
                "MessageBody": "x",
                "MessageDeduplicationId": "d",
            }

            one = await service.client.json("SendMessage", {**send, "MessageGroupId": "a"})
            two = await service.client.json("SendMessage", {**send, "MessageGroupId": "b"})
            again = await service.client.json("SendMessage", {**send, "MessageGroupId": "b"})

            assert one.json["MessageId"] != two.json["MessageId"]
            assert again.json["MessageId"] == two.json["MessageId"]

    asyncio.run(scenario())


def sender_of(service: Service) -> str:
    key = service.metadata.default_access_key
    assert key is not None
    return key.principal_id


def sent_messages(service: Service) -> list[NewMessage]:
    return [
        message
        for command in service.broker.commands
        if isinstance(command, Send)
        for message in command.messages
    ]


def test_a_retried_send_is_known_by_its_invocation_and_content() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            send = {"QueueUrl": service.client.url("jobs"), "MessageBody": "x"}
            invocation = {"amz-sdk-invocation-id": "5e8a0f3c"}

            first = await service.client.json(
                "SendMessage", send, {**invocation, "amz-sdk-request": "attempt=1"}
            )
            retry = await service.client.json(
                "SendMessage", send, {**invocation, "amz-sdk-request": "ttl=20; attempt=2; max=5"}
            )
            other = await service.client.json(
                "SendMessage", {**send, "MessageBody": "y"}, {**invocation, "amz-sdk-request": "attempt=2"}
            )
            tenth = await service.client.json("SendMessage", send, {"amz-sdk-request": "attempt=10"})

            assert retry.json["MessageId"] == first.json["MessageId"]
            assert other.json["MessageId"] != first.json["MessageId"]
            assert tenth.json["MessageId"] != first.json["MessageId"]
            messages = sent_messages(service)
            assert [message.may_be_retry for message in messages[1:]] == [True, True, True]
            assert [message.retry is not None for message in messages] == [True, True, True, False]
            assert messages[0].flags & HAS_RETRY

    asyncio.run(scenario())


def test_a_body_is_nowhere_in_what_the_broker_gets() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            await service.client.json(
                "SendMessage", {"QueueUrl": service.client.url("jobs"), "MessageBody": "very secret"}
            )

            (message,) = sent_messages(service)
            assert b"very secret" not in message.payload

    asyncio.run(scenario())


def test_delays_are_the_queues_unless_the_message_has_its_own() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            send = {"QueueUrl": service.client.url("jobs"), "MessageBody": "x"}

            await service.client.json("SendMessage", send)
            await service.client.json("SendMessage", {**send, "DelaySeconds": 0})
            await service.client.json("SendMessage", {**send, "DelaySeconds": 7})

            assert [message.delay_ms for message in sent_messages(service)] == [-1, 0, 7000]

    asyncio.run(scenario())


def test_a_fifo_message_has_no_delay_of_its_own() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs.fifo", ContentBasedDeduplication="true")
            send = {
                "QueueUrl": service.client.url("jobs.fifo"),
                "MessageBody": "x",
                "MessageGroupId": "g",
            }

            zero = await service.client.json("SendMessage", {**send, "DelaySeconds": 0})
            two = await service.client.json("SendMessage", {**send, "DelaySeconds": 2})

            assert zero.status == 200
            assert [message.delay_ms for message in sent_messages(service)] == [-1]
            assert two.status == 400
            assert two.json["message"].startswith("Value 2 for parameter DelaySeconds is invalid.")

    asyncio.run(scenario())


def test_a_batch_fails_entry_by_entry() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", MaximumMessageSize="1024")

            answer = await service.client.json(
                "SendMessageBatch",
                {
                    "QueueUrl": service.client.url("jobs"),
                    "Entries": [
                        {"Id": "good", "MessageBody": "x"},
                        {"Id": "long", "MessageBody": "y" * 1025},
                        {"Id": "bad", "MessageBody": "a\x00"},
                        {"Id": "fine", "MessageBody": "z"},
                    ],
                },
            )

            assert answer.status == 200
            assert [entry["Id"] for entry in answer.json["Successful"]] == ["good", "fine"]
            failed = {entry["Id"]: entry for entry in answer.json["Failed"]}
            assert failed["long"]["Code"] == "InvalidParameterValue"
            assert "cannot be validated" in failed["long"]["Message"]
            assert failed["bad"]["Code"] == "InvalidMessageContents"
            assert failed["bad"]["SenderFault"] is True
            assert len(sent_messages(service)) == 2

    asyncio.run(scenario())


def test_a_batch_in_which_nothing_is_good_asks_nothing_of_the_broker() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            url = service.client.url("jobs")

            sent = await service.client.json(
                "SendMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "MessageBody": "\x01"}]}
            )
            deleted = await service.client.json(
                "DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": "x"}]}
            )
            changed = await service.client.json(
                "ChangeMessageVisibilityBatch",
                {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": 1}]},
            )

            assert [answer.status for answer in (sent, deleted, changed)] == [200, 200, 200]
            assert all("Successful" not in answer.json for answer in (sent, deleted, changed))
            assert deleted.json["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
            assert service.broker.commands == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "AWS.SimpleQueueService.EmptyBatchRequest"),
        ([{"Id": "a"}, {"Id": "a"}], "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
        ([{"Id": "a b"}], "AWS.SimpleQueueService.InvalidBatchEntryId"),
        ([{"Id": "a b"}] * 11, "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"),
        (
            [{"Id": f"{n}", "MessageBody": "x" * 600_000} for n in range(2)],
            "AWS.SimpleQueueService.BatchRequestTooLong",
        ),
    ],
)
def test_what_is_wrong_with_a_batch_as_a_whole_fails_all_of_it(
    entries: list[dict[str, str]], code: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            answer = await service.client.json(
                "SendMessageBatch",
                {
                    "QueueUrl": service.client.url("jobs"),
                    "Entries": [{"MessageBody": "x", **entry} for entry in entries],
                },
            )

            assert answer.status == 400
            assert answer.headers["x-amzn-query-error"] == f"{code};Sender"

    asyncio.run(scenario())


def test_delete_batch_tells_good_handles_from_bad() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            await service.add_queue("others")
            url = service.client.url("jobs")
            for name in ("jobs", "others"):
                await service.client.json(
                    "SendMessage", {"QueueUrl": service.client.url(name), "MessageBody": name}
                )
            mine = await receive_one(service, "jobs")
            foreign = await receive_one(service, "others")

            answer = await service.client.json(
                "DeleteMessageBatch",
                {
                    "QueueUrl": url,
                    "Entries": [
                        {"Id": "1", "ReceiptHandle": mine["ReceiptHandle"]},
                        {"Id": "2", "ReceiptHandle": foreign["ReceiptHandle"]},
                        {"Id": "3", "ReceiptHandle": "garbage"},
                    ],
                },
            )

            assert [entry["Id"] for entry in answer.json["Successful"]] == ["1"]
            assert {entry["Id"]: entry["Code"] for entry in answer.json["Failed"]} == {
                "2": "ReceiptHandleIsInvalid",
                "3": "ReceiptHandleIsInvalid",
            }
            assert service.metrics.messages_deleted == 1

    asyncio.run(scenario())


def test_a_garbage_handle_is_quoted_in_the_error() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            answer = await service.client.json(
                "DeleteMessage", {"QueueUrl": service.client.url("jobs"), "ReceiptHandle": "garbage"}
            )

            assert answer.status == 404
            assert answer.json == {
                "__type": "com.amazonaws.sqs#ReceiptHandleIsInvalid",
                "message": 'The input receipt handle "garbage" is not a valid receipt handle.',
            }

    asyncio.run(scenario())


def test_what_the_broker_says_of_a_receipt_quotes_its_handle() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs.fifo", ContentBasedDeduplication="true", VisibilityTimeout="0")
            url = service.client.url("jobs.fifo")
            await service.client.json(
                "SendMessage", {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g"}
            )
            handle = (await receive_one(service, "jobs.fifo"))["ReceiptHandle"]

            answer = await service.client.json("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle})
            batch = await service.client.json(
                "DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": handle}]}
            )

            expected = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
            assert answer.status == 400
            assert answer.json["message"] == expected
            assert batch.json["Failed"][0]["Message"] == expected

    asyncio.run(scenario())


def test_visibility_is_changed_alone_and_in_batches() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            url = service.client.url("jobs")
            await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
            handle = (await receive_one(service, "jobs"))["ReceiptHandle"]

            alone = await service.client.json(
                "ChangeMessageVisibility",
                {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0},
            )
            again = await receive_one(service, "jobs")
            batch = await service.client.json(
                "ChangeMessageVisibilityBatch",
                {
                    "QueueUrl": url,
                    "Entries": [
                        {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 60},
                        {"Id": "b", "ReceiptHandle": handle, "VisibilityTimeout": 43_201},
                        {"Id": "c", "ReceiptHandle": "x", "VisibilityTimeout": 1},
                    ],
                },
            )
            beyond = await service.client.json(
                "ChangeMessageVisibility",
                {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": -1},
            )

            assert (alone.status, alone.body) == (200, b"")
            assert again["Body"] == "x"
            assert [entry["Id"] for entry in batch.json["Successful"]] == ["a"]
            assert [entry["Id"] for entry in batch.json["Failed"]] == ["b", "c"]
            assert beyond.status == 400
            assert "VisibilityTimeout" in beyond.json["message"]

    asyncio.run(scenario())


def test_a_long_poll_ends_when_a_message_comes() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", ReceiveMessageWaitTimeSeconds="20")
            url = service.client.url("jobs")

            poll = asyncio.create_task(service.client.json("ReceiveMessage", {"QueueUrl": url}))
            await until(lambda: service.broker.parked)
            waiting = service.calls.long_polls
            await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "at last"})
            answer = await poll

            assert waiting == 1
            assert answer.json["Messages"][0]["Body"] == "at last"
            assert service.calls.long_polls == 0
            assert service.calls.waiting == set()

    asyncio.run(scenario())


def test_a_receive_may_wait_less_than_the_queue_says() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", ReceiveMessageWaitTimeSeconds="20")

            answer = await service.client.json(
                "ReceiveMessage", {"QueueUrl": service.client.url("jobs"), "WaitTimeSeconds": 0}
            )

            assert (answer.status, answer.json) == (200, {})
            assert service.metrics.empty_receives == 1

    asyncio.run(scenario())


def test_a_poll_above_the_limit_is_a_short_one() -> None:
    async def scenario() -> None:
        async with serving(long_polls_max=1) as service:
            await service.add_queue("jobs", ReceiveMessageWaitTimeSeconds="20")
            url = service.client.url("jobs")
            first = asyncio.create_task(service.client.json("ReceiveMessage", {"QueueUrl": url}))
            await until(lambda: service.broker.parked)

            second = await service.client.json("ReceiveMessage", {"QueueUrl": url})
            await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "x"})

            assert second.json == {}
            assert (await first).json["Messages"][0]["Body"] == "x"

    asyncio.run(scenario())


def test_a_poll_is_taken_back_when_its_client_hangs_up() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            client = service.client
            url = client.url("jobs")
            body = f'{{"QueueUrl": "{url}", "WaitTimeSeconds": 20}}'.encode()
            headers = {"x-amz-target": "AmazonSQS.ReceiveMessage"}
            _, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(client.render("POST", "/", headers, body))
            await until(lambda: service.broker.parked)

            writer.close()
            await until(lambda: not service.calls.waiting)
            await client.json("SendMessage", {"QueueUrl": url, "MessageBody": "kept"})
            got = await receive_one(service, "jobs")

            assert got["Body"] == "kept"
            assert service.calls.long_polls == 0

    asyncio.run(scenario())


def test_polls_end_empty_when_the_server_drains() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", ReceiveMessageWaitTimeSeconds="20")
            poll = asyncio.create_task(
                service.client.json("ReceiveMessage", {"QueueUrl": service.client.url("jobs")})
            )
            await until(lambda: service.broker.parked)

            await service.server.drain(5)
            answer = await poll

            assert (answer.status, answer.json) == (200, {})
            assert answer.headers["connection"] == "close"

    asyncio.run(scenario())


def test_an_attempt_id_reaches_the_broker_of_a_fifo_queue_only() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs.fifo")
            await service.add_queue("jobs")

            for name in ("jobs.fifo", "jobs"):
                await service.client.json(
                    "ReceiveMessage",
                    {"QueueUrl": service.client.url(name), "ReceiveRequestAttemptId": "again"},
                )

            receives = [c for c in service.broker.commands if isinstance(c, Receive)]
            assert receives[0].attempt is not None
            assert len(receives[0].attempt) == 16
            assert receives[1].attempt is None
            assert [receive.attempt_id for receive in receives] == ["again", ""]

    asyncio.run(scenario())


def test_a_dead_letter_names_the_queue_it_died_in() -> None:
    async def scenario() -> None:
        async with serving() as service:
            source = await service.add_queue("jobs")
            dead = await service.add_queue("dead")
            client = service.client
            await client.json("SendMessage", {"QueueUrl": client.url("jobs"), "MessageBody": "x"})
            message = service.broker.queues[source.queue_id].messages.pop(1)
            arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:jobs"
            message.new.payload = encode_moved(source.queue_id, 0, 1, None, arn, message.new.payload)
            service.broker.queues[dead.queue_id].messages[1] = message

            got = await receive_one(service, "dead", AttributeNames=["DeadLetterQueueSourceArn"])

            assert got["Body"] == "x"
            assert got["Attributes"] == {"DeadLetterQueueSourceArn": arn}

    asyncio.run(scenario())


def test_a_message_keeps_the_id_its_sender_got_under_every_other_id() -> None:
    async def scenario() -> None:
        async with serving() as service:
            source = await service.add_queue("jobs")
            client = service.client
            sent = await client.json("SendMessage", {"QueueUrl": client.url("jobs"), "MessageBody": "x"})
            message = service.broker.queues[source.queue_id].messages[1]
            for number, new_id in ((0, None), (0, b"r" * 16), (7, b"s" * 16)):
                message.new.payload = encode_moved(
                    source.queue_id, 0, 1, new_id, None, message.new.payload, number
                )

            got = await receive_one(service, "jobs", MessageSystemAttributeNames=["OriginMessageId"])

            assert got["MessageId"] == "73737373-7373-7373-7373-737373737373"
            assert got["Attributes"] == {"OriginMessageId": sent.json["MessageId"]}

    asyncio.run(scenario())


def test_a_damaged_message_does_not_keep_others_from_being_received(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("jobs")
            url = service.client.url("jobs")
            for body in ("damaged", "whole"):
                await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": body})
            damaged = service.broker.queues[queue.queue_id].messages[1].new
            damaged.payload = damaged.payload[:-1] + bytes([damaged.payload[-1] ^ 1])

            answer = await service.client.json("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})

            assert [message["Body"] for message in answer.json["Messages"]] == ["whole"]
            assert "message could not be read" in caplog.messages

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        (
            "MaxNumberOfMessages",
            11,
            "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
        ),
        (
            "WaitTimeSeconds",
            21,
            "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
        ),
    ],
)
def test_a_receive_beyond_the_limits_is_refused(member: str, value: int, message: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            answer = await service.client.json(
                "ReceiveMessage", {"QueueUrl": service.client.url("jobs"), member: value}
            )

            assert answer.status == 400
            assert answer.json["message"] == message

    asyncio.run(scenario())


def test_a_poll_that_is_hurried_ends_empty_and_the_others_wait_on() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", ReceiveMessageWaitTimeSeconds="20")
            given = {"QueueUrl": service.client.url("jobs")}
            other = asyncio.ensure_future(service.client.json("ReceiveMessage", given))
            await until(lambda: service.calls.long_polls == 1)
            (others_call,) = service.calls.waiting
            poll = asyncio.ensure_future(service.client.json("ReceiveMessage", given))
            await until(lambda: service.calls.long_polls == 2)
            (call,) = service.calls.waiting - {others_call}

            assert call.request.on_hurry is not None
            call.request.on_hurry()
            answer = await poll

            assert (answer.status, answer.json) == (200, {})
            call.on_hurry()
            assert not other.done()
            await service.client.json("SendMessage", {**given, "MessageBody": "hello"})
            assert (await other).status == 200

    asyncio.run(scenario())
