"""Several journals in one process: each command goes to its queue's, and messages move from one to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from harness.broker_support import define, message, numbers, options, redrive_to
from harness.waiting import PATIENCE_S

from quaymaster.broker.copies.backup import OwnJournalCut, ServerCut, backup, restore
from quaymaster.broker.own_journals import OwnJournals, list_journals
from quaymaster.broker.storage.journal_state import JournalWentBack
from quaymaster.coordination.cell_keys import configuration_key, encode_configuration
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import CountMessages, QueueCounts, Receive, ReceiveOutcome, Send
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import (
    AskGroups,
    AskMarks,
    GroupsOutcome,
    MarksOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.net.routing.broker_client import ask

SOURCE = msgspec.structs.replace(
    define(1, "source", RedrivePolicy=redrive_to("dead", 1)), partitions=one_partition(0)
)
DEAD = msgspec.structs.replace(define(2, "dead"), partitions=one_partition(1))
QUEUES = (SOURCE, DEAD)
CACHE_BYTES = 100_000


def journal_of(queue_id: int, partition: int) -> int | None:
    return {queue.queue_id: queue.partitions[partition].journal_id for queue in QUEUES}.get(queue_id)


async def find_queue(account_id: str, name: str) -> QueueDefinition | None:
    return next((queue for queue in QUEUES if queue.name == name), None)


class Far:
    """What other processes lead."""

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        raise NotLeader

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        raise NotLeader


@asynccontextmanager
async def leading(
    directory: Path, store: Coordination, journals: Iterable[int], *, has_others: bool = False
) -> AsyncIterator[OwnJournals]:
    own = OwnJournals(
        options(directory, body_cache_bytes=CACHE_BYTES),
        journals,
        store,
        journal_of=journal_of,
        on_stopped=lambda error: None,
        find_queue=find_queue,
        elsewhere=Far() if has_others else None,
    )
    await own.start()
    try:
        yield own
    finally:
        await own.close()


async def asked(own: OwnJournals, command: Command) -> Outcome:
    async with asyncio.timeout(PATIENCE_S):
        return await ask(own, command)


async def count(own: OwnJournals, queue_id: int) -> int:
    counts = await asked(own, CountMessages(queue_id))
    assert isinstance(counts, QueueCounts)
    return counts.visible


def test_each_queue_is_in_its_journal_and_dead_letters_move_between_them(tmp_path: Path) -> None:
    async def story() -> None:
        store = MemoryCoordination()
        async with leading(tmp_path, store, (0, 1)) as own:
            for queue in QUEUES:
                await asked(own, SetQueue(queue))
            await asked(own, Send(1, 0, [message(1)]))
            async with asyncio.timeout(PATIENCE_S):
                while not await count(own, 2):
                    await asked(own, Receive(1, 0, 10, 0))
        async with leading(tmp_path, store, await list_journals(tmp_path, store)) as own:
            outcome = await asked(own, Receive(2, 0, 10, 0))

            assert isinstance(outcome, ReceiveOutcome)
            assert numbers(outcome.deliveries) == [1]
            assert {
                number: list(own.get(number).host.replica.queues.definitions) for number in own.journals
            } == {
                0: [1],
                1: [2],
            }
            marks = await asked(own, AskMarks(1))
            assert isinstance(marks, MarksOutcome)
            assert marks.marks.queue_id == 2

    asyncio.run(story())


def test_commands_for_queues_that_are_unknown_or_elsewhere_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, MemoryCoordination(), (1,), has_others=True) as own:
            with pytest.raises(NotLeader):
                await asked(own, CountMessages(1))
            with pytest.raises(QueueDoesNotExist):
                await asked(own, CountMessages(3))
            with pytest.raises(NotLeader):
                own.get(0)

    asyncio.run(story())


def test_a_journal_that_was_led_and_is_missing_is_no_new_one(tmp_path: Path) -> None:
    async def story() -> None:
        store = MemoryCoordination()
        led = JournalConfiguration(2, "broker-1@x", ("broker-1@x",), (), activated=True)
        await store.compare_and_swap(configuration_key(1), 0, encode_configuration(led))

        assert await list_journals(tmp_path, store) == [0, 1]
        with pytest.raises(JournalWentBack):
            async with leading(tmp_path, store, await list_journals(tmp_path, store)):
                pass
        async with leading(tmp_path, store, (0,)):
            pass  # and the first was let go of

    asyncio.run(story())


def test_all_journals_are_in_one_backup(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_bytes(b"metadata")

    async def copy_metadata(path: Path) -> None:
        write(path)

    async def story() -> None:
        data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
        async with leading(data / "journals", MemoryCoordination(), (0, 1)) as own:
            (data / "format").write_text("1\n")
            for queue in QUEUES:
                await asked(own, SetQueue(queue))
                await asked(own, Send(queue.queue_id, 0, [message(queue.queue_id)]))
            cuts = {number: OwnJournalCut(own.get(number), own.directory) for number in own.journals}

            await backup(ServerCut(cuts, copy_metadata, data), copy, lambda done, total: None)

            assert [own.get(number).moves_hold for number in own.journals] == [0, 0]
        restore(copy, new)

        store = MemoryCoordination()
        async with leading(new / "journals", store, await list_journals(new / "journals", store)) as own:
            assert [await count(own, queue.queue_id) for queue in QUEUES] == [1, 1]

    asyncio.run(story())


def test_journals_of_a_process_share_the_memory_for_their_newest_messages(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, MemoryCoordination(), (0, 1)) as own:
            bounds = [journal.host.bodies for journal in own.all()]
            for queue in QUEUES:
                await asked(own, SetQueue(queue))
            for number in range(40):
                await asked(own, Send(1 + number % 2, 0, [message(number, filling=bytes(8_000))]))

            kept = sum(bodies.size_bytes for bodies in bounds)
            assert kept <= CACHE_BYTES + 2 * 9_000  # the newest batch of each journal stays
            assert kept > CACHE_BYTES - 9_000

    asyncio.run(story())
