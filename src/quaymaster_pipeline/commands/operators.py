"""What operators do to the tables, next to `pipeline run`: compare, verify, sum up again, compact."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, progress_bar
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.broker_counts import count_brokers, tell_accepted_losses
from quaymaster_pipeline.commands.upkeep import (
    AuditDays,
    ContentDays,
    HourlyMonths,
    UsageDays,
    delete_old_files_of_others,
)
from quaymaster_pipeline.commands.usage import Since, Until, hour_us, tell_expired_hours
from quaymaster_pipeline.commands.usage_queue import PATIENCE_S, queue_feed
from quaymaster_pipeline.commands.warehouse import (
    need_tables,
    only_writer,
    open_warehouse,
)
from quaymaster_pipeline.jobs.retention import (
    AUDIT_DAYS,
    CONTENT_DAYS,
    HOURLY_MONTHS,
    KEEP_HOURS,
    USAGE_DAYS,
    Retention,
)

if TYPE_CHECKING:
    from quaymaster_pipeline.checks.brokers.broker_counts import Compared
    from quaymaster_pipeline.checks.reconciliation import LayerComparison
    from quaymaster_pipeline.checks.usage_breaks import UsageBreak
    from quaymaster_pipeline.jobs.expiry import ExpiredRows
    from quaymaster_pipeline.jobs.merge import Merged
    from quaymaster_pipeline.warehouse.tables import Warehouse


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """What is compared."""

    data: options.Data = None
    admin_url: options.AdminURL = None
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Compare with the brokers from now on only: what differed is known and settled."
        ),
    ] = False
    accept_losses: Annotated[
        str | None,
        typer.Option(
            "--accept-losses",
            help="Accept what is booked as lost in a month, as 2026-11, so that its invoices are issued.",
            metavar="MONTH",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReconcileOptions(spark.SparkOptions, Comparing):
    """What is compared, and with which Spark."""


@options.gathered
def reconcile(given: ReconcileOptions) -> None:
    """Read all tables and compare them: blocks = silver + quarantine + duplicates, silver = gold; the brokers, too.

    The brokers are asked how many messages were sent and deleted; usage is compared with that as soon as it is whole
    up to then, so what is shown may be of an earlier count. Ends with 1 if anything differs. What was found is kept in
    ops.reconciliation.
    """
    need_tables()
    from quaymaster_pipeline.checks.brokers.broker_counts import check_brokers, set_back_from
    from quaymaster_pipeline.checks.reconciliation import compare_rows, compare_sums, write_comparisons
    from quaymaster_pipeline.usage.partial_sums import whole_coverage
    from quaymaster_pipeline.warehouse.steps import unwatched

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with spark.spark_workers(directory, given.master, given.driver_memory) as workers:
        with progress_bar("Comparing: files and hours", quiet=given.as_json) as bar:
            watch = bar.show if bar.is_shown else unwatched
            found = compare_rows(workers, tables, watch) + compare_sums(workers, tables)
        write_comparisons(tables, found, _now())
        count_brokers(tables, directory, given.admin_url, now=_now, accept=given.accept)
        compared = check_brokers(tables, whole_coverage(tables), now=_now(), workers=workers)
    set_back = set_back_from(tables, _now())
    if given.accept_losses is not None:
        tell_accepted_losses(tables, given.accept_losses, now=_now())
    _print_comparisons(found, compared, as_json=given.as_json)
    tell_expired_hours(tables)
    if set_back is not None:
        note(
            f"Usage or counts of the brokers are of {set_back:%Y-%m-%dT%H:%M:%SZ}, which is later than now: "
            "a clock was set back, or one is ahead. Nothing is compared with the brokers until then."
        )
    elif compared is None:
        note(
            "Usage is not whole yet up to any count of the brokers: let `quaymaster pipeline run` take "
            "what is recorded in the next two minutes, and compare again then."
        )
    if any(one.difference for one in found):
        raise CommandRefused("the layers differ")
    if compared is not None and compared.difference:
        raise CommandRefused("usage is not what the brokers did")


def _print_comparisons(found: Sequence[LayerComparison], compared: Compared | None, *, as_json: bool) -> None:
    brokers = () if compared is None else (*compared.totals, *compared.queues)
    if as_json:
        lines = [one._asdict() | {"difference": one.difference} for one in found]
        lines += [
            one._asdict() | {"counted_time": one.counted_time.isoformat(), "difference": one.difference}
            for one in brokers
        ]
        print_json(lines)
        return
    headers = ("SCOPE", "MEASURE", "BLOCKS", "DUPLICATES", "QUARANTINE", "SILVER", "GOLD")
    print_table((*headers, "DIFFERENCE"), [(*one, one.difference) for one in found])
    if compared is not None:
        note(f"At {compared.totals[0].counted_time:%Y-%m-%dT%H:%M:%SZ} the brokers had counted:")
        print_table(
            (
                "SCOPE",
                "MEASURE",
                "BROKERS",
                "USAGE FROM",
                "TO",
                "MISSING",
                "SURPLUS",
                "ALLOWED",
                "DIFFERENCE",
            ),
            [(one.scope, one.measure, *one[3:], one.difference) for one in brokers],
        )


@options.gathered
def verify(given: spark.SparkOptions) -> None:
    """Check that no usage was changed, deleted or put in, from blocks to final invoices. Ends with 1 otherwise.

    Blocks must be those that came, by their hashes and the links between them; events those that their blocks give;
    hours the sums of events; invoices those that were issued, and of what closed days have. The usage queue is asked
    how far the tables have been, where its server answers. Changes nothing, and may run next to `pipeline run`.
    """
    need_tables()
    from quaymaster_pipeline.checks.verification import verify as check
    from quaymaster_pipeline.warehouse.steps import unwatched

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with (
        spark.spark_workers(directory, given.master, given.driver_memory) as workers,
        progress_bar("Checking: files, front ends and days", quiet=given.as_json) as bar,
    ):
        proof = check(workers, tables, bar.show if bar.is_shown else unwatched)
    for found in _breaks_of_queue(directory, tables):
        proof.add(found)
    if given.as_json:
        print_json(proof.as_json())
    else:
        print_table(("WHAT", "VALUE"), proof.summary())
        tell_expired_hours(tables)
    if proof.breaks:
        breaks = "1 break" if proof.breaks_total == 1 else f"{proof.breaks_total} breaks"
        raise CommandRefused(f"{breaks}; the first is {proof.breaks[0].text}")


def _breaks_of_queue(directory: Path, tables: Warehouse) -> Sequence[UsageBreak]:
    """Compare the end of the tables with the usage queue, if they are of one; say so if it does not answer."""
    from pyspark_quaymaster.errors import QuaymasterError
    from quaymaster_pipeline.checks.queue_checks import compare_with_queue
    from quaymaster_pipeline.usage.blocks import BRONZE
    from quaymaster_pipeline.usage.feed import QUEUE_FEED
    from quaymaster_pipeline.warehouse.schemas import BLOCKS

    if not str(tables.table(BLOCKS).note(BRONZE).get("feed", "")).startswith(QUEUE_FEED):
        return ()
    try:
        return compare_with_queue(tables, queue_feed(directory, patience_s=PATIENCE_S))
    except (NoServer, QuaymasterError):
        note("The usage queue does not answer, so it is not known if the tables end where they ended once.")
        return ()


@dataclass(frozen=True, kw_only=True)
class Hours:
    """Which hours are summed up."""

    data: options.Data = None
    since: Since = None
    until: Until = None


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(spark.SparkOptions, Hours):
    """Which hours are summed up, and with which Spark."""


@options.gathered
def backfill(given: BackfillOptions) -> None:
    """Sum up hours from the events again, and days, and replace wrong rows. A second run changes nothing."""
    need_tables()
    from quaymaster_pipeline.jobs.backfill import backfill as sum_up

    first_us = hour_us(given.since, "--since", 0)
    end_us = hour_us(given.until, "--until", 1 << 62)
    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with (
        spark.spark_workers(directory, given.master, given.driver_memory) as workers,
        progress_bar("Summing up: files", quiet=given.as_json) as bar,
    ):
        done = sum_up(workers, tables, first_us, end_us, bar.show if bar.is_shown else None)
    if given.as_json:
        print_json(dataclasses.asdict(done))
    else:
        print_line(
            f"{done.hours} hours summed up; replaced: {len(done.replaced)} of usage, "
            f"{len(done.days_replaced)} days, {len(done.latency_replaced)} of latencies"
        )


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How long what leaves the tables is kept."""

    data: options.Data = None
    keep_hours: Annotated[
        int,
        typer.Option("--keep-hours", min=0, help="Keep files that left a table for this long.", metavar="N"),
    ] = KEEP_HOURS
    content_days: ContentDays = CONTENT_DAYS
    usage_days: UsageDays = USAGE_DAYS
    audit_days: AuditDays = AUDIT_DAYS
    hourly_months: HourlyMonths = HOURLY_MONTHS


@dataclass(frozen=True, kw_only=True)
class CompactOptions(spark.SparkOptions, Keeping):
    """What is kept of the tables that are compacted, and with which Spark that is done."""


@options.gathered
def compact(given: CompactOptions) -> None:
    """Make small files of tables into large ones, and delete those that no table has had for a while.

    `pipeline run` does so by itself, a part at a time. This may run beside it, but for --keep-hours below 24.
    """
    need_tables()
    from quaymaster_pipeline.checks.brokers.broker_state import complete_check
    from quaymaster_pipeline.jobs.expiry import expire
    from quaymaster_pipeline.jobs.upkeep import compact as compact_tables
    from quaymaster_pipeline.usage.bronze.marks import commit_marks
    from quaymaster_pipeline.usage.silver_commits import complete_batch

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with contextlib.ExitStack() as stack:
        if given.keep_hours < KEEP_HOURS:
            # Files that another job has written and commits next would be deleted as well.
            stack.enter_context(only_writer(tables.ingesting()))
        workers = stack.enter_context(spark.spark_workers(directory, given.master, given.driver_memory))
        # What a killed run wrote and its commit names: no table has it yet, and it would be deleted.
        complete_check(tables)
        commit_marks(tables)
        complete_batch(tables)
        with progress_bar("Compacting: files and tables", quiet=given.as_json) as bar:
            watch = bar.show if bar.is_shown else None
            retention = Retention(given.content_days, given.usage_days, given.audit_days, given.hourly_months)
            expired = expire(workers, tables, _now, retention)
            done = compact_tables(workers, tables, _now(), keep_hours=given.keep_hours, watch=watch)
        delete_old_files_of_others(tables, given.keep_hours)
        done += _compact_ledger(tables, given.keep_hours)
    if given.as_json:
        print_json([{"table": one.table, "before": one.before, "after": one.after} for one in done])
        return
    print_table(("TABLE", "FILES BEFORE", "AFTER"), [(one.table, one.before, one.after) for one in done])
    _tell_expired(expired, given)
    if not done:
        note(
            f"No table has small files to make larger ones of; what none has had for {given.keep_hours} h is deleted."
        )


def _tell_expired(expired: ExpiredRows, given: CompactOptions) -> None:
    if expired.content.blocks:
        note(
            f"The content of {expired.content.blocks} blocks has expired: they were taken over {given.content_days} "
            "days ago."
        )
    if expired.quarantine != (0, 0):
        note(
            f"In quarantine, {expired.quarantine.contents} rows have lost what was recorded, and "
            f"{expired.quarantine.rows} are deleted."
        )
    if expired.requests or expired.headers:
        note(
            f"{expired.requests} requests and {expired.headers} headers of blocks are deleted: their days are closed, "
            f"and over {given.usage_days} days ago."
        )
    if expired.months:
        months = " to ".join(dict.fromkeys((expired.months[0], expired.months[-1])))
        note(f"Sums by hour of {months} are deleted; those by day stay.")
    if expired.events.deleted or expired.events.stubbed:
        note(
            f"{expired.events.deleted} audit events are deleted, and {expired.events.stubbed} emptied: they were over "
            f"{given.audit_days} days old."
        )
    for refusal in expired.refusals:
        note(f"{refusal}.")


def _compact_ledger(tables: Warehouse, keep_hours: int) -> list[Merged]:
    """Make the files of the archive's ledger one, unless its job is at work: that does so itself."""
    from quaymaster_pipeline.archive.ledger import LedgerConflict, compact_ledger
    from quaymaster_pipeline.archive.tables import LEDGER
    from quaymaster_pipeline.jobs.merge import Merged
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    try:
        before, after = compact_ledger(tables, keep_hours)
    except (WarehouseBusy, LedgerConflict) as error:
        note(f"{error}; the archive's ledger stays as it is.")
        return []
    return [Merged(LEDGER.name, before, after)] if before > after else []


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
