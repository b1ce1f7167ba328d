"""Which queue a worker of an import turns to, and when a queue is done."""

from __future__ import annotations

from quaymaster.core.importing.rounds import PAUSE_MS, POLL_MS, Round, Rounds


def rounds_of(*queues: str, workers: int = 2, idle_ms: int = 300_000, **dead_letter_queues: str) -> Rounds:
    return Rounds(
        ((name, name.endswith(".fifo")) for name in queues),
        workers=workers,
        idle_ms=idle_ms,
        now_ms=0,
        dead_letter_queues=dead_letter_queues,
    )


def test_a_dead_letter_queue_is_done_after_the_queues_that_name_it() -> None:
    rounds = rounds_of("a", "dead", workers=9, idle_ms=0, a="dead")

    rounds.take(0)
    rounds.take(0)
    assert rounds.give("dead", 0, 0)
    assert not rounds.count("dead", 0, 0)
    assert rounds.give("a", 0, 0)
    assert rounds.count("a", 0, 0)

    assert rounds.open == ["dead"]
    assert rounds.take(PAUSE_MS) == Round("dead", 1_000)
    assert rounds.give("dead", 0, PAUSE_MS)
    assert rounds.count("dead", 0, PAUSE_MS)


def test_in_a_circle_no_queue_waits_for_another() -> None:
    rounds = rounds_of("a", "b", "c", workers=9, idle_ms=0, a="b", b="a", c="c")
    for _ in "abc":
        rounds.take(0)

    for queue in "abc":
        assert rounds.give(queue, 0, 0)
        assert rounds.count(queue, 0, 0)


def test_a_queue_in_front_of_a_circle_is_done_first() -> None:
    rounds = rounds_of("a", "b", "c", workers=9, idle_ms=0, a="b", b="c", c="b")
    for _ in "abc":
        rounds.take(0)

    for queue, is_done in (("b", False), ("a", True)):
        assert rounds.give(queue, 0, 0)
        assert rounds.count(queue, 0, 0) is is_done


def test_workers_wait_at_a_queue_where_there_are_enough_of_them() -> None:
    rounds = rounds_of("a", "b")

    assert rounds.take(0) == Round("a", POLL_MS)
    assert rounds.take(0) == Round("b", POLL_MS)
    assert rounds.take(0) == Round("a", POLL_MS)


def test_with_more_queues_than_workers_none_waits_and_an_empty_queue_is_left_alone() -> None:
    rounds = rounds_of("a", "b", "c")

    assert rounds.take(0) == Round("a", 0)
    assert not rounds.give("a", 0, 0)
    assert rounds.take(0) == Round("b", 0)
    assert not rounds.give("b", 3, 0)
    assert rounds.take(1) == Round("b", 0)
    assert rounds.take(1) == Round("c", 0)
    assert not rounds.give("c", 0, 1)
    assert not rounds.give("b", 0, 1)
    assert rounds.take(1) == PAUSE_MS - 1
    assert rounds.take(PAUSE_MS) == Round("a", 0)


def test_a_fifo_queue_has_one_worker_at_a_time() -> None:
    rounds = rounds_of("a.fifo")

    assert rounds.take(0) == Round("a.fifo", POLL_MS)
    assert rounds.take(0) == PAUSE_MS
    rounds.give("a.fifo", 1, 5)
    assert rounds.take(5) == Round("a.fifo", POLL_MS)


def test_a_queue_is_done_when_nothing_came_for_long_and_its_service_counts_nothing() -> None:
    rounds = rounds_of("a", idle_ms=1_000)
    rounds.take(0)
    assert not rounds.give("a", 7, 500)
    rounds.take(500)
    assert not rounds.give("a", 0, 1_499)
    rounds.take(1_499)

    assert rounds.give("a", 0, 1_500)
    assert rounds.count("a", 0, 1_500)

    assert rounds.open == []
    assert rounds.take(1_500) is None
    assert not rounds.count("a", 0, 1_500)


def test_messages_that_are_counted_keep_a_queue_open() -> None:
    rounds = rounds_of("a", idle_ms=0)
    rounds.take(0)
    assert rounds.give("a", 0, 0)

    assert not rounds.count("a", 2, 0)

    assert rounds.take(0) == PAUSE_MS
    assert rounds.take(PAUSE_MS) == Round("a", 1_000)


def test_a_queue_that_seems_done_waits_for_its_last_worker() -> None:
    rounds = rounds_of("a", idle_ms=0)
    rounds.take(0)
    rounds.take(0)
    assert rounds.give("a", 0, 10)
    assert not rounds.count("a", 0, 10)
    assert rounds.take(10) == PAUSE_MS

    assert rounds.give("a", 0, 20)
    assert rounds.count("a", 0, 20)

    assert rounds.take(20) is None


def test_a_message_that_the_last_worker_brings_opens_a_queue_again() -> None:
    rounds = rounds_of("a", workers=3, idle_ms=0)
    for _ in range(3):
        rounds.take(0)
    rounds.give("a", 0, 10)
    rounds.count("a", 0, 10)
    assert not rounds.give("a", 0, 11)

    assert not rounds.give("a", 1, 20)

    assert rounds.take(20) == Round("a", 1_000)
    assert rounds.open == ["a"]
