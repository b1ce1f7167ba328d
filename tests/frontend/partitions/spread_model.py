"""A queue that is split, merged and moved under load: front ends' brokers and journals' queues, on a skipping loop.

    client ──▶ PartitionedBroker ──delays──▶ leader of a journal ──commit──▶ answer
    metadata ── rows that front ends have late, and SetQueue: children first, then parents

Journals lose their leaders with all that was not committed. Their queue times are an hour apart.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from itertools import takewhile
from random import Random
from typing import Any, Final, Literal, get_args

from harness.replica_host import RETRY_WINDOW_MS, Host, message, number_in, queue, replay

from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import PREFIX_FLAGS
from quaymaster.core.spread.entries import HandledEntries
from quaymaster.core.spread.parts import SEVERAL
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.held_groups import Look, Question
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import Duplicate, SentElsewhere, SentOutcome, TakenOutcome
from quaymaster.core.values.commands.messages import (
    Delivery,
    Done,
    Elsewhere,
    EntriesOutcome,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    SendResult,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.partitions import (
    AskGroups,
    AskPartition,
    GroupsOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.unions import Command, Decided, Outcome
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    NotLeader,
    NotNow,
    OverLimit,
    QueueDoesNotExist,
    Timeout,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.core.values.messages import message_id_of, prefix_bytes
from quaymaster.core.values.partition_life import aged
from quaymaster.core.values.partition_tables import (
    entries_to_merge,
    entries_to_move,
    entries_to_split,
    in_state,
    journal_of_partition,
    journals_of,
    with_children,
    with_children_open,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.partitioned_broker import PartitionedBroker
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.net.routing.broker_client import Reply, Submitted

QUEUE: Final = 1
HOUR_MS: Final = 3_600_000
FIFO_CLOSING_MS: Final = 300_000
GROUPS: Final = 16
PRODUCERS: Final = 8
CONSUMERS: Final = 3
FIFO: Final = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}

OnDecided = Callable[[Decided | Exception, Host], None]


def now_s() -> float:
    return asyncio.get_running_loop().time()


class ModelJournal:
    """A journal of one member, whose leader may be lost."""

    def __init__(self, world: World, journal_id: int) -> None:
        self.journal_id = journal_id
        self.is_down = False
        self.up = asyncio.Event()
        self.up.set()
        self._is_committing = False
        self._world = world
        self._waiting: dict[int, OnDecided] = {}
        self.host = Host(states=self._new_states(), now_ms=self.time_ms(), is_slow=True)

    def time_ms(self) -> int:
        return 1_000_000 + self.journal_id * HOUR_MS + round(now_s() * 1000)

    def _new_states(self) -> QueueStates:
        return QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS, journal_id=self.journal_id)

    def propose(self, command: Any, on_decided: OnDecided) -> None:
        self.host.now_ms = self.time_ms()
        self._waiting[self.host.propose(command)] = on_decided
        self._answer()
        if not self._is_committing:
            self._is_committing = True
            self._world.later(self._commit, within_s=0.02)

    async def ask(self, command: Any) -> Decided:
        """Ask as a metadata node or another leader does, until there is an answer."""
        loop = asyncio.get_running_loop()
        while True:
            await self._world.pause(0.02)
            await self.up.wait()
            answered: asyncio.Future[Decided] = loop.create_future()

            def on_decided(decided: Decided | Exception, _: Host, answered: Any = answered) -> None:
                if isinstance(decided, Exception):
                    answered.set_exception(decided)
                else:
                    answered.set_result(decided)

            self.propose(command, on_decided)
            try:
                return await answered
            except NotNow:
                continue

    def _commit(self) -> None:
        self._is_committing = False
        if not self.is_down:
            self._make_durable(self._world.random.choice((None, None, 1)))
            self._answer()

    def _make_durable(self, count: int | None) -> None:
        """As the host does, without a look at all its batches."""
        replica = self.host.replica
        batches = reversed(self.host.batches)
        behind = [*takewhile(lambda batch: batch.next_offset > replica.durable_end, batches)]
        for batch in behind[::-1][:count]:
            replica.on_durable(batch.next_offset)
            self.host._carry_out()

    async def lose_leader(self) -> None:
        """What was not committed is gone, and whoever waits for it hears nothing of it."""
        random = self._world.random
        if random.random() < 0.5:
            self._make_durable(random.randrange(4))
            self._answer()
        self.is_down = True
        self.up.clear()
        waiting, self._waiting = self._waiting, {}
        for on_decided in waiting.values():
            asyncio.get_running_loop().call_soon(on_decided, Timeout(), self.host)
        await asyncio.sleep(random.choice((0.01, 0.3, 3)))
        batches = self.host.durable_batches()
        self.host = Host(
            batches=batches,
            states=replay(batches, states=self._new_states()),
            epoch=self.host.replica.epoch + 1,
            now_ms=self.time_ms(),
            is_slow=True,
        )
        self.is_down = False
        self.up.set()

    def _answer(self) -> None:
        for token in [token for token in self.host.replies if token in self._waiting]:
            self._waiting.pop(token)(self.host.replies.pop(token), self.host)

    # What a leader does for its FIFO partitions

    async def ask_parents_for_ever(self) -> None:
        while True:
            await self._world.pause(0.3)
            states = self.host.states
            for key in [*states.holding, *states.asking]:
                partition = states.partitions.get(key)
                if partition is not None and isinstance(partition.order, FIFOOrder):
                    await self._ask_parents(self.host, partition, partition.order)
            states.asking.clear()

    async def _ask_parents(self, host: Host, partition: Any, order: FIFOOrder) -> None:
        holds = order.holds
        for parent in () if holds is None else list(holds.parents):
            for kind in get_args(Question):
                groups = holds.to_ask(parent, 1 << 12, kind) if holds is not None else []
                look = 0 if holds is None else holds.looks
                journal_id = journal_of_partition(partition.definition, parent)
                if not groups or journal_id is None:
                    continue
                asked = AskGroups(QUEUE, parent, array("Q", groups).tobytes())
                outcome = await self._world.journals[journal_id].ask(asked)
                assert isinstance(outcome, GroupsOutcome)
                if self.host is not host or order.holds is not holds or not outcome.is_sealed:
                    return
                assert holds is not None
                freed = holds.answered(parent, groups, array("Q", outcome.gone), look=look)
                order.release(freed, self.time_ms())


class ModelSubmission:
    """A command of a front end on its way; what is parked is decided again and again."""

    def __init__(self, world: World, tables: PartitionTables, command: Any, reply: Reply) -> None:
        self.is_cancelled = False
        self._world = world
        self._tables = tables
        self._command = command
        self._reply = reply
        self._ends_s = now_s() + getattr(command, "wait_ms", 0) / 1000
        self._look: Look | None = None
        world.later(self._arrive)

    def cancel(self) -> None:
        self.is_cancelled = True

    def withdraw(self) -> bool:
        """A broker may have it."""
        return False

    def _answer(self, outcome: Outcome | Exception) -> None:
        if self._world.random.random() < (0.3 if self._world.is_busy else 0.02) and not isinstance(
            outcome, Elsewhere
        ):
            outcome = Timeout()  # the answer is lost
        self._world.later(self._reply, outcome)

    def _arrive(self) -> None:
        is_parked = isinstance(self._command, Watch | Receive) and self._command.wait_ms > 0
        if self.is_cancelled and is_parked:
            return
        journal_id = self._tables.journal_of(QUEUE, self._command.partition)
        if journal_id is None:
            self._answer(QueueDoesNotExist())
            return
        journal = self._world.journals[journal_id]
        if journal.is_down:
            if getattr(self._command, "fails_fast", False):
                self._answer(Unreachable())
            else:
                self._world.later(self._arrive, within_s=0.5)
            return
        journal.propose(self._command, self._on_decided)

    def _on_decided(self, decided: Decided | Exception, host: Host) -> None:
        outcome: Outcome | Exception
        match decided:
            case SentOutcome(results):
                outcome = SendOutcome([found(host, result) for result in results])
            case SentElsewhere(definition, results):
                outcome = Elsewhere(
                    definition, [None if result is None else found(host, result) for result in results]
                )
            case TakenOutcome(is_held=True) if not self._is_known(host):
                if getattr(self._command, "fails_fast", False):
                    self._answer(NotNow())
                else:
                    self._world.later(self._arrive, within_s=0.6)
                return
            case TakenOutcome() if isinstance(self._command, Watch) and now_s() >= self._ends_s:
                outcome = WatchOutcome(False)
            case TakenOutcome() if isinstance(self._command, Watch) or (
                not decided.taken and (decided.unfinished or now_s() < self._ends_s)
            ):
                self._world.later(self._arrive, within_s=0.6)
                return
            case TakenOutcome():
                outcome = ReceiveOutcome(decided.epoch, [self._delivery(host, one) for one in decided.taken])
            case WatchOutcome(has_messages) if not has_messages and now_s() < self._ends_s:
                self._world.later(self._arrive, within_s=0.6)
                return
            case _:
                outcome = decided  # type: ignore[assignment]
        self._answer(outcome)

    def _is_known(self, host: Host) -> bool:
        """Return whether parents have said since it was first decided which held groups they have."""
        order = host.states.partition(QUEUE, self._command.partition).order
        assert isinstance(order, FIFOOrder)
        assert order.holds is not None
        if self._look is None or self._look.holds is not order.holds:
            self._look = Look(order.holds, order.holds.want_look())
        return self._look.is_known

    def _delivery(self, host: Host, taken: Any) -> Delivery:
        row, payload = host.payload(taken.offset)
        delivery = Delivery(
            taken.sequence,
            taken.delivery_count,
            0,
            taken.sent_ms,
            row.type,
            row.flags & PREFIX_FLAGS,
            payload,
        )
        self._world.taken_s[number_of(delivery)] = now_s()
        return delivery


def found(host: Host, result: SendResult | Duplicate) -> SendResult:
    """Return where a message stands, as a broker's reply has it."""
    if isinstance(result, SendResult):
        return result
    row, payload = host.payload(result.offset)
    sequence = host.states.sequence_of(result.partition_key, row.type, row.sequence)
    return SendResult(
        sequence, message_id_of(payload[prefix_bytes(row.flags & PREFIX_FLAGS) :]), duplicate=True
    )


def number_of(delivery: Delivery) -> int:
    """Return the number of a message that was handed out."""
    return number_in(delivery.flags, delivery.payload)


class ModelFrontEnd:
    """A front end whose rows are late."""

    def __init__(self, world: World) -> None:
        self.row = world.row
        self._world = world
        self.tables = PartitionTables(
            lambda queue_id: self.row,
            lambda queue_id, number: journal_of_partition(self.row, number),
            self.refresh,
        )
        # No store is restored here, so metadata need not look for tables that are later than its rows.
        self.broker = PartitionedBroker(self, self.tables, self.refresh)

    def submit(self, command: Command, reply: Reply) -> Submitted:
        return ModelSubmission(self._world, self.tables, command, reply)

    async def refresh(self, definition: QueueDefinition) -> None:
        await self._world.pause(0.05)
        if self._world.random.random() < 0.2:
            raise NotLeader
        self.row = self._world.row

    async def follow_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._world.random.choice((0.05, 2, 60, 400)))
            self.row = self._world.row

    @property
    def number(self) -> int:
        """The partition that requests go to."""
        partitions = self.row.partitions
        return partitions[0].number if len(partitions) == 1 else SEVERAL

    async def send(self, messages: list[Any]) -> SendOutcome:
        outcome = await self.broker.ask(Send(QUEUE, self.number, messages))
        assert isinstance(outcome, SendOutcome)
        return outcome

    async def receive(self, wait_ms: int) -> tuple[int, ReceiveOutcome]:
        asked = self.number
        command = Receive(QUEUE, asked, 3, wait_ms=wait_ms, table_version=self.row.table_version)
        outcome = await self.broker.ask(command)
        assert isinstance(outcome, ReceiveOutcome)
        return asked if outcome.partition < 0 else outcome.partition, outcome

    async def delete(self, partition: int, receipt: Receipt) -> None:
        outcome = await self.broker.ask(HandledEntries(QUEUE, [partition], [receipt]))
        assert isinstance(outcome, EntriesOutcome)
        if outcome.errors[0] is not None:
            raise outcome.errors[0]


Kind = Literal["standard", "fifo", "exactly once"]
ATTRIBUTES: Final[dict[Kind, dict[str, str]]] = {
    "standard": {},
    "fifo": FIFO,
    "exactly once": {"DeliveryGuarantee": "ExactlyOnce", "DeduplicationWindowSeconds": "3600"},
}


class World:
    """One run: what happens is chosen by `random`, and everything that is seen is judged."""

    def __init__(self, seed: int, kind: Kind, *, changes: int) -> None:
        self.random = Random(seed)
        self.is_fifo = kind == "fifo"
        self._changes = changes
        name = "jobs.fifo" if self.is_fifo else "jobs"
        self.row = queue(QUEUE, name, attributes=ATTRIBUTES[kind])
        self.has_ids = self.row.has_dedup_ids
        """Whether messages are known by deduplication ids; else by those of retried sends."""
        self.journals = [ModelJournal(self, journal_id) for journal_id in (0, 1)]
        self.front_ends = [ModelFrontEnd(self) for _ in range(3)]
        self.is_producing = True
        self.is_busy = False
        """Much is sent, and answers get lost, while a table changes."""
        self.acknowledged_s: dict[int, float] = {}
        self.group_of: dict[int, int] = {}
        self.sequences: dict[int, list[int]] = {group: [] for group in range(GROUPS)}
        self.in_group: dict[int, list[int]] = {group: [] for group in range(GROUPS)}
        """Messages in the order of their acknowledgements."""
        self.taken_s: dict[int, float] = {}
        """When a message was handed out last, whether anybody heard of it or not."""
        self.places: dict[int, set[tuple[int, int]]] = {}
        self.deleting: set[int] = set()
        self.deleted: set[int] = set()
        self.empty = 0
        self._last_number = 0

    # Time

    async def pause(self, within_s: float) -> None:
        await asyncio.sleep(self.random.random() * within_s)

    def later(self, act: Callable[..., None], *given: Any, within_s: float = 0.01) -> None:
        delay_s = self.random.random() * within_s
        asyncio.get_running_loop().call_later(delay_s, act, *given)

    # The run

    async def run(self) -> None:
        for journal in self.journals:
            await self._tell_one(journal.journal_id, self.row, self_commits=True)
        background: list[Coroutine[Any, Any, None]] = [
            *(journal.ask_parents_for_ever() for journal in self.journals if self.is_fifo),
            *(front.follow_for_ever() for front in self.front_ends),
            *(self._consume_for_ever() for _ in range(CONSUMERS)),
            self._lose_leaders(),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in background]
            producers = [group.create_task(self._produce(number)) for number in range(PRODUCERS)]
            for _ in range(self._changes):
                await asyncio.sleep(self.random.choice((0.1, 5, 40)))
                await self._change()
            self.is_producing = False
            await asyncio.gather(*producers)
            await self._until(lambda: self.acknowledged_s.keys() <= self.deleted)
            await self._age(lambda: all(entry.state in ("open", "drained") for entry in self.row.partitions))
            for task in tasks:
                task.cancel()

    async def _until(self, condition: Callable[[], object]) -> None:
        ends_s = now_s() + 3_600
        while not condition():
            assert now_s() < ends_s, f"never received: {self.acknowledged_s.keys() - self.deleted}"
            await asyncio.sleep(1)

    async def _lose_leaders(self) -> None:
        while True:
            await asyncio.sleep(self.random.choice((0.2, 5, 60)))
            if self.is_producing:
                await self.random.choice(self.journals).lose_leader()

    # Metadata

    async def _change(self) -> None:
        while not await self._try_to_change():
            pass

    async def _try_to_change(self) -> bool:
        row, random = self.row, self.random
        try:
            parents, ranges = random.choice(
                (
                    lambda: entries_to_split(row, random.choice((2, 3))),
                    lambda: entries_to_merge(row),
                    lambda: entries_to_move(row, random.choice(in_state(row, "open")).number),
                )
            )()
            journals = [random.randrange(len(self.journals)) for _ in ranges]
            with_new = with_children(row, parents, ranges, journals)
        except (InvalidParameterValue, OverLimit, UnsupportedOperation):
            return False
        self.is_busy = True
        await asyncio.sleep(1)
        self.row = with_new
        for journal_id in dict.fromkeys(journals):
            await self._tell_one(journal_id, with_new)
        self.row = with_children_open(with_new)
        await self._tell(self.row)
        await asyncio.sleep(3)
        self.is_busy = False
        await self._age(lambda: not in_state(self.row, "closing"))
        return True

    async def _tell(self, row: QueueDefinition) -> None:
        for journal_id in journals_of(row):
            await self._tell_one(journal_id, row)

    async def _tell_one(self, journal_id: int, row: QueueDefinition, *, self_commits: bool = False) -> None:
        if journal_id not in journals_of(row):
            return
        journal = self.journals[journal_id]
        if self_commits:
            journal.host.ask(SetQueue(row, journal_id))
            return
        assert isinstance(await journal.ask(SetQueue(row, journal_id)), Done)

    async def _age(self, is_enough: Callable[[], bool]) -> None:
        """Have partitions closed and drained; every change ends."""
        ends_s = now_s() + 7_200
        while not is_enough():
            assert now_s() < ends_s, f"the change does not end: {self.row.partitions}"
            await asyncio.sleep(self.random.choice((1, 20, 60)))
            answers: dict[int, PartitionOutcome] = {}
            for entry in in_state(self.row, "closing", "closed"):
                outcome = await self.journals[entry.journal_id].ask(AskPartition(QUEUE, entry.number))
                assert isinstance(outcome, PartitionOutcome)
                answers[entry.number] = outcome
            older, self.row = (
                self.row,
                aged(self.row, answers, FIFO_CLOSING_MS if self.has_ids else RETRY_WINDOW_MS),
            )
            if self.row is not older:
                await self._tell(self.row)

    # Clients

    async def _produce(self, producer: int) -> None:
        while self.is_producing:
            await asyncio.sleep(self.random.choice((0, 0.02, 0.1) if self.is_busy else (0.02, 10, 40)))
            self._last_number += 1
            number = self._last_number
            group = producer + PRODUCERS * self.random.randrange(GROUPS // PRODUCERS)
            await self._send(number, group)

    async def _send(self, number: int, group: int) -> None:
        begun_s = now_s()
        is_first = True
        while now_s() - begun_s < 100:  # ids are known for longer
            own_id = (number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "big") + number.to_bytes(8, "big")
            sent = message(
                number,
                group=GROUP_KEYS[group] if self.is_fifo else 0,
                dedup=own_id if self.has_ids else None,
                retry=None if self.has_ids and not self.is_fifo else own_id,
                may_be_retry=not is_first,
            )
            try:
                (result,) = (await self.random.choice(self.front_ends).send([sent])).results
            except NotNow:
                is_first = False
                await asyncio.sleep(self.random.choice((0.01, 0.3, 3)))
                continue
            assert int.from_bytes(result.message_id, "big") == number
            self.acknowledged_s[number] = now_s()
            if self.is_fifo:
                self.group_of[number] = group
                earlier = self.sequences[group]
                assert not earlier or result.sequence > earlier[-1], "numbers of a group grow"
                earlier.append(result.sequence)
                self.in_group[group].append(number)
            return
        assert not self.has_ids, "a send with an id is answered at last"

    async def _consume_for_ever(self) -> None:
        while True:
            front = self.random.choice(self.front_ends)
            begun_s = now_s()
            try:
                partition, outcome = await front.receive(self.random.choice((0, 500, 20_000)))
            except NotNow:
                await self.pause(1)
                continue
            if not outcome.deliveries:
                self._judge_empty(begun_s)
                await self.pause(5)
                continue
            numbers = [number_of(delivery) for delivery in outcome.deliveries]
            for at, (number, delivery) in enumerate(zip(numbers, outcome.deliveries, strict=True)):
                self._judge(number, partition, delivery, numbers[:at])
            for number, delivery in zip(numbers, outcome.deliveries, strict=True):
                if self.random.random() < 0.9:
                    receipt = Receipt(delivery.sequence, outcome.epoch, delivery.delivery_count)
                    await self._delete(number, partition, receipt)

    async def _delete(self, number: int, partition: int, receipt: Receipt) -> None:
        self.deleting.add(number)
        while True:
            try:
                await self.random.choice(self.front_ends).delete(partition, receipt)
            except NotNow:
                await self.pause(1)
            except InvalidParameterValue:
                return
            else:
                self.deleted.add(number)
                return

    def _judge(self, number: int, partition: int, delivery: Delivery, before: list[int]) -> None:
        places = self.places.setdefault(number, set())
        places.add((partition, delivery.sequence))
        assert len(places) == 1, f"message {number} is stored twice: {places}"
        if self.is_fifo and number in self.group_of:
            order = self.in_group[self.group_of[number]]
            left = set(order[: order.index(number)]) - self.deleting - set(before)
            assert not left, f"message {number} came before {left}"

    def _judge_empty(self, begun_s: float) -> None:
        """What was visible all the time was there to be found.

        Where receives wait for their commit that is not known so easily: one that is not answered for want of it has
        hidden its messages for a moment.
        """
        self.empty += 1
        if self.has_ids:
            return
        missed = [
            number
            for number, acknowledged_s in self.acknowledged_s.items()
            if acknowledged_s < begun_s and number not in self.taken_s
        ]
        assert not missed, f"a receive since {begun_s} was answered empty, and missed {missed}"


GROUP_KEYS: Final = [(number * 2 + 1) * ((1 << 64) // (2 * GROUPS)) for number in range(GROUPS)]
"""Groups with keys all over the range."""
