"""`quaymaster pipeline`: from what front ends recorded to tables of usage. What else operators do: `operators`."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli import options
from quaymaster.cli.connection import data_directory
from quaymaster.cli.failures import CommandRefused, NoServer, WrongUsage, as_sentence
from quaymaster.cli.output import note, print_json, print_line, print_table, progress_bar
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.broker_counts import count_brokers
from quaymaster_pipeline.commands.close import close
from quaymaster_pipeline.commands.operators import backfill, compact, reconcile, verify
from quaymaster_pipeline.commands.tables import tables as list_tables
from quaymaster_pipeline.commands.upkeep import ContentDays, giving_way, keep_up
from quaymaster_pipeline.commands.usage_queue import find_usage_queue
from quaymaster_pipeline.commands.warehouse import (
    StorageOptions,
    WarehouseURI,
    need_tables,
    need_tables_to_read,
    only_writer,
    open_warehouse,
    write_metrics_of,
)
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS
from quaymaster_pipeline.warehouse.errors import CommitConflict, SumsDiffer

if TYPE_CHECKING:
    from quaymaster_pipeline.jobs.jobs import Pipeline, Summary
    from quaymaster_pipeline.usage.feed import BlockSource
    from quaymaster_pipeline.usage.tasks import SparkWorkers
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group(
    "Make tables of usage, audit and bills of what front ends record. Needs quaymaster[spark]."
)

PAUSE_MIN_S, PAUSE_MAX_S = 5.0, 60.0
PAUSE_OF_BATCH = 4
"""Batches begin so many times as long apart as the last took, within these bounds: few and large ones under load."""
LOOK_S = 1.0
"""How often an idle run asks whether there is more, and after IDLE_S it looks at everything, also if there is not."""
IDLE_S = 15.0
AWAY_S = 15.0
"""How often a server that is away is asked again."""
COUNT_EVERY_S = 600.0
"""How often `pipeline run` asks the brokers what they counted."""
LOSSES_MAX = 3
"""So often in a row another process may be first with a commit; then two of them take the same queue."""
MERGE_EVERY_BATCHES = 16
"""How often partial sums are merged while there is more to take: a backlog may be of days."""
STATUS_PATIENCE_S = 3.0


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
    files: Annotated[
        Path | None,
        typer.Option(
            "--files", help="Read blocks from *.blocks in a directory, not from the server.", metavar="DIR"
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
    from quaymaster_pipeline.jobs.jobs import Pipeline

    away_s = AWAY_S if given.interval is None else given.interval
    feed = _feed(directory, given.files)
    tables = open_warehouse(directory, given.warehouse, given.storage_option, makes_tables=True)
    with (
        only_writer(tables.ingesting()),
        spark.spark_workers(directory, given.master, given.driver_memory, verbose=given.verbose) as workers,
    ):
        pipeline = Pipeline(workers, tables, feed)
        losses = 0
        while True:
            try:
                report = _catch_up(
                    pipeline,
                    workers,
                    tables,
                    feed,
                    directory,
                    quiet=given.as_json,
                    counts_brokers=given.files is None,
                )
            except NoServer as error:
                if given.once:
                    raise
                note(f"{error} Trying again until it answers.")
                time.sleep(away_s)
                # What a batch had begun is found where the tables are; the server may be back at another address.
                feed = _feed(directory, given.files)
                pipeline = Pipeline(workers, tables, feed)
                continue
            except SumsDiffer as error:
                if given.once:
                    raise
                # Blocks are in bronze, so that the queue may let go of them; nothing is billed until this is mended.
                note(f"{error}. Blocks are taken all the same; trying again.")
                time.sleep(away_s)
                continue
            except CommitConflict as error:
                losses += 1
                if losses == LOSSES_MAX:
                    raise
                note(f"{error}. What was not committed is taken again.")
                tables.refresh()
                pipeline = Pipeline(workers, tables, feed)
                continue
            losses = 0
            keep_up(workers, tables, given.content_days, _now)
            if given.once:
                break
            if report["batches"]:
                rows, seconds, lag = report["rows"], report["seconds"], report["lag_blocks"]
                note(f"{rows} requests in {seconds:.1f} s; {lag} blocks behind")
            _wait_for_more(pipeline, given.interval, report["seconds"])
    if given.as_json:
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
    if found["is_content_overdue"]:
        note(
            f"Content of {found['oldest_content']}, with addresses and agents, is still in the tables: "
            "`quaymaster pipeline compact` lets it expire, or says why it cannot."
        )


app.command("tables")(list_tables)
for _command in (reconcile, verify, close, backfill, compact):
    app.command()(_command)


def _feed(directory: Path, files: Path | None, *, patience_s: float | None = None) -> BlockSource:
    from pyspark_quaymaster.credentials import Endpoint
    from quaymaster_pipeline.usage.feed import FileFeed, QueueFeed

    if files is not None:
        if not files.is_dir():
            raise WrongUsage(f"{files} is not a directory.")
        return FileFeed(files)
    found = find_usage_queue(directory)
    endpoint = Endpoint(found.endpoint_url, found.region, found.access_key_id, found.secret_access_key)
    return QueueFeed(endpoint, found.queue_url, patience_s=patience_s)


@contextlib.contextmanager
def _reading(feed: BlockSource) -> Iterator[None]:
    """What goes wrong with the feed ends the command with a sentence."""
    from pyspark_quaymaster.errors import QuaymasterError
    from quaymaster_pipeline.usage.feed import FeedChanged, FeedIncomplete, NewerBlocks

    try:
        yield
    except (FeedChanged, FeedIncomplete, NewerBlocks) as error:
        raise CommandRefused(as_sentence(error)) from None
    except QuaymasterError as error:
        raise NoServer(as_sentence(f"The usage queue cannot be read: {error}")) from None


def _lag_blocks(directory: Path, tables: Warehouse) -> int | None:
    """Return how many blocks the usage queue has that the tables have not; None when nobody can say."""
    from pyspark_quaymaster.errors import QuaymasterError
    from quaymaster_pipeline.jobs.jobs import lag_of

    try:
        feed = _feed(directory, None, patience_s=STATUS_PATIENCE_S)
        return lag_of(tables, feed)
    except (NoServer, QuaymasterError):
        return None


def _wait_for_more(pipeline: Pipeline, interval_s: float | None, took_s: float) -> None:
    """Wait until the next batch is due and there is something to take, or it is time to look at everything again."""
    from pyspark_quaymaster.errors import QuaymasterError

    if interval_s is not None:
        time.sleep(interval_s)
        return
    waited_s = max(0.0, min(PAUSE_MAX_S, max(PAUSE_MIN_S, PAUSE_OF_BATCH * took_s)) - took_s)
    time.sleep(waited_s)
    while waited_s < IDLE_S:
        try:
            if pipeline.lag_blocks():
                return
        except QuaymasterError:
            # The next look at everything tells.
            return
        time.sleep(LOOK_S)
        waited_s += LOOK_S


def _catch_up(
    pipeline: Pipeline,
    workers: SparkWorkers,
    tables: Warehouse,
    feed: BlockSource,
    directory: Path,
    *,
    quiet: bool,
    counts_brokers: bool,
) -> dict[str, Any]:
    """Take all that is there, write the metrics, and return what was done."""
    from quaymaster_pipeline.checks.broker_counts import (
        compare_brokers,
        last_compared,
        last_comparison,
        last_counted,
        write_broker_comparison,
    )
    from quaymaster_pipeline.checks.reconciliation import write_look
    from quaymaster_pipeline.checks.status import METRICS_FILE, pipeline_metrics, read_status
    from quaymaster_pipeline.jobs.merge import merge_sums

    def on_batch(done: Summary) -> None:
        bar.update(done.blocks)
        if done.taken % MERGE_EVERY_BATCHES == 0:
            with giving_way():
                merge_sums(workers, tables, _now(), ends_periods=False)

    started_s = time.monotonic()
    with _reading(feed):
        behind = pipeline.lag_blocks()
        with progress_bar("blocks", total=behind, quiet=quiet) as bar:
            summary = pipeline.catch_up(on_batch)
        lag = pipeline.lag_blocks()
    write_look(tables, _now())
    if counts_brokers:
        counted = last_counted(tables)
        if counted is None or (_now() - counted).total_seconds() >= COUNT_EVERY_S:
            count_brokers(tables, directory, now=_now)
    compared = compare_brokers(tables, pipeline.coverage, now=_now(), after=last_compared(tables))
    if compared is not None:
        write_broker_comparison(tables, compared, _now())
    found = read_status(tables, pipeline.coverage)
    text = pipeline_metrics(found, lag_blocks=lag, batch_seconds=summary.batch_seconds, now_s=time.time())
    write_metrics_of(tables, directory, METRICS_FILE, text)
    return {
        "batches": [batch.as_json() for batch in summary.batches],
        "blocks": summary.blocks,
        "rows": summary.rows,
        "totals": summary.totals,
        "seconds": round(time.monotonic() - started_s, 3),
        "lag_blocks": lag,
        "closed_until": found["closed_until"],
        "gaps": found["gaps"],
        "quarantine": found["rows"]["quarantine"],
        "duplicates": found["rows"]["duplicates"],
        "difference": found["difference"],
        "broker_difference": sum(one.difference for one in last_comparison(tables)),
    }


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
