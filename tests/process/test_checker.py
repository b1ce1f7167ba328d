"""The checker catches every kind of wrong history, and lets the legal one beside it pass.

Times are seconds from the start of the little history; an operation takes effect between its two times.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from harness.checker import Verdict, check
from harness.history import (
    FAIL,
    OK,
    UNKNOWN,
    ChangeVisibility,
    Count,
    Delete,
    DeleteQueue,
    DeliveredMessage,
    Disturbed,
    Event,
    HandledMessage,
    History,
    MoveTask,
    Outcome,
    Purge,
    QueueFacts,
    Receive,
    Send,
    SentMessage,
    ServerEnded,
)

QUEUES = (
    QueueFacts("plain", "plain"),
    QueueFacts("other", "other"),
    QueueFacts("memory", "memory", survives_kill=False),
    QueueFacts("short", "short", retention_ms=60_000),
    QueueFacts("late", "late", delay_ms=5_000),
    QueueFacts("work", "work", max_receive_count=2, is_move_target=True),
    QueueFacts("dead", "work"),
    QueueFacts("row.fifo", "row.fifo", is_fifo=True),
    QueueFacts("source.fifo", "source.fifo", is_fifo=True, max_receive_count=2),
    QueueFacts("dead.fifo", "source.fifo", is_fifo=True),
)


def ns(seconds: float) -> int:
    return round(seconds * 1_000_000_000)


class Span(TypedDict):
    invoked_ns: int
    completed_ns: int


def span(at: float, until: float | None) -> Span:
    return {"invoked_ns": ns(at), "completed_ns": ns(at + 0.01 if until is None else until)}


def send(
    token: int,
    at: float = 0.0,
    *,
    queue: str = "plain",
    outcome: Outcome = OK,
    message_id: str | None = None,
    until: float | None = None,
    group: str | None = None,
    sequence: int | None = None,
    dedup_id: str | None = None,
    delay_s: float | None = None,
    attempts: int = 1,
) -> Send:
    given = (message_id or f"m{token}") if outcome == OK else None
    delay_ms = None if delay_s is None else round(delay_s * 1000)
    entry = SentMessage(token, outcome, given, sequence, group, dedup_id, delay_ms)
    return Send(queue=queue, outcome=outcome, entries=[entry], attempts=attempts, **span(at, until))


def receive(
    *tokens: int,
    at: float = 1.0,
    queue: str = "plain",
    until: float | None = None,
    visibility_s: float = 30.0,
    message_id: str | None = None,
    count: int = 1,
    group: str | None = None,
    sequences: Iterable[int] = (),
    is_intact: bool = True,
) -> Receive:
    numbers: list[int | None] = [*sequences] or [None] * len(tokens)
    messages = [
        DeliveredMessage(
            token, message_id or f"m{token}", count, handle(token, at), is_intact, sequence, group
        )
        for token, sequence in zip(tokens, numbers, strict=True)
    ]
    return Receive(
        queue=queue, visibility_ms=round(visibility_s * 1000), messages=messages, **span(at, until)
    )


def handle(token: int, received_at: float) -> int:
    return token * 1_000_000 + round(received_at * 1000)


def delete(
    token: int,
    at: float = 2.0,
    *,
    queue: str = "plain",
    until: float | None = None,
    received_at: float = 1.0,
    outcome: Outcome = OK,
    message_id: str | None = None,
) -> Delete:
    entry = HandledMessage(token, message_id or f"m{token}", handle(token, received_at), outcome)
    return Delete(queue=queue, outcome=outcome, entries=[entry], **span(at, until))


def change(
    token: int,
    at: float,
    timeout_s: float,
    *,
    queue: str = "plain",
    received_at: float = 1.0,
    outcome: Outcome = OK,
) -> ChangeVisibility:
    entry = HandledMessage(token, f"m{token}", handle(token, received_at), outcome, round(timeout_s * 1000))
    return ChangeVisibility(queue=queue, outcome=outcome, entries=[entry], **span(at, None))


def purge(at: float, *, queue: str = "plain", outcome: Outcome = OK, until: float | None = None) -> Purge:
    return Purge(queue=queue, outcome=outcome, **span(at, until))


def killed(at: float) -> ServerEnded:
    return ServerEnded(ns(at), ns(at + 0.01))


def disturbed(at: float, until: float) -> Disturbed:
    return Disturbed(ns(at), ns(until), "broker-1 was cut off")


def count(
    at: float, visible: int, *, queue: str = "plain", in_flight: int = 0, delayed: int = 0, round_: int = 1
) -> Count:
    return Count(
        queue=queue, round=round_, visible=visible, in_flight=in_flight, delayed=delayed, **span(at, None)
    )


def judge(*events: Event, is_drained: bool = True) -> Verdict:
    history = History(QUEUES)
    history.add(*events)
    return check(history, is_drained=is_drained)


def rules(*events: Event, is_drained: bool = True) -> set[str]:
    return set(judge(*events, is_drained=is_drained).counts_by_rule)


def test_a_message_that_is_sent_received_and_deleted_is_fine() -> None:
    verdict = judge(send(1), receive(1), delete(1))

    assert verdict.violations == []
    assert (verdict.acknowledged, verdict.delivered, verdict.deleted) == (1, 1, 1)


class TestNothingIsLost:
    def test_an_acknowledged_message_that_is_never_seen_is_lost(self) -> None:
        verdict = judge(send(1), send(2), receive(2), delete(2))

        assert verdict.lost == 1
        assert "m1" in verdict.report()

    def test_one_that_was_received_but_neither_deleted_nor_seen_in_the_drain_is_lost(self) -> None:
        assert rules(send(1), receive(1)) == {"I15"}

    def test_one_whose_delete_was_refused_is_lost(self) -> None:
        assert rules(send(1), receive(1), delete(1, outcome=FAIL)) == {"I15"}

    def test_nothing_is_said_about_loss_before_the_drain(self) -> None:
        assert rules(send(1), is_drained=False) == set()

    @pytest.mark.parametrize("outcome", [UNKNOWN, FAIL])
    def test_what_was_not_acknowledged_may_be_missing(self, outcome: Outcome) -> None:
        assert rules(send(1, outcome=outcome)) == set()

    def test_what_was_not_acknowledged_may_be_there(self) -> None:
        assert rules(send(1, outcome=UNKNOWN), receive(1), delete(1)) == set()

    def test_a_delete_with_an_unknown_outcome_may_have_been_done(self) -> None:
        assert rules(send(1), receive(1), delete(1, outcome=UNKNOWN)) == set()

    def test_a_purge_takes_what_was_sent_before_it_only(self) -> None:
        assert rules(send(1), purge(1)) == set()
        assert rules(send(1), purge(1, outcome=UNKNOWN)) == set()
        assert rules(send(1), purge(1, outcome=FAIL)) == {"I15"}
        assert rules(send(1, at=2), purge(1)) == {"I15"}
        assert rules(send(1), purge(1, queue="other")) == {"I15"}

    def test_an_unknown_purge_that_is_still_to_be_done_ends_with_its_server(self) -> None:
        open_ended = Purge(queue="plain", outcome=UNKNOWN, is_open_ended=True, **span(1, 2))

        assert rules(open_ended, send(1, at=3)) == set()
        assert rules(open_ended, killed(2.5), send(1, at=3)) == {"I15"}

    def test_a_deleted_queue_takes_its_messages(self) -> None:
        assert rules(send(1), DeleteQueue(queue="plain", **span(1, 2))) == set()

    def test_an_expired_message_may_be_gone(self) -> None:
        assert rules(send(1, queue="short"), receive(at=61, queue="short")) == set()
        assert rules(send(1, queue="short"), receive(at=30, queue="short")) == {"I15"}

    def test_a_queue_in_memory_may_lose_its_messages_when_the_process_is_killed(self) -> None:
        assert rules(send(1, queue="memory"), killed(1)) == set()
        assert rules(killed(0), send(1, at=1, queue="memory")) == {"I15"}
        assert rules(send(1), killed(1)) == {"I15"}

    def test_a_duplicate_is_not_missed_when_its_original_is_there(self) -> None:
        first = send(1, queue="row.fifo", group="g", sequence=1, dedup_id="d")
        again = send(2, 1, queue="row.fifo", message_id="m1", group="g", sequence=1, dedup_id="d")
        seen = receive(1, at=2, queue="row.fifo", group="g", sequences=[1])

        assert rules(first, again, seen, delete(1, 3, queue="row.fifo", received_at=2)) == set()
        assert rules(first, again) == {"I15"}


class TestNothingIsInvented:
    def test_a_message_nobody_sent(self) -> None:
        assert rules(receive(9), delete(9)) == {"I16"}

    def test_a_message_that_the_server_said_it_refused(self) -> None:
        assert rules(send(1, outcome=FAIL), receive(1), delete(1)) == {"I16"}

    def test_an_altered_body(self) -> None:
        assert rules(send(1), receive(1, is_intact=False), delete(1)) == {"I16"}

    def test_another_id_than_the_one_that_was_acknowledged(self) -> None:
        assert "I16" in rules(send(1), receive(1, message_id="x"), delete(1, message_id="x"))

    def test_one_id_for_two_messages(self) -> None:
        events = (
            send(1, queue="work", outcome=UNKNOWN),
            send(2, queue="work", outcome=UNKNOWN),
            receive(1, at=1, queue="work", message_id="x"),
            receive(2, at=40, queue="work", message_id="x", count=2),
            delete(2, 41, queue="work", message_id="x", received_at=40),
        )

        assert "I16" in rules(*events)

    def test_a_message_of_another_queue(self) -> None:
        assert "I16" in rules(send(1), receive(1, queue="other"), delete(1, queue="other"))

    def test_a_delivery_before_the_send(self) -> None:
        assert "I16" in rules(receive(1, at=1), send(1, at=2), delete(1, 3))

    def test_another_group_or_sequence_number(self) -> None:
        sent = send(1, queue="row.fifo", group="g", sequence=7)

        assert "I16" in rules(sent, receive(1, queue="row.fifo", group="h", sequences=[7]), is_drained=False)
        assert "I16" in rules(sent, receive(1, queue="row.fifo", group="g", sequences=[8]), is_drained=False)
        assert rules(sent, receive(1, queue="row.fifo", group="g", sequences=[7]), is_drained=False) == set()


class TestWhatIsDeletedStaysAway:
    def test_a_receive_after_an_acknowledged_delete(self) -> None:
        assert rules(send(1), receive(1), delete(1), receive(1, at=60, count=2)) == {"I17"}

    def test_a_receive_that_overlaps_the_delete_may_have_come_first(self) -> None:
        events = (
            send(1),
            receive(1, visibility_s=1),
            delete(1, at=5, until=6),
            receive(1, at=5.5, until=7, count=2),
        )

        assert rules(*events) == set()

    def test_a_receive_after_a_delete_with_an_unknown_outcome(self) -> None:
        events = (send(1), receive(1), delete(1, outcome=UNKNOWN), receive(1, at=60, count=2))

        assert rules(*events, delete(1, 61, received_at=60)) == set()

    def test_a_receive_after_a_purge_or_the_deletion_of_the_queue(self) -> None:
        gone = DeleteQueue(queue="plain", **span(1, 2))

        assert rules(send(1), purge(1), receive(1, at=2)) == {"I17"}
        assert rules(send(1), gone, receive(1, at=3)) == {"I17"}
        assert rules(send(1, until=1.5), purge(1, until=2), receive(1, at=3), delete(1, 4)) == set()

    def test_a_dead_letter_of_a_message_that_was_deleted_while_it_was_hidden(self) -> None:
        sent, first = send(1, queue="work"), receive(1, queue="work")
        later = receive(1, at=60, queue="dead", count=3)

        assert "I17" in rules(sent, first, delete(1, queue="work"), later)
        # With the timeout passed the message may have become a dead letter before: the delete found nothing.
        assert rules(sent, first, delete(1, 40, queue="work"), later) == set()
        # So it may when a standard queue forgot its delivery.
        assert rules(sent, first, killed(1.5), delete(1, queue="work"), later) == set()


class TestGroupsAreInOrder:
    def fifo(self, *tokens: int, at: float = 0.0) -> list[Event]:
        return [send(token, at + token / 10, queue="row.fifo", group="g", sequence=token) for token in tokens]

    def get(self, *tokens: int, at: float, count: int = 1) -> Receive:
        return receive(*tokens, at=at, queue="row.fifo", group="g", sequences=tokens, count=count)

    def gone(self, token: int, at: float, received_at: float, outcome: Outcome = OK) -> Delete:
        return delete(token, at, queue="row.fifo", received_at=received_at, outcome=outcome)

    def test_one_after_the_other(self) -> None:
        events = (
            *self.fifo(1, 2),
            self.get(1, at=2),
            self.gone(1, 3, 2),
            self.get(2, at=4),
            self.gone(2, 5, 4),
        )

        assert rules(*events) == set()

    def test_both_in_one_receive(self) -> None:
        events = (*self.fifo(1, 2), self.get(1, 2, at=2), self.gone(1, 3, 2), self.gone(2, 3, 2))

        assert rules(*events) == set()
        assert rules(*self.fifo(1, 2), self.get(2, 1, at=2), is_drained=False) == {"I18"}

    def test_the_second_while_the_first_is_in_flight(self) -> None:
        events = (
            *self.fifo(1, 2),
            self.get(1, at=2),
            self.get(2, at=3),
            self.gone(1, 4, 2),
            self.gone(2, 4, 3),
        )

        assert rules(*events) == {"I18"}

    def test_the_second_while_the_first_was_never_delivered(self) -> None:
        events = (*self.fifo(1, 2, 3), self.get(2, 3, at=3), self.gone(2, 4, 3), self.gone(3, 4, 3))

        assert "I18" in rules(*events, is_drained=False)

    def test_a_gap_within_a_receive(self) -> None:
        assert rules(*self.fifo(1, 2, 3), self.get(1, 3, at=2), is_drained=False) == {"I18"}

    def test_a_first_message_that_is_perhaps_deleted_blocks_no_longer(self) -> None:
        events = (*self.fifo(1, 2), self.get(1, at=2), self.gone(1, 3, 2, UNKNOWN), self.get(2, at=4))

        assert rules(*events, is_drained=False) == set()

    def test_a_first_message_whose_delete_was_refused_blocks(self) -> None:
        events = (*self.fifo(1, 2), self.get(1, at=2), self.gone(1, 3, 2, FAIL), self.get(2, at=4))

        assert rules(*events, is_drained=False) == {"I18"}

    def test_other_groups_go_on(self) -> None:
        other = send(5, 1, queue="row.fifo", group="h", sequence=5)
        seen = receive(5, at=3, queue="row.fifo", group="h", sequences=[5])

        assert rules(*self.fifo(1, 2), other, self.get(1, at=2), seen, is_drained=False) == set()

    def test_a_dead_letter_blocks_no_longer(self) -> None:
        events = (
            send(1, 0.1, queue="source.fifo", group="g", sequence=1),
            send(2, 0.2, queue="source.fifo", group="g", sequence=2),
            receive(1, at=1, queue="source.fifo", group="g", sequences=[1]),
            receive(2, at=40, queue="source.fifo", group="g", sequences=[2]),
        )
        dead = receive(1, at=50, queue="dead.fifo", group="g", sequences=[1], count=3)

        assert rules(*events, dead, is_drained=False) == set()
        assert rules(*events, is_drained=False) == {"I18"}

    def test_numbers_follow_the_order_of_acknowledged_sends(self) -> None:
        early = send(1, 0, queue="row.fifo", group="g", sequence=2)
        late = send(2, 1, queue="row.fifo", group="g", sequence=1)

        assert rules(early, late, is_drained=False) == {"I18"}
        at_once = send(1, 0, queue="row.fifo", group="g", sequence=2, until=1.5)
        assert rules(at_once, late, is_drained=False) == set()

    def test_numbers_follow_the_order_within_a_batch(self) -> None:
        def batch(first: int, second: int) -> Send:
            entries = [SentMessage(n, OK, f"m{n}", s, "g") for n, s in ((1, first), (2, second))]
            return Send(queue="row.fifo", entries=entries, **span(0, None))

        assert rules(batch(2, 1), is_drained=False) == {"I18"}
        assert rules(batch(1, 2), is_drained=False) == set()


class TestOneMessageForADeduplicationId:
    def pair(self, *, later: float = 1.0, second_id: str | None = None, group: str = "g") -> list[Event]:
        return [
            send(1, queue="row.fifo", group=group, dedup_id="d", sequence=1),
            send(2, later, queue="row.fifo", group=group, dedup_id="d", message_id=second_id, sequence=2),
        ]

    def test_two_ids_within_the_window(self) -> None:
        assert rules(*self.pair(), is_drained=False) == {"I19"}
        assert rules(*self.pair(second_id="m1"), is_drained=False) == set()

    def test_two_ids_when_the_window_may_have_ended(self) -> None:
        assert rules(*self.pair(later=300), is_drained=False) == set()
        assert rules(*self.pair(later=299), is_drained=False) == {"I19"}

    def test_a_second_message_that_is_only_seen_by_its_delivery(self) -> None:
        events = (
            send(1, queue="row.fifo", group="g", dedup_id="d", sequence=1),
            send(2, 1, queue="row.fifo", group="g", dedup_id="d", outcome=UNKNOWN),
        )
        both = receive(1, 2, at=2, queue="row.fifo", group="g", sequences=[1, 2])

        assert rules(*events, both, is_drained=False) == {"I19"}
        assert rules(*events, is_drained=False) == set()

    def test_a_duplicate_of_a_message_whose_own_send_was_never_answered(self) -> None:
        events = (
            send(1, queue="row.fifo", group="g", dedup_id="d", outcome=UNKNOWN),
            send(3, 1, queue="row.fifo", group="h", sequence=3),
            send(2, 2, queue="row.fifo", group="h", dedup_id="d", message_id="m1", sequence=1),
            count(3, 2, queue="row.fifo"),
            receive(3, at=4, queue="row.fifo", group="h", sequences=[3]),
            receive(1, at=5, queue="row.fifo", group="g", sequences=[1]),
            delete(3, 6, queue="row.fifo", received_at=4),
            delete(1, 6, queue="row.fifo", received_at=5),
            count(7, 0, queue="row.fifo", round_=2),
        )

        assert rules(*events) == set()

    def test_a_purge_forgets_the_ids(self) -> None:
        assert rules(*self.pair(), purge(0.5, queue="row.fifo"), is_drained=False) == set()

    def test_a_send_that_was_tried_again_and_stored_twice(self) -> None:
        events = (
            send(1, outcome=UNKNOWN, attempts=2),
            receive(1, message_id="a"),
            receive(1, at=1.5, message_id="b"),
        )

        assert rules(*events, is_drained=False) == {"I19"}


class TestVisibilityIsRespected:
    def test_again_too_early(self) -> None:
        assert rules(send(1), receive(1), receive(1, at=30.6, count=2), is_drained=False) == {"I20"}

    def test_again_in_time(self) -> None:
        assert rules(send(1), receive(1), receive(1, at=31, count=2), is_drained=False) == set()

    def test_again_early_by_what_queue_time_may_run_faster(self) -> None:
        assert rules(send(1), receive(1), receive(1, at=30.75, count=2), is_drained=False) == set()

    def test_twice_in_one_receive_or_in_two_at_once(self) -> None:
        at_once = (receive(1, until=1.5), receive(1, at=1.2, until=1.6, count=2))

        assert "I20" in rules(send(1), receive(1, 1), is_drained=False)
        assert "I20" in rules(send(1), *at_once, is_drained=False)

    def test_a_shortened_timeout(self) -> None:
        events = (send(1), receive(1), receive(1, at=4, count=2))

        assert rules(*events, change(1, 3, 0), is_drained=False) == set()
        assert rules(*events, change(1, 3, 0, outcome=UNKNOWN), is_drained=False) == set()
        assert rules(*events, change(1, 3, 0, outcome=FAIL), is_drained=False) == {"I20"}
        assert rules(*events, change(1, 3, 2), is_drained=False) == {"I20"}
        assert rules(*events, change(1, 5, 0), is_drained=False) == {"I20"}

    def test_a_lengthened_timeout(self) -> None:
        events = (send(1), receive(1, visibility_s=5), receive(1, at=8, count=2))

        assert rules(*events, is_drained=False) == set()
        assert rules(*events, change(1, 2, 60), is_drained=False) == {"I20"}
        assert rules(*events, change(1, 2, 60, outcome=UNKNOWN), is_drained=False) == set()

    def test_a_killed_server_may_forget_the_deliveries_of_a_standard_queue_only(self) -> None:
        standard = (send(1), receive(1), killed(2), receive(1, at=3, count=1))
        fifo = (
            send(1, queue="row.fifo", group="g", sequence=1),
            receive(1, queue="row.fifo", group="g", sequences=[1]),
            killed(2),
            receive(1, at=3, queue="row.fifo", group="g", sequences=[1], count=2),
        )

        assert rules(*standard, is_drained=False) == set()
        assert rules(*fifo, is_drained=False) == {"I20"}


class TestDelaysAndRetention:
    def test_before_its_own_delay(self) -> None:
        assert rules(send(1, delay_s=3), receive(1, at=2.5), is_drained=False) == {"I21"}
        assert rules(send(1, delay_s=3), receive(1, at=3.0), is_drained=False) == set()

    def test_before_the_delay_of_the_queue(self) -> None:
        early, late = receive(1, at=4.9, queue="late"), receive(1, at=5.1, queue="late")

        assert rules(send(1, queue="late"), early, is_drained=False) == {"I21"}
        assert rules(send(1, queue="late"), late, is_drained=False) == set()
        assert rules(send(1, queue="late", delay_s=0), early, is_drained=False) == set()

    def test_after_it_expired(self) -> None:
        assert rules(send(1, queue="short"), receive(1, at=61, queue="short"), is_drained=False) == {"I21"}
        assert rules(send(1, queue="short"), receive(1, at=59, queue="short"), is_drained=False) == set()


class TestReceiveCounts:
    def again(self, first: int, second: int, *between: Event, queue: str = "plain") -> set[str]:
        return rules(
            send(1, queue=queue),
            receive(1, queue=queue, count=first),
            *between,
            receive(1, at=60, queue=queue, count=second),
            is_drained=False,
        )

    def test_it_grows(self) -> None:
        assert self.again(1, 2) == set()
        assert self.again(1, 1) == {"I22"}
        assert self.again(2, 1) == {"I22"}

    def test_it_never_falls_even_when_the_last_delivery_was_forgotten(self) -> None:
        assert self.again(2, 2, killed(3)) == set()
        assert self.again(2, 1, killed(3)) == {"I22"}

    def test_it_does_not_pass_the_redrive_policy(self) -> None:
        assert self.again(1, 2, queue="work") == set()
        assert self.again(2, 3, queue="work") == {"I22"}


class TestOnePlaceAtATime:
    def test_a_dead_letter_that_is_also_still_in_its_source(self) -> None:
        sent, first = send(1, queue="work"), receive(1, queue="work", visibility_s=1)
        dead = receive(1, at=5, queue="dead", count=3)
        again = receive(1, at=9, queue="work", count=2)

        assert rules(sent, first, dead, is_drained=False) == set()
        assert rules(sent, first, dead, again, is_drained=False) == {"place"}

    def test_a_message_that_a_move_task_carried_back_has_a_new_id(self) -> None:
        events = (
            send(1, queue="work"),
            receive(1, queue="work", visibility_s=1),
            receive(1, at=5, queue="dead", count=3, visibility_s=1),
            MoveTask(queue="dead", **span(7, 8)),
            receive(1, at=10, queue="work", message_id="moved"),
        )
        copy = receive(1, at=12, queue="dead", count=4)

        assert rules(*events, is_drained=False) == set()
        assert "place" in rules(*events, copy, is_drained=False)


class TestCounts:
    def test_within_what_may_be_there(self) -> None:
        sent = (send(1), send(2), send(3, outcome=UNKNOWN))

        assert rules(*sent, count(1, 1), is_drained=False) == {"count"}
        assert rules(*sent, count(1, 2), is_drained=False) == set()
        assert rules(*sent, count(1, 1, in_flight=1, delayed=1), is_drained=False) == set()
        assert rules(*sent, count(1, 4), is_drained=False) == {"count"}

    def test_deleted_messages_do_not_count(self) -> None:
        events = (send(1), send(2), receive(1), delete(1))

        assert rules(*events, count(3, 1), is_drained=False) == set()
        assert rules(*events, count(3, 2), is_drained=False) == {"count"}

    def test_queues_between_which_messages_move_are_counted_together(self) -> None:
        events = (send(1, queue="work"), send(2, queue="work"))
        counts = (count(1, 1, queue="work"), count(1, 1, queue="dead"))
        short = (count(1, 1, queue="work"), count(1, 0, queue="dead"))

        assert rules(*events, *counts, is_drained=False) == set()
        assert rules(*events, *short, is_drained=False) == {"count"}

    def test_purged_messages_do_not_count(self) -> None:
        assert rules(send(1), purge(1), count(2, 0), is_drained=False) == set()
        assert rules(send(1), purge(1), count(2, 1), is_drained=False) == {"count"}

    def test_nothing_is_left_after_the_drain(self) -> None:
        events = (send(1), receive(1), delete(1, outcome=UNKNOWN))

        assert rules(*events, count(3, 0)) == set()
        assert rules(*events, count(3, 0, in_flight=1)) == {"drain"}


def test_a_history_can_be_kept_in_a_file(tmp_path: Path) -> None:
    history = History(QUEUES)
    history.add(send(1), receive(1), delete(1), purge(3), count(4, 0), killed(5), change(1, 6, 7))

    history.save(tmp_path / "history.jsonl")
    loaded = History.load(tmp_path / "history.jsonl")

    assert loaded.events() == history.events()
    assert loaded.queues == history.queues


class TestACell:
    def test_a_moved_leader_may_forget_the_deliveries_of_a_standard_queue_only(self) -> None:
        again = (receive(1, at=1.0), receive(1, at=3.0), delete(1, at=4.0, received_at=3.0))

        assert rules(send(1), *again) == {"I20", "I22"}
        assert rules(send(1), disturbed(2.0, 2.5), *again) == set()
        assert rules(send(1), disturbed(5.0, 6.0), *again) == {"I20", "I22"}
        assert rules(send(1), disturbed(0.1, 9.0), disturbed(0.5, 0.6), *again) == set()

    def test_deliveries_of_a_fifo_group_stay_apart_whoever_leads(self) -> None:
        sent = send(1, queue="row.fifo", group="a", sequence=1)
        first = receive(1, queue="row.fifo", group="a", sequences=[1])
        second = receive(1, at=3.0, queue="row.fifo", group="a", sequences=[1], count=2)
        gone = delete(1, at=4.0, queue="row.fifo", received_at=3.0)

        assert rules(sent, disturbed(2.0, 2.5), first, second, gone) == {"I20"}

    def test_what_nobody_knows_the_outcome_of_may_be_done_at_any_later_time(self) -> None:
        unknown = purge(1.0, outcome=UNKNOWN)

        assert rules(unknown, send(1, at=2.0)) == {"I15"}
        assert rules(unknown, disturbed(0.5, 1.5), send(1, at=2.0)) == set()

    def test_a_send_that_was_tried_again_may_be_stored_twice_in_a_standard_queue_only(self) -> None:
        def stored_twice(queue: str, attempts: int, **fifo: Any) -> set[str]:
            kept, late = (
                receive(1, at=at, queue=queue, message_id=name, sequences=[number] if fifo else (), **fifo)
                for number, (at, name) in enumerate([(1.0, "m1"), (1.2, "late")], 1)
            )
            gone = (
                delete(1, at=2.0, queue=queue),
                delete(1, at=2.1, queue=queue, received_at=1.2, message_id="late"),
            )
            sent = send(1, queue=queue, attempts=attempts, sequence=1 if fifo else None, **fifo)
            return rules(disturbed(0, 0.5), sent, kept, late, *gone)

        assert stored_twice("plain", 2) == set()
        assert "I19" in stored_twice("plain", 1)
        assert "I19" in stored_twice("row.fifo", 2, group="a")
