"""Completions whose outputs go to another journal of a cell, over loopback: whoever leads, whatever is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from harness.broker_support import arn, body_of, define, message

from broker.cell.test_broker_service import until
from broker.cell.test_moves_between_journals import (
    DEAD,
    SOURCE_JOURNAL,
    STEPS_DEAD,
    TARGET_JOURNAL,
    TwoJournals,
    two_journals,
)
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, Output
from quaymaster.core.values.commands.messages import Receipt, Send
from quaymaster.core.values.commands.partitions import ForgetQueue
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.messages import join_payload

ORDERS = 7
GROUP = 9


def output(number: int, *, queue_id: int = DEAD, name: str = "jobs-x") -> Output:
    group = GROUP if queue_id == STEPS_DEAD else 0
    dedup = number.to_bytes(16, "big") if group else None
    flags, payload = join_payload(group, dedup, None, body_of(number, queue_id))
    return Output(queue_id, 0, TARGET_JOURNAL, group or number, arn(name), payload, flags)


async def receipt_of(cell: TwoJournals, number: int) -> Receipt:
    """Send a message, and return the receipt of a delivery of it; answers may be lost."""
    if number == 1:
        await cell.add_queue(SOURCE_JOURNAL, define(ORDERS, "orders"))
    await cell.tell(SOURCE_JOURNAL, Send(ORDERS, 0, [message(number, retry=number)]))
    while not (received := await cell.receive(SOURCE_JOURNAL, ORDERS)).deliveries:
        pass
    (delivery,) = received.deliveries
    return Receipt(delivery.sequence, received.epoch, delivery.delivery_count)


async def complete(cell: TwoJournals, receipt: Receipt, *outputs: Output) -> None:
    """Complete a message, again and again until that is answered."""
    while True:
        try:
            outcome = await cell.tell(
                SOURCE_JOURNAL, Complete(ORDERS, 0, [receipt], list(outputs), receipt.sequence)
            )
        except NotNow:
            continue
        assert isinstance(outcome, CompleteOutcome)
        assert outcome.errors == [None]
        return


def under_way(cell: TwoJournals) -> int:
    leader = cell.leader_of(SOURCE_JOURNAL)
    return leader.host.replica.queues.outputs_under_way if leader is not None else 0


def test_outputs_arrive_once_and_in_order_while_both_journals_change_their_leaders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=8) as cell:
            count = 40

            async def complete_all() -> None:
                for number in range(1, count + 1):
                    outputs = [
                        output(10 * number + at, queue_id=STEPS_DEAD, name="steps-x.fifo") for at in range(3)
                    ]
                    await complete(cell, await receipt_of(cell, number), *outputs)

            completing = asyncio.create_task(complete_all())
            for number, name in (
                (SOURCE_JOURNAL, "b"),
                (TARGET_JOURNAL, "c"),
                (TARGET_JOURNAL, "a"),
                (SOURCE_JOURNAL, "c"),
            ):
                await asyncio.sleep(0.1)
                await cell.hand_to(number, name)
                await until(lambda number=number: cell.leader_of(number) is not None)  # type: ignore[misc]
            await completing
            await until(lambda: cell.leader_of(SOURCE_JOURNAL) is not None and not under_way(cell))

            expected = [10 * number + at for number in range(1, count + 1) for at in range(3)]
            assert await cell.numbers(TARGET_JOURNAL, STEPS_DEAD) == expected
            assert await cell.visible(SOURCE_JOURNAL, ORDERS) == 0

    asyncio.run(scenario())


def test_outputs_wait_for_a_journal_without_a_leader_and_go_on_when_all_brokers_start_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=8) as cell:
            receipt = await receipt_of(cell, 1)
            for journal in (broker.journals[TARGET_JOURNAL] for broker in cell.brokers.values()):
                journal.host.stop(RuntimeError("stopped by a test"))
            cell.stopped.clear()
            await complete(cell, receipt, *[output(number) for number in range(10, 20)])
            assert under_way(cell) == 10
            for name in ("a", "b", "c"):
                await cell.stop(name)
            for name in ("a", "b", "c"):
                await cell.start(name)
            await cell.hand_to(SOURCE_JOURNAL, "b")
            await cell.hand_to(TARGET_JOURNAL, "b")
            await until(lambda: cell.leader_of(SOURCE_JOURNAL) is not None and not under_way(cell))

            assert await cell.numbers(TARGET_JOURNAL, DEAD) == list(range(10, 20))

    asyncio.run(scenario())


def test_outputs_of_a_deleted_queue_are_dropped_and_hold_up_no_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=8) as cell:
            await cell.add_queue(TARGET_JOURNAL, define(6, "short-lived"))
            receipt = await receipt_of(cell, 1)
            await cell.tell(TARGET_JOURNAL, ForgetQueue(6))
            del cell.queues["short-lived"]

            await complete(cell, receipt, output(10, queue_id=6, name="short-lived"), output(11))
            await until(lambda: not under_way(cell))

            assert await cell.numbers(TARGET_JOURNAL, DEAD) == [11]

    asyncio.run(scenario())


def test_outputs_of_a_queue_that_metadata_has_are_not_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=8) as cell:
            receipt = await receipt_of(cell, 1)
            # As a journal that lost its end would say it, until metadata has told it all its queues.
            await cell.tell(TARGET_JOURNAL, ForgetQueue(DEAD))

            await complete(cell, receipt, output(10))
            for _ in range(20):
                await cell.tell(SOURCE_JOURNAL, Send(ORDERS, 0, [message(2, retry=2)]))
            assert under_way(cell) == 1
            told = msgspec.structs.replace(cell.queues["jobs-x"])
            await cell.add_queue(TARGET_JOURNAL, told)
            await until(lambda: not under_way(cell))

            assert await cell.numbers(TARGET_JOURNAL, DEAD) == [10]

    asyncio.run(scenario())
