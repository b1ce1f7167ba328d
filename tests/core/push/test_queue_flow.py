"""What is received of a pushed queue, in which calls it goes, and what follows their answers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.push.calls import PushedMessage
from quaymaster.core.push.endpoint import FAILURES_MAX
from quaymaster.core.push.flow import Judged, PushPlan, Verdict
from quaymaster.core.push.queue_flow import BEGINS_WITHIN_MS, HIDDEN_MORE_MS, Ask, PushCall, QueueFlow

PLAN = PushPlan(
    "https://example.com/hook",
    "arn:aws:sqs:us-east-1:000000000000:orders",
    format="CloudEventsJson",
    batch_size=3,
    concurrency_max=10,
    timeout_ms=2_000,
    backoff_min_ms=1_000,
    backoff_max_ms=60_000,
)
FIFO = msgspec.structs.replace(PLAN, is_fifo=True, batch_size=4)
CALLS = 1_000
EVEN = 0.5


def messages(*groups: str | None, count: int = 1) -> list[PushedMessage]:
    return [
        PushedMessage(f"id{at}", f"origin{at}", "handle", "body", "md5", 0, count, group)
        for at, group in enumerate(groups)
    ]


def judged(verdict: Verdict, failed: Iterable[int] = ()) -> Judged:
    return Judged(verdict, frozenset(failed))


def open_window(flow: QueueFlow, successes: int) -> None:
    for _ in range(successes):
        flow.endpoint.end(flow.endpoint.begin(), judged("works"), 0)


def test_as_many_messages_are_received_as_calls_may_begin() -> None:
    flow = QueueFlow(PLAN)

    first = flow.take(0, CALLS)
    none_left = flow.take(0, CALLS)
    open_window(flow, 2)
    second = flow.take(0, CALLS)

    assert first is not None
    assert (first.count, first.calls, first.hidden_ms) == (3, 1, 2_000 + HIDDEN_MORE_MS)
    assert none_left is None
    assert second is not None
    assert (second.count, second.calls) == (6, 2)


def test_one_receive_has_ten_messages_at_most_in_calls_of_a_batch_each() -> None:
    flow = QueueFlow(PLAN)
    open_window(flow, 9)

    ask = flow.take(0, CALLS)
    assert ask is not None
    calls = flow.received(ask, messages(*[None] * 10))

    assert ask.count == 10
    assert [len(call.messages) for call in calls] == [3, 3, 3, 1]
    assert flow.under_way == 4


def test_what_others_leave_of_the_calls_of_a_process_bounds_a_receive() -> None:
    flow = QueueFlow(PLAN)
    open_window(flow, 9)

    assert flow.take(0, 0) is None
    ask = flow.take(0, 2)

    assert ask is not None
    assert (ask.count, ask.calls) == (6, 2)


def test_room_that_received_messages_do_not_need_is_free_again() -> None:
    flow = QueueFlow(PLAN)
    open_window(flow, 9)
    ask = flow.take(0, CALLS)
    assert ask is not None

    assert flow.received(ask, []) == []
    assert flow.under_way == 0


def test_an_endpoint_that_is_shut_gets_one_message_even_of_a_queue_with_batches() -> None:
    flow = QueueFlow(PLAN)
    for _ in range(FAILURES_MAX):
        flow.endpoint.end(flow.endpoint.begin(), judged("fails"), 0)

    assert flow.take(0, CALLS) is None
    ask = flow.take(1_000, CALLS)

    assert ask is not None
    assert (ask.count, ask.calls, ask.is_probe) == (1, 1, True)
    assert flow.take(1_000, CALLS) is None

    flow.received(ask, [])

    assert flow.take(1_000, CALLS) is not None, "the probe had no message"


def test_a_call_that_cannot_begin_soon_after_its_receive_does_not_begin() -> None:
    flow = QueueFlow(PLAN)
    ask = flow.take(0, CALLS)
    assert ask is not None
    (call,) = flow.received(ask, messages(None))

    assert flow.begin(call, BEGINS_WITHIN_MS + 1) is False
    flow.end(call)
    assert flow.under_way == 0

    for _ in range(FAILURES_MAX):
        flow.endpoint.end(flow.endpoint.begin(), judged("fails"), 0)
    ask = flow.take(1_000, CALLS)
    assert ask is not None
    (probe,) = flow.received(ask, messages(None))

    assert flow.begin(probe, 1_000 + BEGINS_WITHIN_MS + 1) is False
    flow.end(probe)
    assert flow.take(6_000, CALLS) is not None, "another probe may go"


def test_messages_that_were_taken_are_deleted_and_the_others_back_off() -> None:
    flow = QueueFlow(PLAN)
    ask = flow.take(0, CALLS)
    assert ask is not None
    (call,) = flow.received(ask, messages("a", "a", "a", count=2)[:3])
    assert flow.begin(call, BEGINS_WITHIN_MS)

    settlement = flow.settle(call, judged("works", [1]), 100, EVEN)

    assert settlement.deleted == (0, 2), "groups of a standard queue are tenants"
    assert settlement.hidden == ((1, 2_000),)
    assert flow.under_way == 1, "nothing of it is acknowledged yet"
    flow.end(call)
    assert flow.under_way == 0


def test_a_receive_of_a_fifo_queue_is_one_call() -> None:
    flow = QueueFlow(FIFO)
    open_window(flow, 9)

    first = flow.take(0, CALLS)
    second = flow.take(0, CALLS)

    assert first is not None
    assert second is not None
    assert (first.count, first.calls) == (4, 1)
    calls = flow.received(first, messages("a", "a", "b"))
    assert [len(call.messages) for call in calls] == [3]
    assert flow.received(second, []) == []
    assert flow.under_way == 1


def test_failed_messages_of_a_fifo_group_are_hidden_for_the_same_time() -> None:
    flow = QueueFlow(FIFO)
    ask = flow.take(0, CALLS)
    assert ask is not None
    batch = messages("a", "b", "a", "b")
    batch[2] = msgspec.structs.replace(batch[2], delivery_count=5)
    (call,) = flow.received(ask, batch)
    flow.begin(call, 0)

    settlement = flow.settle(call, judged("works", [0, 2]), 100, EVEN)

    assert settlement.deleted == (1, 3)
    assert settlement.hidden == ((0, 1_000), (2, 1_000))


def test_an_endpoint_that_took_a_probe_may_be_called_while_its_message_is_deleted() -> None:
    flow = QueueFlow(PLAN)
    for _ in range(FAILURES_MAX):
        flow.endpoint.end(flow.endpoint.begin(), judged("fails"), 0)
    ask = flow.take(1_000, CALLS)
    assert ask is not None
    (probe,) = flow.received(ask, messages(None))
    flow.begin(probe, 1_000)

    flow.settle(probe, judged("works"), 1_100, EVEN)
    assert flow.endpoint.state == "active"
    flow.end(probe)

    assert flow.take(1_200, CALLS) is not None


@pytest.mark.uncovered
@given(
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["take", "received", "works", "rejects", "fails", "gone", "refused", "late", "wait"]
            ),
            st.integers(0, 10_000),
        ),
        max_size=80,
    ),
)
def test_room_that_is_set_aside_is_that_of_asks_and_calls_and_all_of_it_comes_back(
    is_fifo: bool, steps: list[tuple[str, int]]
) -> None:
    flow = QueueFlow(FIFO if is_fifo else PLAN)
    asks: list[Ask] = []
    calls: list[PushCall] = []
    now_ms = 0

    def end(call: PushCall, step: str) -> None:
        if step != "late" and flow.begin(call, call.asked_ms):
            settled = flow.settle(call, judged(step, range(len(call.messages) // 2)), now_ms, EVEN)  # type: ignore[arg-type]  # a verdict
            assert len(settled.deleted) + len(settled.hidden) == len(call.messages)
        flow.end(call)

    for step, number in steps:
        if step == "wait":
            now_ms += number
        elif step == "take":
            ask = flow.take(now_ms, CALLS)
            if ask is not None:
                asks.append(ask)
                assert 1 <= ask.count <= 10
                assert ask.is_probe is flow.endpoint.is_shut
        elif step == "received":
            if asks:
                ask = asks.pop(number % len(asks))
                got = flow.received(ask, messages(*["ab"[at % 2] for at in range(number % (ask.count + 1))]))
                assert not is_fifo or len(got) <= 1
                calls += got
        elif calls:
            end(calls.pop(number % len(calls)), step)

        assert flow.under_way == sum(ask.calls for ask in asks) + len(calls)

    for ask in asks:
        flow.received(ask, [])
    for call in calls:
        end(call, "late")
    assert flow.under_way == 0
    assert not flow.endpoint.is_probing


def test_an_endpoint_is_called_no_faster_than_it_allows_whatever_its_window() -> None:
    flow = QueueFlow(PLAN)
    open_window(flow, 9)
    flow.pace.allow(60, 0)

    ask = flow.take(0, CALLS)
    assert ask is not None
    while_asked = (flow.take(0, CALLS), flow.next_ms(0))
    calls = flow.received(ask, messages(*[None] * 6))
    for call in calls:
        assert flow.begin(call, 0)

    assert ask.calls == len(calls) == 2, "a second's calls, and one"
    assert while_asked == (None, 1_017)
    assert flow.take(0, CALLS) is None
    assert flow.next_ms(0) == 1_017
    assert flow.take(1_017, CALLS) is not None


def test_calls_that_did_not_begin_are_not_counted() -> None:
    flow = QueueFlow(PLAN)
    open_window(flow, 9)
    flow.pace.allow(60, 0)

    ask = flow.take(0, CALLS)
    assert ask is not None
    (late,) = flow.received(ask, messages(None))
    assert not flow.begin(late, BEGINS_WITHIN_MS + 1)
    flow.end(late)
    again = flow.take(BEGINS_WITHIN_MS + 1, CALLS)

    assert again is not None
    assert again.calls == 2


def test_time_alone_makes_room_when_both_a_pause_and_the_pace_are_over() -> None:
    flow = QueueFlow(PLAN)
    flow.pace.allow(1, 0)
    ask = flow.take(0, CALLS)
    assert ask is not None
    (call,) = flow.received(ask, messages(None))
    flow.begin(call, 0)
    assert flow.next_ms(0) == 5_000, "looked at again every five seconds"

    flow.settle(call, Judged("fails", frozenset({0}), 7_000), 0, EVEN)
    flow.end(call)

    assert flow.next_ms(0) == 7_000
    assert QueueFlow(PLAN).next_ms(0) is None
