"""All journals that have partitions of a queue are told of it, and their tables are believed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metadata.fake_journals import FakeJournals
from metadata.support import ACCOUNT, World, run
from quaymaster.coordination.interface import Put
from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.errors import (
    QueueIdTaken,
    QueueRevisionTaken,
    TooFewReplicas,
    UnsupportedOperation,
)
from quaymaster.core.values.partition_tables import (
    entries_to_split,
    with_children,
    with_children_open,
    with_state,
    without,
)
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    encode_queue_definition,
    replace_definition,
)
from quaymaster.metadata.queues.queue_journals import TableTaken
from quaymaster.metadata.store.rows import DELETED, QUEUES, DeletedRow, row_decoder
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, SetAttributes

BY_GROUP = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


def in_journals(scenario: Callable[[World, FakeJournals], Awaitable[None]], keys: Path) -> None:
    """Run a scenario in a world with three journals."""

    async def among_journals(world: World) -> None:
        world.journal = journals = FakeJournals(world.clock)
        world.journal_ids = (0, 1, 2)
        await scenario(world, journals)

    run(among_journals, keys)


def split(queue: QueueDefinition, *journals: int) -> QueueDefinition:
    """Return a queue whose only open partition was split into these journals."""
    parents, ranges = entries_to_split(queue, len(journals))
    return with_children_open(with_children(queue, parents, ranges, journals))


def drained(queue: QueueDefinition, number: int = 0, **counts: int) -> QueueDefinition:
    return with_state(with_state(queue, number, "closed"), number, "drained", **counts)


async def store_row(world: World, queue: QueueDefinition) -> None:
    """Put a queue into the store behind the service's back."""
    await world.store.transaction(
        [], [Put(f"{QUEUES}{queue.account_id}/{queue.name}", encode_queue_definition(queue))]
    )


def test_an_attribute_change_is_told_to_all_journals_and_keeps_the_table(tmp_path: Path) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = split(await service.queues.change(CreateQueue(ACCOUNT, "orders")), 1, 2)
            await store_row(world, queue)

            changed = await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))

            assert changed.partitions == queue.partitions
            assert changed.table_version == queue.table_version
            assert [journals.known(queue.queue_id, journal_id) for journal_id in (0, 1, 2)] == [changed] * 3

    in_journals(scenario, tmp_path)


def test_a_journal_whose_partitions_are_drained_holds_up_neither_changes_nor_the_deletion(
    tmp_path: Path,
) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = drained(split(await service.queues.change(CreateQueue(ACCOUNT, "orders")), 1, 2))
            await store_row(world, queue)
            journals.without_leader = {0}

            changed = await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))
            told = [journals.known(queue.queue_id, journal_id) for journal_id in (1, 2)]
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            assert told == [changed, changed]
            assert [queue.queue_id in journals.of[journal_id].deleted for journal_id in (0, 1, 2)] == [
                *(False, True, True)
            ]
            journals.without_leader = set()
            world.clock.pass_s(3_600)
            await service.registry.queues.reconcile()
            assert queue.queue_id in journals.of[0].deleted

    in_journals(scenario, tmp_path)


def test_a_journal_without_a_leader_that_has_messages_holds_up_a_change(tmp_path: Path) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = split(await service.queues.change(CreateQueue(ACCOUNT, "orders")), 1, 2)
            await store_row(world, queue)
            journals.without_leader = {2}

            with pytest.raises(TooFewReplicas):
                await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))

            journals.without_leader = set()
            assert await service.registry.queues.reconcile() == 1
            known = journals.known(queue.queue_id, 2)
            assert known is not None
            assert known.attributes == {"DelaySeconds": "5"}

    in_journals(scenario, tmp_path)


def test_journals_of_a_deleted_queue_are_known_by_the_numbers_of_its_partitions(tmp_path: Path) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = without(
                drained(split(await service.queues.change(CreateQueue(ACCOUNT, "orders")), 1, 2)), [0]
            )
            await store_row(world, queue)
            await service.registry.queues.mirror.refresh(f"{QUEUES}{ACCOUNT}/orders")
            found = service.queues.journal_of
            before = [found(queue.queue_id, number) for number in (ALL_PARTITIONS, 0, 1, 2)]

            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            assert before == [1, None, 1, 2]
            assert [found(queue.queue_id, number) for number in (ALL_PARTITIONS, 0, 1, 2)] == before
            row = await world.store.get(f"{DELETED}{ACCOUNT}/orders")
            assert row is not None
            deleted = row_decoder(DeletedRow)(row.value)
            assert (deleted.journal_ids, deleted.numbers) == ((1, 2, 0), (1, 2))
            async with world.service() as another:
                assert [another.queues.journal_of(queue.queue_id, number) for number in (0, 1, 2)] == [
                    *(None, 1, 2)
                ]

    in_journals(scenario, tmp_path)


def test_a_row_that_meets_a_later_table_takes_its_partitions_and_keeps_its_own_attributes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            known = replace_definition(split(queue, 1, 2), attributes={"DelaySeconds": "9"})
            for journal_id in known.partitions[0].journal_id, 1, 2:
                await journals.set_queue(known, journal_id)

            await service.queues.change(SetAttributes(ACCOUNT, "orders", {"VisibilityTimeout": "7"}))

            row = service.queue(ACCOUNT, "orders")
            assert row.partitions == known.partitions
            assert row.table_version > known.table_version
            assert row.revision > known.revision
            assert row.next_partition == known.next_partition
            assert row.attributes == {"VisibilityTimeout": "7"}
            assert [journals.known(queue.queue_id, journal_id) for journal_id in (0, 1, 2)] == [row] * 3
            assert "the journal's partitions count" in caplog.text
            assert not list(service.registry.queues.pending.items())

    in_journals(scenario, tmp_path)


def test_another_table_of_the_same_version_is_believed_by_the_row(tmp_path: Path) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            known = split(queue, 1, 2)
            await journals.set_queue(known, 0)
            other = split(queue, 2, 2)
            await store_row(world, other)
            await service.registry.queues.mirror.refresh(f"{QUEUES}{ACCOUNT}/orders")

            await service.registry.queues.settling.tell_again(other)

            assert service.queue(ACCOUNT, "orders").partitions == known.partitions

    in_journals(scenario, tmp_path)


def test_what_weighs_most_of_the_refusals_of_several_journals_is_told(tmp_path: Path) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            later = split(queue, 1, 2)
            refusals: dict[int, Exception] = {}

            async def refuse(journal_id: int) -> None:
                if journal_id in refusals:
                    raise refusals[journal_id]

            journals.before = refuse
            cases: tuple[dict[int, Exception], ...] = (
                {1: TooFewReplicas(), 0: QueueRevisionTaken(4)},
                {1: QueueRevisionTaken(9), 0: TableTaken(later)},
                {1: TableTaken(later), 0: QueueIdTaken()},
                {1: QueueIdTaken(), 0: AssertionError("a bug")},
            )
            for expected in cases:
                refusals = expected
                with pytest.raises(type(expected[0])):
                    await service.registry.queues.journals.set_queue(later)

            refusals = {0: QueueRevisionTaken(4)}
            with pytest.raises(
                QueueRevisionTaken
            ):  # what is not waited for may still say that the store went back
                await service.registry.queues.journals.set_queue(drained(later))

    in_journals(scenario, tmp_path)


def test_a_drained_partitions_journal_that_never_answers_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.metadata.queues.queue_journals.UNAWAITED_MS", 10)

    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = drained(split(await service.queues.change(CreateQueue(ACCOUNT, "orders")), 1, 2))

            async def hang(journal_id: int) -> None:
                if journal_id == 0:
                    await asyncio.Event().wait()

            journals.before = hang
            await service.registry.queues.journals.set_queue(queue)

            assert journals.known(queue.queue_id, 2) == queue

    in_journals(scenario, tmp_path)


def test_a_fifo_queue_stays_divided_by_groups_while_it_has_several_partitions(tmp_path: Path) -> None:
    async def scenario(world: World, journals: FakeJournals) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "steps.fifo", BY_GROUP))
            await store_row(world, split(queue, 1, 2))
            await service.registry.queues.mirror.refresh(f"{QUEUES}{ACCOUNT}/steps.fifo")

            for change in ({"FifoThroughputLimit": "perQueue"}, {"DeduplicationScope": "queue"}):
                with pytest.raises(UnsupportedOperation, match="3 partitions, divided by message groups"):
                    await service.queues.change(
                        SetAttributes(ACCOUNT, "steps.fifo", change | {"FifoThroughputLimit": "perQueue"})
                    )
            await service.queues.change(SetAttributes(ACCOUNT, "steps.fifo", {"DelaySeconds": "5"}))

            await service.queues.change(CreateQueue(ACCOUNT, "one.fifo", BY_GROUP))
            await service.queues.change(
                SetAttributes(
                    ACCOUNT,
                    "one.fifo",
                    {"FifoThroughputLimit": "perQueue", "DeduplicationScope": "queue"},
                )
            )

    in_journals(scenario, tmp_path)
