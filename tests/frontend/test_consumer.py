"""Consuming inside of the server: what is received, deleted, hidden and waited for, of queues of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from core.spread.support import HIGH, LOW, entry

from frontend.partitions.test_requests_over_partitions import divide, group_in, show
from frontend.support import ACCOUNT, FakeSubmitted, Service, serving, until
from quaymaster.core.values.commands.messages import Elsewhere, Watch, WatchOutcome
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist, Timeout
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.assembly import spread_over, tables_of
from quaymaster.frontend.consumer import Consumer

HIDDEN_MS = 35_000


@asynccontextmanager
async def consuming(timeout_s: float = 60.0) -> AsyncIterator[tuple[Service, Consumer]]:
    async with serving() as service:
        yield service, consumer_of(service, timeout_s)


def consumer_of(service: Service, timeout_s: float = 60.0) -> Consumer:
    tables = tables_of(service.metadata.queues)
    broker = spread_over(service.broker, tables, service.metadata.queues)
    return Consumer(broker, tables, service.metadata, service.metrics, timeout_s=timeout_s)


async def send(service: Service, name: str, *bodies: str, **more: Any) -> list[str]:
    url = f"http://localhost/{ACCOUNT}/{name}"
    sent = [
        await service.client.json("SendMessage", {"QueueUrl": url, "MessageBody": body, **more})
        for body in bodies
    ]
    return [msgspec.json.decode(answer.body)["MessageId"] for answer in sent]


def hold_watches(service: Service) -> list[FakeSubmitted]:
    """Have the broker keep watches unanswered; return those there are."""
    held: list[FakeSubmitted] = []
    submit = service.broker.submit

    def submit_or_hold(command: Any, reply: Any) -> FakeSubmitted:
        if not isinstance(command, Watch):
            return submit(command, reply)
        held.append(FakeSubmitted(command, reply))
        return held[-1]

    service.broker.submit = submit_or_hold  # type: ignore[method-assign]
    return held


def test_a_received_message_has_all_that_its_sender_and_the_queue_say_of_it() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders")
            attributes = {
                "kind": {"DataType": "String", "StringValue": "new"},
                "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
            }
            (message_id,) = await send(service, "orders", "hello", MessageAttributes=attributes)

            (message,) = await consumer.receive(queue, 10, HIDDEN_MS)

            assert (message.message_id, message.origin_id) == (message_id, message_id)
            assert (message.body, message.body_md5) == ("hello", "5d41402abc4b2a76b9719d911017c592")
            assert message.attributes == (("kind", "String", "new"), ("raw", "Binary", b"\x00\x01"))
            assert message.attributes_md5
            assert (message.delivery_count, message.group_id) == (1, None)
            assert message.system["ApproximateReceiveCount"] == "1"
            assert message.system["SentTimestamp"] == str(message.sent_ms)
            assert await consumer.receive(queue, 10, HIDDEN_MS) == [], "it is hidden"
            assert (service.metrics.messages_received, service.metrics.empty_receives) == (1, 1)

    asyncio.run(scenario())


def test_deleted_messages_are_gone_and_hidden_ones_come_back_when_it_says() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders")
            await send(service, "orders", "one", "two")
            first, second = await consumer.receive(queue, 2, HIDDEN_MS)

            await consumer.delete(queue, [first])
            await consumer.hide(queue, [second], [0])

            (again,) = await consumer.receive(queue, 2, HIDDEN_MS)
            assert (again.body, again.delivery_count) == (second.body, 2)
            await consumer.delete(queue, [first])
            assert service.metrics.messages_deleted == 2

    asyncio.run(scenario())


def test_a_fifo_message_has_its_group_and_its_sequence_number() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders.fifo")
            await send(service, "orders.fifo", "one", MessageGroupId="a", MessageDeduplicationId="1")

            (message,) = await consumer.receive(queue, 2, HIDDEN_MS)

            assert message.group_id == message.system["MessageGroupId"] == "a"
            assert message.system["MessageDeduplicationId"] == "1"
            assert len(message.system["SequenceNumber"]) == 20

    asyncio.run(scenario())


def test_a_log_is_consumed_through_a_group_of_its_own_that_is_made_once() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("events", RetentionMode="Log")

            group = await consumer.consumed(queue)
            again = await consumer.consumed(queue)

            assert (group.name, group.group_of) == ("events@push", queue.queue_id)
            assert group.attributes == queue.attributes
            assert again.queue_id == group.queue_id
            plain = await service.add_queue("plain")
            assert await consumer.consumed(plain) is plain

    asyncio.run(scenario())


def test_a_queue_that_is_not_there_is_not_found() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders")

            assert await consumer.find(ACCOUNT, "orders") == queue
            assert await consumer.find(ACCOUNT, "other") is None

    asyncio.run(scenario())


def test_a_message_that_cannot_be_read_keeps_no_other_from_being_received() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders")
            await send(service, "orders", "one", "two")
            (damaged, _) = service.broker.queues[queue.queue_id].messages.values()
            damaged.new.payload = damaged.new.payload[:-1] + b"?"

            messages = await consumer.receive(queue, 10, HIDDEN_MS)

            assert [message.body for message in messages] == ["two"]

    asyncio.run(scenario())


def test_nothing_behind_a_fifo_message_that_cannot_be_read_is_received() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders.fifo")
            for body in ("one", "two", "three"):
                await send(service, "orders.fifo", body, MessageGroupId="a", MessageDeduplicationId=body)
            (_, damaged, _) = service.broker.queues[queue.queue_id].messages.values()
            damaged.new.payload = damaged.new.payload[:-1] + b"?"

            messages = await consumer.receive(queue, 10, HIDDEN_MS)

            assert [message.body for message in messages] == ["one"]

    asyncio.run(scenario())


def test_what_no_broker_answers_is_not_known() -> None:
    async def scenario() -> None:
        async with consuming(timeout_s=0.01) as (service, consumer):
            queue = await service.add_queue("orders")
            service.broker.is_silent = True

            with pytest.raises(Timeout):
                await consumer.receive(queue, 1, HIDDEN_MS)
            with pytest.raises(Timeout):
                await consumer.wait(queue, 10)

    asyncio.run(scenario())


def test_errors_of_the_broker_reach_who_asks() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders")
            await send(service, "orders", "one")
            (message,) = await consumer.receive(queue, 1, HIDDEN_MS)
            service.broker.failure = NotLeader()

            for asking in (
                consumer.receive(queue, 1, HIDDEN_MS),
                consumer.delete(queue, [message]),
                consumer.wait(queue, 1_000),
            ):
                with pytest.raises(NotLeader):
                    await asking
            service.broker.failure = QueueDoesNotExist()  # type: ignore[assignment]  # a refusal does as well
            with pytest.raises(QueueDoesNotExist):
                await consumer.wait(queue, 1_000)

    asyncio.run(scenario())


async def two_halves(service: Service) -> QueueDefinition:
    queue = await service.add_queue("orders.fifo")
    divide(service.broker)
    return show(service, queue, *HALVES)


HALVES = (entry(1, keys=LOW), entry(2, keys=HIGH))


def test_a_queue_of_several_partitions_is_consumed_in_all_of_them() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await two_halves(service)
            for half in HALVES:
                group = group_in(half)
                await send(service, "orders.fifo", group, MessageGroupId=group, MessageDeduplicationId=group)

            messages = [*await consumer.receive(queue, 10, HIDDEN_MS)]
            messages += await consumer.receive(queue, 10, HIDDEN_MS)
            await consumer.delete(queue, messages)

            assert {message.body for message in messages} == {group_in(half) for half in HALVES}
            assert service.metrics.messages_deleted == 2

    asyncio.run(scenario())


def test_one_parked_watch_of_each_partition_waits_for_messages_and_all_are_taken_back() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await two_halves(service)
            held = hold_watches(service)
            waiting = asyncio.ensure_future(consumer.wait(queue, 60_000))
            await until(lambda: len(held) == 2)

            held[0].reply(WatchOutcome(False))
            await asyncio.sleep(0)
            assert not waiting.done(), "the other one may have messages"
            held[1].reply(WatchOutcome(True))
            await waiting

            assert [watch.command.partition for watch in held] == [1, 2]  # type: ignore[union-attr]
            assert all(watch.is_cancelled for watch in held)

    asyncio.run(scenario())


def test_waiting_ends_when_no_partition_has_messages_any_more_or_one_tells_of_others() -> None:
    async def scenario() -> None:
        async with consuming() as (service, consumer):
            queue = await service.add_queue("orders.fifo")
            held = hold_watches(service)

            waiting = asyncio.ensure_future(consumer.wait(queue, 60_000))
            await until(lambda: len(held) == 1)
            held[0].reply(WatchOutcome(False))
            await waiting

            waiting = asyncio.ensure_future(consumer.wait(queue, 60_000))
            await until(lambda: len(held) == 2)
            held[1].reply(Elsewhere(show(service, queue, *HALVES)))
            await waiting
            waiting = asyncio.ensure_future(consumer.wait(queue, 60_000))
            await until(lambda: len(held) == 4)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

            assert [watch.command.partition for watch in held[2:]] == [1, 2]  # type: ignore[union-attr]
            assert all(watch.is_cancelled for watch in held[2:])

    asyncio.run(scenario())
