"""`quaymaster billing`: what usage costs, by tables of the warehouse."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory, find_connection
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage, reason_of
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, progress_bar, time_as_text
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.warehouse import (
    StorageOptions,
    WarehouseURI,
    check_account,
    need_tables,
    need_tables_to_read,
    open_warehouse,
)
from quaymaster_pipeline.warehouse.errors import telling_full_disk

if TYPE_CHECKING:
    from quaymaster_pipeline.billing.invoices import Invoice
    from quaymaster_pipeline.billing.periods import Month
    from quaymaster_pipeline.billing.prices import PriceBook
    from quaymaster_pipeline.billing.reconciliation import BillingComparison
    from quaymaster_pipeline.billing.store import BillingStore, Head
    from quaymaster_pipeline.jobs.close import Closed
    from quaymaster_pipeline.jobs.invoicing import InvoiceRequest, LeftOut
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group("Make invoices of usage, by a price book. Needs quaymaster[spark].")
prices_app = options.new_group("Show and set what requests cost.")
app.add_typer(prices_app, name="prices")

GRACE_DAYS = 3
ROWS_OF_PAGE = 1_000
"""So many invoices are laid out together."""


class Format(StrEnum):
    """What an invoice is written as."""

    JSON = "json"
    CSV = "csv"
    PDF = "pdf"


class BookFormat(StrEnum):
    """What a price book is written as."""

    TOML = "toml"
    CSV = "csv"


@dataclass(frozen=True, kw_only=True)
class Invoices:
    """Whose invoices of which month, and what becomes of them."""

    month: Annotated[str, typer.Option("--month", help="Which month, as 2026-11.", metavar="MONTH")]
    data: options.Data = None
    account: Annotated[
        list[str] | None,
        typer.Option(
            "--account", help="Only this account's, or these accounts'; otherwise all.", metavar="ID"
        ),
    ] = None
    final: Annotated[
        bool,
        typer.Option("--final", help="Issue final invoices, which never change: all asked for, or none."),
    ] = False
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="json, csv (FOCUS 1.2) or pdf; otherwise a summary.", metavar="FORMAT"),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a file for each account here.", metavar="DIR")
    ] = None
    grace_days: Annotated[
        int,
        typer.Option(
            "--grace-days", min=0, max=365, help="A month takes late usage for so long.", metavar="DAYS"
        ),
    ] = GRACE_DAYS


@dataclass(frozen=True, kw_only=True)
class InvoiceOptions(spark.SparkOptions, Invoices):
    """What is invoiced, and with which Spark."""


@app.command()
@options.gathered
def invoice(given: InvoiceOptions) -> None:
    """Make the invoices of a month: provisional ones, or with --final those that count.

    A final invoice needs every day of the month closed, the days of grace over, and no count that differs. Usage that
    comes later is corrected in the next month's invoice. Issued invoices are printed as they were issued, without
    Spark; to make any needs it.
    """
    need_tables()
    from quaymaster_pipeline.billing.store import BillingStore

    if given.format_ is Format.PDF and given.out is None:
        raise WrongUsage("--format pdf needs --out DIR.")
    if given.out is not None and given.format_ is None:
        raise WrongUsage("--out needs --format json, csv or pdf.")
    for account_id in given.account or ():
        check_account(account_id)
    period = _month(given.month)
    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    store = BillingStore(tables)
    with _billing_errors():
        request, left_out = _make(store, tables, directory, period, given)
        heads = _heads(store, period, request.accounts)
        first = next(heads, None)
        heads = heads if first is None else itertools.chain([first], heads)
        if given.format_ is None:
            _print_summary(heads, request, given.as_json)
        elif given.out is not None:
            _write_files(store, heads, given.format_, given.out, given.as_json)
        else:
            _print_documents(store, heads, given.format_)
    if first is None:
        note(f"Nobody used anything in {period}, and nothing is to be corrected in it.")
    for earlier, late in left_out.items():
        names = ", ".join(late.accounts)
        others = late.count - len(late.accounts)
        note(
            f"{names}{f' and {others} others' if others else ''} used something in {earlier} and have no final invoice "
            f"of it, as others do: quaymaster billing invoice --month {earlier} --final"
        )


def _make(
    store: BillingStore, tables: Warehouse, directory: Path, month: Month, given: InvoiceOptions
) -> tuple[InvoiceRequest, dict[Month, LeftOut]]:
    """Make the invoices unless all are issued; return what was asked for, and who else is to be invoiced."""
    from quaymaster_pipeline.billing.reconciliation import differing
    from quaymaster_pipeline.jobs.close import close_days
    from quaymaster_pipeline.jobs.invoicing import comparisons_of, is_issued, make_invoices

    request = _request(tables, month, given)
    if is_issued(store, tables, request):
        store.check_issued(month)
        return request, {}
    if request.is_final and request.now < month.end + request.grace:
        request.refuse_unless_over()
    session = spark.spark_workers(directory, given.master, given.driver_memory)
    with store.writing(), session as workers:
        if given.final:
            closed = close_days(workers, tables, request.now, takes_late=True)
            request = replace(_request(tables, month, given), why_open=_why_open(tables, closed))
        quiet = given.as_json or given.format_ is not None
        with progress_bar("invoices: stretches of accounts", quiet=quiet) as bar:
            made = make_invoices(workers, tables, request, bar.show)
    for one in differing(comparisons_of(request)):
        note(f"Counts differ, and nothing final will be issued: {one}.")
    return request, dict(made.left_out)


def _request(tables: Warehouse, month: Month, given: InvoiceOptions) -> InvoiceRequest:
    from quaymaster_pipeline.billing.store import first_day_of
    from quaymaster_pipeline.jobs.invoicing import InvoiceRequest
    from quaymaster_pipeline.warehouse.closes import last_closed_day, read_closes
    from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY

    return InvoiceRequest(
        month=month,
        now=_now(),
        # In the order asked for, each once.
        accounts=tuple(dict.fromkeys(given.account)) if given.account else None,
        is_final=given.final,
        closes=read_closes(tables),
        last_closed=last_closed_day(tables),
        first_used=first_day_of(tables.table(USAGE_DAILY)),
        grace=datetime.timedelta(days=given.grace_days),
        compared=_compare_brokers(tables),
        why_not_final=lambda month: _why_brokers_do_not_say(tables, month),
    )


def _heads(store: BillingStore, month: Month, accounts: tuple[str, ...] | None) -> Iterator[Head]:
    """Yield the invoices in the order in which they were asked for."""
    if accounts is None:
        yield from store.heads(month)
        return
    for account_id in accounts:
        yield from store.heads(month, [account_id])


@prices_app.command("show")
def show_prices(
    data: options.Data = None,
    format_: Annotated[
        BookFormat | None,
        typer.Option("--format", help="toml or csv, which `prices set` takes.", metavar="FORMAT"),
    ] = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show the price book: what requests cost, from when to when.

    Until one is set, it is an example: the public list prices of Amazon SQS in us-east-1.
    """
    need_tables_to_read()
    from quaymaster_pipeline.billing.price_files import render_csv, render_toml
    from quaymaster_pipeline.billing.store import BillingStore

    with _billing_errors():
        book = BillingStore(open_warehouse(data_directory(data), warehouse, storage_option)).book()
    if format_ is not None:
        text = render_toml(book) if format_ is BookFormat.TOML else render_csv(book)
        print_line(text.removesuffix("\n"))
        return
    _print_book(book, as_json)


@prices_app.command("set")
def set_prices(
    file: Annotated[Path, typer.Argument(help="The price book: a .toml or .csv file.", metavar="FILE")],
    data: options.Data = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """Set the price book. Prices of months that have final invoices cannot be changed.

    `quaymaster billing prices show --format toml` prints one to begin with.
    """
    need_tables()
    from quaymaster_pipeline.billing.price_files import parse_csv, parse_toml
    from quaymaster_pipeline.billing.prices import BadPriceBook
    from quaymaster_pipeline.billing.store import BillingStore

    parse = {".toml": parse_toml, ".csv": parse_csv}.get(file.suffix.lower())
    if parse is None:
        raise WrongUsage(f"{file} is neither .toml nor .csv.")
    try:
        book = parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{file} cannot be read: {reason_of(error)}.") from None
    except BadPriceBook as error:
        raise WrongUsage(f"{file}: {error}.") from None
    tables = open_warehouse(data_directory(data), warehouse, storage_option)
    store = BillingStore(tables)
    with _billing_errors(), store.writing():
        store.set_book(book)
    _print_book(book, as_json)


@app.command()
def accounts(
    data: options.Data = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Ask the server for its accounts' names, and keep them.")
    ] = False,
    admin_url: options.AdminURL = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show what accounts are called on invoices. A name counts for months that end after it was kept."""
    need_tables_to_read()
    from quaymaster_pipeline.billing.store import BillingStore

    store = BillingStore(open_warehouse(data_directory(data), warehouse, storage_option))
    if sync:
        from quaymaster.cli.shared.client import AdminClient

        with AdminClient(find_connection(data, None), admin_url) as admin:
            # An account that was deleted has invoices to come for what it used.
            found = list(admin.accounts(deleted=True))
        with _billing_errors(), store.writing():
            store.set_account_names({one["account_id"]: one["name"] for one in found}, _now())
    with _billing_errors():
        names = store.account_names(_now())
    if as_json:
        print_json([{"account_id": account_id, "name": name} for account_id, name in sorted(names.items())])
    else:
        print_table(("ACCOUNT ID", "NAME"), sorted(names.items()))


def _why_brokers_do_not_say(tables: Warehouse, month: Month) -> str | None:
    """Return why usage of a month cannot be said to be what the brokers did; None if it can, or has no brokers."""
    from quaymaster_pipeline.checks.brokers.broker_counts import last_compared
    from quaymaster_pipeline.checks.brokers.loss_table import losses_of_month, why_losses_stop
    from quaymaster_pipeline.usage.blocks import BRONZE
    from quaymaster_pipeline.usage.feed import QUEUE_FEED
    from quaymaster_pipeline.warehouse.schemas import BLOCKS

    feed = tables.table(BLOCKS).note(BRONZE).get("feed", "")
    compared = last_compared(tables)
    if not feed.startswith(QUEUE_FEED):
        return None
    if compared is not None and compared > _now():
        return (
            f"usage was compared with what the brokers counted at {compared:%Y-%m-%d %H:%M} UTC, which is later than "
            "now: a clock was set back, and invoices wait until then"
        )
    if compared is not None and compared >= month.end:
        return why_losses_stop(str(month), losses_of_month(tables, month.start.date(), month.end.date()))
    when = "never" if compared is None else f"last at {compared:%Y-%m-%d %H:%M} UTC"
    return (
        f"usage was {when} compared with what the brokers counted, which must be after the month: "
        "quaymaster pipeline reconcile, and two minutes later quaymaster pipeline run and reconcile once more"
    )


def _compare_brokers(tables: Warehouse) -> tuple[BillingComparison, ...]:
    """Return what the brokers counted last beside usage, within bounds."""
    from quaymaster_pipeline.billing.reconciliation import BillingComparison
    from quaymaster_pipeline.checks.brokers.broker_counts import last_comparison

    found = []
    for brokers in last_comparison(tables):
        usage = brokers.brokers + (brokers.difference if brokers.surplus else -brokers.difference)
        counts = (("brokers", brokers.brokers), ("usage, within bounds", usage))
        found.append(BillingComparison("brokers", brokers.measure, counts))
    return tuple(found)


def _why_open(tables: Warehouse, closed: Closed) -> str:
    """Return what keeps the first day open that is not closed."""
    from quaymaster_pipeline.usage import gold
    from quaymaster_pipeline.usage.partial_sums import whole_coverage
    from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY

    if closed.open_days:
        return (
            f"as layers differ: {', '.join(closed.open_days)}; `quaymaster pipeline close` says by how much"
        )
    if tables.table(USAGE_DAILY).last_batch(gold.APP) < 0:
        return "as no usage was taken yet: `quaymaster pipeline run` does"
    closed_us = whole_coverage(tables).closed_until_us()
    until = (
        ""
        if closed_us is None
        else f" after {datetime.datetime.fromtimestamp(closed_us / 1e6, datetime.UTC):%Y-%m-%d %H:%M}"
    )
    return f"as front ends may still report usage{until}"


@contextlib.contextmanager
def _billing_errors() -> Iterator[None]:
    """What billing refuses ends the command with a sentence."""
    from quaymaster_pipeline.billing.rating import REFUSED_BY_PRICES
    from quaymaster_pipeline.billing.service import NothingToBill, NotIssued, PricesAreClosed, StoreDamaged
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    try:
        yield
    except (
        NotIssued,
        NothingToBill,
        PricesAreClosed,
        *REFUSED_BY_PRICES,
        StoreDamaged,
    ) as error:
        raise CommandRefused(f"{error}.") from None
    except WarehouseBusy as error:
        raise CommandRefused(f"{error}; wait for it.") from None


_SUMMARY = (
    *(
        "ACCOUNT ID",
        "NAME",
        "MONTH",
        "STATE",
        "REVISION",
        "BILLED REQUESTS",
        "PAYABLE",
        "CURRENCY",
        "INVOICE",
    ),
)


def _print_summary(heads: Iterator[Head], request: InvoiceRequest, as_json: bool) -> None:
    from quaymaster_pipeline.billing.documents import invoice_head, json_list, json_of

    if as_json:
        _write_out(
            json_list(
                [
                    json_of(
                        invoice_head(head.invoice)
                        | {
                            "stage": "closed" if head.invoice.state == "final" else request.stage.value,
                            "reconciliation": [compared.as_json() for compared in head.compared],
                        }
                    )
                ]
                for head in heads
            )
        )
        print_line()
        return
    while True:
        page = [head.invoice for head in itertools.islice(heads, ROWS_OF_PAGE)]
        print_table(
            _SUMMARY,
            [
                (
                    *(one.account_id, one.account_name or None, one.month, one.state, one.revision),
                    *(one.quantity, one.payable, one.currency, one.invoice_id),
                )
                for one in page
            ],
        )
        if len(page) < ROWS_OF_PAGE:
            return


def _print_documents(store: BillingStore, heads: Iterator[Head], format_: Format) -> None:
    from quaymaster_pipeline.billing.documents import csv_text, json_list, json_text

    if format_ is Format.JSON:
        _write_out(json_list(json_text(one, _lines(store, one)) for one, _ in heads))
        print_line()
        return
    for index, (one, _) in enumerate(heads):
        _write_out(csv_text(_lines(store, one), has_header=index == 0))


def _lines(store: BillingStore, invoice: Invoice) -> Callable[[], Iterator[object]]:
    """Return how to read the lines of an invoice, which are those that it was made of."""
    store.check(invoice)
    return lambda: store.lines(invoice)


def _write_out(parts: Iterable[str]) -> None:
    for part in parts:
        sys.stdout.write(part)


def _write_files(
    store: BillingStore, heads: Iterator[Head], format_: Format, out: Path, as_json: bool
) -> None:
    from quaymaster_pipeline.billing.documents import json_list, json_of, render_csv, render_json

    render: dict[Format, Callable[..., Iterator[bytes]]] = {Format.JSON: render_json, Format.CSV: render_csv}
    if format_ is Format.PDF:
        try:
            from quaymaster_pipeline.billing.invoice_pdf import render_pdf
        except ImportError as error:
            raise WrongUsage(f"{error.name} is not installed: pip install 'quaymaster[spark]'.") from None
        render[Format.PDF] = render_pdf

    def written() -> Iterator[Path]:
        for one, _ in heads:
            name = one.invoice_id or f"provisional-{one.month}-{one.account_id}"
            path = out / f"{name}.{format_.value}"
            _write_whole(path, render[format_](one, _lines(store, one)))
            yield path

    try:
        out.mkdir(parents=True, exist_ok=True)
        if as_json:
            _write_out(json_list([json_of(str(path))] for path in written()))
            print_line()
        else:
            for path in written():
                print_line(str(path))
    except OSError as error:
        raise WrongUsage(f"{error.filename or out} cannot be written: {reason_of(error)}.") from None


def _write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file, all of it or none: half an invoice must not be taken for one."""
    part = path.with_name(f"{path.name}.part")
    try:
        with telling_full_disk(str(path.parent)):
            with part.open("wb") as file:
                file.writelines(parts)
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _print_book(book: PriceBook, as_json: bool) -> None:
    from quaymaster_pipeline.billing.price_files import each_tier, time_text

    if as_json:
        versions = [
            {
                "number": version.number,
                "valid_from": time_text(version.valid_from),
                "valid_to": None if version.valid_to is None else time_text(version.valid_to),
                "free_requests": version.free_requests,
                **{
                    name: [{"above": tier.above, "per_million": tier.per_million} for tier in tiers]
                    for name, tiers in version.tiers.items()
                },
            }
            for version in book.versions
        ]
        print_json(
            {"name": book.name, "currency": book.currency, "issuer": book.issuer, "versions": versions}
        )
        return
    note(f"{book.name}; {book.currency}, issued by {book.issuer}")
    print_table(
        ("VERSION", "FROM", "TO", "FREE REQUESTS", "CLASS", "ABOVE", "PER MILLION"),
        (
            (
                *(version.number, _time(version.valid_from), _time(version.valid_to), version.free_requests),
                *(billing_class, tier.above, tier.per_million),
            )
            for version, billing_class, tier in each_tier(book)
        ),
    )


def _time(time: datetime.datetime | None) -> str:
    return time_as_text(None if time is None else int(time.timestamp() * 1000))


def _month(text: str) -> Month:
    from quaymaster_pipeline.billing.periods import Month

    try:
        return Month.parse(text)
    except ValueError as error:
        raise WrongUsage(f"--month: {error}.") from None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
