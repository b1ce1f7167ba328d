"""Buckets: tokens at a rate, for a second at most, with bounded debt."""

from __future__ import annotations

import pytest

from quaymaster.core.limits.bucket import HINT_MS_MAX, Bucket


def taken(bucket: Bucket, now_ms: float, count: int, cost: float = 1.0) -> int:
    """Return how many of so many requests go through at once."""
    through = 0
    for _ in range(count):
        if bucket.has_tokens(now_ms):
            bucket.charge(cost, now_ms)
            through += 1
    return through


def test_a_bucket_that_was_not_used_has_the_tokens_of_one_second() -> None:
    bucket = Bucket(50, 0)

    assert taken(bucket, 60_000, 1_000) == 50
    assert taken(bucket, 60_100, 1_000) == 5


def test_a_bucket_lets_its_rate_through_in_the_long_run() -> None:
    bucket = Bucket(50, 0)

    through = sum(taken(bucket, now_ms, 10) for now_ms in range(10_000))

    assert through == pytest.approx(50 + 500, abs=1)


def test_a_slow_bucket_holds_one_token_all_the_same() -> None:
    assert taken(Bucket(0.5, 0), 0, 5) == 1


def test_a_request_larger_than_what_is_left_goes_through_and_leaves_a_debt() -> None:
    bucket = Bucket(1_000, 0)

    assert taken(bucket, 0, 5, cost=3_000) == 1
    assert not bucket.has_tokens(1_999)
    assert bucket.has_tokens(2_002)


def test_debt_is_that_of_ten_seconds_at_most() -> None:
    bucket = Bucket(1_000, 0)

    bucket.charge(10**9, 0)

    assert bucket.tokens == -10_000
    bucket.allot(-(10**9), 0, over_ms=250, expected=1_000)
    assert bucket.allotted == -10_000
    assert bucket.used == 10**9


def test_those_who_are_refused_are_told_moments_as_far_apart_as_tokens_come() -> None:
    bucket = Bucket(50, 0)
    taken(bucket, 0, 50)

    assert [bucket.refuse(1, 0) for _ in range(3)] == pytest.approx([20, 40, 60])
    assert bucket.refuse(1, 1_000) == pytest.approx(20)
    assert max(bucket.refuse(1, 1_000) for _ in range(1_000)) == HINT_MS_MAX
    assert bucket.wanted == 50 + 3 + 1 + 1_000


def test_a_lower_rate_takes_tokens_over_its_burst_away() -> None:
    bucket = Bucket(50, 0)

    bucket.accrue(10, 0, burst=5)

    assert bucket.tokens == 5
    assert taken(bucket, 1_000, 100) == 5
    assert bucket.refuse(1, 1_000) == pytest.approx(100)


def test_a_bucket_that_expects_no_tokens_names_the_longest_time() -> None:
    bucket = Bucket(50, 0)
    bucket.allot(0, 0, over_ms=250, expected=0)

    assert bucket.refuse(1, 0) == HINT_MS_MAX


def test_tokens_that_are_allotted_come_evenly_and_no_more_come() -> None:
    bucket = Bucket(50, 0)
    taken(bucket, 0, 50)

    bucket.allot(10, 0, over_ms=250, expected=40)

    assert bucket.allotted == 10
    assert [taken(bucket, now_ms, 100) for now_ms in (50, 125, 250, 1_000)] == [2, 3, 5, 0]
    assert bucket.refuse(1, 1_000) == pytest.approx(25)


def test_tokens_can_be_taken_back_and_what_was_allotted_stays_when_a_bucket_accrues_itself() -> None:
    bucket = Bucket(50, 0)

    bucket.allot(8, 0, over_ms=250, expected=40)
    assert taken(bucket, 0, 100) == 8
    bucket.allot(4, 0, over_ms=250, expected=40)
    bucket.accrue(10, 125, burst=50, more=1)

    assert taken(bucket, 125, 100) == 5
    assert taken(bucket, 225, 100) == 1


def test_what_is_charged_afterwards_takes_no_more_than_was_allotted() -> None:
    bucket = Bucket(50, 0)
    taken(bucket, 0, 50)
    bucket.allot(10, 0, over_ms=250, expected=40)

    bucket.charge(0.0, 10_000)

    assert (bucket.tokens, bucket.allotted) == (10, 10)


def test_whoever_waits_for_a_token_is_told_how_long() -> None:
    bucket = Bucket(50, 0)
    taken(bucket, 0, 50)

    assert bucket.wait_ms(0) == pytest.approx(20)
    assert bucket.wait_ms(10) == pytest.approx(10)
    assert bucket.wait_ms(20) == pytest.approx(0, abs=1e-6)
    bucket.charge(10_000, 20)
    assert bucket.wait_ms(20) == HINT_MS_MAX
