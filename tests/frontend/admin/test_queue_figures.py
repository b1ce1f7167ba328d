"""Figures of many queues come with one call for each leader; what that does not tell is asked for queue by queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from core.spread.support import HIGH, LOW, entry, queue
from harness.waiting import PATIENCE_S

from quaymaster.core.values.commands.messages import CountMessages, QueueCounts
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import AccessDenied, QueueDoesNotExist, Unreachable
from quaymaster.core.values.queue_metrics import QueueMetricsPage, QueueMetricsRequest, QueueMetricsRow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.admin.queues.queue_figures import QueueFigures
from quaymaster.net.routing.broker_client import NotTakenBack, Reply, Submitted

HALVES = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
QUEUE = HALVES.queue_id
ALONE = QueueCounts(99, 0, 0)


class Broker:
    """Counts which queues are asked for by themselves."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.is_gone = False

    def submit(self, command: Command, reply: Reply) -> Submitted:
        assert isinstance(command, CountMessages)
        self.asked.append(command.queue_id)
        asyncio.get_running_loop().call_soon(reply, QueueDoesNotExist() if self.is_gone else ALONE)
        return NotTakenBack()


class Leaders:
    """Leaders by name, each with its rows, or what it fails with."""

    def __init__(self, **told: list[QueueMetricsRow] | Exception) -> None:
        self.told = told
        self.requests: list[QueueMetricsRequest] = []

    def leaders(self) -> list[str]:
        return list(self.told)

    async def ask(self, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
        self.requests.append(request)
        told = self.told[leader]
        if isinstance(told, Exception):
            raise told
        return QueueMetricsPage(leader, told)

    async def close(self) -> None: ...


def row(partition: int, epoch: int = 1, visible: int = 1) -> QueueMetricsRow:
    return QueueMetricsRow(QUEUE, partition, 7, epoch, visible=visible, sent=10, deleted=3, oldest_sent_ms=5)


def counts_with(
    leaders: Leaders,
    definition: QueueDefinition = HALVES,
    change: Callable[[Broker], None] = lambda one: None,
) -> tuple[QueueCounts | None, list[int]]:
    """Return the counts of a queue, and the queues that were asked for by themselves."""

    async def scenario() -> tuple[QueueCounts | None, list[int]]:
        broker = Broker()
        change(broker)
        async with asyncio.timeout(PATIENCE_S):
            (counts,) = await QueueFigures(broker, leaders).counts([definition])
        return counts, broker.asked

    return asyncio.run(scenario())


def test_rows_of_all_partitions_are_added_up_without_a_command() -> None:
    leaders = Leaders(a=[row(1)], b=[row(2, visible=4)])

    counts, asked = counts_with(leaders)

    assert counts == QueueCounts(5, 0, 0, oldest_sent_ms=5, sends=20, deletions=6)
    assert asked == []
    assert leaders.requests == [QueueMetricsRequest(queue_ids=(QUEUE,))] * 2


def test_row_of_the_newer_leader_counts() -> None:
    counts, _ = counts_with(Leaders(a=[row(1, epoch=3, visible=2), row(2)], b=[row(1, epoch=2, visible=50)]))

    assert counts is not None
    assert counts.visible == 3


def test_queue_with_a_partition_of_which_no_leader_tells_is_asked_for_by_itself() -> None:
    for silent in (Unreachable(), AccessDenied("an older program")):
        assert counts_with(Leaders(a=[row(1)], b=silent)) == (ALONE, [QUEUE])


def test_queue_with_a_partition_that_is_not_listed_yet_is_asked_for_by_itself() -> None:
    assert counts_with(Leaders(a=[row(1), row(2), row(3)])) == (ALONE, [QUEUE])


def test_queue_that_is_gone_has_no_counts() -> None:
    def forget(broker: Broker) -> None:
        broker.is_gone = True

    assert counts_with(Leaders(a=[]), change=forget) == (None, [QUEUE])


def test_counts_of_partitions_that_are_asked_no_more_are_those_of_the_table() -> None:
    drained = queue(entry(1, "drained"), entry(2, keys=LOW), entry(3, keys=HIGH), version=4)

    counts, asked = counts_with(Leaders(a=[row(1), row(2), row(3)]), drained)

    assert counts is not None
    assert (counts.visible, counts.sends, asked) == (2, 20, [])
