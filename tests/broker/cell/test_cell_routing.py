"""Commands reach real brokers through the router, by what coordination says, while leaders move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.broker_support import define, identity, message, number_of, options
from harness.waiting import PATIENCE_S

from quaymaster.broker.cell.broker_service import BrokerService, BrokerServiceOptions
from quaymaster.broker.replica.records import data_key_lists
from quaymaster.coordination.cell_keys import configuration_key, decode_configuration, encode_configuration
from quaymaster.coordination.leader_watch import LeaderWatch
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.commands.messages import NewMessage, Receive, ReceiveOutcome, Send, SendOutcome
from quaymaster.core.values.commands.partitions import ListDataKeys, SetQueue
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import NotLeader
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.messages import encode_message_head
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.net.routing.broker_router import BrokerRouter
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID, PREPARE, TRANSFER, TransferRequest
from quaymaster.protocol.rpc.command_codec import encode_command
from quaymaster.protocol.rpc.frames import Hello

JOURNAL = 0
FRONT_END = Hello(cell="test", role="frontend", node="f")
MANAGER = Hello(cell="test", role="manager", node="m")


class Cell:
    """Three brokers with one journal, appointed by hand, and a router that is told by coordination alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.coordination = MemoryCoordination()
        self.brokers: dict[str, BrokerService] = {}
        self.table = LeaderTable()
        self.watch = LeaderWatch(self.coordination, self.table)
        self.router = BrokerRouter(
            self.table,
            lambda queue_id, partition: JOURNAL,
            lambda address: RPCClient(address, FRONT_END),
            on_doubt=self.watch.refresh,
        )

    async def start(self) -> None:
        self.watch.start()
        for name in ("a", "b", "c"):
            await self.start_broker(name)
        members = tuple([await self._prepare(name) for name in self.brokers])
        first = JournalConfiguration(1, members[0], members, members, False)
        await self.coordination.compare_and_swap(configuration_key(JOURNAL), 0, encode_configuration(first))

    async def start_broker(self, name: str) -> None:
        cell_options = BrokerServiceOptions(
            name, f"zone-{name}", "test", "127.0.0.1", 0, "127.0.0.1:0", options(self.directory / name)
        )
        self.brokers[name] = BrokerService(cell_options, self.coordination, on_stopped=lambda error: None)
        await self.brokers[name].start()

    async def _prepare(self, name: str) -> str:
        return (await self.call(name, PREPARE, JOURNAL_ID.pack(JOURNAL))).decode()

    async def call(self, name: str, method: str, body: bytes) -> bytes:
        host, _, port = self.brokers[name].address.rpartition(":")
        client = RPCClient((host, int(port)), MANAGER)
        try:
            return await client.ask(method, body, 10_000)
        finally:
            await client.close()

    async def appoint(self, name: str) -> None:
        """Appoint a member for the next epoch."""
        key = configuration_key(JOURNAL)
        found = await self.coordination.get(key)
        assert found is not None
        known = decode_configuration(found.value)
        (leader,) = [member for member in known.members if member.startswith(f"{name}@")]
        following = JournalConfiguration(known.epoch + 1, leader, known.members, known.members, False)
        await self.coordination.compare_and_swap(key, found.revision, encode_configuration(following))

    async def transfer(self, old: str, new: str) -> None:
        """Move the leadership as planned; asked again while the new one is too far behind, as managers do."""
        request = TransferRequest(JOURNAL, self.brokers[new].journals[JOURNAL].member)
        encoded = msgspec.msgpack.encode(request)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if msgspec.msgpack.decode(await self.call(old, TRANSFER, encoded)):
                    break
                await asyncio.sleep(0.01)
        await self.appoint(new)

    def parked(self, name: str) -> int:
        return self.brokers[name].journals[JOURNAL].host.receives.waiters.parked

    async def ask(self, command: Command) -> Outcome:
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def reply(outcome: Outcome | Exception) -> None:
            assert not answered.done(), "answered twice"
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result(outcome)

        self.router.submit(command, reply)
        return await answered

    async def received(self) -> list[int]:
        """Receive until nothing comes; return the numbers."""
        found: list[int] = []
        while True:
            outcome = await self.ask(Receive(1, 0, 10))
            assert isinstance(outcome, ReceiveOutcome)
            if not outcome.deliveries:
                return sorted(found)
            found += [number_of(one.flags, one.payload)[0] for one in outcome.deliveries]

    async def close(self) -> None:
        await self.watch.close()
        await self.router.close()
        for broker in self.brokers.values():
            await broker.close()


def run(directory: Path, story: Callable[[Cell], Awaitable[Any]]) -> None:
    async def told() -> None:
        async with asyncio.timeout(PATIENCE_S):
            cell = Cell(directory)
            try:
                await cell.start()
                await cell.ask(SetQueue(define(1)))
                await story(cell)
            finally:
                await cell.close()

    asyncio.run(told())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def send(number: int) -> Send:
    return Send(1, 0, [message(number, retry=number)])


def test_no_send_fails_and_none_is_stored_twice_while_the_leader_moves_and_stops(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        numbers = iter(range(1, 1_000_000))
        sent: list[int] = []
        is_over = asyncio.Event()

        async def sender() -> None:
            while not is_over.is_set():
                number = next(numbers)
                outcome = await cell.ask(send(number))
                assert isinstance(outcome, SendOutcome)
                assert not outcome.results[0].duplicate
                sent.append(number)

        senders = [asyncio.create_task(sender()) for _ in range(8)]
        await asyncio.sleep(0.2)
        for old, new in (("a", "b"), ("b", "c")):
            await cell.transfer(old, new)
            await asyncio.sleep(0.2)
        stopped = asyncio.create_task(cell.brokers.pop("c").close())
        await cell.appoint("a")
        await asyncio.sleep(0.2)
        is_over.set()
        await asyncio.gather(*senders, stopped)

        assert await cell.received() == sorted(sent)

    run(tmp_path, story)


def test_parked_receives_follow_the_leader_and_are_served_by_it(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        polls = [asyncio.create_task(cell.ask(Receive(1, 0, 1, wait_ms=60_000))) for _ in range(50)]
        await until(lambda: cell.parked("a") == 50)

        await cell.transfer("a", "b")
        await until(lambda: cell.parked("b") == 50)
        await cell.ask(Send(1, 0, [message(number) for number in range(1, 11)]))
        for number in range(11, 51):
            await cell.ask(send(number))
        outcomes = await asyncio.gather(*polls)

        deliveries = [one for outcome in outcomes for one in outcome.deliveries]  # type: ignore[union-attr]
        assert sorted(number_of(one.flags, one.payload)[0] for one in deliveries) == list(range(1, 51))

    run(tmp_path, story)


def test_a_leader_whose_hand_over_is_given_up_leads_again_before_it_decides_anything(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        leader = cell.brokers["a"].journals[JOURNAL]
        behind = cell.brokers["b"].journals[JOURNAL].member
        await cell.brokers.pop("b").close()
        await cell.ask(send(1))
        before = leader.leaderships
        assert leader.host.transfer(behind)

        leader.host.end_transfer()

        assert leader.host.replica.is_leading
        assert leader.leaderships == before + 1

    run(tmp_path, story)


def test_messages_handed_to_a_client_that_has_just_gone_come_back_after_their_visibility_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on one node: nobody can say that it did not get them, and their receive count says that they were out."""

    async def story(cell: Cell) -> None:
        journal = cell.brokers["a"].journals[JOURNAL]
        answers: list[object] = []
        polling = cell.router.submit(Receive(1, 0, 10, 300, wait_ms=60_000), answers.append)
        await until(lambda: cell.parked("a") == 1)
        deliver = journal.host._replies.on_taken

        def go_and_deliver(*arguments: Any) -> None:
            polling.cancel()
            deliver(*arguments)

        monkeypatch.setattr(journal.host._replies, "on_taken", go_and_deliver)
        await cell.ask(Send(1, 0, [message(1)]))
        monkeypatch.undo()

        outcome = await cell.ask(Receive(1, 0, 10, wait_ms=10_000))

        assert isinstance(outcome, ReceiveOutcome)
        assert [(one.sequence, one.delivery_count) for one in outcome.deliveries] == [(1, 2)]
        assert answers == []

    run(tmp_path, story)


def test_a_client_that_went_while_its_receive_was_parked_is_handed_nothing(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        answers: list[object] = []
        polling = cell.router.submit(Receive(1, 0, 10, wait_ms=60_000), answers.append)
        await until(lambda: cell.parked("a") == 1)
        polling.cancel()
        await until(lambda: cell.parked("a") == 0)
        await cell.ask(Send(1, 0, [message(1)]))

        outcome = await cell.ask(Receive(1, 0, 10))

        assert isinstance(outcome, ReceiveOutcome)
        assert [(one.sequence, one.delivery_count) for one in outcome.deliveries] == [(1, 1)]
        assert answers == []

    run(tmp_path, story)


def test_leader_of_a_journal_lists_its_data_keys_and_a_journal_without_one_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_key_lists, "list_data_keys", partial(data_key_lists.list_data_keys, page_max=2))

    async def story(cell: Cell) -> None:
        journal = BrokerQueueJournal(cell.router)
        assert await journal.data_keys(JOURNAL) == set()
        for number, key_id in enumerate((9, 3, 7, 1, 8), 1):
            body = encode_message_head(identity(number), key_id, b"startid8", 1, number) + bytes(16)
            await cell.ask(Send(1, 0, [NewMessage(identity(number), body, 0)]))
        await cell.transfer("a", "b")

        assert await journal.data_keys(JOURNAL) == {1, 3, 7, 8, 9}

        host, _, port = cell.brokers["c"].address.rpartition(":")
        follower = RPCClient((host, int(port)), FRONT_END)
        with pytest.raises(NotLeader):
            await follower.ask(
                "command", JOURNAL_ID.pack(JOURNAL) + encode_command(ListDataKeys(JOURNAL)), 10_000
            )
        await follower.close()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):  # it waits for a leader for as long as any command does
                await journal.data_keys(JOURNAL + 1)

    run(tmp_path, story)
