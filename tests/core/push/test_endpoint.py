"""How many calls an endpoint gets: its window, its circuit, its pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.push.endpoint import FAILURES_MAX, GONE_MS, PROBE_MS_MAX, PROBE_MS_MIN, Endpoint
from quaymaster.core.push.flow import RETRY_AFTER_MS_MAX, Judged, Verdict


def judged(verdict: Verdict, retry_after_ms: int = 0) -> Judged:
    return Judged(verdict, frozenset(), retry_after_ms)


def call(endpoint: Endpoint, verdict: Verdict, now_ms: int = 0, retry_after_ms: int = 0) -> None:
    is_probe = endpoint.is_shut
    endpoint.is_probing = is_probe
    endpoint.end(endpoint.begin(), judged(verdict, retry_after_ms), now_ms, is_probe=is_probe)


def call_together(endpoint: Endpoint, verdicts: list[Verdict]) -> None:
    numbers = [endpoint.begin() for _ in verdicts]
    for number, verdict in zip(numbers, verdicts, strict=True):
        endpoint.end(number, judged(verdict), 0)


def shut_endpoint() -> Endpoint:
    endpoint = Endpoint(100)
    for _ in range(FAILURES_MAX):
        call(endpoint, "fails")
    return endpoint


def test_window_begins_with_one_and_doubles_with_each_window_of_successes_up_to_its_maximum() -> None:
    endpoint = Endpoint(100)
    windows = [endpoint.window]

    for _ in range(8):
        call_together(endpoint, ["works"] * endpoint.window)
        windows.append(endpoint.window)

    assert windows == [1, 2, 4, 8, 16, 32, 64, 100, 100]


def test_after_its_first_failure_a_window_halves_and_then_grows_by_one_with_each_window_of_successes() -> (
    None
):
    endpoint = Endpoint(100)
    call_together(endpoint, ["works"] * 15)
    assert endpoint.window == 16

    call(endpoint, "fails")
    windows = [endpoint.window]
    for _ in range(3):
        call_together(endpoint, ["works"] * endpoint.window)
        windows.append(endpoint.window)

    assert windows == [8, 9, 10, 11]


def test_calls_that_failed_together_halve_the_window_once() -> None:
    endpoint = Endpoint(100)
    call_together(endpoint, ["works"] * 15)

    call_together(endpoint, ["fails", "works", "fails", "fails"])

    assert endpoint.window == 8


def test_rejected_messages_change_no_window_and_show_that_the_endpoint_answers() -> None:
    endpoint = Endpoint(100)
    for _ in range(FAILURES_MAX - 1):
        call(endpoint, "fails")

    call(endpoint, "rejects")
    call(endpoint, "fails")

    assert endpoint.window == 1
    assert endpoint.state == "active"


def test_room_is_what_the_window_leaves() -> None:
    endpoint = Endpoint(100)
    call_together(endpoint, ["works"] * 3)

    assert [endpoint.room(0, under_way) for under_way in (0, 3, 4, 9)] == [4, 1, 0, 0]
    assert endpoint.next_ms(0) is None


def test_five_failures_in_a_row_shut_an_endpoint_and_leave_it_one_probe_after_a_second() -> None:
    endpoint = shut_endpoint()

    assert endpoint.state == "unreachable"
    assert endpoint.room(PROBE_MS_MIN - 1, 0) == 0
    assert endpoint.next_ms(0) == PROBE_MS_MIN
    assert endpoint.room(PROBE_MS_MIN, 50) == 1

    endpoint.is_probing = True

    assert endpoint.room(PROBE_MS_MIN, 0) == 0
    assert endpoint.next_ms(0) is None


def test_probes_that_fail_wait_twice_as_long_each_up_to_a_minute() -> None:
    endpoint = shut_endpoint()
    now_ms = 0
    waits = []

    for _ in range(8):
        due_ms = endpoint.next_ms(now_ms)
        assert due_ms is not None
        waits.append(due_ms - now_ms)
        now_ms = due_ms
        call(endpoint, "fails", now_ms)

    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, PROBE_MS_MAX]


def test_a_probe_that_is_answered_opens_the_endpoint_with_a_window_of_one() -> None:
    endpoint = shut_endpoint()
    call(endpoint, "fails", 1_000)

    call(endpoint, "rejects", 3_000)

    assert endpoint.state == "active"
    assert endpoint.room(3_000, 0) == 1
    for _ in range(FAILURES_MAX):
        call(endpoint, "fails", 4_000)
    assert endpoint.next_ms(4_000) == 4_000 + PROBE_MS_MIN, "its waits begin again"


def test_an_answer_to_a_call_of_before_opens_an_unreachable_endpoint() -> None:
    endpoint = Endpoint(100)
    late = endpoint.begin()
    for _ in range(FAILURES_MAX):
        call(endpoint, "fails")

    endpoint.end(late, judged("works"), 0)

    assert endpoint.state == "active"


def test_failures_of_calls_of_before_change_nothing_of_an_endpoint_that_is_shut() -> None:
    endpoint = Endpoint(100)
    late = endpoint.begin()
    for _ in range(FAILURES_MAX):
        call(endpoint, "fails")

    endpoint.end(late, judged("fails"), 900)

    assert endpoint.next_ms(900) == PROBE_MS_MIN


def test_an_endpoint_that_is_gone_gets_nothing_for_an_hour_whatever_calls_of_before_say() -> None:
    endpoint = Endpoint(100)
    late = endpoint.begin()
    call(endpoint, "gone", 5)

    endpoint.end(late, judged("works"), 10)

    states: list[str] = [endpoint.state]
    assert endpoint.room(GONE_MS + 4, 0) == 0
    assert endpoint.room(GONE_MS + 5, 0) == 1

    call(endpoint, "works", GONE_MS + 5)
    states.append(endpoint.state)

    assert states == ["gone", "active"]


def test_an_address_that_may_not_be_called_gets_probes_only() -> None:
    endpoint = Endpoint(100)

    call(endpoint, "refused")
    assert endpoint.state == "refused"
    assert endpoint.next_ms(0) == PROBE_MS_MIN

    call(endpoint, "refused", PROBE_MS_MIN)
    assert endpoint.next_ms(PROBE_MS_MIN) == 3 * PROBE_MS_MIN


def test_retry_after_pauses_all_calls_for_an_hour_at_most() -> None:
    endpoint = Endpoint(100)

    call(endpoint, "works", 0, 10 * RETRY_AFTER_MS_MAX)
    call(endpoint, "works", 0, 500)

    assert endpoint.room(RETRY_AFTER_MS_MAX - 1, 0) == 0
    assert endpoint.next_ms(0) == RETRY_AFTER_MS_MAX
    assert endpoint.room(RETRY_AFTER_MS_MAX, 0) > 0


@given(
    st.integers(1, 20),
    st.lists(
        st.tuples(
            st.sampled_from(["take", "works", "rejects", "gone", "fails", "refused", "wait"]),
            st.integers(0, 100_000),
        )
    ),
)
@pytest.mark.uncovered
def test_calls_under_way_never_exceed_the_window_and_an_endpoint_that_is_shut_has_one_probe(
    window_max: int, steps: list[tuple[str, int]]
) -> None:
    endpoint = Endpoint(window_max)
    under_way: list[tuple[int, bool]] = []
    now_ms = 0

    for step, number in steps:
        if step == "wait":
            now_ms += number
        elif step == "take":
            if endpoint.room(now_ms, len(under_way)):
                is_probe = endpoint.is_shut
                endpoint.is_probing = endpoint.is_probing or is_probe
                under_way.append((endpoint.begin(), is_probe))
        elif under_way:
            ended, is_probe = under_way.pop(number % len(under_way))
            endpoint.end(ended, judged(step), now_ms, is_probe=is_probe)  # type: ignore[arg-type]  # a verdict

        assert 1 <= endpoint.window <= window_max
        assert len(under_way) <= window_max + 1
        if endpoint.is_shut and not under_way:
            due_ms = endpoint.next_ms(now_ms)
            assert due_ms is not None or endpoint.room(now_ms, 0) == 1, "a probe is due some time"
        assert sum(is_probe for _, is_probe in under_way) <= 1 or not endpoint.is_shut
