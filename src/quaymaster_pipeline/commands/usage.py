"""`quaymaster usage`: what accounts used, as the tables have it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_table
from quaymaster_pipeline.commands.warehouse import (
    StorageOptions,
    WarehouseURI,
    check_account,
    need_tables_to_read,
    open_warehouse,
)
from quaymaster_pipeline.warehouse.times import DAY_US, HOUR_US, text_of_time, time_of_us, us_of_time

if TYPE_CHECKING:
    from quaymaster_pipeline.warehouse.tables import Warehouse

Since = Annotated[
    str | None, typer.Option("--since", help="From this hour on, as 2026-11-22T10 (UTC).", metavar="HOUR")
]
Until = Annotated[str | None, typer.Option("--until", help="Up to this hour, without it.", metavar="HOUR")]


@dataclass(frozen=True, kw_only=True)
class UsageOptions:
    """Whose usage is shown."""

    data: options.Data = None
    account: Annotated[str | None, typer.Option("--account", help="Only this account's.", metavar="ID")] = (
        None
    )
    queue: Annotated[str | None, typer.Option("--queue", help="Only of this queue.", metavar="NAME")] = None
    since: Since = None
    until: Until = None
    by_day: Annotated[
        bool,
        typer.Option(
            "--by-day",
            help="Days in place of hours; these are kept for good. --since and --until are days then.",
        ),
    ] = False
    costs: Annotated[
        bool,
        typer.Option("--costs", help="By day, with what it costs by the price book until it is invoiced."),
    ] = False
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@options.gathered
def usage(given: UsageOptions) -> None:
    """Show what accounts used, by hour, queue and action; or by day, with what it costs.

    Costs are by the price book as it is now, of all usage up to now: invoices count. What is shown is what `quaymaster
    pipeline run` has put into the tables so far.
    """
    need_tables_to_read()
    from quaymaster_pipeline.usage.usage import UsageLine, read_usage
    from quaymaster_pipeline.warehouse.schemas import USAGE_HOURLY

    check_account(given.account)
    if given.by_day or given.costs:
        first_day = _day(given.since, "--since", datetime.date.min)
        end_day = _day(given.until, "--until", datetime.date.max)
        tables = open_warehouse(data_directory(given.data), given.warehouse, given.storage_option)
        _show_days(tables, given, first_day, end_day)
        return
    first, end = (
        None if text is None else text_of_time(time_of_us(hour_us(text, name, 0)))
        for text, name in ((given.since, "--since"), (given.until, "--until"))
    )
    tables = open_warehouse(data_directory(given.data), given.warehouse, given.storage_option)
    lines = read_usage(tables, account=given.account, queue=given.queue, since=first, until=end)
    asked = first if first is not None or not lines else lines[0].hour
    is_told = tell_expired_hours(tables, from_hour=asked)
    if given.as_json:
        print_json([line._asdict() for line in lines])
        return
    print_table(tuple(name.upper() for name in UsageLine._fields), lines)
    if not lines and tables.table(USAGE_HOURLY).rows:
        note("Nothing of what is in the tables is as --account, --queue, --since and --until ask for.")
    elif not lines and not is_told:
        note(
            "No usage is in the tables. `make run-pipeline` in a checkout, or `quaymaster pipeline run`, puts what "
            "front ends recorded into them."
        )


def _show_days(tables: Warehouse, given: UsageOptions, first: datetime.date, end: datetime.date) -> None:
    from quaymaster.protocol.admin.reports import COSTS_UNKNOWN
    from quaymaster_pipeline.billing.estimates import DayLine, usage_of_days
    from quaymaster_pipeline.billing.rating import REFUSED_BY_PRICES
    from quaymaster_pipeline.billing.service import StoreDamaged
    from quaymaster_pipeline.billing.store import BillingStore

    try:
        book = BillingStore(tables).book() if given.costs else None
        lines = usage_of_days(tables, first, end, account=given.account, queue=given.queue, book=book)
    except (*REFUSED_BY_PRICES, StoreDamaged) as error:
        raise CommandRefused(f"{error}.", code=COSTS_UNKNOWN) from None
    if given.as_json:
        currency = None if book is None else book.currency
        print_json([{**line._asdict(), "currency": currency} for line in lines])
        return
    names = [name for name in DayLine._fields if name != "cost" or book is not None]
    headers = ["COST " + book.currency if name == "cost" and book else name.upper() for name in names]
    print_table(headers, [[getattr(line, name) for name in names] for line in lines])
    if not lines:
        note("Nothing of what is in the tables is as --account, --queue, --since and --until ask for.")


def tell_expired_hours(tables: Warehouse, *, from_hour: str | None = None) -> bool:
    """Tell of months whose hours have expired, if there are some from an hour on; return whether there are."""
    from quaymaster_pipeline.usage.expired import expired_usage
    from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY, USAGE_HOURLY

    before = expired_usage(tables.table(USAGE_HOURLY)).before
    if not before or (from_hour is not None and from_hour >= before):
        return False
    note(f"Hours of months before {before[:7]} have expired: {USAGE_DAILY.name} has the sums of their days.")
    return True


def hour_us(text: str | None, name: str, absent: int) -> int:
    """Return the hour that an option names; `absent` where it is not given. WrongUsage for a time within an hour."""
    return absent if text is None else _us_of(text, name, HOUR_US, "an hour such as 2026-11-22T10")


def _day(text: str | None, name: str, absent: datetime.date) -> datetime.date:
    """Return the day that an option names, likewise."""
    if text is None:
        return absent
    return time_of_us(_us_of(text, name, DAY_US, "a day such as 2026-11-22 with --by-day or --costs")).date()


def _us_of(text: str, name: str, unit_us: int, wanted: str) -> int:
    """Return a time as a multiple of a unit: what lies within one has no sum of its own."""
    found = us_of_time(options.parse_time(text, name, wanted))
    if found % unit_us:
        raise WrongUsage(f"{name} takes {wanted}, not {text!r}.")
    return found
