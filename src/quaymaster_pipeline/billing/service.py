"""What billing decides: whether a month's invoices may be final, and what an account's invoice of it takes. Pure.

Nothing is remembered in between: an invoice that was not finished is made again, and comes out the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from quaymaster_pipeline.billing.periods import Month, PeriodStage
from quaymaster_pipeline.billing.prices import PriceBook

CORRECTED_MONTHS_MAX: Final = 24
"""How far back closed months are looked at for usage that came late."""
_DAY: Final = timedelta(days=1)


class NotIssued(Exception):
    """A final invoice cannot be issued now, or never; the message says why."""


class NothingToBill(LookupError):
    """An account that used nothing, and has nothing to be corrected."""


class PricesAreClosed(ValueError):
    """Another price book would change what a closed month cost."""


class StoreDamaged(Exception):
    """An issued invoice is no longer what it was when it was issued, or closed days are not what they were."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one invoice of an account beside its lines. `through_close`: see gold.invoices."""

    is_final: bool
    through_close: int = -1
    quantity: int = 0
    revision: int = 1
    digest: str = ""


def window(month: Month) -> list[Month]:
    """Return the months before a month that its invoices may correct, or must come after, in order."""
    found = [month.previous]
    while len(found) < CORRECTED_MONTHS_MAX:
        found.append(found[-1].previous)
    return found[::-1]


def closed_until(last_closed: date | None) -> datetime | None:
    """Return the moment below which every day is closed, for `stage_of`."""
    return (
        None
        if last_closed is None
        else Month(last_closed.year, last_closed.month).start + (timedelta(days=last_closed.day))
    )


def first_open(month: Month, last_closed: date | None, first_used: date | None) -> date:
    """Return the first day of a month that is not closed. Before the first day with usage there is nothing to close."""
    start = month.start.date()
    if last_closed is not None:
        return max(start, last_closed + _DAY)
    return start if first_used is None else max(start, first_used)


def refuse_unless_over(
    month: Month, stage: PeriodStage, now: datetime, grace: timedelta, why_open: str
) -> None:
    """Raise NotIssued unless the month is due or closed. `why_open` says which day is open and why."""
    if stage is PeriodStage.OPEN and now < month.end:
        raise NotIssued(f"{month} is open: it is not over, and ends {month.end:%Y-%m-%d %H:%M} UTC")
    if stage is PeriodStage.OPEN:
        raise NotIssued(f"{month} is open: {why_open}")
    if stage is PeriodStage.GRACE:
        until = month.end + grace
        raise NotIssued(f"{month} takes late usage until {until:%Y-%m-%d %H:%M} UTC, and is provisional")


def open_before(month: Month, standings: Mapping[Month, Standing], used: Collection[Month]) -> list[Month]:
    """Return earlier months that are still to be invoiced; months before the first invoice never were.

    They are those with usage that is `used`, and those with a provisional invoice: it may have only corrections.
    """
    closed = [one for one, standing in standings.items() if standing.is_final]
    first = min(closed, default=month)
    begun = (one for one, standing in standings.items() if not standing.is_final)
    return sorted(one for one in {*begun, *used} if first <= one < month and one not in closed)


def takes_corrections(
    month: Month, standings: Mapping[Month, Standing], used: Collection[Month], *, has_begun: bool
) -> bool:
    """Return whether a month is the first open one after the closed months of an account, which it corrects then.

    A month that has not begun takes none, or each month to come would show them; and neither does one before a
    closed month, since months are closed in order.
    """
    closed = [one for one, standing in standings.items() if standing.is_final]
    if not has_begun or not closed or month <= max(closed):
        return False
    return not open_before(month, standings, used)


def refuse_other_prices(book: PriceBook, current: PriceBook, closed: Collection[Month]) -> None:
    """Raise PricesAreClosed when a closed month would have cost something else by a book."""
    for month in sorted(closed):
        if book.prices_between(month.start, month.end) != current.prices_between(month.start, month.end):
            raise PricesAreClosed(
                f"invoices of {month} were issued by price book {current.name!r}; this one has other prices, "
                f"versions or times in that month. Prices of closed months cannot be changed"
            )
