"""Billing periods: a calendar month in UTC, and how far it has come. Pure.

    open ──the month is over, every hour closed──▶ grace ──grace period over──▶ due ──invoice issued──▶ closed

Usage of the period that arrives while it is open or in grace belongs to it. After that its charges never change: what
comes later is a correction in the period that is then open.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

GRACE: Final = timedelta(days=3)
"""How long after its end a month still takes late usage, unless said otherwise."""


class Month(NamedTuple):
    """A calendar month in UTC; sorts by time."""

    year: int
    number: int

    @property
    def start(self) -> datetime:
        """The first moment of it."""
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after it."""
        return self.next.start

    @property
    def next(self) -> Month:
        """The month after it."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def previous(self) -> Month:
        """The month before it."""
        return Month(self.year - (self.number == 1), (self.number - 2) % 12 + 1)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.number:02}"

    @classmethod
    def parse(cls, text: str) -> Month:
        """Return the month that a text like `2026-11` names. Raises ValueError."""
        found = re.fullmatch(r"(\d{4})-(\d\d)", text, re.ASCII)
        if found is None or not 1 <= int(found[2]) <= 12 or not 1970 <= int(found[1]) <= 9998:
            raise ValueError(f"{text!r} is no month; 2026-11 is one (1970-01 to 9998-12)")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of_day(cls, text: str) -> Month:
        """Return the month that a day like `2026-11-30` lies in, as partitions of tables name it. Raises ValueError."""
        return cls.parse(text[:7])

    @classmethod
    def of(cls, time: datetime) -> Month:
        """Return the month that a time lies in."""
        utc = time.astimezone(UTC)
        return cls(utc.year, utc.month)


class PeriodStage(Enum):
    """How far a period has come."""

    OPEN = "open"
    GRACE = "grace"
    DUE = "due"
    CLOSED = "closed"


def stage_of(
    month: Month, now: datetime, *, closed_until: datetime | None, is_closed: bool, grace: timedelta = GRACE
) -> PeriodStage:
    """Return how far a month has come.

    `closed_until` is the time below which every hour is closed (None: unknown, so none is); `is_closed` says that
    its invoice has been issued.
    """
    if is_closed:
        return PeriodStage.CLOSED
    if now < month.end or closed_until is None or closed_until < month.end:
        return PeriodStage.OPEN
    return PeriodStage.GRACE if now < month.end + grace else PeriodStage.DUE
