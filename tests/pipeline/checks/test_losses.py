"""Losses are booked once, to what explains them, within what that can have taken; late usage takes them back."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.broker_counts import EVERY_US, Cluster, count_of, done_until, keep, time_of
from harness.built_once import built_once
from harness.pipeline_site import InProcess
from harness.usage_blocks import NOON_US, SECOND_US, FrontEnd, context_of

from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster.protocol.usage.usage_records import UsageContext
from quaymaster_pipeline.checks.brokers import broker_pages, broker_state, queue_usage
from quaymaster_pipeline.checks.brokers.allowances import (
    CRASH_SECONDS,
    SENDS,
)
from quaymaster_pipeline.checks.brokers.broker_counts import (
    check_brokers,
    compare_brokers,
    last_comparison,
    write_broker_comparison,
)
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse.data_files import read_row_groups
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict
from quaymaster_pipeline.warehouse.schemas import BROKER_STATE, LOSSES, RECONCILIATION, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Table


def sends_of_101(front_end: FrontEnd) -> int:
    return sum(
        record.message_count
        for record in front_end.records
        if record.action in SENDS and record.queue_id == 101
    )


def failing(queue: int) -> tuple[UsageContext, ...]:
    fields = msgspec.structs.asdict(context_of("SendMessage", queue))
    return (UsageContext(**fields | {"http_status": 500, "error_code": "InternalFailure"}),) * 5


@built_once
def compared_once(directory: Path) -> Cluster:
    """Return a cluster after its first comparison."""
    cluster = Cluster(directory)
    cluster.check()
    return cluster


# Once


def test_a_crash_explains_what_is_missing_once(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    cluster.more = 20

    first = cluster.check()
    second = cluster.check()
    cluster.more = 25
    third = cluster.check()

    assert (first, second, third) == ((20, 0), (20, 0), (20, 5))
    assert cluster.losses() == [(101, "sends", "crash", 20)]


def test_a_difference_of_before_is_explained_by_no_later_crash(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.more = 5
    first = cluster.check()
    cluster.crash(cluster.stranger())

    second = cluster.check()
    cluster.crash(cluster.alive[-1])
    cluster.more = 12
    third = cluster.check()

    assert (first, second, third) == ((0, 5), (0, 5), (7, 5))


def test_the_rest_of_what_a_crash_explains_lapses_when_nothing_more_is_missing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.crash(cluster.stranger())
    first = cluster.check()

    cluster.more = 1

    assert first == (0, 0)
    assert cluster.check() == (0, 1)


def test_a_crash_that_may_be_of_after_the_counts_explains_what_is_missing_next_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    front_end = FrontEnd("c")
    cluster.site.ship(cluster.use(front_end, 0, before_us=-30 * SECOND_US))
    cluster.crash(front_end)

    first = cluster.check()
    cluster.more = 20
    second = cluster.check()
    cluster.more = 21
    third = cluster.check()

    assert (first, second, third) == ((0, 0), (20, 0), (20, 1))


def test_what_traffic_hides_at_first_is_explained_when_it_shows_and_not_after(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    busy = FrontEnd("d", step_us=SECOND_US // 10, besides=(context_of("SendMessage", 1),) * 20)
    cluster.alive.append(busy)
    # Requests from before the brokers are counted until after: nobody knows which of them they have.
    cluster.site.ship(cluster.use(busy, 600, before_us=20 * SECOND_US))
    cluster.more = 20

    hidden = cluster.check()
    shown = cluster.check()
    cluster.more = 21
    after = cluster.check()

    assert (hidden, shown, after) == ((0, 0), (20, 0), (20, 1))


def test_what_traffic_of_one_queue_may_hide_explains_nothing_of_a_quiet_one(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    busy = FrontEnd("d", step_us=SECOND_US // 10, besides=(context_of("SendMessage", 0),) * 4_000)
    cluster.alive.append(busy)
    cluster.site.ship(cluster.use(busy, 200, before_us=10 * SECOND_US))

    hidden = cluster.check()
    cluster.more = 20

    assert sends_of_101(busy) == 0
    assert hidden == (0, 0)
    assert cluster.check() == (0, 20)


def test_the_end_of_an_incarnation_that_is_told_twice_is_one_cause(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    front_end = cluster.stranger()
    again = cluster.crash(front_end, "lost")
    cluster.more = 20
    first = cluster.check()
    cluster.check()

    cluster.site.ship(cluster.use(again, 0), again.block(0, seal=Seal(1, 0, "crashed")))
    cluster.more = 25

    assert first == (20, 0)
    assert cluster.check() == (20, 5)


def test_failed_requests_explain_once_and_lapse(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    front_end = cluster.stranger(rows=100, besides=failing(1))
    failures = sum(record.http_status == 500 for record in front_end.records)
    cluster.more = 10 * failures - 7

    first = cluster.check()
    cluster.more += 1

    assert failures > 10
    assert first == (10 * failures - 7, 0)
    assert cluster.check() == (10 * failures - 7, 1)
    assert {cause for _, _, cause, _ in cluster.losses()} == {"failed"}


def test_failed_requests_of_after_the_counts_explain_what_is_missing_next_time(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    front_end = FrontEnd("c", step_us=SECOND_US // 10, besides=failing(1))
    cluster.site.ship(cluster.use(front_end, 100, before_us=-5 * SECOND_US))
    cluster.alive.append(front_end)
    failures = sum(record.http_status == 500 for record in front_end.records)

    first = cluster.check()
    cluster.more = 10 * failures + 1

    assert failures > 10
    assert first == (0, 0)
    assert cluster.check() == (10 * failures, 1)


# Taken back


def test_usage_that_comes_late_takes_bookings_back(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    front_end = cluster.stranger()
    late = cluster.use(front_end, 60)
    cluster.crash(front_end, "lost")
    lost = sends_of_101(front_end)
    first = cluster.check()

    cluster.site.ship(late)
    second = cluster.check()
    cluster.more = 1

    assert lost > 20
    assert first[1] == second[1] == 0
    assert first[0] > lost
    assert second[0] == 0
    assert sum(messages for *_, messages in cluster.losses()) == 0
    assert (101, "sends", "crash", -lost) in cluster.losses()
    assert cluster.check() == (0, 1)  # what was taken back explains nothing again


def test_only_so_much_is_taken_back_as_came(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    front_end = cluster.stranger()
    late = cluster.use(front_end, 60)
    cluster.crash(front_end, "lost")
    cluster.more = 40
    cluster.check()

    cluster.site.ship(late)

    assert cluster.check() == (40, 0)
    of_101 = [
        messages for queue, measure, _, messages in cluster.losses() if (queue, measure) == (101, "sends")
    ]
    assert sum(of_101) == 40


def test_usage_above_what_brokers_counted_is_never_allowed(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    cluster.more = -4

    assert cluster.check() == (0, 4)
    assert cluster.check() == (0, 4)
    assert cluster.losses() == []


# By its own rate


def test_two_kills_of_a_front_end_that_did_little_hide_no_more_than_it_can_have_done(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    front_end = cluster.stranger(rows=300)
    cluster.crash(cluster.crash(front_end))
    cluster.more = 600

    allowed, difference = cluster.check()

    by_second: dict[int, int] = {}
    for record in front_end.records:
        if record.action in SENDS:
            second = record.event_time_us // SECOND_US
            by_second[second] = by_second.get(second, 0) + record.message_count
    assert allowed == 2 * CRASH_SECONDS * max(by_second.values()) < 600
    assert allowed + difference == 600


def test_two_kills_allow_nothing_where_nothing_is_missing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.crash(cluster.crash(cluster.stranger()))

    first = cluster.check()
    cluster.more = 1

    assert first == (0, 0)
    assert cluster.check() == (0, 1)


# Whatever is killed


class Killed(BaseException):
    """The process ends here; nothing catches it."""


@pytest.mark.parametrize("spec", [BROKER_STATE, LOSSES, RECONCILIATION], ids=lambda spec: spec.name)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_killed_between_booking_and_keeping_it_books_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Any, when: str
) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    cluster.more = 20
    cluster.count()
    commit = Table.commit

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is spec:
            if when == "after":
                commit(table, *arguments, **named)
            raise Killed
        return commit(table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(Killed):
            cluster.compare()
    told = {total.allowed for total in last_comparison(cluster.site.warehouse)}
    again = cluster.compare()

    assert told == ({0} if (spec, when) == (BROKER_STATE, "before") else {20, 0})
    assert [(total.allowed, total.difference) for total in again.totals] == [(20, 0), (0, 0)]
    assert cluster.losses() == [(101, "sends", "crash", 20)]
    cluster.more = 21
    assert cluster.check() == (20, 1)


def test_of_two_processes_that_compare_at_a_time_one_does_it_again(tmp_path: Path) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    cluster.more = 20
    cluster.count()
    here = cluster.site.warehouse
    now = time_of(cluster.time_us + 200 * SECOND_US)
    found = compare_brokers(here, coverage_of(here), now=now)
    assert found is not None

    cluster.compare()
    with pytest.raises(CommitConflict):
        write_broker_comparison(here, found, now)
    again = check_brokers(here, coverage_of(here), now=now)

    assert again is not None
    assert [total.allowed for total in again.totals] == [20, 0]
    assert cluster.losses() == [(101, "sends", "crash", 20)]


def test_a_process_that_looked_at_the_state_before_another_compared_goes_on_from_there(
    tmp_path: Path,
) -> None:
    cluster = compared_once(tmp_path)
    cluster.crash(cluster.stranger())
    cluster.more = 20
    cluster.count()
    here = cluster.site.warehouse
    here.table(BROKER_STATE)
    cluster.compare()
    here.table(LOSSES)

    found = check_brokers(here, coverage_of(here), now=time_of(cluster.time_us + 200 * SECOND_US))

    assert found is not None
    assert [total.allowed for total in found.totals] == [20, 0]
    assert len(cluster.losses()) == 1


def test_losses_without_the_state_that_booked_them_are_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.crash(cluster.stranger())
    cluster.more = 20
    cluster.check()
    shutil.rmtree(cluster.site.root / "ops" / "broker_state")

    with pytest.raises(BrokenTable, match=r"ops\.broker_state is broken: ops\.losses has losses"):
        cluster.compare()


def test_counts_of_before_the_last_comparison_are_not_compared_when_a_spool_comes_back(
    tmp_path: Path,
) -> None:
    cluster = compared_once(tmp_path)
    cluster.check()
    # It was silent for so long that usage is whole only up to long ago, now that it is known.
    back = FrontEnd("z", time_us=cluster.time_us - EVERY_US + 90 * SECOND_US)
    cluster.site.ship(back.block(0))
    cluster.site.run(now=time_of(cluster.time_us + 300 * SECOND_US))
    warehouse = cluster.site.warehouse

    now = time_of(cluster.time_us + 300 * SECOND_US)

    assert check_brokers(warehouse, coverage_of(warehouse), now=now) is None


# What is new is read, and gives what all of it gives


def history(directory: Path, seed: int) -> Cluster:
    """Return a cluster after comparisons, with lost and late blocks, failed requests, and differences accepted."""
    chance = random.Random(seed)
    cluster = Cluster(directory)
    late: list[bytes] = []
    for number in range(4):
        front_end = FrontEnd(f"s{number}", step_us=SECOND_US, seed=seed, besides=failing(number % 3))
        blocks = [cluster.use(front_end, 40, before_us=chance.randrange(-60, 400) * SECOND_US)]
        blocks.append(front_end.block(20))
        if chance.random() < 0.5:
            late.append(blocks.pop())
            cluster.alive.append(front_end)
            cluster.site.ship(*blocks)
            cluster.crash(front_end, "lost")
        else:
            cluster.site.ship(*blocks, *late)
            late = []
            cluster.alive.append(front_end)
        cluster.more += chance.choice((0, 0, 3))
        cluster.check(accept=chance.random() < 0.25)
    return cluster


whole_history = built_once(history)


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_grow_are_those_of_all_usage(tmp_path: Path, seed: int) -> None:
    cluster = whole_history(tmp_path, seed)
    cluster.count()
    by_growing = cluster.compare()
    for name in ("broker_state", "losses"):
        shutil.rmtree(cluster.site.root / "ops" / name, ignore_errors=True)

    anew = cluster.compare()

    for one, other in zip(by_growing.totals, anew.totals, strict=True):
        assert (one.brokers, one.usage_low, one.usage_high) == (
            other.brokers,
            other.usage_low,
            other.usage_high,
        )
        assert (one.missing, one.surplus) == (other.missing, other.surplus)


@pytest.mark.parametrize("page", [1, 2])
def test_pages_of_any_size_and_tasks_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    whole = whole_history(tmp_path / "whole", 5)
    monkeypatch.setattr(broker_state, "PAGE_QUEUES", page)
    paged = history(tmp_path / "paged", 5)
    warehouse = paged.site.warehouse

    by_tasks = compare_brokers(
        warehouse, coverage_of(warehouse), now=time_of(paged.time_us + 200 * SECOND_US), workers=InProcess()
    )

    assert by_tasks is not None
    assert by_tasks[:2] == whole.compare()[:2] == paged.compare()[:2]
    assert sorted(paged.losses()) == sorted(whole.losses())
    columns = [one.site.warehouse.table(BROKER_STATE).read() for one in (paged, whole)]
    assert columns[0].equals(columns[1])


def files_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compare, and return the files of events that were read."""
    read: list[str] = []

    def reading(place: Any, spec: Any, path: str, *arguments: Any) -> Any:
        read.append(path)
        return read_row_groups(place, spec, path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(queue_usage, "read_row_groups", reading)
        cluster.compare()
    return read


def test_a_comparison_reads_the_files_of_what_came_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    for _ in range(3):
        cluster.stranger(rows=30)
        cluster.check()
    cluster.stranger(rows=30)
    cluster.count()

    read = files_read(cluster, monkeypatch)

    files = cluster.site.warehouse.table(USAGE_EVENTS).files()
    assert len(files) > 3
    newest = max(files, key=lambda file: file.bounds["batch_id"][1])
    assert read == [newest.path]


@pytest.mark.parametrize("accept", [False, True])
def test_queues_that_are_gone_do_not_let_all_usage_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: bool
) -> None:
    cluster = Cluster(tmp_path)
    cluster.created_us = NOON_US - SECOND_US  # so that queues have baselines
    cluster.check()
    monkeypatch.setattr(broker_pages, "GONE_DAYS", 35 if accept else 0)
    cluster.listed = 2
    cluster.check(accept=accept)
    cluster.check()
    cluster.stranger(rows=30)
    cluster.count()

    assert len(files_read(cluster, monkeypatch)) == 1


def test_a_queue_that_is_back_after_the_others_were_compared_anew_is_compared_from_its_beginning(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    cluster.check(accept=True)
    cluster.listed = 2
    cluster.check(accept=True)
    cluster.listed = 3

    assert cluster.check() == (0, 0)
    lines = cluster.compare().totals
    assert [(line.missing, line.surplus) for line in lines] == [(0, 0), (0, 0)]


def test_sums_from_a_baseline_just_after_the_last_counts_have_all_usage_since(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    busy = FrontEnd("d", step_us=SECOND_US // 10)
    cluster.alive.append(busy)
    cluster.site.ship(cluster.use(busy, 600, before_us=10 * SECOND_US))
    cluster.check()
    accepted_us = cluster.time_us + 10 * SECOND_US
    keep(cluster.site, count_of(done_until(accepted_us, *cluster.alive)), accepted_us, accept=True)

    by_growing = cluster.compare()
    shutil.rmtree(cluster.site.root / "ops" / "broker_state")

    assert by_growing.totals[0].usage_high > 100
    assert by_growing.totals == cluster.compare().totals


def test_a_queue_that_is_gone_for_long_is_forgotten_and_compared_anew_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = compared_once(tmp_path)
    monkeypatch.setattr(broker_pages, "GONE_DAYS", 0)
    cluster.count()
    done = done_until(cluster.time_us, *cluster.alive)
    keep(cluster.site, count_of(done)[:2], cluster.time_us + SECOND_US)
    cluster.compare()
    kept = set(cluster.site.warehouse.table(BROKER_STATE).read(["queue_id"]).column("queue_id").to_pylist())

    back = cluster.check()

    assert kept == {100, 101}
    assert back == (0, 0)
