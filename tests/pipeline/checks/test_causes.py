"""How much may explain that messages are missing: the rate of a front end that crashed, and what is left of causes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness.broker_counts import Cluster, time_of
from harness.pipeline_site import InProcess
from harness.usage_blocks import HOUR_US, NOON_US, SECOND_US, FrontEnd, context_of

from quaymaster_pipeline.checks.brokers import broker_state
from quaymaster_pipeline.checks.brokers.allowances import (
    CRASH_MESSAGES_MIN,
    CRASH_MESSAGES_UNKNOWN,
    SENDS,
    Rate,
    crash_bound,
    read_rates,
)
from quaymaster_pipeline.checks.brokers.losses import (
    Counted,
    OpenCause,
    Outcome,
    SharedCauses,
    Standing,
    explain_page,
)
from quaymaster_pipeline.usage.sequences import IncarnationId


def test_a_crash_is_bounded_by_the_front_ends_own_busiest_second() -> None:
    busy = Rate(0, {"sends": 500, "deletions": 2})

    assert crash_bound(busy, "sends") == 3 * 500
    assert crash_bound(busy, "deletions") == CRASH_MESSAGES_MIN
    assert crash_bound(None, "sends") == CRASH_MESSAGES_UNKNOWN


def test_the_busiest_second_is_that_of_the_hour_before_and_of_the_same_front_end(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    crashed, before, other = FrontEnd("c", incarnation=2), FrontEnd("c"), FrontEnd("d")
    after = FrontEnd("c", incarnation=3)
    heard_us = NOON_US + 2 * HOUR_US

    def one_second(front_end: FrontEnd, time_us: int, rows: int) -> None:
        front_end.time_us, front_end.step_us = time_us, 1
        front_end.besides = (context_of("SendMessage", 1),) * 500
        cluster.site.ship(front_end.block(rows))

    one_second(before, heard_us - HOUR_US - SECOND_US, 400)  # too long ago
    one_second(before, heard_us - HOUR_US // 2, 40)
    one_second(other, heard_us - HOUR_US // 2, 300)
    one_second(crashed, heard_us - 2 * SECOND_US, 10)
    one_second(after, heard_us + SECOND_US, 200)
    cluster.site.run(now=time_of(heard_us + HOUR_US))

    owner = IncarnationId("c", 2)
    rates = read_rates(
        cluster.site.warehouse, {owner: heard_us, IncarnationId("x", 1): heard_us}, InProcess()
    )

    half_an_hour_before = [
        record.message_count
        for record in before.records
        if record.action in SENDS and record.event_time_us > heard_us - HOUR_US
    ]
    assert rates.keys() == {owner}
    assert rates[owner].busiest["sends"] == sum(half_an_hour_before)


# Causes of any queue


def cause(messages: int, latest_us: int, measure: str = "sends") -> OpenCause:
    return OpenCause("crash", measure, messages, latest_us, latest_us, "a", 1)


def test_what_is_left_of_causes_is_at_most_what_is_hidden_and_the_newest_of_it() -> None:
    shared = SharedCauses([], [cause(10, 1), cause(10, 2), cause(10, 9)], None)

    left = shared.left({"sends": 12}, 5)

    assert [(one.latest_us, one.messages) for one in left] == [(1, 2), (2, 10), (9, 10)]


def test_so_many_causes_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quaymaster_pipeline.checks.brokers.losses.OPEN_CAUSES_MAX", 2)
    shared = SharedCauses([], [cause(10, 7), cause(10, 8), cause(10, 9)], None)

    assert [one.latest_us for one in shared.left({}, 5)] == [8, 9]


def test_a_cause_of_before_explains_what_was_hidden_then_and_a_new_one_all() -> None:
    shared = SharedCauses([cause(10, 3)], [cause(10, 8)], 5)

    found = shared.explain(101, "sends", 15, 2, 0)

    assert [(one.time_us, one.messages) for one in found] == [(8, 10), (3, 2)]


def test_a_cause_of_before_a_queues_baseline_explains_nothing_of_it() -> None:
    shared = SharedCauses([], [cause(10, 3), cause(4, 8)], None)

    assert [one.messages for one in shared.explain(101, "sends", 15, 0, 5)] == [4]


def explained(before: Standing, *, brokers: int, high: int, shared: SharedCauses) -> Outcome:
    """Return what came of one queue whose usage is surely 0."""
    nothing = np.zeros(1, np.int64)
    now = Counted(
        np.array([True]), nothing, np.array([brokers]), nothing, np.array([high]), nothing, nothing, nothing
    )
    return explain_page("sends", np.array([101]), before, now, shared, 5)


def test_failed_requests_that_lapsed_explain_nothing_although_a_crash_may_have_been_hidden_since() -> None:
    standing = Standing.of_size(1)
    standing.failed = np.array([7])

    hidden = explained(standing, brokers=20, high=20, shared=SharedCauses([], [cause(3, 9)], 1)).standing
    shown = explained(hidden, brokers=20, high=13, shared=SharedCauses([], [], 9))

    assert hidden.hidden.tolist() == [20]
    assert (shown.missing.tolist(), shown.allowed.tolist(), shown.bookings) == ([7], [0], [])


def test_vectors_are_aligned_by_queue() -> None:
    ids = np.array([2, 5, 9])

    assert broker_state.aligned(ids, np.array([5]), np.array([7]), -1).tolist() == [-1, 7, -1]
