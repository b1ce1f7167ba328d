"""`quaymaster billing`: what usage costs, by tables of the warehouse."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli import options
from quaymaster.cli.connection import data_directory, find_connection
from quaymaster.cli.failures import CommandRefused, WrongUsage, reason_of
from quaymaster.cli.output import note, print_json, print_line, print_table, progress_bar, time_as_text
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
    from quaymaster_pipeline.billing.service import Billing, Made
    from quaymaster_pipeline.billing.store import BillingStore
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group("Make invoices of usage, by a price book. Needs quaymaster[spark].")
prices_app = options.new_group("Show and set what requests cost.")
app.add_typer(prices_app, name="prices")

GRACE_DAYS = 3
ACCOUNTS_AT_ONCE = 200
"""Whose provisional invoices are written in one commit: each rewrites the month's rows of all."""


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
class InvoiceOptions:
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
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def invoice(given: InvoiceOptions) -> None:
    """Make the invoices of a month: provisional ones, or with --final those that count.

    A final invoice needs every hour of the month closed, the days of grace over, and the same counts in all tables.
    Usage that comes later is corrected in the next month's invoice. An issued invoice is printed as it was issued.
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
    tables = open_warehouse(data_directory(given.data), given.warehouse, given.storage_option)
    store = BillingStore(tables)
    with _billing_errors(), store.writing():
        billing = _billing(store, tables, given.grace_days, final=given.final)
        made = _make(billing, period, given)
        left_out = {} if given.account else billing.left_out(period)
    _tell_differences(made)
    if given.format_ is None:
        _print_summary(made, given.as_json)
    elif given.out is not None:
        _write_files(made, given.format_, given.out, given.as_json)
    else:
        _print_documents([one.invoice for one in made], given.format_)
    if not made:
        note(f"Nobody used anything in {period}, and nothing is to be corrected in it.")
    for earlier, late in left_out.items():
        note(
            f"{', '.join(late)} used something in {earlier} and have no final invoice of it, as others do: "
            f"quaymaster billing invoice --month {earlier} --final"
        )


def _make(billing: Billing, month: Month, given: InvoiceOptions) -> list[Made]:
    # In the order asked for, each once.
    accounts = list(dict.fromkeys(given.account)) if given.account else billing.accounts(month)
    if given.final:
        return billing.close(month, accounts)
    made: list[Made] = []
    quiet = given.as_json or given.format_ is not None
    with progress_bar("invoices", total=len(accounts), quiet=quiet) as bar:
        for first in range(0, len(accounts), ACCOUNTS_AT_ONCE):
            made += billing.update(month, accounts[first : first + ACCOUNTS_AT_ONCE])
            bar.update(len(made))
    return made


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
        _billing(store, tables, GRACE_DAYS, final=False).set_book(book)
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
        from quaymaster.cli.client import AdminClient

        with AdminClient(find_connection(data, None), admin_url) as admin:
            # An account that was deleted has invoices to come for what it used.
            found = list(admin.accounts(deleted=True))
        with _billing_errors(), store.writing():
            store.set_account_names({one["account_id"]: one["name"] for one in found}, _now())
    names = store.account_names(_now())
    if as_json:
        print_json([{"account_id": account_id, "name": name} for account_id, name in sorted(names.items())])
    else:
        print_table(("ACCOUNT ID", "NAME"), sorted(names.items()))


def _billing(store: BillingStore, tables: Warehouse, grace_days: int, *, final: bool) -> Billing:
    from quaymaster_pipeline.billing.service import Billing

    return Billing(
        store,
        now=_now(),
        closed_until=_closed_until(tables),
        compare_layers=lambda: _compare_layers(tables, by_rows=final),
        grace=datetime.timedelta(days=grace_days),
        why_not_final=functools.cache(lambda month: _why_brokers_do_not_say(tables, month)),
    )


def _why_brokers_do_not_say(tables: Warehouse, month: Month) -> str | None:
    """Return why usage of a month cannot be said to be what the brokers did; None if it can, or has no brokers."""
    from quaymaster_pipeline.checks.broker_counts import last_compared
    from quaymaster_pipeline.checks.loss_table import losses_of_month, why_losses_stop
    from quaymaster_pipeline.usage import bronze
    from quaymaster_pipeline.usage.feed import QUEUE_FEED
    from quaymaster_pipeline.warehouse.schemas import BLOCKS

    feed = tables.table(BLOCKS).note(bronze.APP).get("feed", "")
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


def _closed_until(tables: Warehouse) -> datetime.datetime | None:
    """Return the time below which every hour is closed; now when all front ends have ended in order."""
    from quaymaster_pipeline.usage import gold
    from quaymaster_pipeline.usage.partial_sums import whole_coverage
    from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY

    # The last table that a batch gets to.
    if tables.table(USAGE_DAILY).last_batch(gold.APP) < 0:
        return None
    closed_us = whole_coverage(tables).closed_until_us()
    return (
        _now() if closed_us is None else datetime.datetime.fromtimestamp(closed_us / 1_000_000, datetime.UTC)
    )


def _compare_layers(tables: Warehouse, *, by_rows: bool) -> list[BillingComparison]:
    """Return what all layers count: by the notes of their commits, or, before an invoice is issued, by their rows."""
    from quaymaster_pipeline.billing.reconciliation import BillingComparison
    from quaymaster_pipeline.checks.broker_counts import last_comparison
    from quaymaster_pipeline.checks.reconciliation import compare_notes, compare_rows

    found = []
    for one in compare_rows(tables) if by_rows else compare_notes(tables):
        scope = "all records" if one.scope == "all" else one.scope
        below = ("silver, quarantine and duplicates", one.silver + one.quarantine + one.duplicates)
        found.append(BillingComparison(scope, one.measure, (("blocks", one.blocks), below)))
        found.append(BillingComparison(scope, one.measure, (("silver", one.silver), ("gold", one.gold))))
    for brokers in last_comparison(tables):
        usage = brokers.brokers + (brokers.difference if brokers.surplus else -brokers.difference)
        counts = (("brokers", brokers.brokers), ("usage, within bounds", usage))
        found.append(BillingComparison("brokers", brokers.measure, counts))
    return found


@contextlib.contextmanager
def _billing_errors() -> Iterator[None]:
    """What billing refuses ends the command with a sentence."""
    from quaymaster_pipeline.billing.money import AmountTooLarge
    from quaymaster_pipeline.billing.prices import NoPrice
    from quaymaster_pipeline.billing.rating import BadUsage
    from quaymaster_pipeline.billing.service import NothingToBill, NotIssued, PricesAreClosed
    from quaymaster_pipeline.billing.store import StoreDamaged
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    try:
        yield
    except (
        NotIssued,
        NothingToBill,
        PricesAreClosed,
        NoPrice,
        BadUsage,
        AmountTooLarge,
        StoreDamaged,
    ) as error:
        raise CommandRefused(f"{error}.") from None
    except WarehouseBusy as error:
        raise CommandRefused(f"{error}; wait for it.") from None


def _tell_differences(made: Sequence[Made]) -> None:
    told = dict.fromkeys(str(difference) for one in made for difference in one.differences)
    for text in told:
        note(f"Counts differ, and nothing final will be issued: {text}.")


def _print_summary(made: Sequence[Made], as_json: bool) -> None:
    from quaymaster_pipeline.billing.documents import invoice_head

    if as_json:
        print_json(
            [
                invoice_head(one.invoice)
                | {
                    "stage": one.stage.value,
                    "reconciliation": [compared.as_json() for compared in one.compared],
                }
                for one in made
            ]
        )
        return
    print_table(
        (
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
        (
            (
                *(one.invoice.account_id, one.invoice.account_name or None, one.invoice.month),
                *(one.invoice.state, one.invoice.revision, one.invoice.quantity),
                *(one.invoice.payable, one.invoice.currency, one.invoice.invoice_id),
            )
            for one in made
        ),
    )


def _print_documents(invoices: Sequence[Invoice], format_: Format) -> None:
    from quaymaster_pipeline.billing.documents import invoice_as_json, render_csv

    if format_ is Format.JSON:
        print_json([invoice_as_json(one) for one in invoices])
        return
    for index, one in enumerate(invoices):
        lines = render_csv(one).decode().splitlines()
        print_line("\n".join(lines if index == 0 else lines[1:]))


def _write_files(made: Sequence[Made], format_: Format, out: Path, as_json: bool) -> None:
    from quaymaster_pipeline.billing.documents import render_csv, render_json

    render: dict[Format, Callable[[Invoice], bytes]] = {Format.JSON: render_json, Format.CSV: render_csv}
    if format_ is Format.PDF:
        try:
            from quaymaster_pipeline.billing.invoice_pdf import render_pdf
        except ImportError as error:
            raise WrongUsage(f"{error.name} is not installed: pip install 'quaymaster[spark]'.") from None
        render[Format.PDF] = render_pdf
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for one in made:
            invoice_id = one.invoice.invoice_id
            name = invoice_id or f"provisional-{one.invoice.month}-{one.invoice.account_id}"
            path = out / f"{name}.{format_.value}"
            _write_whole(path, render[format_](one.invoice))
            written.append(path)
    except OSError as error:
        raise WrongUsage(f"{error.filename or out} cannot be written: {reason_of(error)}.") from None
    if as_json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            print_line(str(path))


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file, all of it or none: half an invoice must not be taken for one."""
    part = path.with_name(f"{path.name}.part")
    try:
        with telling_full_disk(str(path.parent)):
            part.write_bytes(data)
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
