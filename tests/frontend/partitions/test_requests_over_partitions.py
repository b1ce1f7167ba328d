"""Requests of clients to queues of several partitions, from HTTP to a broker in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest
from core.spread.support import HIGH, LOW, entry

from frontend.admin.test_admin import administered
from frontend.support import FakeBroker, FakeQueue, Service, serving, until
from quaymaster.core.values.commands.messages import Elsewhere, Receive, ReceiveOutcome, Send, Watch
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist
from quaymaster.core.values.messages import hash_group
from quaymaster.core.values.partition_tables import entry_of
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    encode_queue_definition,
    replace_definition,
)
from quaymaster.frontend.actions.message_actions import SEQUENCE_NUMBER_BASE

from .support import Asked, ScriptedBroker

FIFO = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
PEER = 1 << 20
"""Partitions of a queue are queues of the fake broker, so far from each other."""


def group_in(entry: PartitionPlacement) -> str:
    """Return a message group whose key a partition has."""
    return next(str(n) for n in count() if entry.first_key <= hash_group(str(n)) <= entry.last_key)


def divide(broker: FakeBroker) -> dict[int, Exception]:
    """Have a broker keep the messages of each partition apart; return errors by partition, for the test to set."""
    failures: dict[int, Exception] = {}
    carry_out = broker._carry_out

    def carry_out_there(command: Any) -> Any:
        number = getattr(command, "partition", 0)
        if number in failures:
            raise failures[number]
        if number > 0:
            queue_id = command.queue_id + number * PEER
            broker.queues.setdefault(queue_id, FakeQueue(broker.queues[command.queue_id].definition))
            return carry_out(msgspec.structs.replace(command, queue_id=queue_id))
        return carry_out(command)

    broker._carry_out = carry_out_there  # type: ignore[method-assign]
    return failures


def show(service: Service, definition: QueueDefinition, *entries: PartitionPlacement) -> QueueDefinition:
    """Have metadata show a queue with this table."""
    changed = with_table(definition, *entries)
    rows = service.metadata.registry.queues.rows
    suffix = f"{definition.account_id}/{definition.name}"
    rows.apply(suffix, encode_queue_definition(changed), rows.revision(suffix) + 1)
    return changed


def with_table(definition: QueueDefinition, *entries: PartitionPlacement) -> QueueDefinition:
    return replace_definition(
        definition,
        partitions=entries,
        table_version=definition.table_version + 1,
        revision=definition.revision + 1,
        next_partition=max(one.number for one in entries) + 1,
    )


HALVES = (entry(1, keys=LOW), entry(2, keys=HIGH))


def test_a_batch_is_stored_by_groups_and_entries_of_a_partition_without_a_leader_fail_alone() -> None:
    async def scenario() -> None:
        async with serving() as service:
            failures = divide(service.broker)
            queue = await service.add_queue("jobs.fifo", **FIFO)
            show(service, queue, *HALVES)
            failures[2] = NotLeader()
            url, low, high = service.client.url("jobs.fifo"), group_in(HALVES[0]), group_in(HALVES[1])
            entries = [
                {
                    "Id": str(n),
                    "MessageBody": f"b{n}",
                    "MessageGroupId": group,
                    "MessageDeduplicationId": str(n),
                }
                for n, group in enumerate((high, low, high, low))
            ]

            answer = await service.client.json("SendMessageBatch", {"QueueUrl": url, "Entries": entries})

            stored, failed = answer.json["Successful"], answer.json["Failed"]
            assert [(one["Id"], one["SequenceNumber"]) for one in stored] == [
                ("1", str(SEQUENCE_NUMBER_BASE + 1)),
                ("3", str(SEQUENCE_NUMBER_BASE + 2)),
            ]
            assert [(one["Id"], one["SenderFault"]) for one in failed] == [("0", False), ("2", False)]
            assert {one["Code"] for one in failed} == {"ServiceUnavailable"}

    asyncio.run(scenario())


def test_a_batch_of_which_nothing_could_be_stored_fails_as_one() -> None:
    async def scenario() -> None:
        async with serving() as service:
            failures = divide(service.broker)
            show(service, await service.add_queue("jobs"), *HALVES)
            failures.update({1: NotLeader(), 2: NotLeader()})
            entries = [{"Id": str(n), "MessageBody": "b"} for n in range(3)]

            answer = await service.client.json(
                "SendMessageBatch", {"QueueUrl": service.client.url("jobs"), "Entries": entries}
            )

            assert answer.status == 503

    asyncio.run(scenario())


async def received(service: Service, name: str, bodies: int) -> dict[str, str]:
    """Receive so many messages; return their handles by their bodies."""
    handles: dict[str, str] = {}
    while len(handles) < bodies:
        answer = await service.client.json(
            "ReceiveMessage", {"QueueUrl": service.client.url(name), "MaxNumberOfMessages": 10}
        )
        handles |= {message["Body"]: message["ReceiptHandle"] for message in answer.json["Messages"]}
    return handles


async def sent_to_both(service: Service) -> QueueDefinition:
    """Store one message in each partition."""
    queue = show(service, await service.add_queue("jobs.fifo", **FIFO), *HALVES)
    for half, body in zip(HALVES, ("low", "high"), strict=True):
        answer = await service.client.json(
            "SendMessage",
            {
                "QueueUrl": service.client.url("jobs.fifo"),
                "MessageBody": body,
                "MessageGroupId": group_in(half),
                "MessageDeduplicationId": body,
            },
        )
        assert answer.status == 200
    return queue


def there(service: Service, queue: QueueDefinition, number: int) -> dict[int, Any]:
    return service.broker.queues[queue.queue_id + number * PEER].messages


def test_handles_lead_to_the_partitions_that_made_them() -> None:
    async def scenario() -> None:
        async with serving() as service:
            divide(service.broker)
            queue = await sent_to_both(service)
            handles = await received(service, "jobs.fifo", 2)
            url = service.client.url("jobs.fifo")

            seen = await service.client.json(
                "ChangeMessageVisibilityBatch",
                {
                    "QueueUrl": url,
                    "Entries": [
                        {"Id": body, "ReceiptHandle": handle, "VisibilityTimeout": 100}
                        for body, handle in handles.items()
                    ],
                },
            )
            one = await service.client.json(
                "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handles["high"]}
            )
            assert (len(there(service, queue, 1)), len(there(service, queue, 2))) == (1, 0)
            rest = await service.client.json(
                "DeleteMessageBatch",
                {
                    "QueueUrl": url,
                    "Entries": [{"Id": body, "ReceiptHandle": handle} for body, handle in handles.items()],
                },
            )

            assert one.status == 200
            assert {entry["Id"] for entry in seen.json["Successful"]} == {"low", "high"}
            assert {entry["Id"] for entry in rest.json["Successful"]} == {"low", "high"}
            assert there(service, queue, 1) == {}

    asyncio.run(scenario())


def test_messages_of_a_partition_that_was_drained_meanwhile_are_gone() -> None:
    async def scenario() -> None:
        async with serving() as service:
            divide(service.broker)
            queue = await sent_to_both(service)
            handles = await received(service, "jobs.fifo", 2)
            show(service, queue, entry(1, "drained", keys=LOW), entry(2, keys=HIGH), entry(3, keys=LOW))
            url = service.client.url("jobs.fifo")

            deleted = await service.client.json(
                "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handles["low"]}
            )
            changed = await service.client.json(
                "ChangeMessageVisibility",
                {"QueueUrl": url, "ReceiptHandle": handles["low"], "VisibilityTimeout": 5},
            )

            assert deleted.status == 200
            assert changed.status == 400

    asyncio.run(scenario())


class Sealing:
    """Answers commands to partition 0 with a newer table, as a journal does that sealed it."""

    def __init__(self, service: Service, newer: QueueDefinition) -> None:
        self.newer = newer
        self._carry_out = service.broker._carry_out
        service.broker._carry_out = self.carry_out  # type: ignore[method-assign]

    def carry_out(self, command: Any) -> Any:
        entry = entry_of(self.newer, getattr(command, "partition", -1))
        if isinstance(command, Send) and entry is not None and entry.state == "closing":
            return Elsewhere(self.newer, [None] * len(command.messages))
        return self._carry_out(command)


def test_a_send_by_an_old_row_goes_on_to_the_partition_that_takes_it() -> None:
    async def scenario() -> None:
        async with serving() as service:
            divide(service.broker)
            queue = await service.add_queue("jobs")
            Sealing(service, with_table(queue, entry(0, "closing"), entry(1)))

            answer = await service.client.json(
                "SendMessage", {"QueueUrl": service.client.url("jobs"), "MessageBody": "b"}
            )

            assert answer.status == 200
            assert len(there(service, queue, 1)) == 1
            assert list(await received(service, "jobs", 1)) == ["b"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("SendMessage", {"MessageBody": "b"}),
        ("ReceiveMessage", {}),
        ("GetQueueAttributes", {"AttributeNames": ["All"]}),
    ],
)
def test_a_partition_that_its_journal_does_not_know_makes_no_queue_gone(
    action: str, given: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            failures = divide(service.broker)
            await service.add_queue("jobs")
            failures.update({0: QueueDoesNotExist(), -1: QueueDoesNotExist()})

            answer = await service.client.json(action, {"QueueUrl": service.client.url("jobs"), **given})

            assert answer.status == 503

    asyncio.run(scenario())


def test_requests_of_one_pass_are_answered_beside_one_that_goes_on() -> None:
    async def scenario() -> None:
        async with serving() as service:
            failures = divide(service.broker)
            await service.add_queue("jobs")
            await service.add_queue("other")
            failures[0] = QueueDoesNotExist()

            answers = await asyncio.gather(
                *(
                    service.client.json(
                        "SendMessage", {"QueueUrl": service.client.url(name), "MessageBody": "b"}
                    )
                    for name in ("jobs", "other", "jobs", "other")
                )
            )

            assert {answer.status for answer in answers} == {503}
            assert service.calls.waiting == set()

    asyncio.run(scenario())


# Polls that go on


async def parked(service: Service, wait_s: int) -> tuple[asyncio.Task[Any], ScriptedBroker, Asked]:
    """Have a poll wait at a broker that the test answers for."""
    broker = ScriptedBroker()
    service.calls.broker._broker = broker
    service.calls.broker._polls._broker = broker
    poll = asyncio.create_task(
        service.client.json(
            "ReceiveMessage", {"QueueUrl": service.client.url("jobs"), "WaitTimeSeconds": wait_s}
        )
    )
    await until(lambda: broker.asked)
    return poll, broker, broker.one(Receive, 0)


def next_receive(broker: ScriptedBroker) -> Callable[[], object]:
    return lambda: any(isinstance(asked.command, Receive) for asked in broker.asked)


def test_a_poll_that_goes_on_waits_for_the_rest_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s = 0.0
    monkeypatch.setattr("quaymaster.frontend.call._monotonic", lambda: time.monotonic() + passed_s)

    async def scenario() -> None:
        nonlocal passed_s
        async with serving() as service:
            queue = await service.add_queue("jobs")
            poll, broker, asked = await parked(service, 20)

            passed_s = 15.0
            asked.answer(Elsewhere(with_table(queue, entry(0, "closing"), entry(1))))
            for _ in range(2):
                await until(next_receive(broker))
                broker.one(Receive).answer(ReceiveOutcome(3, []))

            waits_ms = [asked.command.wait_ms for asked in broker.take(Watch)]  # type: ignore[union-attr]
            assert all(0 < wait_ms <= 5_000 for wait_ms in waits_ms)
            assert len(waits_ms) == 2
            poll.cancel()

    asyncio.run(scenario())


def test_a_poll_that_goes_on_after_its_time_asks_once_more_and_ends_empty() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("jobs")
            poll, broker, asked = await parked(service, 20)
            (call,) = service.calls.waiting
            call.deadline_ms -= 20_000

            asked.answer(Elsewhere(with_table(queue, entry(0, "closing"), entry(1))))
            await until(next_receive(broker))
            broker.one(Receive).answer(ReceiveOutcome(3, []))
            await until(next_receive(broker))
            broker.one(Receive).answer(ReceiveOutcome(3, []))

            answer = await poll
            assert (answer.status, answer.json) == (200, {})

    asyncio.run(scenario())


def test_a_poll_that_goes_on_when_it_was_hurried_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("jobs")
            poll, _, asked = await parked(service, 20)
            (call,) = service.calls.waiting

            call.on_hurry()
            asked.answer(Elsewhere(with_table(queue, entry(0, "closing"), entry(1))))
            answer = await poll

            assert (answer.status, answer.json) == (200, {})
            assert service.calls.broker._polls._boards == {}

    asyncio.run(scenario())


# Operators


def test_operators_look_at_the_messages_of_all_partitions_page_by_page() -> None:
    async def scenario() -> None:
        async with administered() as port:
            service = port.service
            divide(service.broker)
            queue = await service.add_queue("jobs")
            younger = service.broker.queues[queue.queue_id + PEER] = FakeQueue(queue)
            younger.last_sequence = (1 << 44) - 1
            for number in (0, 1):
                for n in range(3):
                    body = f"{number}.{n}"
                    await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": body})
                show(service, queue, entry(0, "closed"), entry(1, first_sequence=1 << 44))

            bodies: list[str] = []
            pages: list[tuple[int, int]] = []
            query = ""
            while not pages or pages[-1][1]:
                answer = await port.call("GET", f"queues/jobs/messages?count=3{query}")
                page = answer.json
                bodies += [message["body"] for message in page["messages"]]
                pages.append((page["next_partition"], page["next_sequence"]))
                query = f"&partition={page['next_partition']}&from={page['next_sequence']}"

            assert bodies == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
            unknown = await port.call("GET", "queues/jobs/messages?partition=2")
            assert unknown.status == 400

    asyncio.run(scenario())
