"""Which journal a new queue goes to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, REGION, eventually
from quaymaster.coordination.cell_keys import (
    BROKERS,
    BrokerRegistration,
    configuration_key,
    encode_configuration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import CoordinationUnavailable, Listing, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.cell import BrokerState
from quaymaster.core.values.errors import Overloaded, UnsupportedOperation
from quaymaster.core.values.formats import FORMAT_MIN, CellFormat
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.partition_tables import is_plain, why_broken
from quaymaster.metadata.queues.placement import CellJournals, related_names
from quaymaster.metadata.store.rows import QueueRows
from quaymaster.protocol.rpc.metadata_messages import (
    CreateQueue,
    DeleteQueue,
    ListDeadLetterSources,
    SetAttributes,
)

MEMBERS = ("b1@s1", "b2@s2", "b3@s3")
NEVER_S = 1e9


class Store(MemoryCoordination):
    is_away = False

    def _enter(self) -> None:
        if self.is_away:
            raise CoordinationUnavailable
        super()._enter()


async def put(store: MemoryCoordination, journal_id: int, *, activated: bool, before: bool = False) -> None:
    configuration = JournalConfiguration(4, MEMBERS[0], MEMBERS, MEMBERS if before else (), activated)
    await store.transaction([], [Put(configuration_key(journal_id), encode_configuration(configuration))])


async def register(store: MemoryCoordination, *names: str, state: BrokerState = "active") -> None:
    for name in names:
        registration = BrokerRegistration(name, "zone", f"{name}:9340", state)
        await store.transaction([], [Put(registration_key(name), encode_registration(registration))])


@asynccontextmanager
async def following(store: MemoryCoordination, *, forming_s: float = NEVER_S) -> AsyncIterator[CellJournals]:
    """Give the journals that take new queues."""
    journals = CellJournals(store, forming_s=forming_s)
    journals.start()
    try:
        yield journals
    finally:
        await journals.close()
        await store.close()


def test_journals_that_are_or_were_in_service_take_queues() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        await put(store, 1, activated=True)
        await put(store, 2, activated=False)
        await put(store, 3, activated=False, before=True)
        async with following(store) as journals:
            await eventually(lambda: list(journals()) == [1, 3])
            await put(store, 2, activated=True)
            await eventually(lambda: list(journals()) == [1, 2, 3])
            await store.transaction([], deletes=[configuration_key(1)])
            await eventually(lambda: list(journals()) == [2, 3])

    asyncio.run(scenario())


def test_journals_stay_known_while_coordination_is_away() -> None:
    async def scenario() -> None:
        store = Store()
        await put(store, 1, activated=True)
        async with following(store) as journals:
            await eventually(lambda: list(journals()) == [1])
            store.is_away = True
            journals._journal_watch.refresh()
            await eventually(lambda: journals._journal_watch._has_failed)
            assert list(journals()) == [1]
            store.is_away = False
            await put(store, 2, activated=True)
            await eventually(lambda: list(journals()) == [1, 2])

    asyncio.run(scenario())


def test_first_queues_of_a_cell_wait_until_each_broker_has_a_journal() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        await register(store, "b1", "b2")
        await register(store, "b3", state="draining")
        await put(store, 0, activated=True)
        async with following(store) as journals:
            await eventually(lambda: journals._broker_watch.listed.is_set() and bool(journals._led))
            assert list(journals()) == []
            await put(store, 1, activated=True)
            await eventually(lambda: list(journals()) == [0, 1])

            await register(store, "b4")
            await eventually(lambda: "b4" in journals._brokers)
            assert list(journals()) == [0, 1]

    asyncio.run(scenario())


def test_a_cell_is_not_complete_before_its_brokers_are_known() -> None:
    class NoBrokers(MemoryCoordination):
        async def list_prefix(self, prefix: str, *, after: str = "", limit: int = 1000) -> Listing:
            if prefix == BROKERS:
                raise CoordinationUnavailable
            return await super().list_prefix(prefix, after=after, limit=limit)

    async def scenario() -> None:
        store = NoBrokers()
        await put(store, 0, activated=True)
        async with following(store) as journals:
            await eventually(lambda: bool(journals._led))
            assert list(journals()) == []

    asyncio.run(scenario())


def test_a_cell_that_does_not_get_a_journal_for_each_broker_takes_queues_all_the_same() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        await register(store, "b1", "b2")
        await put(store, 0, activated=True)
        async with following(store, forming_s=0.05) as journals:
            await eventually(lambda: list(journals()) == [0])

    asyncio.run(scenario())


def test_new_queues_go_to_the_journal_with_the_fewest(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node, cell.front_end("a", nodes=("one",)) as a:
            journals: list[int] = []
            node.queues.journals.ids = lambda: journals
            with pytest.raises(Overloaded, match="No journal"):
                await a.queues.change(CreateQueue(ACCOUNT, "none"))
            journals += [5, 6, 7]
            created = [await a.queues.change(CreateQueue(ACCOUNT, f"q{number}")) for number in range(9)]
            assert set(Counter(queue.partitions[0].journal_id for queue in created).values()) == {3}

            for queue in created:
                if queue.partitions[0].journal_id == 6:
                    await a.queues.change(DeleteQueue(ACCOUNT, queue.name))
                    assert node.queues.journal_of(queue.queue_id, 0) == 6
            more = [await a.queues.change(CreateQueue(ACCOUNT, f"r{number}")) for number in range(3)]
            assert {queue.partitions[0].journal_id for queue in more} == {6}
            assert (
                a.queues.journal_of(more[0].queue_id, 0) == node.queues.journal_of(more[0].queue_id, 0) == 6
            )
            assert (
                a.queues.journal_of(more[0].queue_id, 1)
                is node.queues.journal_of(more[0].queue_id, 1)
                is None
            )
            assert a.queues.journal_of(10**9, 0) is node.queues.journal_of(10**9, 0) is None
            assert [a.queues.account_of(queue_id) for queue_id in (more[0].queue_id, 10**9)] == [ACCOUNT, ""]

    run_cell(scenario, tmp_path)


def test_a_queue_of_peers_has_a_partition_in_each_of_several_journals(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        peers = {"ReplicationMode": "Peers"}
        older = CellFormat(FORMAT_MIN)
        async with cell.node("old", cell_format=older), cell.front_end("a", nodes=("old",)) as a:
            with pytest.raises(UnsupportedOperation, match="ReplicationMode=Peers"):
                await a.queues.change(CreateQueue(ACCOUNT, "early", peers))
        async with cell.node("one") as node, cell.front_end("a", nodes=("one",)) as b:
            node.queues.journals.ids = lambda: [5, 6, 7, 8, 9, 10]
            first = await b.queues.change(CreateQueue(ACCOUNT, "first", peers))
            second = await b.queues.change(CreateQueue(ACCOUNT, "second", peers))
            assert [entry.journal_id for entry in first.partitions] == [5, 6, 7, 8]
            assert [entry.journal_id for entry in second.partitions] == [9, 10, 5, 6]
            assert (first.next_partition, why_broken(first)) == (4, None)

            node.queues.journals.ids = lambda: [5]
            alone = await b.queues.change(CreateQueue(ACCOUNT, "alone", peers))
            assert is_plain(alone)

    run_cell(scenario, tmp_path)


def test_a_queue_and_its_dead_letter_queue_come_together_by_their_names() -> None:
    assert "orders" in related_names("orders-dlq")
    assert "orders-dlq" in related_names("orders")
    assert "orders.fifo" in related_names("orders-dead-letter.fifo")
    assert "ordersDLQ.fifo" in related_names("orders.fifo")
    assert "" not in related_names("-dlq")


def test_a_queue_goes_to_the_journal_of_its_dead_letter_queue_and_may_name_one_of_another_later(
    tmp_path: Path,
) -> None:
    def redrive(name: str) -> dict[str, str]:
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        return {"RedrivePolicy": f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 3}}'}

    async def scenario(cell: Cell) -> None:
        cell_format = CellFormat(FORMAT_MIN)
        async with (
            cell.node("one", cell_format=cell_format) as node,
            cell.front_end("a", nodes=("one",)) as a,
        ):
            node.queues.journals.ids = lambda: [5, 6, 7]
            names = ("first", "second", "third")
            created = {name: await a.queues.change(CreateQueue(ACCOUNT, name)) for name in names}

            async def journal_of_new(name: str, attributes: dict[str, str] | None = None) -> int:
                created = await a.queues.change(CreateQueue(ACCOUNT, name, attributes or {}))
                return created.partitions[0].journal_id

            home = {name: queue.partitions[0].journal_id for name, queue in created.items()}
            assert sorted(home.values()) == [5, 6, 7]
            assert await journal_of_new("second-dlq") == home["second"]
            assert await journal_of_new("other", redrive("third")) == home["third"]
            await a.queues.change(SetAttributes(ACCOUNT, "second", redrive("second-dlq")))
            with pytest.raises(UnsupportedOperation, match="different journals"):
                await a.queues.change(SetAttributes(ACCOUNT, "first", redrive("third")))
            cell_format.raise_to(2)
            await a.queues.change(SetAttributes(ACCOUNT, "first", redrive("third")))
            sources = await a.queues.list_page(ListDeadLetterSources(ACCOUNT, "third"))
            rows = QueueRows(cell.store)
            found = await rows.find(ACCOUNT, "first")

            assert [queue.name for queue in sources.queues] == ["first", "other"]
            assert found is not None
            assert found.queue_id == created["first"].queue_id
            assert await rows.find(ACCOUNT, "nobody") is None

    run_cell(scenario, tmp_path)
