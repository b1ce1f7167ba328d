"""Changes of partitions that a manager asks metadata nodes for: one at a time, with a reason, and only in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from harness.broker_support import define
from harness.managed_cell import FakeCell

from quaymaster.core.cell.cell import Action, CellSeen
from quaymaster.core.cell.load import PartitionLoad
from quaymaster.core.cell.partition_plans import (
    BUSY_MS,
    QUEUE_REST_MS,
    MergePartitions,
    MovePartition,
    PlannedChange,
    SplitPartition,
)
from quaymaster.core.values.errors import NotNow, Timeout, Unreachable, UnsupportedOperation
from quaymaster.core.values.partition_tables import (
    entries_to_split,
    in_state,
    parents_of_new,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    encode_queue_definition,
    replace_definition,
)
from quaymaster.managers.partition_manager import LOOK_MS, PartitionManager, RPCQueueNodes, request_of
from quaymaster.net.routing.metadata_client import FullNodes, MetadataClient, MetadataLink
from quaymaster.protocol.rpc.metadata_messages import (
    ChangedQueue,
    ChangePartitions,
    FindQueues,
    QueueList,
    decode_request,
    encode_message,
)
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE

QUEUE = 7
EVEN = (50,) * 16


class FakeNodes:
    """Metadata nodes with one queue, that carry changes out at once."""

    def __init__(self, journal: int = 0) -> None:
        definition = define(QUEUE, "orders")
        (only,) = definition.partitions
        only = msgspec.structs.replace(only, journal_id=journal)
        self.queue = replace_definition(definition, partitions=(only,))
        self.asked: list[ChangePartitions] = []
        self.finds = 0
        self.fails_find: Exception | None = None
        self.fails_change: Exception | None = None

    async def find(self, queue_ids: Sequence[int]) -> list[QueueDefinition]:
        self.finds += 1
        if self.fails_find is not None:
            raise self.fails_find
        return [self.queue] if QUEUE in queue_ids else []

    async def change(self, request: ChangePartitions) -> QueueDefinition:
        self.asked.append(request)
        if self.fails_change is not None:
            raise self.fails_change
        assert request.table_version == self.queue.table_version
        assert request.kind == "split"
        parents, ranges = entries_to_split(self.queue, 2, request.partitions[0], request.key)
        began = with_children(self.queue, parents, ranges, request.journals)
        parent = parents_of_new(began)[0].number
        self.queue = with_state(with_children_open(began), parent, "closed")
        return began


class Scene:
    """A cell in which the first journal has a hot partition, the way a manager sees it, and its task."""

    def __init__(self) -> None:
        self.cell = FakeCell("a", "b", "c").world
        for name in "abc":
            self.cell.join(name)
        self.cell.run(ms=30_000)
        self.nodes = FakeNodes()
        self.is_acting = True
        self.noted: list[tuple[str, str, str | None]] = []
        self.reasons: list[str] = []
        self.manager = PartitionManager(self.nodes, self.see, self.note)
        self.cell.demand = {0: 0.9}

    def see(self) -> CellSeen | None:
        if not self.is_acting:
            return None
        seen = self.cell.see()
        brokers = []
        for broker in seen.brokers:
            named = tuple(
                PartitionLoad(QUEUE, entry.number, 0, 0.8, by_key=EVEN, has_sinks=False)
                for entry in in_state(self.nodes.queue, "open")
                if entry.journal_id == 0 and self.cell.leaders()[0] == broker.name
            )
            told = msgspec.structs.replace(broker.report.load, partitions=named)
            report = msgspec.structs.replace(broker.report, load=told)
            brokers.append(msgspec.structs.replace(broker, report=report))
        return msgspec.structs.replace(seen, brokers=tuple(brokers))

    def note(self, change: Action | PlannedChange, result: str, reason: str | None) -> None:
        assert isinstance(change, SplitPartition)
        self.noted.append((type(change).__name__, result, reason))
        self.reasons.append(change.reason)

    def problems(self) -> tuple[str, ...]:
        return self.manager.problems

    async def run(self, ms: int) -> None:
        """Let time pass, with a step each second."""
        for _ in range(0, ms, 1_000):
            self.cell.now_ms += 1_000
            await self.manager.step()


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    asyncio.run(_play(story))


async def _play(story: Callable[[Scene], Awaitable[None]]) -> None:
    await story(Scene())


def test_hot_partition_is_split_once_with_its_reason_and_its_queue_then_rests_for_ten_minutes() -> None:
    async def story(scene: Scene) -> None:
        await scene.run(QUEUE_REST_MS - BUSY_MS)
        assert scene.nodes.asked == []  # what was before this manager acted is not known

        await scene.run(2 * BUSY_MS)
        (asked,) = scene.nodes.asked
        assert (asked.name, asked.queue_id, asked.kind, asked.partitions) == ("orders", QUEUE, "split", [0])
        assert (asked.key, asked.journals[0]) == (1 << 63, 0)
        assert scene.noted == [("SplitPartition", "done", None)]
        account = scene.nodes.queue.account_id
        assert scene.reasons[0].startswith("journal 0 is busy (")
        assert scene.reasons[0].endswith(f"of it for partition 0 of queue {account}/orders")

        await scene.run(QUEUE_REST_MS - 2 * BUSY_MS)
        assert len(scene.nodes.asked) == 1
        await scene.run(3 * BUSY_MS)
        assert len(scene.nodes.asked) == 2

    play(story)


def test_nothing_is_asked_while_another_manager_acts_and_a_turn_begins_with_a_rest() -> None:
    async def story(scene: Scene) -> None:
        await scene.run(QUEUE_REST_MS - BUSY_MS)
        scene.is_acting = False
        await scene.run(3 * BUSY_MS)
        scene.is_acting = True
        await scene.run(QUEUE_REST_MS - BUSY_MS)

        assert scene.nodes.asked == []

    play(story)


def test_nothing_is_asked_once_the_turn_ended_while_nodes_were_asked_for_tables() -> None:
    async def story(scene: Scene) -> None:
        await scene.run(QUEUE_REST_MS)
        assert scene.nodes.asked == []
        find = scene.nodes.find

        async def lose_turn(queue_ids: Sequence[int]) -> list[QueueDefinition]:
            scene.is_acting = False
            return await find(queue_ids)

        scene.nodes.find = lose_turn  # type: ignore[method-assign]
        await scene.run(1_000)  # the queue's rest is over, and its table is due

        assert (scene.is_acting, scene.nodes.asked) == (False, [])

    play(story)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (UnsupportedOperation("changed meanwhile"), "failed"),
        (NotNow("not now"), "failed"),
        (Timeout("late"), "unknown"),
    ],
)
def test_queue_whose_change_failed_rests_as_well(error: Exception, result: str) -> None:
    async def story(scene: Scene) -> None:
        scene.nodes.fails_change = error
        await scene.run(QUEUE_REST_MS + BUSY_MS)
        await scene.run(QUEUE_REST_MS - BUSY_MS)

        assert scene.noted == [("SplitPartition", result, str(error))]
        assert len(scene.nodes.asked) == 1

    play(story)


def test_metadata_nodes_that_do_not_answer_are_a_problem_and_nothing_is_changed_meanwhile() -> None:
    async def story(scene: Scene) -> None:
        await scene.run(QUEUE_REST_MS - BUSY_MS)
        scene.nodes.fails_find = Unreachable("No metadata node can be reached.")
        await scene.run(5 * BUSY_MS)

        assert scene.nodes.asked == []
        assert scene.problems() == (
            "partitions of queues are left alone, metadata nodes do not tell of them: "
            "No metadata node can be reached.",
        )

        scene.nodes.fails_find = None
        await scene.run(LOOK_MS)
        assert scene.problems() == ()
        assert len(scene.nodes.asked) == 1

    play(story)


def test_hot_queues_that_managers_leave_alone_are_a_problem_and_own_queues_are_not() -> None:
    async def story(scene: Scene) -> None:
        scene.nodes.queue = replace_definition(scene.nodes.queue, attributes={"PartitionsMax": "1"})
        await scene.run(QUEUE_REST_MS + BUSY_MS)
        (problem,) = scene.problems()
        assert problem.endswith("and stays: it is to have one partition (PartitionsMax)")

        scene.nodes.queue = replace_definition(
            scene.nodes.queue, account_id=INTERNAL_ACCOUNT, name=USAGE_QUEUE
        )
        await scene.run(QUEUE_REST_MS + BUSY_MS)
        assert (scene.problems(), scene.nodes.asked) == ((), [])

    play(story)


def test_tables_are_asked_for_now_and_then_and_only_where_there_is_load() -> None:
    async def story(scene: Scene) -> None:
        await scene.run(6 * LOOK_MS)
        assert scene.nodes.finds == 6

        quiet = Scene()
        quiet.nodes.queue = replace_definition(quiet.nodes.queue, partitions=())
        await quiet.run(6 * LOOK_MS)
        assert quiet.nodes.finds == 0

    play(story)


def test_each_change_is_asked_for_with_the_table_that_it_was_planned_for() -> None:
    queue = replace_definition(define(QUEUE, "orders"), table_version=4)
    split = SplitPartition(QUEUE, 2, 99, (3, 4), "why")

    def expected(**fields: object) -> ChangePartitions:
        asked = ChangePartitions(queue.account_id, "orders", "move", queue_id=QUEUE, table_version=4)
        return msgspec.structs.replace(asked, **fields)

    assert request_of(split, queue) == expected(kind="split", into=2, partitions=[2], journals=[3, 4], key=99)
    assert request_of(MovePartition(QUEUE, 2, 5, "why"), queue) == expected(partitions=[2], journals=[5])
    assert request_of(MergePartitions(QUEUE, (2, 3), 5, "why"), queue) == expected(
        kind="merge", partitions=[2, 3], journals=[5]
    )


# The nodes


class Connection:
    """A metadata node that has one queue."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        request = decode_request(body)
        if isinstance(request, FindQueues):
            assert request.queue_ids == [QUEUE, 8]
            return encode_message(QueueList([self.stored], None))
        assert isinstance(request, ChangePartitions)
        return encode_message(ChangedQueue(self.stored, 3))


def nodes_of(stored: bytes) -> RPCQueueNodes:
    return RPCQueueNodes(MetadataClient(FullNodes([MetadataLink("one", Connection(stored))])))


def test_metadata_nodes_are_asked_for_queues_and_changes() -> None:
    async def story() -> None:
        queue = define(QUEUE, "orders")
        nodes = nodes_of(encode_queue_definition(queue))

        assert await nodes.find([QUEUE, 8]) == [queue]
        assert await nodes.change(ChangePartitions(queue.account_id, "orders", "move")) == queue

    asyncio.run(story())


def test_queues_of_newer_metadata_nodes_are_not_known_now() -> None:
    async def story() -> None:
        with pytest.raises(NotNow, match="newer than this manager"):
            await nodes_of(b"\xff?").find([QUEUE, 8])

    asyncio.run(story())


# In a manager


def test_manager_has_a_hot_partition_split_and_keeps_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (
        ("QUEUE_REST_MS", "quaymaster.core.cell.partition_plans"),
        ("BUSY_MS", "quaymaster.core.cell.partition_plans"),
        ("LOOK_MS", "quaymaster.managers.partition_manager"),
    ):
        monkeypatch.setattr(f"{module}.{name}", 100)

    async def main() -> None:
        cell = FakeCell("a", "b", "c")
        cell.queue_nodes = nodes = FakeNodes()
        async with cell.running():
            await cell.until_led("a", "b", "c")
            cell.world.demand = {0: 0.9}
            cell.world.partitions = (PartitionLoad(QUEUE, 0, 0, 0.8, by_key=EVEN, has_sinks=False),)
            await cell.until(lambda: bool(nodes.asked))
            manager = cell.managers["m1"]

            def is_noted() -> bool:
                return "SplitPartition" in {one.decision.action for one in manager.decisions().decisions}

            await cell.until(is_noted)
            assert manager._actions_done["SplitPartition", "done"] >= 1

    asyncio.run(main())
