"""`quaymaster pipeline`: from what front ends recorded to tables of usage. What else operators do: `operators`."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_line, print_table
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.close import close
from quaymaster_pipeline.commands.operators import backfill, compact, reconcile, verify
from quaymaster_pipeline.commands.running import Run, ended_by_sigterm, run_on, run_once
from quaymaster_pipeline.commands.tables import tables as list_tables
from quaymaster_pipeline.commands.upkeep import AuditDays, ContentDays, HourlyMonths, Upkeep, UsageDays
from quaymaster_pipeline.commands.usage_queue import PATIENCE_S, queue_feed
from quaymaster_pipeline.commands.warehouse import (
    StorageOptions,
    WarehouseURI,
    need_tables,
    need_tables_to_read,
    only_writer,
    open_warehouse,
)
from quaymaster_pipeline.jobs.retention import AUDIT_DAYS, CONTENT_DAYS, HOURLY_MONTHS, USAGE_DAYS, Retention

if TYPE_CHECKING:
    from quaymaster_pipeline.usage.feed import BlockSource
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group(
    "Make tables of usage, audit and bills of what front ends record. Needs quaymaster[spark]."
)


@dataclass(frozen=True, kw_only=True)
class PipelineRunOptions:
    """What is taken into the tables, and how often."""

    data: options.Data = None
    once: Annotated[bool, typer.Option("--once", help="End when all that is there was taken.")] = False
    master: spark.Master = "local[*]"
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            help="Look for more this often; otherwise every second, and 5 to 60 s after a batch began.",
            metavar="SECONDS",
            min=0,
        ),
    ] = None
    content_days: ContentDays = CONTENT_DAYS
    usage_days: UsageDays = USAGE_DAYS
    audit_days: AuditDays = AUDIT_DAYS
    hourly_months: HourlyMonths = HOURLY_MONTHS
    files: Annotated[
        Path | None,
        typer.Option(
            "--files",
            help=(
                "Read blocks from *.blocks in a directory, in the order of their names, not from the server. New "
                "files need names after those that were taken."
            ),
            metavar="DIR",
        ),
    ] = None
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    driver_memory: spark.DriverMemory = spark.DRIVER_MEMORY
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show what Spark says, else in DIR/spark/spark.log.")
    ] = False
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def run(given: PipelineRunOptions) -> None:
    """Take what front ends recorded into the tables, each request once, whatever was killed before.

    Runs until it is stopped, also while the server is away, or --once. Afterwards layers are compared; a difference
    ends with 1.
    """
    directory = data_directory(given.data)
    need_tables()
    feed = _feed(directory, given.files)
    tables = open_warehouse(directory, given.warehouse, given.storage_option, makes_tables=True)
    report = None
    with (
        ended_by_sigterm(is_end=not given.once),
        only_writer(tables.ingesting()),
        spark.spark_workers(directory, given.master, given.driver_memory, verbose=given.verbose) as workers,
    ):
        this = Run(
            workers=workers,
            tables=tables,
            directory=directory,
            feed=feed,
            reopen_feed=lambda: _feed(directory, given.files),
            interval_s=given.interval,
            quiet=given.as_json,
            now=_now,
        )
        upkeep = Upkeep(
            workers.in_pool("upkeep", gives_way=True),
            tables.another(),
            directory,
            retention=Retention(given.content_days, given.usage_days, given.audit_days, given.hourly_months),
            counts_brokers=given.files is None,
            now=_now,
        )
        if given.once:
            report = run_once(this, upkeep)
        else:
            run_on(this, upkeep)
    if report is not None:
        _tell(report, as_json=given.as_json)


def _tell(report: dict[str, Any], *, as_json: bool) -> None:
    """Print what a run did; CommandRefused if anything differs."""
    if as_json:
        print_json(report)
    else:
        print_line(
            f"{report['rows']} requests in {report['blocks']} blocks; difference {report['difference']}"
        )
    if report["difference"]:
        raise CommandRefused("the layers differ; `quaymaster pipeline reconcile` says where")
    if report["broker_difference"]:
        raise CommandRefused("usage is not what the brokers did; `quaymaster pipeline reconcile` says where")


@app.command()
def status(
    data: options.Data = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show how far the tables are, what is missing, and until when hours are closed.

    lag_seconds: how long ago all that front ends had recorded was in the tables. lag_blocks: what the usage queue has
    that they have not; empty when the server cannot be asked.
    """
    need_tables_to_read()
    from quaymaster_pipeline.checks.status import read_status

    directory = data_directory(data)
    tables = open_warehouse(directory, warehouse, storage_option)
    found = read_status(tables)
    found["lag_blocks"] = _lag_blocks(directory, tables)
    if as_json:
        print_json(found)
        return
    names = ("feed", "batches", "closed_until", "lag_seconds", "lag_blocks", "difference", "damaged_blocks")
    lines = [(name, found[name]) for name in (*names, "oldest_content")]
    lines += [(f"rows {layer}", rows) for layer, rows in found["rows"].items()]
    lines += [
        ("missing", f"{gap['front_end']} {gap['epoch']}: {gap['from']} to {gap['to']}")
        for gap in found["gaps"]
    ]
    lines += [("open incarnation", f"{front_end} {number}") for front_end, number in found["open_epochs"]]
    lines += [
        (
            f"brokers' {one['measure']}",
            f"{one['brokers']}, {one['missing']} missing, {one['surplus']} too many",
        )
        for one in found["brokers"]
    ]
    lines += [
        (name, f"{table['rows']} rows, {table['files']} files") for name, table in found["tables"].items()
    ]
    print_table(("WHAT", "VALUE"), lines)
    if found["ingest_stopped"] is not None:
        note(f"No blocks are taken: {found['ingest_stopped']}")
    if found["is_content_overdue"]:
        note(
            f"Content of {found['oldest_content']}, with addresses and agents, is still in the tables: "
            "`quaymaster pipeline compact` lets it expire, or says why it cannot."
        )


app.command("tables")(list_tables)
for _command in (reconcile, verify, close, backfill, compact):
    app.command()(_command)


def _feed(directory: Path, files: Path | None, *, patience_s: float | None = None) -> BlockSource:
    from quaymaster_pipeline.usage.feed import FileFeed

    if files is not None:
        if not files.is_dir():
            raise WrongUsage(f"{files} is not a directory.")
        return FileFeed(files)
    return queue_feed(directory, patience_s=patience_s)


def _lag_blocks(directory: Path, tables: Warehouse) -> int | None:
    """Return how many blocks the usage queue has that the tables have not; None when that cannot be said."""
    from pyspark_quaymaster.errors import QuaymasterError
    from quaymaster_pipeline.jobs.jobs import lag_of

    try:
        feed = _feed(directory, None, patience_s=PATIENCE_S)
        return lag_of(tables, feed)
    except (NoServer, QuaymasterError):
        return None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
