"""How front ends share a limit: what goes through in all, while load moves, front ends and owners come and go."""

from __future__ import annotations

import pytest

from core.limits.simulated import SimulatedCell
from quaymaster.core.limits.bucket import Bucket
from quaymaster.core.limits.division import Division, Grant
from quaymaster.core.limits.share import ALONE_MS, IDLE_MS, Share, State

WINDOW_MS = 10_000
SETTLED_MS = 1_000

each_seed = pytest.mark.parametrize("seed", range(3))
each_limit = pytest.mark.parametrize(
    ("rate", "cost"), [(50, 1.0), (400, 1.0), (1_000_000, 30_000.0)], ids=["few", "many", "bytes"]
)


@pytest.mark.uncovered
@each_limit
@each_seed
def test_the_sum_is_the_limit_within_5_percent_while_load_moves_between_front_ends(
    rate: float, cost: float, seed: int
) -> None:
    cell = SimulatedCell(rate, 3, 3, seed=seed, cost=cost)
    much = 8 * rate

    for number in range(6):
        cell.load(**{f"fe{number % 3}": much})
        cell.run(2_000)
    cell.load(fe0=much, fe1=much / 2, fe2=much / 4)
    cell.run(5_000)
    cell.load(fe0=much, fe1=0.2 * rate)
    cell.run(6_000)

    least, most = cell.worst(WINDOW_MS, SETTLED_MS)
    assert least >= 0.95
    assert most <= 1.05


@pytest.mark.uncovered
@each_seed
def test_the_sum_is_the_limit_while_owners_and_front_ends_fail_and_come_back(seed: int) -> None:
    cell = SimulatedCell(400, 3, 3, seed=seed)
    cell.load(fe0=2_000, fe1=2_000, fe2=2_000)
    cell.run(11_000)

    owner = cell.owners[cell.front_ends["fe0"].owner]
    owner.is_up = False
    cell.run(10_000)
    owner.is_up, owner.division = True, None
    cell.run(10_000)
    cell.front_ends["fe1"].is_up = False
    cell.run(10_000)

    least, most = cell.worst(WINDOW_MS, SETTLED_MS)
    assert least >= 0.95
    assert most <= 1.05


@pytest.mark.uncovered
@each_seed
def test_the_sum_is_the_limit_without_owners_before_and_after_front_ends_forget_their_shares(
    seed: int,
) -> None:
    cell = SimulatedCell(400, 3, 3, seed=seed)
    cell.load(fe0=2_000, fe1=2_000, fe2=2_000)
    cell.run(11_000)

    for owner in cell.owners.values():
        owner.is_up = False
    cell.run(ALONE_MS + 12_000)

    assert {front_end.share.state for front_end in cell.front_ends.values()} == {State.ALONE}
    least, most = cell.worst(WINDOW_MS, SETTLED_MS)
    assert least >= 0.95
    assert most <= 1.05


@pytest.mark.uncovered
def test_a_front_end_without_owners_keeps_its_mean_share_and_has_a_fair_part_after_a_minute() -> None:
    cell = SimulatedCell(400, 2, 2, seed=1)
    cell.load(fe0=2_000)
    cell.run(11_000)
    for owner in cell.owners.values():
        owner.is_up = False

    cell.run(30_000)
    kept = cell.rate_of_last(20_000)
    cell.run(ALONE_MS)
    alone = cell.rate_of_last(20_000)

    assert kept == pytest.approx(1.0, abs=0.05)
    assert alone == pytest.approx(0.5, abs=0.05)


@pytest.mark.uncovered
@each_seed
def test_two_owners_together_grant_less_than_twice_the_limit(seed: int) -> None:
    cell = SimulatedCell(400, 2, 2, seed=seed)
    cell.load(fe0=2_000, fe1=2_000)
    cell.run(5_000)

    cell.front_ends["fe0"].sees = {"md0"}
    cell.front_ends["fe1"].sees = {"md1"}
    cell.run(5_000)
    cell.front_ends["fe0"].sees = cell.front_ends["fe1"].sees = None
    cell.run(15_000)

    assert cell.worst(WINDOW_MS, SETTLED_MS)[1] < 2
    assert 0.95 <= cell.rate_of_last(10_000) <= 1.05


@pytest.mark.uncovered
@each_seed
def test_reports_that_get_lost_cost_and_gain_little(seed: int) -> None:
    cell = SimulatedCell(400, 3, 3, seed=seed, loss=0.02)
    cell.load(fe0=2_000, fe1=2_000, fe2=2_000)

    cell.run(30_000)

    least, most = cell.worst(WINDOW_MS, SETTLED_MS)
    assert least >= 0.9
    assert most < 1.25


@pytest.mark.uncovered
@each_seed
def test_a_limit_of_few_requests_a_second_is_reached_by_three_front_ends(seed: int) -> None:
    cell = SimulatedCell(2, 3, 3, seed=seed)
    cell.load(fe0=50, fe1=50, fe2=50)

    cell.run(60_000)

    assert 0.95 <= cell.rate_of_last(50_000) <= 1.05


@pytest.mark.uncovered
@each_seed
@pytest.mark.parametrize("front_ends", [2, 3, 5])
@pytest.mark.parametrize("rate", [1, 2, 5, 10])
def test_a_low_limit_is_reached_when_each_front_end_is_asked_for_all_of_it(
    rate: int, front_ends: int, seed: int
) -> None:
    cell = SimulatedCell(rate, front_ends, 2, seed=seed)
    cell.load(**dict.fromkeys(cell.front_ends, rate))

    cell.run(40_000)

    assert 0.94 <= cell.rate_of_last(30_000) <= 1.06


@pytest.mark.uncovered
@each_seed
@pytest.mark.parametrize(("rate", "least"), [(1, 0.9), (2, 0.9), (5, 0.8), (20, 0.95)])
def test_clients_that_wait_as_they_are_told_get_what_a_low_limit_allows(
    rate: int, least: float, seed: int
) -> None:
    cell = SimulatedCell(rate, 2, 2, seed=seed)
    for front_end in cell.front_ends.values():
        front_end.clients = [0.0, 0.0]

    cell.run(40_000)

    assert least <= cell.rate_of_last(30_000) <= 1.06


def test_shares_follow_the_demand_and_what_is_left_is_divided_evenly() -> None:
    division = Division(100, 0, is_whole=True, is_full=False)
    division.report("a", 300, 0, 0)
    division.report("b", 100, 0, 0)

    assert division.report("a", 300, 0, 100).rate == pytest.approx(75)
    assert division.report("b", 10, 0, 200).rate == pytest.approx(100 * 10 / 310)
    assert division.report("a", 30, 0, 300).rate == pytest.approx(30 + 30)


def test_a_new_division_grants_no_burst_and_one_of_an_idle_account_does() -> None:
    assert Division(100, 0, is_whole=True, is_full=False).report("a", 300, 0, 0).tokens == 0
    assert Division(100, 0, is_whole=True, is_full=True).report("a", 300, 0, 0).tokens == 51


def test_bytes_are_granted_to_what_is_held_and_requests_to_whole_ones() -> None:
    of_bytes, of_requests = (Division(99, 0, is_whole=is_whole, is_full=True) for is_whole in (False, True))

    assert of_bytes.report("a", 300, 0.25, 0).tokens == 49.25
    assert of_requests.report("a", 300, 0.25, 0).tokens == 50.75


def test_tokens_that_are_not_needed_are_given_back_and_granted_to_another() -> None:
    division = Division(100, 0, is_whole=True, is_full=True)
    division.report("a", 1_000, 0, 0)

    assert division.report("a", 0, 40, 10).tokens == -40
    assert division.report("b", 1_000, 0, 20).tokens == 51
    assert division.report("b", 1_000, 0, 30).tokens >= 40


def test_a_division_that_no_front_end_uses_is_dropped_when_it_is_full_again() -> None:
    division = Division(100, 0, is_whole=True, is_full=True)
    division.report("a", 1_000, 0, 0)

    assert division.is_used(100)
    assert division.is_used(900)
    assert not division.is_used(1_600)


def test_a_new_rate_of_a_division_holds_at_once() -> None:
    division = Division(100, 0, is_whole=True, is_full=False)
    division.report("a", 1_000, 0, 0)

    division.rate = 10.0

    assert division.report("a", 1_000, 0, 500).tokens == 5


def share_of(rate: float = 100, front_ends: int = 2) -> tuple[Bucket, Share]:
    bucket = Bucket(rate, 0)
    return bucket, Share(bucket, rate, front_ends, 0)


def test_before_its_first_grant_a_front_end_has_its_part_of_the_rate() -> None:
    bucket, share = share_of()

    assert bucket.tokens == 100 / 2 / 4
    share.on_time(10, 5)
    assert bucket.tokens == 100 / 5 / 4
    share.on_time(1_000, 5)
    assert bucket.tokens == 100 / 5 / 4


def test_what_was_used_without_a_grant_is_reported_as_debt_and_taken_off_the_grant() -> None:
    bucket, share = share_of()
    bucket.charge(3, 10)

    report = share.report(100, is_new_owner=True)
    bucket.charge(1, 101)
    share.on_grant(Grant(20, 100), 102)

    assert report.unused == -3
    assert bucket.allotted == 20 - 3 - 1
    assert share.state is State.GRANTED
    assert share.report(200, is_new_owner=False).unused == 16


def test_an_idle_front_end_gives_its_tokens_back_and_reports_no_longer() -> None:
    bucket, share = share_of()
    assert not share.is_busy()
    bucket.charge(1, 10)
    assert share.is_busy()
    share.report(100, is_new_owner=False)
    share.on_grant(Grant(20, 100), 102)

    share.report(IDLE_MS - 1, is_new_owner=False)
    share.on_grant(Grant(0, 50), IDLE_MS)
    assert share.is_busy()
    report = share.report(IDLE_MS + 200, is_new_owner=False)
    share.on_grant(Grant(-report.unused, 0), IDLE_MS + 201)

    assert report.demand == 0
    assert not share.is_busy()
    assert share.state is State.ALONE
    assert bucket.tokens == 0


def test_a_front_end_that_hears_nothing_keeps_the_mean_of_its_shares() -> None:
    bucket, share = share_of()
    for at, rate in ((0, 10), (5_000, 40), (12_000, 60)):
        bucket.charge(1, at)
        share.report(at, is_new_owner=False)
        share.on_grant(Grant(0, rate), at)
    tokens = bucket.tokens

    share.on_time(12_501, 2)

    # Its shares of the last 10 s are 40 and 60; it missed those of half a second.
    assert share.state is State.KEPT
    assert bucket.tokens == tokens + 50 / 2
    share.on_failure(12_600)
    assert share.state is State.KEPT


def test_what_a_front_end_used_without_any_owner_is_no_debt_of_a_new_one() -> None:
    bucket, share = share_of()
    bucket.charge(1, 0)
    share.report(0, is_new_owner=False)
    share.on_grant(Grant(5, 50), 0)
    share.on_failure(100)
    bucket.charge(20, 200)

    assert share.report(250, is_new_owner=False).unused == -16
    assert share.report(250, is_new_owner=True).unused == 0
    share.on_time(ALONE_MS + 1, 2)
    bucket.charge(20, ALONE_MS + 1)
    assert share.state is State.ALONE
    assert share.report(ALONE_MS + 2, is_new_owner=False).unused == 0
