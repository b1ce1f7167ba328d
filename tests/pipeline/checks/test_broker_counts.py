"""Usage and what the brokers counted: equal to the last message, but for what is known to be missing."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from harness.broker_counts import (
    LATE_US,
    QUEUES,
    compare,
    count_of,
    differences,
    done_until,
    keep,
    started,
    time_of,
)
from harness.pipeline_site import Site
from harness.usage_blocks import NOON_US, SECOND_US, FrontEnd, context_of

from quaymaster.protocol.actions.table import STAGE_AND_COMMIT
from quaymaster.protocol.actions.transaction_rules import STAGE_MESSAGES_MAX
from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster.protocol.usage.usage_records import UsageContext
from quaymaster_pipeline.checks.brokers import broker_counts
from quaymaster_pipeline.checks.brokers.allowances import (
    CRASH_MESSAGES_UNKNOWN,
    CRASH_SECONDS,
    SENDS,
)
from quaymaster_pipeline.checks.brokers.broker_counts import (
    ACCEPTED,
    compare_brokers,
    last_comparison,
    last_counted,
    set_back_from,
    write_broker_comparison,
)
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse.schemas import BROKER_COUNTS, RECONCILIATION


def test_usage_that_is_what_the_brokers_did_has_no_difference(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    end_us = one.records[-1].event_time_us + 10 * SECOND_US

    keep(site, count_of(done_until(end_us, one, two)), end_us)

    compared = compare(site)
    assert compared is not None
    assert (compared.difference, compared.queues) == (0, ())
    assert [one.brokers for one in compared.totals] == [one.usage_low for one in compared.totals]
    assert all(one.usage_low == one.usage_high > 100 for one in compared.totals)
    assert {one.allowed for one in compared.totals} == {0}


@pytest.mark.parametrize(
    ("more", "name", "number"), [(1, "missing", 1), (-1, "surplus", 1), (700, "missing", 700)]
)
def test_a_message_that_only_one_side_has_is_a_difference(
    tmp_path: Path, more: int, name: str, number: int
) -> None:
    site, one, two = started(tmp_path)
    end_us = one.records[-1].event_time_us + 10 * SECOND_US

    keep(site, count_of(done_until(end_us, one, two), more=more), end_us)

    compared = compare(site)
    assert compared is not None
    assert compared.difference == number
    assert [(queue.scope, queue.measure, getattr(queue, name)) for queue in compared.queues] == [
        ("000000000002/queue-1", "sends", number)
    ]


def test_what_is_under_way_while_brokers_are_counted_is_no_difference(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    middle_us = NOON_US + 1000 * SECOND_US

    keep(site, count_of(done_until(middle_us + 20 * SECOND_US, one, two)), middle_us)

    assert differences(site) == (0, 0)


def test_counts_are_compared_once_usage_is_whole_up_to_them(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    keep(site, count_of(done_until(LATE_US, one, two)), LATE_US)

    before = compare(site)
    for front_end in (one, two):
        front_end.time_us = LATE_US + 62 * SECOND_US
        site.ship(front_end.block(0))
    site.run()

    assert before is None
    assert differences(site) == (0, 0)


def test_a_crash_may_cost_so_much_and_no_more(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    again = FrontEnd("a", incarnation=2, time_us=LATE_US)
    site.ship(again.block(0, seal=Seal(1, one.sequence, "crashed")))
    site.run()
    done = done_until(LATE_US, one, two)

    # It makes a request every 9 s, so a busiest second has one.
    busiest = max(record.message_count for record in one.records if record.action in SENDS)
    keep(site, count_of(done, more=CRASH_SECONDS * busiest), LATE_US - 100 * SECOND_US)
    within = differences(site)
    keep(site, count_of(done, more=CRASH_SECONDS * busiest + 5), LATE_US - 99 * SECOND_US)

    assert within == (0, 0)
    assert differences(site) == (5, 0)


def test_a_crash_of_a_front_end_of_which_nothing_is_known_may_cost_something_too(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    again = FrontEnd("c", incarnation=2, time_us=LATE_US)
    site.ship(again.block(0, seal=Seal(1, 0, "crashed")))
    site.run()

    keep(
        site,
        count_of(done_until(LATE_US, one, two), more=CRASH_MESSAGES_UNKNOWN + 5),
        LATE_US - 100 * SECOND_US,
    )

    compared = compare(site)
    assert compared is not None
    assert [(total.allowed, total.difference) for total in compared.totals] == [
        (CRASH_MESSAGES_UNKNOWN, 5),
        (0, 0),
    ]


def test_what_was_dropped_may_be_missing(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    one.time_us = LATE_US + SECOND_US
    site.ship(one.block(0, dropped=2))
    site.run()

    keep(site, count_of(done_until(LATE_US, one, two), more=20), LATE_US - 100 * SECOND_US)

    assert differences(site) == (0, 0)


def test_a_queue_that_was_there_before_usage_was_recorded_is_compared_from_its_first_count(
    tmp_path: Path,
) -> None:
    site, one, two = started(tmp_path)
    early_us, later_us = NOON_US + 600 * SECOND_US, LATE_US - 100 * SECOND_US
    before = Counter({(queue, measure): 5000 for queue in QUEUES for measure in ("sends", "deletions")})
    old = NOON_US - SECOND_US

    keep(site, count_of(done_until(early_us, one, two) + before, created_us=old), early_us)
    keep(site, count_of(done_until(later_us, one, two) + before, created_us=old), later_us)
    same = differences(site)
    keep(site, count_of(done_until(later_us, one, two) + before, more=900, created_us=old), later_us + 1)

    assert same == (0, 0)
    assert differences(site)[0] > 800


def test_counts_that_begin_anew_have_a_baseline_of_their_own(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    early_us, later_us = NOON_US + 600 * SECOND_US, LATE_US - 100 * SECOND_US
    done = done_until(early_us, one, two)

    keep(site, count_of(done), early_us)
    keep(site, count_of(Counter(), counted_from=77), early_us + SECOND_US)
    since = done_until(later_us, one, two)
    since.subtract(done)
    keep(site, count_of(since, counted_from=77), later_us)

    assert differences(site) == (0, 0)


def test_an_accepted_difference_is_not_one_any_more(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    end_us = LATE_US - 100 * SECOND_US
    wrong = count_of(done_until(end_us, one, two), more=-30)
    keep(site, wrong, end_us)
    before = differences(site)

    keep(site, wrong, end_us + SECOND_US, accept=True)

    assert before == (30, 0)
    assert differences(site) == (0, 0)
    kinds = site.warehouse.table(BROKER_COUNTS).read(["kind"]).column("kind").to_pylist()
    assert kinds.count(ACCEPTED) == 3


ACCEPTED_US = NOON_US + 5600 * SECOND_US
"""A quiet time: then nothing is under way that may be on either side."""
COUNTED_US = LATE_US - 100 * SECOND_US
BEFORE_US, AFTER_US = NOON_US + 900 * SECOND_US, NOON_US + 6000 * SECOND_US


def difference_since_accepted(site: Site, *front_ends: FrontEnd, more: int) -> int:
    """Return how many sends too few usage has, when brokers count so many more after all was accepted."""
    keep(site, count_of(done_until(COUNTED_US, *front_ends), more=more), COUNTED_US)
    return differences(site)[0]


def accept(site: Site, *front_ends: FrontEnd) -> None:
    keep(site, count_of(done_until(ACCEPTED_US, *front_ends)), ACCEPTED_US, accept=True)


def queue_in_trouble(queue: int, **changes: object) -> FrontEnd:
    """Return a front end that makes some requests that send to a queue and are unlike the usual ones."""
    fields = msgspec.structs.asdict(context_of("SendMessage", queue)) | changes
    return FrontEnd("c", step_us=SECOND_US // 10, besides=(UsageContext(**fields),) * 5)


def ended(front_end: FrontEnd, rows: int, time_us: int, *, incarnation_ends: str = "stopped") -> list[bytes]:
    """Return blocks of a start of a front end that began then and ended soon."""
    front_end.time_us = time_us
    block = front_end.block(rows)
    return [block, front_end.block(0, seal=Seal(front_end.incarnation, front_end.sequence, incarnation_ends))]  # type: ignore[arg-type]


@pytest.mark.parametrize(("crashed_us", "difference"), [(BEFORE_US, 900), (AFTER_US, 0)])
def test_a_crash_explains_what_is_missing_since_only_if_it_was_not_before_what_was_accepted(
    tmp_path: Path, crashed_us: int, difference: int
) -> None:
    site, one, two = started(tmp_path)
    accept(site, one, two)
    site.ship(*ended(FrontEnd("c"), 0, crashed_us, incarnation_ends="crashed"))
    site.run()

    assert difference_since_accepted(site, one, two, more=900) == difference


@pytest.mark.parametrize(("taken_us", "difference"), [(BEFORE_US, 900), (AFTER_US, 0)])
def test_a_spool_that_was_lost_was_lost_by_when_the_tables_had_its_seal(
    tmp_path: Path, taken_us: int, difference: int
) -> None:
    site, one, two = started(tmp_path)
    accept(site, one, two)
    site.ship(FrontEnd("c", time_us=BEFORE_US).block(0, seal=Seal(1, None, "lost")))
    site.run(now=time_of(taken_us))

    assert difference_since_accepted(site, one, two, more=900) == difference


@pytest.mark.parametrize(("dropped_us", "difference"), [(BEFORE_US, 900), (AFTER_US, 0)])
def test_what_was_dropped_before_what_was_accepted_explains_nothing_since(
    tmp_path: Path, dropped_us: int, difference: int
) -> None:
    site, one, two = started(tmp_path)
    accept(site, one, two)
    dropping = FrontEnd("c", time_us=dropped_us)
    blocks = [dropping.block(0, dropped=90), dropping.block(0)]
    site.ship(*blocks, dropping.block(0, seal=Seal(1, dropping.sequence, "stopped")))
    site.run()

    assert difference_since_accepted(site, one, two, more=900) == difference


def test_what_is_in_place_of_damage_may_be_of_any_time_up_to_the_next_block(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    accept(site, one, two)
    damaged = FrontEnd("c", time_us=BEFORE_US)
    blocks = [damaged.block(0, dropped=90)]
    damaged.time_us = AFTER_US
    site.ship(*blocks, *ended(damaged, 0, AFTER_US))
    site.run()

    assert difference_since_accepted(site, one, two, more=900) == 0


def test_a_block_that_came_twice_dropped_its_records_once(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    dropping = FrontEnd("c", time_us=AFTER_US)
    block = dropping.block(0, dropped=9)
    site.ship(block, *ended(dropping, 0, AFTER_US))
    site.ship(block)
    site.run()

    assert difference_since_accepted(site, one, two, more=91) == 1


def test_nothing_is_compared_after_records_that_never_came(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    lacking = FrontEnd("c", time_us=AFTER_US)
    lacking.block(7)
    site.ship(*ended(lacking, 3, AFTER_US))
    site.run()

    keep(site, count_of(done_until(COUNTED_US, one, two)), COUNTED_US)

    assert compare(site) is None


@pytest.mark.parametrize("arrives", ["before", "after"])
@pytest.mark.parametrize(("failed_us", "is_explained"), [(BEFORE_US, False), (AFTER_US, True)])
def test_errors_of_ours_before_what_was_accepted_explain_nothing_since_even_if_they_arrive_later(
    tmp_path: Path, arrives: str, failed_us: int, is_explained: bool
) -> None:
    site, one, two = started(tmp_path)
    failing = queue_in_trouble(1, http_status=500, error_code="InternalFailure")
    site.ship(*ended(failing, 400, failed_us))
    if arrives == "before":
        site.run()
    accept(site, one, two, failing)
    site.run()
    failures = sum(record.http_status == 500 for record in failing.records)
    assert failures > 50

    found = difference_since_accepted(site, one, two, failing, more=10 * failures + 1)

    assert found == (1 if is_explained else 10 * failures + 1)


@pytest.mark.parametrize(("recorded_us", "is_explained"), [(BEFORE_US, False), (AFTER_US, True)])
def test_quarantine_explains_what_is_missing_since_only_if_it_is_not_of_before_what_was_accepted(
    tmp_path: Path, recorded_us: int, is_explained: bool
) -> None:
    site, one, two = started(tmp_path)
    broken = queue_in_trouble(1, account_id="nobody")
    site.ship(*ended(broken, 400, recorded_us))
    accept(site, one, two, broken)
    site.run()
    messages = sum(record.message_count for record in broken.records if record.account_id == "nobody")
    assert messages > 100

    # What is in quarantine since is missing by itself, and so much more where it is of before.
    more = 1 if is_explained else messages
    assert difference_since_accepted(site, one, two, broken, more=more) == more


@pytest.mark.parametrize(("taken_us", "is_explained"), [(BEFORE_US, False), (AFTER_US, True)])
def test_a_row_without_a_time_is_of_before_when_the_tables_had_it_before(
    tmp_path: Path, taken_us: int, is_explained: bool
) -> None:
    site, one, two = started(tmp_path)
    accept(site, one, two)
    confused = FrontEnd("c")
    site.ship(*ended(confused, 400, NOON_US - 20 * 366 * 86400 * SECOND_US))
    site.run(now=time_of(taken_us))
    messages = sum(
        record.message_count
        for record in confused.records
        if record.action in SENDS and record.queue_id == 101
    )

    found = difference_since_accepted(site, one, two, more=messages + 1)

    assert found == (1 if is_explained else messages + 1)


def test_errors_of_one_queue_do_not_explain_what_is_missing_of_another(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    failing = queue_in_trouble(0, http_status=500, error_code="InternalFailure")
    site.ship(*ended(failing, 400, AFTER_US))
    site.run()

    assert difference_since_accepted(site, one, two, failing, more=1) == 1


@pytest.mark.parametrize(
    ("failed", "explained"),
    [({}, 0), ({"http_status": 503, "error_code": "ServiceUnavailable"}, STAGE_MESSAGES_MAX)],
)
def test_messages_that_one_request_staged_and_committed_are_sends(
    tmp_path: Path, failed: dict[str, Any], explained: int
) -> None:
    site, one, two = started(tmp_path)
    importer = queue_in_trouble(1, action=STAGE_AND_COMMIT.name, **failed)
    site.ship(*ended(importer, 400, AFTER_US))
    site.run()
    requests = sum(record.action == STAGE_AND_COMMIT.name for record in importer.records)
    assert requests > 50
    assert STAGE_AND_COMMIT.name in SENDS

    more = explained * requests + 1
    assert difference_since_accepted(site, one, two, importer, more=more) == 1


def test_errors_of_requests_whose_queue_nobody_knows_may_explain_any(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    failing = queue_in_trouble(
        1, queue_id=0, queue_name="", queue_type="", http_status=500, error_code="InternalFailure"
    )
    site.ship(*ended(failing, 400, AFTER_US))
    site.run()
    accept(site, one, two, failing)
    failures = sum(record.http_status == 500 for record in failing.records)

    assert difference_since_accepted(site, one, two, failing, more=10 * failures + 1) == 1


def test_a_queue_that_may_lose_what_it_acknowledged_may_have_less(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    end_us = LATE_US - 100 * SECOND_US

    keep(site, count_of(done_until(end_us, one, two), more=-30, is_durable=False), end_us)

    assert differences(site) == (0, 0)


@pytest.mark.parametrize(
    ("name", "bound"),
    [("COUNTS_KEPT_MAX", 2), ("COUNTS_KEPT", datetime.timedelta(seconds=1))],
)
def test_old_counts_go_and_baselines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bound: object
) -> None:
    monkeypatch.setattr(broker_counts, name, bound)
    site, one, two = started(tmp_path)
    for second in range(5):
        time_us = LATE_US - (100 - second) * SECOND_US
        keep(site, count_of(done_until(time_us, one, two)), time_us)

    rows = site.warehouse.table(BROKER_COUNTS).read().to_pylist()
    assert Counter(row["kind"] for row in rows) == {"baseline": 3, "count": 6}
    assert last_counted(site.warehouse) == time_of(LATE_US - 96 * SECOND_US)
    assert differences(site) == (0, 0)


def test_counts_of_a_week_are_kept_when_brokers_are_asked_every_10_minutes() -> None:
    every = datetime.timedelta(minutes=10)
    now = time_of(LATE_US)
    ages = [every * number for number in range(1, 2_100)]
    counts = pa.table({"max.counted_time": [now - age for age in ages]})

    forgotten = broker_counts._forgotten(counts, now).column(0).to_pylist()

    assert max(forgotten) == now - datetime.timedelta(days=7) - every
    assert len(forgotten) == len(ages) - 7 * 24 * 6


def test_what_was_compared_is_kept(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    end_us = LATE_US - 100 * SECOND_US
    keep(site, count_of(done_until(end_us, one, two), more=3), end_us)
    warehouse = site.warehouse
    found = compare(site)
    assert found is not None

    with warehouse.ingesting():
        write_broker_comparison(warehouse, found, time_of(LATE_US))

    rows = site.warehouse.table(RECONCILIATION).read().to_pylist()
    assert [(row["scope"], row["measure"], row["difference"]) for row in rows] == [
        ("brokers", "sends", 3),
        ("brokers", "deletions", 0),
        ("000000000002/queue-1", "sends", 3),
    ]
    assert last_comparison(site.warehouse) == found.totals
    assert (
        compare_brokers(warehouse, coverage_of(warehouse), now=time_of(LATE_US), after=time_of(end_us))
        is None
    )


def test_nothing_is_compared_while_a_clock_that_was_set_back_catches_up(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    latest_us = max(front_end.records[-1].event_time_us for front_end in (one, two))
    end_us = latest_us + 10 * SECOND_US
    keep(site, count_of(done_until(end_us, one, two)), end_us)
    counted_us = end_us + SECOND_US

    set_back = [
        set_back_from(site.warehouse, time_of(time_us))
        for time_us in (NOON_US, counted_us - 6 * SECOND_US, counted_us - 4 * SECOND_US, LATE_US)
    ]

    assert set_back == [time_of(counted_us), time_of(counted_us), None, None]
    assert compare(site, now_us=NOON_US) is None
    found = compare(site, now_us=counted_us)
    assert found is not None
    assert found.difference == 0


def test_usage_that_is_later_than_now_tells_that_a_clock_was_set_back(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    latest_us = max(front_end.records[-1].event_time_us for front_end in (one, two))

    assert set_back_from(site.warehouse, time_of(NOON_US)) == time_of(latest_us)
    assert set_back_from(site.warehouse, time_of(latest_us)) is None
    assert set_back_from(Site(tmp_path / "empty").warehouse, time_of(0)) is None


def test_before_the_first_batch_nothing_is_compared(tmp_path: Path) -> None:
    site = Site(tmp_path)
    keep(site, count_of(Counter({(100, "sends"): 5})), NOON_US)

    assert compare(site) is None


def test_where_all_front_ends_have_ended_counts_of_after_the_last_batch_are_not_compared(
    tmp_path: Path,
) -> None:
    site, one, two = started(tmp_path)
    for front_end in (one, two):
        site.ship(front_end.block(0, seal=Seal(1, front_end.sequence, "stopped")))
    site.run()
    done = done_until(LATE_US, one, two)
    taken_us = NOON_US + 6 * 3600 * SECOND_US

    # A front end that began meanwhile has answered this send; its first block is under way.
    keep(site, count_of(done + Counter({(100, "sends"): 1})), taken_us + 31 * SECOND_US)
    after = compare(site, now_us=taken_us + 60 * SECOND_US)
    keep(site, count_of(done), taken_us - 2 * SECOND_US)
    before = compare(site, now_us=taken_us + 60 * SECOND_US)

    assert after is None
    assert before is not None
    assert before.difference == 0
