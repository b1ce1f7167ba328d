from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.billing.periods import Month, PeriodStage, stage_of

NOVEMBER = Month(2026, 11)
SECOND = timedelta(seconds=1)


@given(st.integers(1970, 9998), st.integers(1, 12))
def test_months_follow_each_other_without_gap(year: int, number: int) -> None:
    month = Month(year, number)

    assert month.next.start == month.end
    assert month.next.previous == month
    assert Month.parse(str(month)) == month
    assert Month.of(month.start) == month == Month.of(month.end - SECOND)
    assert Month.of(month.end) == month.next


def test_february_of_a_leap_year_has_29_days() -> None:
    assert Month(2028, 2).end - Month(2028, 2).start == timedelta(days=29)
    assert Month(2100, 2).end - Month(2100, 2).start == timedelta(days=28)


def test_the_month_of_a_time_is_that_in_utc() -> None:
    new_york = timezone(timedelta(hours=-5))

    assert Month.of(datetime(2026, 11, 30, 19, 0, tzinfo=new_york)) == Month(2026, 12)


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-0", "2026-1", "26-11", "2026-11-01", "", "9999-12", "２０２６-11"]
)
def test_a_text_that_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no month"):
        Month.parse(text)


@pytest.mark.parametrize(
    ("now", "closed_until", "stage"),
    [
        (NOVEMBER.end - SECOND, NOVEMBER.end - SECOND, PeriodStage.OPEN),
        (NOVEMBER.end, None, PeriodStage.OPEN),
        (NOVEMBER.end + timedelta(days=9), NOVEMBER.end - timedelta(hours=1), PeriodStage.OPEN),
        (NOVEMBER.end, NOVEMBER.end, PeriodStage.GRACE),
        (NOVEMBER.end + timedelta(days=3) - SECOND, NOVEMBER.end, PeriodStage.GRACE),
        (NOVEMBER.end + timedelta(days=3), NOVEMBER.end, PeriodStage.DUE),
    ],
)
def test_a_month_is_due_when_it_is_over_its_hours_are_closed_and_grace_has_passed(
    now: datetime, closed_until: datetime | None, stage: PeriodStage
) -> None:
    assert stage_of(NOVEMBER, now, closed_until=closed_until, is_closed=False) is stage


def test_a_month_with_an_issued_invoice_is_closed() -> None:
    assert (
        stage_of(NOVEMBER, datetime(2026, 11, 1, tzinfo=UTC), closed_until=None, is_closed=True)
        is PeriodStage.CLOSED
    )
