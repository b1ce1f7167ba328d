"""Counts, purges and move tasks of queues with several partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core.spread.support import HIGH, LOW, entry, queue
from msgspec.structs import replace

from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import CountMessages, Done, Purge, QueueCounts
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import (
    NotLeader,
    QueueDoesNotExist,
    ResourceNotFound,
    Timeout,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.whole_queues import divide_rate

from .support import HALVES, PLAIN, SPLIT, Bench, run

QUEUE = PLAIN.queue_id
TASK = b"t" * 16
OTHER_TASK = b"o" * 16


def task(
    status: str = "RUNNING",
    task_id: bytes = TASK,
    *,
    started_ms: int = 5,
    moved: int = 0,
    rate: int | None = None,
) -> MoveTask:
    return MoveTask(task_id, "arn", None, None, rate, status, started_ms, moved, 10)


def ask(bench: Bench, command: Command, answers: Callable[[Any], Outcome | Exception]) -> Outcome:
    """Ask the front end's broker; each command it submits is answered by `answers`."""
    bench.broker.answers = answers

    async def scenario() -> Outcome:
        return await bench.front.ask(command)

    return run(scenario())


def asked(bench: Bench, kind: type) -> list[int]:
    return [command.partition for command in bench.broker.log if isinstance(command, kind)]  # type: ignore[union-attr]


# Counts


def test_counts_are_the_sum_of_all_partitions_and_of_what_those_had_at_last_that_are_drained_or_removed() -> (
    None
):
    table = queue(
        entry(0, "drained", sends=100, deletions=90),
        entry(1, "closed"),
        entry(2, keys=LOW),
        entry(3, keys=HIGH),
    )
    table = replace(table, removed_sends=1000, removed_deletions=900)
    counts = {
        1: QueueCounts(1, 2, 3, 50, 1, 10, 4, 7),
        2: QueueCounts(10, 20, 30, 0, 0, 20, 5, 0),
        3: QueueCounts(100, 200, 300, 40, 2, 30, 6, 3),
    }

    found = ask(Bench(table), CountMessages(QUEUE), lambda command: counts[command.partition])

    assert found == QueueCounts(111, 222, 333, 40, 3, 1160, 1005, 7)


def test_counts_of_an_empty_queue_have_no_oldest_message() -> None:
    found = ask(Bench(HALVES), CountMessages(QUEUE), lambda command: QueueCounts(0, 0, 0))

    assert found == QueueCounts(0, 0, 0)


def test_counts_need_every_partition() -> None:
    def answers(command: Any) -> Outcome | Exception:
        return NotLeader() if command.partition == 2 else QueueCounts(1, 0, 0)

    with pytest.raises(NotLeader):
        ask(Bench(HALVES), CountMessages(QUEUE), answers)


def forgetful(*forgotten: int) -> Callable[[Any], Outcome | Exception]:
    return lambda command: QueueDoesNotExist() if command.partition in forgotten else QueueCounts(1, 0, 0)


def test_a_partition_that_is_not_known_is_counted_by_the_newest_table() -> None:
    bench = Bench(SPLIT)
    bench.rows.stored = queue(entry(1, keys=LOW), entry(2, keys=HIGH), version=3)

    assert ask(bench, CountMessages(QUEUE), forgetful(0)) == QueueCounts(2, 0, 0)


def test_a_partition_that_the_newest_table_lists_and_its_journal_does_not_know_makes_no_queue_gone() -> None:
    bench = Bench(SPLIT)
    with pytest.raises(Unreachable):
        ask(bench, CountMessages(QUEUE), forgetful(0))
    assert bench.rows.refreshes == 1


def test_a_queue_whose_row_is_gone_is_gone() -> None:
    bench = Bench(SPLIT)
    bench.rows.stored = None
    with pytest.raises(QueueDoesNotExist):
        ask(bench, CountMessages(QUEUE), forgetful(0))


# Purges


class Purged:
    """Partitions with the tables of their journals."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.order: list[int] = []

    def __call__(self, command: Any) -> Outcome | Exception:
        if isinstance(command, AskPartition):
            return PartitionOutcome(None, False, 0, 0, 0, self.version)
        assert isinstance(command, Purge)
        self.order.append(command.partition)
        return Done()


def test_a_purge_goes_from_older_to_younger_partitions() -> None:
    purged = Purged(SPLIT.table_version)

    assert ask(Bench(SPLIT), Purge(QUEUE), purged) == Done()

    assert purged.order == [0, 1, 2]


def test_a_purge_that_meets_a_newer_table_goes_on_to_its_partitions() -> None:
    bench = Bench(SPLIT)
    bench.rows.stored = queue(
        entry(0, "closed"), entry(1, "closing", keys=LOW), entry(2, keys=HIGH), entry(3, keys=LOW), version=4
    )
    purged = Purged(4)

    assert ask(bench, Purge(QUEUE), purged) == Done()

    assert purged.order == [0, 1, 2, 3]
    assert asked(bench, AskPartition) == [0, 1, 2, 3]


def test_a_purge_is_not_done_when_a_journal_has_a_newer_table_that_cannot_be_had() -> None:
    purged = Purged(4)

    with pytest.raises(Unreachable):
        ask(Bench(SPLIT), Purge(QUEUE), purged)


def test_a_purge_of_a_queue_that_is_gone_meanwhile_says_so() -> None:
    bench = Bench(SPLIT)
    bench.rows.stored = None

    with pytest.raises(QueueDoesNotExist):
        ask(bench, Purge(QUEUE), Purged(4))


# Move tasks


class Tasks:
    """Partitions that run the parts of tasks."""

    def __init__(self, parts: dict[int, list[MoveTask]] | None = None) -> None:
        self.parts = parts or {}
        self.failures: dict[tuple[type, int], Exception] = {}
        self.may_start = True
        """Where a start fails: whether it was carried out all the same."""

    def __call__(self, command: Any) -> Outcome | Exception:
        tasks = self.parts.setdefault(command.partition, [])
        failure = self.failures.get((type(command), command.partition))
        if isinstance(command, StartMoveTask) and (failure is None or self.may_start):
            tasks.append(task(task_id=command.task_id, rate=command.rate_per_s))
        if failure is not None:
            return failure
        if isinstance(command, CancelMoveTask):
            for mine in tasks:
                if mine.task_id == command.task_id and mine.status == "RUNNING":
                    mine.status = "CANCELLING"
                    return MoveTasksOutcome([mine])
            return ResourceNotFound.task()
        if isinstance(command, ListMoveTasks):
            return MoveTasksOutcome(list(tasks))
        return Done()

    def states(self) -> dict[int, list[str]]:
        return {number: [one.status for one in tasks] for number, tasks in self.parts.items()}


def start(rate_per_s: int | None = None) -> StartMoveTask:
    return StartMoveTask(QUEUE, TASK, "arn", None, None, rate_per_s)


def test_a_task_is_started_in_every_partition_the_oldest_first() -> None:
    bench, tasks = Bench(SPLIT), Tasks()

    assert ask(bench, start(7), tasks) == Done()

    assert asked(bench, StartMoveTask) == [0, 1, 2]
    assert [tasks.parts[number][0].rate_per_s for number in range(3)] == [3, 2, 2]


@pytest.mark.parametrize("status", ["RUNNING", "CANCELLING"])
def test_a_task_is_not_started_while_a_part_of_another_one_goes_on(status: str) -> None:
    bench = Bench(SPLIT)

    with pytest.raises(UnsupportedOperation):
        ask(bench, start(), Tasks({0: [task("COMPLETED", OTHER_TASK)], 2: [task(status, OTHER_TASK)]}))

    assert asked(bench, StartMoveTask) == []


def test_a_task_is_started_after_others_have_ended() -> None:
    tasks = Tasks({0: [task("COMPLETED", OTHER_TASK)], 2: [task("CANCELLED", OTHER_TASK)]})

    assert ask(Bench(SPLIT), start(), tasks) == Done()


@pytest.mark.parametrize("error", [UnsupportedOperation("another one"), NotLeader()])
def test_parts_that_were_started_are_cancelled_when_one_cannot_be(error: Exception) -> None:
    tasks = Tasks()
    tasks.failures[StartMoveTask, 1] = error
    tasks.may_start = False

    with pytest.raises(type(error)):
        ask(Bench(SPLIT), start(), tasks)

    assert tasks.states() == {0: ["CANCELLING"], 1: [], 2: []}


def test_a_part_that_may_have_been_started_is_cancelled_too() -> None:
    tasks = Tasks()
    tasks.failures[StartMoveTask, 1] = Timeout()

    with pytest.raises(Timeout):
        ask(Bench(SPLIT), start(), tasks)

    assert tasks.states() == {0: ["CANCELLING"], 1: ["CANCELLING"], 2: []}


def test_what_cannot_be_cancelled_does_not_hide_why_a_task_was_not_started() -> None:
    tasks = Tasks()
    tasks.failures[StartMoveTask, 1] = NotLeader()
    tasks.failures[CancelMoveTask, 0] = Timeout()

    with pytest.raises(NotLeader):
        ask(Bench(SPLIT), start(), tasks)


def test_a_task_is_not_started_again_where_a_partition_turns_out_to_be_not_known() -> None:
    bench, tasks = Bench(SPLIT), Tasks()
    tasks.failures[StartMoveTask, 2] = QueueDoesNotExist()
    bench.rows.stored = queue(entry(0, "closed"), entry(1, keys=LOW), entry(2, keys=HIGH), version=3)

    with pytest.raises(Unreachable):
        ask(bench, start(), tasks)

    assert asked(bench, StartMoveTask) == [0, 1, 2]


def test_cancelling_a_task_cancels_the_parts_that_go_on() -> None:
    tasks = Tasks({0: [task("COMPLETED", moved=4)], 1: [task(moved=3)], 2: [task(moved=2)]})

    outcome = ask(Bench(SPLIT), CancelMoveTask(QUEUE, TASK), tasks)

    assert tasks.states() == {0: ["COMPLETED"], 1: ["CANCELLING"], 2: ["CANCELLING"]}
    assert isinstance(outcome, MoveTasksOutcome)
    assert [(one.status, one.moved) for one in outcome.tasks] == [("CANCELLING", 9)]


def test_a_task_without_a_part_that_goes_on_is_not_cancelled() -> None:
    with pytest.raises(ResourceNotFound):
        ask(Bench(SPLIT), CancelMoveTask(QUEUE, TASK), Tasks({0: [task("COMPLETED")]}))


def test_a_partition_that_cannot_be_asked_to_cancel_is_told_and_can_be_asked_again() -> None:
    bench, tasks = Bench(SPLIT), Tasks({0: [task()], 1: [task()], 2: [task()]})
    tasks.failures[CancelMoveTask, 1] = NotLeader()
    with pytest.raises(NotLeader):
        ask(bench, CancelMoveTask(QUEUE, TASK), tasks)

    del tasks.failures[CancelMoveTask, 1]
    ask(bench, CancelMoveTask(QUEUE, TASK), tasks)

    assert tasks.states() == {number: ["CANCELLING"] for number in range(3)}


def listed(parts: dict[int, list[MoveTask]]) -> list[MoveTask]:
    outcome = ask(Bench(SPLIT), ListMoveTasks(QUEUE), Tasks(parts))
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks


def test_tasks_are_listed_the_newest_first_with_the_progress_of_all_their_parts() -> None:
    tasks = listed(
        {
            0: [task(started_ms=9, moved=1, rate=3), task("COMPLETED", OTHER_TASK, started_ms=2, moved=8)],
            1: [task(started_ms=8, moved=2, rate=2), task("COMPLETED", OTHER_TASK, started_ms=3, moved=8)],
        }
    )

    assert [(one.task_id, one.started_ms, one.moved, one.to_move, one.rate_per_s) for one in tasks] == [
        (TASK, 8, 3, 20, 5),
        (OTHER_TASK, 2, 16, 20, None),
    ]


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        (["COMPLETED", "RUNNING", "FAILED"], "RUNNING"),
        (["CANCELLED", "CANCELLING", "COMPLETED"], "CANCELLING"),
        (["COMPLETED", "CANCELLED", "FAILED"], "FAILED"),
        (["COMPLETED", "CANCELLED", "COMPLETED"], "CANCELLED"),
        (["COMPLETED", "COMPLETED", "COMPLETED"], "COMPLETED"),
    ],
)
def test_a_task_is_as_far_as_the_part_that_is_least_far(statuses: list[str], whole: str) -> None:
    (one,) = listed({number: [task(status)] for number, status in enumerate(statuses)})

    assert one.status == whole


def test_a_task_that_failed_says_why() -> None:
    failed = task("FAILED")
    failed.failure = "no such queue"

    (one,) = listed({0: [task("COMPLETED")], 1: [failed]})

    assert one.failure == "no such queue"


@pytest.mark.parametrize(
    ("rate", "parts", "rates"),
    [(None, 2, [None, None]), (10, 2, [5, 5]), (11, 3, [4, 4, 3]), (2, 4, [1, 1, 1, 1])],
)
def test_a_rate_is_divided_and_no_part_stands_still(
    rate: int | None, parts: int, rates: list[int | None]
) -> None:
    assert divide_rate(rate, parts) == rates


@pytest.mark.parametrize("table", [PLAIN, queue(entry(4), version=9)])
def test_a_queue_of_one_partition_is_asked_as_such(table: QueueDefinition) -> None:
    bench = Bench(table)

    assert ask(bench, CountMessages(QUEUE), lambda command: QueueCounts(1, 0, 0)) == QueueCounts(1, 0, 0)

    assert len(bench.broker.log) == 1


def test_a_group_begins_anew_in_older_partitions_first() -> None:
    bench = Bench(SPLIT)

    assert ask(bench, ResetGroup(QUEUE, "earliest"), lambda command: Done()) == Done()

    assert bench.broker.log == [ResetGroup(QUEUE, "earliest", number) for number in (0, 1, 2)]


def test_counts_of_drained_partitions_are_the_logs_and_not_its_groups() -> None:
    table = queue(entry(0, "drained", sends=9), entry(1, keys=LOW), entry(2, keys=HIGH), version=3)
    counted = {True: 0, False: 0}
    for is_group in counted:
        bench = Bench(replace(table, group_of=5) if is_group else table)
        found = ask(bench, CountMessages(QUEUE), lambda command: QueueCounts(1, 0, 0, sends=1))
        assert isinstance(found, QueueCounts)
        counted[is_group] = found.sends

    assert counted == {True: 2, False: 11}
