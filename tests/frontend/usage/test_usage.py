"""One record of each answered request, with what it used; none of Quaymaster's own."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import Any

import pytest

from frontend.support import ACCOUNT, Service, serving_recorded, until
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.actions.message_preparation import MessagePreparation
from quaymaster.frontend.usage.recorder import (
    ASKED_NAMES_MAX,
    REFUSED_KINDS_MAX,
    PushSizes,
    UsageRecorder,
)
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.routing.metadata_client import unknown_until
from quaymaster.protocol.sqs.internal_queues import USAGE_QUEUE
from quaymaster.protocol.usage.client_details import ClientDetail
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, decode_block, encode_block
from quaymaster.protocol.usage.usage_records import UsageRecord


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test that awaits."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


HOUR_US = 3_600_000_000


def now_us() -> int:
    return time.time_ns() // 1000


def recorder(**options: Any) -> UsageRecorder:
    return UsageRecorder(now_us=now_us, **options)


def records_of(usage: UsageRecorder, *, is_last: bool = False) -> list[UsageRecord]:
    """Take what was recorded, through a block."""
    taken = usage.take(is_last=is_last)
    if not taken.count:
        return []
    rows = taken.columns(0, taken.count)
    block = encode_block(BlockOrigin("fe", 1, "r"), BlockEnd(), rows, low_watermark_us=taken.watermark_us)
    records = decode_block(block.data).records()
    assert all(record.event_time_us <= taken.watermark_us for record in records)
    return records


def url(name: str) -> str:
    return f"http://localhost/{ACCOUNT}/{name}"


@on_a_loop
async def test_a_send_is_recorded_with_who_asked_what_of_which_queue() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        queue = await service.add_queue("orders")
        attributes = {"Color": {"DataType": "String", "StringValue": "red"}}
        before_us = now_us()

        answer = await service.client.json(
            "SendMessage",
            {"QueueUrl": url("orders"), "MessageBody": "grün", "MessageAttributes": attributes},
            {"user-agent": "Test/1.0 os/linux"},
        )

        (record,) = records_of(usage)
        key = service.metadata.default_access_key
        assert key is not None
        assert record.request_id == answer.headers["x-amzn-requestid"]
        assert (record.account_id, record.access_key_id) == (ACCOUNT, key.access_key_id)
        assert record.principal_id == key.principal_id
        assert (record.source_ip, record.user_agent, record.protocol) == ("127.0.0.0/24", "Test/1.0", "json")
        assert (record.action, record.category, record.read_only) == ("SendMessage", "data", False)
        assert (record.queue_id, record.queue_name, record.queue_type) == (
            queue.queue_id,
            "orders",
            "standard",
        )
        assert (record.http_status, record.error_code) == (200, "")
        assert (record.message_count, record.payload_bytes, record.chunks) == (1, 5 + 5 + 6 + 3, 1)
        assert record.response_bytes == len(answer.body)
        assert record.request_bytes > 50
        assert before_us - 1_000 <= record.received_time_us <= record.event_time_us <= now_us() + 1_000
        assert record.request_params == record.response_elements == ""


@on_a_loop
async def test_batches_count_their_messages_and_total_bytes() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue("orders.fifo")
        entries = [
            {"Id": str(at), "MessageBody": "x" * 30_000, "MessageGroupId": "g", "MessageDeduplicationId": str(at // 2)}
            for at in range(5)
        ]  # fmt: skip

        await service.client.json("SendMessageBatch", {"QueueUrl": url("orders.fifo"), "Entries": entries})

        (record,) = records_of(usage)
        assert record.queue_type == "fifo"
        assert (record.message_count, record.duplicate_count) == (5, 2)
        assert (record.payload_bytes, record.chunks) == (150_000, 3)


@on_a_loop
async def test_a_batch_that_waits_for_a_data_key_counts_its_bytes_once() -> None:
    usage = recorder()
    prepare = MessagePreparation.prepare
    asked: list[asyncio.Future[None]] = []

    def waits_once(*arguments: Any) -> Any:
        if asked:
            return prepare(*arguments)
        asked.append(asyncio.get_running_loop().create_future())
        asked[0].get_loop().call_soon(asked[0].set_result, None)
        raise unknown_until(asked[0])

    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        entries = [{"Id": str(at), "MessageBody": "x" * 100} for at in range(3)]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MessagePreparation, "prepare", waits_once)
            await service.client.json("SendMessageBatch", {"QueueUrl": url("orders"), "Entries": entries})

        (record,) = records_of(usage)
        assert asked
        assert (record.message_count, record.payload_bytes) == (3, 300)


@on_a_loop
async def test_receives_count_what_is_returned_and_empty_ones_are_named_so() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        attributes = {"Color": {"DataType": "String", "StringValue": "red"}}
        for body in ("a", "üü"):
            given = {"QueueUrl": url("orders"), "MessageBody": body, "MessageAttributes": attributes}
            await service.client.json("SendMessage", given)
        records_of(usage)

        asked = {"QueueUrl": url("orders"), "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        received = await service.client.json("ReceiveMessage", asked)
        await service.client.json("ReceiveMessage", asked)
        handles = [message["ReceiptHandle"] for message in received.json["Messages"]]
        hidden = {"QueueUrl": url("orders"), "ReceiptHandle": handles[0], "VisibilityTimeout": 60}
        await service.client.json("ChangeMessageVisibility", hidden)
        await service.client.json("DeleteMessage", {"QueueUrl": url("orders"), "ReceiptHandle": handles[0]})
        entries = [{"Id": "1", "ReceiptHandle": handles[1]}, {"Id": "2", "ReceiptHandle": "none"}]
        await service.client.json("DeleteMessageBatch", {"QueueUrl": url("orders"), "Entries": entries})

        counted = [
            (record.action, record.message_count, record.payload_bytes, record.empty_receive)
            for record in records_of(usage)
        ]
        assert counted == [
            ("ReceiveMessage", 2, 1 + 4 + 2 * 14, False),
            ("ReceiveMessage", 0, 0, True),
            ("ChangeMessageVisibility", 1, 0, False),
            ("DeleteMessage", 1, 0, False),
            ("DeleteMessageBatch", 1, 0, False),
        ]


@on_a_loop
async def test_a_long_poll_took_long_but_not_by_the_server() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")

        await service.client.json("ReceiveMessage", {"QueueUrl": url("orders"), "WaitTimeSeconds": 1})

        (record,) = records_of(usage)
        assert record.latency_us >= 900_000
        assert record.server_us <= record.latency_us - 900_000
        assert record.empty_receive


@on_a_loop
async def test_what_is_secret_in_attributes_is_in_no_audit_event() -> None:
    usage = recorder()
    secret = {"PushEndpoint": "https://example.com/a?key=s3cret", "PushHeaders": '{"X-Key":"s3cret"}'}
    async with serving_recorded(usage) as service:
        await service.client.json("CreateQueue", {"QueueName": "orders", "Attributes": secret})
        await service.client.json("SetQueueAttributes", {"QueueUrl": url("orders"), "Attributes": secret})

    for record in records_of(usage):
        assert json.loads(record.request_params)["Attributes"] == {
            "PushEndpoint": "https://example.com/a?***",
            "PushHeaders": "***",
        }


@on_a_loop
async def test_actions_that_change_a_queue_say_what_was_asked_and_answered() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.client.json("CreateQueue", {"QueueName": "orders", "tags": {"team": "a"}})
        await service.client.json("GetQueueUrl", {"QueueName": "orders"})
        await service.client.query("DeleteQueue", {"QueueUrl": url("orders")})
        await service.client.json("DeleteQueue", {"QueueUrl": url("orders")})

        created, looked, deleted, refused = records_of(usage)
        assert json.loads(created.request_params) == {"QueueName": "orders", "tags": {"team": "a"}}
        assert json.loads(created.response_elements)["QueueUrl"].endswith("/orders")
        assert (looked.category, looked.read_only, looked.request_params) == ("management", True, "")
        assert (deleted.protocol, deleted.read_only, deleted.response_elements) == ("query", False, "")
        assert json.loads(deleted.request_params) == {"QueueUrl": url("orders")}
        assert refused.error_code == "AWS.SimpleQueueService.NonExistentQueue"
        assert refused.queue_type == ""
        hashes = [record.record_hash for record in (created, looked, deleted, refused)]
        assert [record.prev_hash for record in (looked, deleted, refused)] == hashes[:-1]


@on_a_loop
async def test_what_was_asked_at_length_is_left_out() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.client.json("CreateQueue", {"QueueName": "x" * 5_000})

        (record,) = records_of(usage)
        assert record.request_params == '{"omitted":true}'


def refused_in(records: list[UsageRecord]) -> Counter[tuple[int, str]]:
    """Return how many requests the records of refusals stand for."""
    found: Counter[tuple[int, str]] = Counter()
    for record in records:
        if not record.account_id:
            found[(record.http_status, record.error_code)] += json.loads(record.request_params)["requests"]
    return found


@on_a_loop
async def test_requests_of_unknown_clients_are_one_record_for_each_kind_of_refusal() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        service.client.key_id = None
        for agent in range(50):
            headers = {"x-amz-target": "AmazonSQS.ListQueues", "user-agent": f"Random/{agent}"}
            unsigned = await service.client.request("POST", "/", headers)
        service.client.key_id = "AKIANOBODYHASTHISKEY"
        denied = await service.client.request("GET", "/?Action=ListQueues")
        await service.client.request("GET", "/")
        waiting = usage.waiting

        first, second, third = records_of(usage, is_last=True)
        assert (unsigned.status, denied.status, waiting) == (403, 403, 0)
        assert refused_in([first]) == {(403, "MissingAuthenticationToken"): 50}
        assert refused_in([second]) == {(403, "InvalidClientTokenId"): 1}
        assert refused_in([third])[(404, third.error_code)] == 1
        assert (first.protocol, second.protocol) == ("json", "query")
        assert (first.account_id, first.action, first.chunks, first.message_count) == ("", "Unknown", 1, 0)
        assert (first.source_ip, first.user_agent, first.request_id, first.latency_us) == (
            "127.0.0.1",
            "",
            "",
            0,
        )
        assert (first.category, first.read_only) == ("management", True)
        assert first.response_bytes == 50 * len(unsigned.body)


CLIENTS: dict[ClientDetail, tuple[str, str]] = {
    "network": ("127.0.0.0/24", "Test/1.0"),
    "full": ("127.0.0.1", "Test/1.0 os/linux"),
    "none": ("", ""),
}


@on_a_loop
async def test_how_much_is_said_of_a_client_is_a_setting_and_all_of_it_for_management_actions() -> None:
    agent = {"user-agent": "Test/1.0 os/linux"}
    for detail, client in CLIENTS.items():
        usage = recorder(client_detail=detail)
        async with serving_recorded(usage) as service:
            await service.add_queue("orders")
            message = {"QueueUrl": url("orders"), "MessageBody": "m"}
            await service.client.json("SendMessage", message, agent)
            await service.client.json("CreateQueue", {"QueueName": "more"}, agent)

            sent, created = records_of(usage)

            assert (sent.source_ip, sent.user_agent) == client
            assert (created.source_ip, created.user_agent) == ("127.0.0.1", "Test/1.0 os/linux")


def test_what_was_refused_is_recorded_once_a_minute_and_at_last() -> None:
    now_ms = 0.0
    usage = UsageRecorder(now_us=lambda: int(now_ms * 1000), monotonic_ms=lambda: now_ms)

    def refuse(peer: str, code: str = "InvalidClientTokenId") -> None:
        usage.record_refused(
            HTTPRequest(b"POST", b"/", b"/", b"", [], peer, now_ms, {}, b""),
            *(code, 403),
            protocol="json",
            request_bytes=10,
            response_bytes=20,
        )

    refuse("1.1.1.1")
    now_ms = 59_000.0
    refuse("2.2.2.2")
    early = records_of(usage)
    now_ms = 60_000.0
    (first,) = records_of(usage)
    nothing = records_of(usage, is_last=True)
    refuse("1.1.1.1")
    later = records_of(usage)
    (last,) = records_of(usage, is_last=True)

    assert early == nothing == later == []
    assert json.loads(first.request_params) == {"requests": 2, "seconds": 60}
    assert (first.request_bytes, first.response_bytes, first.source_ip) == (20, 40, "")
    assert (last.source_ip, usage.recorded) == ("1.1.1.1", 2)


def test_kinds_of_refusals_are_bounded() -> None:
    usage = recorder()
    request = HTTPRequest(b"POST", b"/", b"/", b"", [], "1.1.1.1", 0.0, {}, b"")
    for number in range(3 * REFUSED_KINDS_MAX):
        usage.record_refused(
            request, f"Code{number}", 400, protocol="json", request_bytes=0, response_bytes=0
        )

    records = records_of(usage, is_last=True)

    assert len(records) == REFUSED_KINDS_MAX + 1
    assert sum(refused_in(records).values()) == 3 * REFUSED_KINDS_MAX


@on_a_loop
async def test_user_agents_of_signed_requests_take_bounded_memory_between_two_writes() -> None:
    usage = recorder(rows_max=5)
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        await service.add_queue(USAGE_QUEUE)
        for agent in range(20):
            headers = {"user-agent": f"Random/{agent}"}
            given = {"QueueUrl": url("orders"), "MessageBody": "x"}
            assert (await service.client.json("SendMessage", given, headers)).status == 200
            await service.client.json("ReceiveMessage", {"QueueUrl": url(USAGE_QUEUE)}, headers)

        assert len(usage._numbers) == len(usage._contexts) == 5
        assert (usage.waiting, usage.take().overflow) == (5, 15)


@on_a_loop
async def test_a_client_that_leaves_is_recorded_as_gone() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        body = json.dumps({"QueueUrl": url("orders"), "WaitTimeSeconds": 20}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", service.client.port)
        headers = {"x-amz-target": "AmazonSQS.ReceiveMessage"}
        writer.write(service.client.render("POST", "/", headers, body))
        await until(lambda: service.calls.long_polls)

        writer.close()
        await until(lambda: usage.recorded)

        (record,) = records_of(usage)
        assert (record.http_status, record.error_code) == (499, "ClientGone")
        assert not record.empty_receive


@on_a_loop
async def test_the_pipelines_own_queue_is_read_unrecorded_and_written_by_nobody() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue(USAGE_QUEUE)

        read = await service.client.json("ReceiveMessage", {"QueueUrl": url(USAGE_QUEUE)})
        assert read.status == 200
        assert records_of(usage) == []

        tasks: list[tuple[str, dict[str, Any]]] = [
            ("SendMessage", {"QueueUrl": url(USAGE_QUEUE), "MessageBody": "forged"}),
            (
                "SendMessageBatch",
                {"QueueUrl": url(USAGE_QUEUE), "Entries": [{"Id": "1", "MessageBody": "x"}]},
            ),
            ("PurgeQueue", {"QueueUrl": url(USAGE_QUEUE)}),
            ("DeleteQueue", {"QueueUrl": url(USAGE_QUEUE)}),
            ("SetQueueAttributes", {"QueueUrl": url(USAGE_QUEUE), "Attributes": {"DelaySeconds": "1"}}),
            ("CreateQueue", {"QueueName": USAGE_QUEUE}),
        ]
        for action, given in tasks:
            answer = await service.client.json(action, given)
            assert answer.status == 403, action
        listed = await service.client.json("ListQueues", {})
        assert listed.json.get("QueueUrls", []) == []


async def call_at_random(service: Service, random: Random) -> str:
    """Make some request, right or wrong; return its code as metrics name it."""
    client = service.client
    queue = url(random.choice(["orders", "orders", "none"]))
    match random.randrange(8):
        case 0:
            answer = await client.json(
                "SendMessage", {"QueueUrl": queue, "MessageBody": "x" * random.randrange(9)}
            )
        case 1:
            answer = await client.query("ReceiveMessage", {"QueueUrl": queue})
        case 2:
            answer = await client.json("DeleteMessage", {"QueueUrl": queue, "ReceiptHandle": "wrong"})
        case 3:
            answer = await client.json("ListQueues", {})
        case 4:
            answer = await client.request("GET", "/")
        case 5:
            answer = await client.json("NoSuchAction", {})
        case 6:
            answer = await client.json("TagQueue", {"QueueUrl": queue, "Tags": {"a": "b"}})
        case _:
            service.broker.failure = NotNow()
            answer = await client.json("SendMessage", {"QueueUrl": queue, "MessageBody": "x"})
            service.broker.failure = None
    return str(answer.status)


@on_a_loop
async def test_records_and_answers_are_the_same_in_number_status_and_action() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        random = Random(7)
        statuses = Counter([await call_at_random(service, random) for _ in range(150)])

        records = records_of(usage, is_last=True)
        refused = refused_in(records)
        records = [record for record in records if record.account_id]

        counted_statuses = Counter(str(record.http_status) for record in records)
        for (status, _), number in refused.items():
            counted_statuses[str(status)] += number
        assert counted_statuses == statuses
        counted = Counter((record.action, record.error_code or "OK") for record in records)
        counted += Counter({("Unknown", code): number for (_, code), number in refused.items()})
        metrics = {
            (action, code): number
            for action, one in service.metrics.actions.items()
            for code, number in one.codes.items()
            if number
        }
        assert counted == metrics
        moved = service.metrics.messages_sent + service.metrics.messages_received
        assert sum(record.message_count for record in records) == moved
        assert len({record.request_id for record in records}) == len(records) == usage.recorded - len(refused)


@on_a_loop
async def test_what_is_too_much_for_memory_is_counted() -> None:
    usage = recorder(rows_max=2)
    written: list[int] = []
    usage.on_many = lambda: written.append(1)
    async with serving_recorded(usage) as service:
        await service.add_queue("orders")
        for _ in range(4):
            await service.client.json("SendMessage", {"QueueUrl": url("orders"), "MessageBody": "abc"})
        await service.client.json("SendMessage", {"QueueUrl": url("none"), "MessageBody": "abc"})

        taken = usage.take()

    assert taken.count == 2
    assert taken.overflow == 3
    (sends,) = taken.overflow_counts
    assert (sends.account_id, sends.action, sends.requests, sends.messages) == (ACCOUNT, "SendMessage", 3, 2)
    assert (sends.payload_bytes, sends.chunks, sends.errors) == (6, 3, 1)
    assert taken.counts(0, 2)[0].payload_bytes == 6


def test_time_stands_still_when_the_clock_goes_back() -> None:
    wall_us = 10_000_000
    elapsed_ms = 0.0
    usage = UsageRecorder(now_us=lambda: wall_us, monotonic_ms=lambda: elapsed_ms)

    first = usage.take()
    wall_us, elapsed_ms = 4_000_000, 1_000.0
    second = usage.take()
    wall_us, elapsed_ms = 5_000_000, 2_000.0
    third = usage.take()
    wall_us, elapsed_ms = 60_000_000, 3_000.0
    fourth = usage.take()

    marks = [taken.watermark_us for taken in (first, second, third, fourth)]
    assert marks == sorted(marks)
    assert marks[0] == 10_000_000
    assert marks[2] <= 12_000_000
    assert marks[3] == 60_000_000


@on_a_loop
async def test_a_queue_that_was_not_found_is_recorded_by_the_name_that_was_asked_for() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        for given in (
            {"QueueUrl": url("missing")},
            {"QueueUrl": url("missing.fifo")},
            {"QueueUrl": "http://localhost/000/" + "x" * 200},
        ):
            assert (await service.client.json("ReceiveMessage", given)).status == 400
        for name in ("gone", "no such name", "x" * 100_000):
            assert (await service.client.json("GetQueueUrl", {"QueueName": name})).status == 400
        assert (await service.client.json("ListQueues", {})).status == 200

        records = records_of(usage)

    assert [(record.queue_name, record.queue_id) for record in records] == [
        ("missing", 0),
        ("missing.fifo", 0),
        ("(invalid)", 0),
        ("gone", 0),
        ("(invalid)", 0),
        ("(invalid)", 0),
        ("", 0),
    ]


@on_a_loop
async def test_names_that_are_not_found_are_told_apart_up_to_a_bound_in_each_hour() -> None:
    clock = [now_us() // HOUR_US * HOUR_US + HOUR_US]
    usage = UsageRecorder(now_us=lambda: clock[0])
    async with serving_recorded(usage) as service:

        async def asked(*names: str) -> list[str]:
            for name in names:
                await service.client.json("GetQueueUrl", {"QueueName": name})
            return [record.queue_name for record in records_of(usage)]

        usage.take()
        usage._asked.update(f"earlier-{number}" for number in range(ASKED_NAMES_MAX - 1))
        first = await asked("a", "b", "a", "earlier-0")
        clock[0] += HOUR_US
        await asked("ends the hour")
        second = await asked("b")

    assert first == ["a", "(others)", "a", "earlier-0"]
    assert second == ["b"]


@on_a_loop
async def test_a_call_to_an_endpoint_is_recorded_as_use_of_its_queues_account() -> None:
    usage = recorder()
    async with serving_recorded(usage) as service:
        queue = await service.add_queue("orders")
        before = usage.recorded
        sizes = PushSizes(request_bytes=150_000, response_bytes=20, payload_bytes=140_000, deleted=3, gone=1)
        usage.record_push(queue, "OK", 200, 1_000.0, 1_250.0, sizes, "request-1")
        usage.record_push(queue, "Failed", 504, 1_000.0, 1_250.0, PushSizes(10, 0, 5, 0), "request-2")

        taken, failed = records_of(usage)[before:]

    assert (taken.action, taken.category, taken.protocol) == ("Push", "data", "push")
    assert (taken.account_id, taken.queue_name, taken.queue_type) == (ACCOUNT, "orders", "standard")
    assert (taken.http_status, taken.error_code, taken.chunks) == (200, "", 3)
    assert (taken.message_count, taken.duplicate_count, taken.payload_bytes) == (3, 1, 140_000)
    assert (taken.request_bytes, taken.response_bytes, taken.latency_us) == (150_000, 20, 250_000)
    assert (failed.http_status, failed.error_code, failed.message_count) == (504, "Failed", 0)


@on_a_loop
async def test_calls_to_endpoints_that_are_too_many_to_keep_are_counted() -> None:
    usage = recorder(rows_max=1)
    async with serving_recorded(usage) as service:
        queue = await service.add_queue("orders")
        for _ in range(3):
            usage.record_push(queue, "OK", 200, 0.0, 1.0, PushSizes(1, 1, 1, 1), "request")

        assert usage.take().overflow == 2
