"""The checker of messages that move tasks move about notices what is lost, doubled, invented, or moved without end."""

from __future__ import annotations

import pytest
from harness.replica_host import arn, identity

from quaymaster.core.values.commands.move_tasks import MoveTask
from sim.kernel import Violation
from sim.queue_checker import Delivery
from sim.redrives import LOOP, PING, PONG, RedriveChecker


def checker_of(*sent: int, queue_id: int = PING) -> RedriveChecker:
    checker = RedriveChecker()
    for number in sent:
        checker.send_asked(queue_id, number)
        checker.send_acked(number)
    return checker


def see(checker: RedriveChecker, queue_id: int, sequence: int, number: int, at_us: int) -> None:
    """Have a receive that began and was answered at `at_us` find a message."""
    checker.delivered(queue_id, [Delivery(sequence, number, 1, 1, 0, 0)], asked_us=at_us, now_us=at_us)


def task_that_moved(count: int) -> MoveTask:
    return MoveTask(identity(1), arn("ping"), None, None, None, "RUNNING", started_ms=7, moved=count)


def test_a_message_may_go_from_place_to_place_and_be_deleted_at_the_last() -> None:
    checker = checker_of(1)

    see(checker, PING, 1, 1, at_us=10)
    see(checker, PING, 1, 1, at_us=20)
    see(checker, PONG, 1, 1, at_us=30)
    see(checker, PING, 2, 1, at_us=40)
    checker.delete_asked([1])
    checker.delete_answered(PING, Delivery(2, 1, 1, 1, 0, 0), is_done=True, now_us=50)

    checker.check_drained()


def test_a_message_that_nobody_deleted_and_that_is_gone_is_lost() -> None:
    checker = checker_of(1, 2)
    checker.delete_asked([1])
    see(checker, PING, 2, 2, at_us=10)
    checker.delete_asked([2])
    checker.delete_answered(PING, Delivery(2, 2, 1, 1, 0, 0), is_done=False, now_us=20)

    with pytest.raises(Violation, match="I15: message 2 "):
        checker.check_drained()


def test_a_message_that_comes_back_to_where_it_was_is_there_twice() -> None:
    checker = checker_of(1)
    see(checker, PING, 1, 1, at_us=10)
    see(checker, PONG, 5, 1, at_us=20)

    with pytest.raises(Violation, match="I19: message 1 is at"):
        see(checker, PING, 1, 1, at_us=30)


def test_a_receive_that_began_before_the_message_was_elsewhere_may_be_answered_late() -> None:
    checker = checker_of(1)
    see(checker, PING, 1, 1, at_us=10)
    see(checker, PONG, 5, 1, at_us=20)

    checker.delivered(PING, [Delivery(1, 1, 1, 1, 0, 0)], asked_us=15, now_us=30)


def test_what_was_deleted_or_never_sent_there_does_not_come() -> None:
    checker = checker_of(1, 2)
    see(checker, PING, 1, 1, at_us=10)
    checker.delete_asked([1])
    checker.delete_answered(PING, Delivery(1, 1, 1, 1, 0, 0), is_done=True, now_us=20)

    with pytest.raises(Violation, match="I17: message 1 "):
        see(checker, PING, 1, 1, at_us=30)
    with pytest.raises(Violation, match="I16: message 2 "):
        see(checker, LOOP, 1, 2, at_us=30)
    with pytest.raises(Violation, match="I16: message 3 "):
        see(checker, PING, 3, 3, at_us=30)


def test_a_task_moves_no_more_than_was_there_when_it_started() -> None:
    checker = checker_of(1, 2)

    checker.tasks_listed(PONG, [task_that_moved(1)])
    checker.send_asked(PING, 3)
    checker.tasks_listed(PONG, [task_that_moved(2)])

    with pytest.raises(Violation, match="I25: a task of queue 42 has moved 3 messages"):
        checker.tasks_listed(PONG, [task_that_moved(3)])
