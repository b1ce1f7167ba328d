"""Brokers of a cell over loopback: replicated sends, leaders that go, members that are copied, transfers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.broker_support import define, message, number_of, options
from harness.waiting import PATIENCE_S

from quaymaster.broker.cell import (
    authorization_floor,
    backup_calls,
    broker_name,
    cell_calls,
    copy_calls,
    move_calls,
    queue_watch_calls,
    restore_calls,
)
from quaymaster.broker.cell.authorization_floor import COMMAND
from quaymaster.broker.cell.broker_name import WHO
from quaymaster.broker.cell.broker_service import BrokerService, BrokerServiceOptions
from quaymaster.broker.cell.copy_calls import COPY_BEGIN, COPY_END, COPY_READ, FETCH_COPY
from quaymaster.broker.cell.move_calls import GROUPS_LEFT, MOVE
from quaymaster.broker.cell.peer_links import REPLICATE
from quaymaster.broker.replica import journal_service
from quaymaster.broker.replica.clock import monotonic_ms, wall_ms
from quaymaster.broker.replica.records.record_repair import RECORD, STRETCH
from quaymaster.broker.storage.disk import Disk
from quaymaster.coordination.cell_keys import configuration_key, decode_configuration, encode_configuration
from quaymaster.coordination.interface import (
    LIST_LIMIT_MAX,
    CoordinationUnavailable,
    Event,
    Listing,
    StoreUnusable,
)
from quaymaster.coordination.noted_acts import NotedAct, list_acts
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.cell import BrokerReport
from quaymaster.core.replication.messages import Envelope, Resign
from quaymaster.core.values.commands.messages import Delete, Receipt, Receive, ReceiveOutcome, Send
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import AccessDenied, CallerError, NotLeader, NotNow, TooFewReplicas
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import (
    ACCEPT_CLOCK,
    DROP,
    ENFORCED,
    FOLLOWERS,
    FOLLOWS,
    JOURNAL_ID,
    PREPARE,
    QUEUE_METRICS,
    REPORT,
    TRANSFER,
    AcceptClockRequest,
    DropRequest,
    TransferRequest,
    encode_call,
)
from quaymaster.protocol.rpc.command_codec import decode_outcome, encode_command
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.replication_codec import encode_envelope

JOURNAL = 7


def here(definition: QueueDefinition) -> QueueDefinition:
    """Return a queue whose one partition is in the journal of these tests."""
    return replace_definition(definition, partitions=one_partition(JOURNAL))


class Store(MemoryCoordination):
    """A store that can refuse to be followed: it takes what is written, and lists and watches fail."""

    is_deaf = False
    refused = 0

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        self._refuse()
        return await super().list_prefix(prefix, after=after, limit=limit)

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        async for events in super().watch(prefix, after_revision):
            self._refuse()
            yield events

    def _refuse(self) -> None:
        if self.is_deaf:
            self.refused += 1
            raise CoordinationUnavailable


class Cell:
    """Brokers by name over one coordination store, appointed by hand; asked as a front end asks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.coordination = Store()
        self.brokers: dict[str, BrokerService] = {}
        self.clients: dict[str, RPCClient] = {}
        self.managers: dict[str, RPCClient] = {}
        self.stopped: list[Exception] = []
        self.disks: dict[str, Disk] = {}
        """Those that are not the machine's."""
        self.options: dict[str, Any] = {}

    async def start(self, name: str) -> BrokerService:
        """Start a broker over its directory."""
        broker = BrokerService(
            BrokerServiceOptions(
                name,
                f"zone-{name}",
                "test",
                "127.0.0.1",
                0,
                "127.0.0.1:0",
                options(self.directory / name, **self.options),
            ),
            self.coordination,
            on_stopped=self.stopped.append,
            disk=self.disks.get(name),
        )
        await broker.start()
        self.brokers[name] = broker
        self.clients[name] = self.client(name, "frontend")
        self.managers[name] = self.client(name, "manager")
        return broker

    def client(self, name: str, role: str, node: str = "n") -> RPCClient:
        """Return a connection to a broker, as a node of some role."""
        host, _, port = self.brokers[name].address.rpartition(":")
        return RPCClient((host, int(port)), Hello(cell="test", role=role, node=node))

    async def stop(self, name: str) -> None:
        """Stop a broker."""
        await self.clients.pop(name).close()
        await self.managers.pop(name).close()
        await self.brokers.pop(name).close()

    async def call(self, name: str, method: str, body: bytes) -> bytes:
        """Ask a broker, as a manager."""
        return await self.managers[name].ask(method, body, 10_000)

    async def create(self, *names: str) -> None:
        """Begin the journal on these brokers, led by the first."""
        members = [(await self.call(name, PREPARE, JOURNAL_ID.pack(JOURNAL))).decode() for name in names]
        first = JournalConfiguration(1, members[0], tuple(members), tuple(members), False)
        await self.coordination.compare_and_swap(configuration_key(JOURNAL), 0, encode_configuration(first))
        await self.led_by(names[0])

    async def configuration(self) -> tuple[JournalConfiguration, int]:
        """Return the journal's configuration and its revision."""
        found = await self.coordination.get(configuration_key(JOURNAL))
        assert found is not None
        return decode_configuration(found.value), found.revision

    async def appoint(self, name: str, **changes: Any) -> None:
        """Appoint a member for the next epoch."""
        known, revision = await self.configuration()
        members = changes.get("members", known.members)
        (leader,) = [member for member in members if member.startswith(f"{name}@")]
        following = JournalConfiguration(
            known.epoch + 1,
            leader,
            members,
            known.members if known.activated else known.previous_members,
            False,
        )
        await self.coordination.compare_and_swap(
            configuration_key(JOURNAL), revision, encode_configuration(following)
        )

    async def learn(self, *names: str) -> None:
        """Let the leader feed learners."""
        learners = tuple(
            [(await self.call(name, PREPARE, JOURNAL_ID.pack(JOURNAL))).decode() for name in names]
        )
        known, revision = await self.configuration()
        await self.coordination.compare_and_swap(
            configuration_key(JOURNAL),
            revision,
            encode_configuration(msgspec.structs.replace(known, learners=learners)),
        )

    async def led_by(self, name: str) -> None:
        """Wait until a broker leads the journal."""
        await until(lambda: self.brokers[name].journals[JOURNAL].host.replica.is_leading)

    async def ask(self, name: str, command: Command) -> Outcome:
        """Give a broker a command for the journal; again where its leader has not heard of followers for a moment.

        They run in this process: on a busy machine its lease may end for no other reason. Nothing was decided then.
        """
        body = JOURNAL_ID.pack(JOURNAL) + encode_command(command)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return decode_outcome(await self.clients[name].ask(COMMAND, body, 10_000))
                except TooFewReplicas:
                    await asyncio.sleep(0.05)

    async def send(self, name: str, first: int, last: int) -> None:
        """Send messages with these numbers, one by one, at once."""
        await asyncio.gather(
            *(self.ask(name, Send(1, 0, [message(number)])) for number in range(first, last + 1))
        )

    async def received(self, name: str) -> set[int]:
        """Receive until nothing comes; return the numbers."""
        found: set[int] = set()
        while True:
            outcome = await self.ask(name, Receive(1, 0, 10))
            assert isinstance(outcome, ReceiveOutcome)
            if not outcome.deliveries:
                return found
            found |= {number_of(one.flags, one.payload)[0] for one in outcome.deliveries}

    def end_of(self, name: str) -> int:
        """Where a broker's copy of the journal ends, durably."""
        return self.brokers[name].journals[JOURNAL].host.replica.durable_end

    async def same(self, *names: str) -> None:
        """Wait until these brokers have the same journal and the same queues."""
        await until(lambda: len({self.end_of(name) for name in names}) == 1)
        hashes = []
        for name in names:
            replica = self.brokers[name].journals[JOURNAL].host.replica
            hashes.append((replica.log.end, replica.queues.state_hash(replica.last_time_ms)))
        assert all(found == hashes[0] for found in hashes)


async def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def cell_of(
    directory: Path, *names: str, disks: Mapping[str, Disk] | None = None, **changes: Any
) -> AsyncIterator[Cell]:
    """A cell of brokers with one journal, led by the first, that has one queue. `changes`: see `options`."""
    cell = Cell(directory)
    cell.disks.update(disks or {})
    cell.options = changes
    try:
        for name in names:
            await cell.start(name)
        await cell.create(*names)
        await cell.ask(names[0], SetQueue(here(define(1))))
        yield cell
    finally:
        for name in list(cell.brokers):
            await cell.stop(name)


def run(directory: Path, story: Callable[[Cell], Coroutine[Any, Any, Any]], *names: str) -> Any:
    """Tell a story of a cell of three."""

    async def told() -> Any:
        async with cell_of(directory, *(names or ("a", "b", "c"))) as cell:
            result = await story(cell)
            assert cell.stopped == []
            return result

    return asyncio.run(told())


def test_messages_are_on_all_members_and_their_queues_are_the_same(tmp_path: Path) -> None:
    async def story(cell: Cell) -> set[int]:
        await cell.send("a", 1, 100)
        await cell.same("a", "b", "c")
        return await cell.received("a")

    assert run(tmp_path, story) == set(range(1, 101))


def test_who_does_not_lead_says_who_does(tmp_path: Path) -> None:
    async def story(cell: Cell) -> str | None:
        await until(lambda: cell.brokers["b"].configurations[JOURNAL].activated)
        with pytest.raises(NotLeader) as refused:
            await cell.ask("b", Receive(1, 0, 10))
        assert cell.brokers["a"].address == refused.value.leader_hint
        body = JOURNAL_ID.pack(99) + encode_command(Receive(1, 0, 1))
        with pytest.raises(NotLeader):
            await cell.clients["a"].ask(COMMAND, body, 10_000)
        return refused.value.leader_hint

    assert run(tmp_path, story)


def test_another_member_takes_over_with_everything_that_was_acknowledged(tmp_path: Path) -> None:
    async def story(cell: Cell) -> set[int]:
        await cell.send("a", 1, 50)
        await cell.stop("a")
        await cell.appoint("b")
        await cell.led_by("b")
        await cell.send("b", 51, 60)
        await cell.start("a")
        await cell.same("a", "b", "c")
        return await cell.received("b")

    assert run(tmp_path, story) == set(range(1, 61))


def test_parked_receive_hears_that_its_broker_leads_no_longer(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        parked = asyncio.create_task(cell.ask("a", Receive(1, 0, 1, wait_ms=20_000)))
        await until(lambda: cell.brokers["a"].journals[JOURNAL].host.receives.waiters.parked == 1)
        request = TransferRequest(JOURNAL, cell.brokers["b"].journals[JOURNAL].member)
        assert msgspec.msgpack.decode(await cell.call("a", TRANSFER, msgspec.msgpack.encode(request)))
        with pytest.raises(NotLeader):
            await parked
        await cell.appoint("b")
        await cell.led_by("b")

    run(tmp_path, story)


def test_leadership_is_handed_over_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story(cell: Cell) -> tuple[set[int], set[int]]:
        acknowledged: set[int] = set()
        leader = "a"
        numbers = iter(range(1, 10_000_000))
        stop = asyncio.Event()

        async def sender() -> None:
            while not stop.is_set():
                number = next(numbers)
                try:
                    await cell.ask(leader, Send(1, 0, [message(number)]))
                    acknowledged.add(number)
                except NotNow:
                    await asyncio.sleep(0.01)

        senders = [asyncio.create_task(sender()) for _ in range(8)]
        for following in ("b", "c", "a"):
            await asyncio.sleep(0.2)
            request = TransferRequest(JOURNAL, cell.brokers[following].journals[JOURNAL].member)
            assert msgspec.msgpack.decode(await cell.call(leader, TRANSFER, msgspec.msgpack.encode(request)))
            await cell.appoint(following)
            await cell.led_by(following)
            leader = following
        stop.set()
        await asyncio.gather(*senders)
        await cell.same("a", "b", "c")
        return acknowledged, await cell.received("a")

    acknowledged, received = run(tmp_path, story)
    assert acknowledged
    assert acknowledged <= received


def test_what_a_deposed_leader_wrote_alone_is_gone_from_its_queues_too(tmp_path: Path) -> None:
    async def story(cell: Cell) -> tuple[int, set[int]]:
        await cell.send("a", 1, 10)
        await cell.same("a", "b", "c")
        old = cell.brokers["a"]
        old._links.send = lambda journal_id, messages: None  # type: ignore[method-assign]  # it is cut off
        lost = [asyncio.create_task(cell.ask("a", Send(1, 0, [message(number)]))) for number in range(90, 95)]
        await until(lambda: cell.end_of("a") > cell.end_of("b"))
        await asyncio.sleep(1.2)  # longer than a lease
        await cell.appoint("b")
        await cell.led_by("b")
        del old._links.send
        await cell.send("b", 11, 20)
        results = await asyncio.gather(*lost, return_exceptions=True)
        assert all(isinstance(result, NotNow) for result in results)
        await until(lambda: old.journals[JOURNAL].rebuilds > 0)
        await cell.same("a", "b", "c")
        return old.journals[JOURNAL].rebuilds, await cell.received("b")

    rebuilds, received = run(tmp_path, story)
    assert rebuilds >= 1
    assert received == set(range(1, 21))


def test_learner_gets_everything_and_becomes_a_member(tmp_path: Path) -> None:
    async def story(cell: Cell) -> set[int]:
        await cell.send("a", 1, 200)
        await cell.start("d")
        await cell.stop("c")
        await cell.learn("d")
        await until(lambda: cell.end_of("d") >= cell.end_of("a") > 200)
        known, _ = await cell.configuration()
        members = tuple(member for member in known.members if not member.startswith("c@")) + known.learners
        await cell.appoint("a", members=members)
        await until(lambda: cell.brokers["a"].journals[JOURNAL].host.replica.epoch == 2)
        await cell.led_by("a")
        await cell.stop("b")
        await cell.send("a", 201, 210)
        await cell.same("a", "d")
        return await cell.received("a")

    assert run(tmp_path, story) == set(range(1, 211))


def test_replica_is_dropped_only_when_no_configuration_names_it(tmp_path: Path) -> None:
    async def story(cell: Cell) -> tuple[bool, bool]:
        await cell.start("d")
        member = (await cell.call("d", PREPARE, JOURNAL_ID.pack(JOURNAL))).decode()
        await cell.learn("d")
        await until(lambda: cell.brokers["d"].configurations[JOURNAL].learners != ())
        body = msgspec.msgpack.encode(DropRequest(JOURNAL, member, 1))
        kept = msgspec.msgpack.decode(await cell.call("d", DROP, body))
        await cell.learn()
        await until(lambda: cell.brokers["d"].configurations[JOURNAL].learners == ())
        dropped = msgspec.msgpack.decode(await cell.call("d", DROP, body))
        assert not (cell.directory / "d" / str(JOURNAL)).exists()
        return kept, dropped

    assert run(tmp_path, story) == (False, True)


def test_brokers_with_each_others_directories_say_so_and_lose_nothing_by_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def swap() -> None:
        (tmp_path / "b").rename(tmp_path / "aside")
        (tmp_path / "c").rename(tmp_path / "b")
        (tmp_path / "aside").rename(tmp_path / "c")

    async def story(cell: Cell) -> set[int]:
        await cell.send("a", 1, 20)
        await cell.same("a", "b", "c")
        for name in ("b", "c"):
            await cell.stop(name)
        swap()
        for name in ("b", "c"):
            await cell.start(name)

        await until(lambda: all(cell.brokers[name].why_not_ready() for name in ("b", "c")))
        for name, other in (("b", "c"), ("c", "b")):
            assert f"is a member as that of broker {other}" in (cell.brokers[name].why_not_ready() or "")
            member = cell.brokers[name].journals[JOURNAL].member
            known, _ = await cell.configuration()
            request = msgspec.msgpack.encode(DropRequest(JOURNAL, member, known.epoch))
            assert not msgspec.msgpack.decode(await cell.call(name, DROP, request))
        assert cell.brokers["a"].why_not_ready() is None

        for name in ("b", "c"):
            await cell.stop(name)
        swap()
        for name in ("b", "c"):
            await cell.start(name)
        await cell.led_by("a")
        await cell.same("a", "b", "c")
        assert [cell.brokers[name].why_not_ready() for name in ("b", "c")] == [None, None]
        return await cell.received("a")

    assert run(tmp_path, story) == set(range(1, 21))
    told = [record for record in caplog.records if record.getMessage() == "replica is of another broker"]
    assert len(told) == 2


def test_brokers_report_how_their_replicas_are(tmp_path: Path) -> None:
    async def story(cell: Cell) -> list[BrokerReport]:
        await cell.same("a", "b", "c")
        await until(lambda: not any(cell.brokers["a"].report().replicas[JOURNAL].lag.values()))
        return [
            msgspec.msgpack.decode(await cell.call(name, REPORT, b""), type=BrokerReport)
            for name in ("a", "b")
        ]

    leader, follower = run(tmp_path, story)
    assert leader.replicas[JOURNAL].role == "leading"
    assert follower.replicas[JOURNAL].role == "follower"
    assert set(leader.replicas[JOURNAL].lag.values()) == {0}
    assert leader.disk_free_bytes > 0
    assert abs(leader.wall_ms - wall_ms()) < 60_000


DAYS_MS = 5 * 86_400_000


@pytest.mark.parametrize("ahead_ms", [DAYS_MS, -DAYS_MS])
def test_a_new_leader_whose_clock_is_days_off_goes_on_with_the_time_of_the_journal(
    tmp_path: Path, ahead_ms: int
) -> None:
    async def story(cell: Cell) -> tuple[int, bool, set[int]]:
        await cell.ask("a", SetQueue(here(define(2, MessageRetentionPeriod=60))))
        await cell.ask("a", Send(2, 0, [message(1)]))
        clock = cell.brokers["b"].journals[JOURNAL].host.clock
        clock._wall_ms = lambda: wall_ms() + ahead_ms
        await until(lambda: abs(clock.gap_ms) > DAYS_MS // 2)
        await cell.appoint("b")
        await cell.led_by("b")
        await until(lambda: abs(clock.gap_ms) < 10_000)  # the clocks of the others are heard
        off_ms = clock.time_ms() - wall_ms()
        outcome = await cell.ask("b", Receive(2, 0, 10))
        assert isinstance(outcome, ReceiveOutcome)
        found = {number_of(one.flags, one.payload)[0] for one in outcome.deliveries}
        return off_ms, clock.expiry_is_held, found

    off_ms, held, found = run(tmp_path, story)

    assert abs(off_ms) < 10_000
    assert (held, found) == (False, {1})


def test_an_operator_says_that_the_clocks_of_a_cell_are_right(tmp_path: Path) -> None:
    async def story(cell: Cell) -> tuple[bool, bool, int, list[NotedAct]]:
        for broker in cell.brokers.values():
            broker.journals[JOURNAL].host.clock._wall_ms = lambda: wall_ms() + DAYS_MS
        clock = cell.brokers["a"].journals[JOURNAL].host.clock
        await until(lambda: clock.expiry_is_held)
        held = cell.brokers["a"].report().replicas[JOURNAL].expiry_held
        for name in cell.brokers:
            client = cell.client(name, "operator")
            await client.ask(ACCEPT_CLOCK, encode_call(AcceptClockRequest("ann@desk")), 10_000)
            await client.close()
        acts = [act for act, _ in await list_acts(cell.coordination)]
        return held, clock.expiry_is_held, clock.time_ms() - wall_ms() - DAYS_MS, acts

    held, held_after, off_ms, acts = run(tmp_path, story)

    assert (held, held_after) == (True, False)
    assert abs(off_ms) < 10_000
    assert [(act.action, act.actor.partition(" as ")[0]) for act in acts] == [("AcceptClock", "ann@desk")] * 3
    assert all(act.address.startswith("127.0.0.1:") for act in acts)


def test_member_that_lacks_what_is_compacted_gets_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_service, "TAIL_BYTES_MAX", 0)

    async def story(cell: Cell) -> tuple[set[int], set[int]]:
        for first in range(1, 2_000, 100):
            await cell.send("a", first, first + 99)
        for _ in range(190):
            outcome = await cell.ask("a", Receive(1, 0, 10))
            assert isinstance(outcome, ReceiveOutcome)
            receipts = [
                Receipt(one.sequence, outcome.epoch, one.delivery_count) for one in outcome.deliveries
            ]
            await cell.ask("a", Delete(1, 0, receipts))
        leader = cell.brokers["a"].journals[JOURNAL]
        for _ in range(2):
            await leader.snapshots.write()
            await cell.send("a", 3_000, 3_100)
        assert await leader.compaction.step(younger_than_ms=0)
        await cell.start("d")
        await cell.learn("d")
        await until(
            lambda: JOURNAL in cell.brokers["d"].journals and cell.end_of("d") >= leader.host.replica.commit
        )
        await cell.same("a", "d")
        assert any(segment.is_compacted for segment in cell.brokers["d"].journals[JOURNAL].files.segments())
        known, _ = await cell.configuration()
        members = (*known.members[:2], *known.learners)
        await cell.appoint("d", members=members)
        await cell.led_by("d")
        return await cell.received("d"), set(range(1, 2_001)) | set(range(3_000, 3_101))

    received, sent = run(tmp_path, story)
    assert received <= sent
    assert len(received) >= 101


def test_a_damaged_replica_is_put_aside_and_the_broker_starts_with_the_others(tmp_path: Path) -> None:
    async def story(cell: Cell) -> list[str]:
        await cell.send("a", 1, 20)
        await cell.same("a", "b", "c")
        member = cell.brokers["c"].journals[JOURNAL].member
        await cell.stop("c")
        segment = tmp_path / "c" / str(JOURNAL) / f"{0:020d}.seg"
        data = bytearray(segment.read_bytes())
        data[20] ^= 0xFF
        segment.write_bytes(data)
        broker = await cell.start("c")
        assert JOURNAL not in broker.journals
        again = (await cell.call("c", PREPARE, JOURNAL_ID.pack(JOURNAL))).decode()
        assert again != member, "it has forgotten what it promised, so it is another member"
        return [path.name for path in (tmp_path / "c").iterdir() if ".damaged-" in path.name]

    assert len(run(tmp_path, story)) == 1


def test_a_broker_with_records_does_not_begin_anew_on_an_empty_store(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        await cell.send("a", 1, 20)
        await cell.same("a", "b", "c")
        await cell.stop("c")
        full, cell.coordination = cell.coordination, Store()

        with pytest.raises(
            StoreUnusable, match=rf"knows of no journal, and this broker has journals \[{JOURNAL}\]"
        ):
            await cell.start("c")

        assert not (await cell.coordination.list_prefix("")).items
        cell.coordination = full
        await cell.start("c")
        await cell.same("a", "b", "c")

    run(tmp_path, story)


def test_a_replica_is_not_dropped_by_a_configuration_older_than_its_promise(tmp_path: Path) -> None:
    async def story(cell: Cell) -> bytes:
        await cell.send("a", 1, 20)
        await cell.same("a", "b", "c")
        broker = cell.brokers["c"]
        replica = broker.journals[JOURNAL]
        known = broker.configurations[JOURNAL]
        others = tuple(member for member in known.members if member != replica.member)
        broker.configurations[JOURNAL] = msgspec.structs.replace(known, members=others)
        await asyncio.to_thread(replica.files.persist_promise, known.epoch + 1)
        request = DropRequest(JOURNAL, replica.member, known.epoch)
        answer = await broker.broker.drop(request)
        assert JOURNAL in broker.journals
        return b"dropped" if answer else b"kept"

    assert run(tmp_path, story) == b"kept"


def test_nobody_but_a_broker_speaks_for_its_replicas(tmp_path: Path) -> None:
    async def story(cell: Cell) -> tuple[int, str]:
        replica = cell.brokers["b"].journals[JOURNAL].host.replica
        leader = cell.brokers["a"].journals[JOURNAL].member
        forged = Envelope(leader, replica.node, Resign(replica.epoch))
        before = replica.log.hears_leader(monotonic_ms())
        for role in ("broker", "frontend"):
            other = cell.client("b", role, node="c")
            assert other.notify(REPLICATE, encode_envelope(JOURNAL, forged))
            with suppress(CallerError, NotNow):
                await other.ask(COPY_END, b"", 10_000)  # behind it
            await other.close()
        assert before
        assert replica.log.hears_leader(monotonic_ms())
        return replica.epoch, replica.role

    assert run(tmp_path, story) == (1, "follower")


OF_REPLICAS = (
    REPORT,
    PREPARE,
    TRANSFER,
    DROP,
    ACCEPT_CLOCK,
    RECORD,
    STRETCH,
    FETCH_COPY,
    COPY_BEGIN,
    COPY_READ,
    COPY_END,
    MOVE,
    GROUPS_LEFT,
)
"""What is none of the business of those who only send commands."""
OF_OPERATORS = (*backup_calls.CALLERS, *restore_calls.CALLERS)
DENIED = {
    "frontend": (*OF_REPLICAS, *OF_OPERATORS),
    "metadata": (FOLLOWS, FOLLOWERS, ENFORCED, *OF_REPLICAS, *OF_OPERATORS),
    "manager": (
        *(
            WHO,
            COMMAND,
            ACCEPT_CLOCK,
            RECORD,
            STRETCH,
            FETCH_COPY,
            COPY_BEGIN,
            COPY_READ,
            COPY_END,
            MOVE,
            GROUPS_LEFT,
        ),
        *OF_OPERATORS,
    ),
    "operator": (
        COMMAND,
        PREPARE,
        TRANSFER,
        DROP,
        RECORD,
        STRETCH,
        FETCH_COPY,
        COPY_BEGIN,
        COPY_READ,
        COPY_END,
        MOVE,
        GROUPS_LEFT,
    ),
    "broker": (
        COMMAND,
        REPORT,
        PREPARE,
        TRANSFER,
        DROP,
        ACCEPT_CLOCK,
        FOLLOWS,
        FOLLOWERS,
        ENFORCED,
        QUEUE_METRICS,
        *OF_OPERATORS,
    ),
}


@pytest.mark.parametrize("role", DENIED)
def test_each_role_calls_only_what_is_for_it(tmp_path: Path, role: str) -> None:
    async def story(cell: Cell) -> None:
        client = cell.client("b", role)
        for method in DENIED[role]:
            with pytest.raises(AccessDenied, match=f"test/{role}/n may not call {method}"):
                await client.ask(method, JOURNAL_ID.pack(JOURNAL), 10_000)
        await client.close()

    run(tmp_path, story)


def test_every_call_of_a_broker_says_who_may_make_it(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        server = cell.brokers["a"]._server
        callers = cell_calls.CALLERS | copy_calls.CALLERS | move_calls.CALLERS | broker_name.CALLERS
        callers |= backup_calls.CALLERS | restore_calls.CALLERS | authorization_floor.CALLERS
        callers |= queue_watch_calls.CALLERS
        assert callers.keys() == server.handlers.keys() | server.batch_handlers.keys()
        assert callers.keys() - {REPLICATE} == {method for denied in DENIED.values() for method in denied}

    run(tmp_path, story)


def test_appointment_made_while_coordination_could_not_be_followed_is_heard_when_it_can(
    tmp_path: Path,
) -> None:
    async def story(cell: Cell) -> set[int]:
        await cell.send("a", 1, 5)
        cell.coordination.is_deaf = True
        await cell.appoint("b")  # whoever watches finds that it cannot
        await until(lambda: cell.coordination.refused > 20)
        assert cell.brokers["b"].configurations[JOURNAL].epoch == 1
        cell.coordination.is_deaf = False

        await cell.led_by("b")

        return await cell.received("b")

    assert run(tmp_path, story) == {1, 2, 3, 4, 5}


def test_a_key_that_cannot_be_read_stops_nobody(tmp_path: Path) -> None:
    async def story(cell: Cell) -> set[int]:
        await cell.coordination.compare_and_swap("journals/99", 0, b"\xc1 of a newer program")
        await cell.coordination.compare_and_swap("brokers/zzz", 0, b"\xc1")
        await cell.start("d")
        await until(lambda: "d" in cell.brokers["a"].registrations)
        await cell.send("a", 1, 5)
        return await cell.received("a")

    assert run(tmp_path, story) == {1, 2, 3, 4, 5}
