"""`quaymaster pipeline`: from what front ends recorded to tables of usage."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli import options
from quaymaster.cli.connection import data_directory
from quaymaster.cli.failures import CommandRefused, NoServer, WrongUsage, as_sentence
from quaymaster.cli.output import note, print_json, print_line, print_table, progress_bar
from quaymaster_pipeline.commands.broker_counts import count_brokers
from quaymaster_pipeline.commands.tables import tables as list_tables
from quaymaster_pipeline.commands.usage import Since, Until, hour_us
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
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS, KEEP_HOURS
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict, SumsDiffer, telling_full_disk

if TYPE_CHECKING:
    from quaymaster_pipeline.checks.broker_counts import Compared
    from quaymaster_pipeline.checks.reconciliation import LayerComparison
    from quaymaster_pipeline.jobs.jobs import Pipeline, Summary
    from quaymaster_pipeline.jobs.merge import Merged
    from quaymaster_pipeline.usage.feed import BlockSource
    from quaymaster_pipeline.usage.tasks import SparkWorkers
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group(
    "Make tables of usage, audit and bills of what front ends record. Needs quaymaster[spark]."
)

SPARK_DIRECTORY = "spark"
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
DRIVER_MEMORY = "1g"

Master = Annotated[
    str,
    typer.Option("--master", help="Spark's master: local[*], spark://..., yarn, k8s://...", metavar="URL"),
]
ContentDays = Annotated[
    int,
    typer.Option(
        "--content-days",
        min=1,
        help="Keep the content of blocks, with addresses and agents, for so long; headers and sums stay.",
        metavar="N",
    ),
]
DriverMemory = Annotated[
    str,
    typer.Option("--driver-memory", help="Memory of Spark's JVM; rows are not kept there.", metavar="SIZE"),
]


@dataclass(frozen=True, kw_only=True)
class PipelineRunOptions:
    """What is taken into the tables, and how often."""

    data: options.Data = None
    once: Annotated[bool, typer.Option("--once", help="End when all that is there was taken.")] = False
    master: Master = "local[*]"
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
    driver_memory: DriverMemory = DRIVER_MEMORY
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
        _spark(directory, given.master, given.driver_memory, verbose=given.verbose) as workers,
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
            _keep_up(workers, tables, given.content_days)
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
    lines = [(name, found[name]) for name in names]
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


app.command("tables")(list_tables)


@dataclass(frozen=True, kw_only=True)
class ReconcileOptions:
    """What is compared."""

    data: options.Data = None
    admin_url: options.AdminURL = None
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Compare with the brokers from now on only: what differed is known and settled."
        ),
    ] = False
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def reconcile(given: ReconcileOptions) -> None:
    """Read all tables and compare them: blocks = silver + quarantine + duplicates, silver = gold; the brokers, too.

    The brokers are asked how many messages were sent and deleted; usage is compared with that as soon as it is whole
    up to then, so what is shown may be of an earlier count. Ends with 1 if anything differs. What was found is kept in
    ops.reconciliation.
    """
    need_tables()
    from quaymaster_pipeline.checks.broker_counts import (
        compare_brokers,
        set_back_from,
        write_broker_comparison,
    )
    from quaymaster_pipeline.checks.reconciliation import compare_rows, compare_sums, write_comparisons
    from quaymaster_pipeline.usage.partial_sums import whole_coverage

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with progress_bar("Comparing: files", quiet=given.as_json) as bar:
        found = compare_rows(tables, bar.show) + compare_sums(tables)
    write_comparisons(tables, found, _now())
    count_brokers(tables, directory, given.admin_url, now=_now, accept=given.accept)
    compared = compare_brokers(tables, whole_coverage(tables), now=_now())
    set_back = set_back_from(tables, _now())
    if compared is not None:
        write_broker_comparison(tables, compared, _now())
    _print_comparisons(found, compared, as_json=given.as_json)
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


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Whose tables are checked, and with which Spark."""

    data: options.Data = None
    master: Master = "local[*]"
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    driver_memory: DriverMemory = DRIVER_MEMORY
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def verify(given: VerifyOptions) -> None:
    """Check that no usage was changed, deleted or put in, from blocks to sums by hour. Ends with 1 otherwise.

    Blocks must be those that came, by their hashes and the links between them; events those that their blocks give;
    hours the sums of events. Changes nothing, and may run next to `pipeline run`.
    """
    need_tables()
    from quaymaster_pipeline.checks.verification import verify as check
    from quaymaster_pipeline.warehouse.steps import unwatched

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with (
        _spark(directory, given.master, given.driver_memory) as workers,
        progress_bar("Checking: files, front ends and days", quiet=given.as_json) as bar,
    ):
        proof = check(workers, tables, bar.show if bar.is_shown else unwatched)
    if given.as_json:
        print_json(proof.as_json())
    else:
        print_table(("WHAT", "VALUE"), proof.summary())
    if proof.breaks:
        breaks = "1 break" if proof.breaks_total == 1 else f"{proof.breaks_total} breaks"
        raise CommandRefused(f"{breaks}; the first is {proof.breaks[0].text}")


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    """Which hours are summed up."""

    data: options.Data = None
    since: Since = None
    until: Until = None
    master: Master = "local[*]"
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    driver_memory: DriverMemory = DRIVER_MEMORY
    as_json: options.AsJSON = False


@app.command()
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
        _spark(directory, given.master, given.driver_memory) as workers,
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


@app.command()
def compact(
    data: options.Data = None,
    keep_hours: Annotated[
        int,
        typer.Option("--keep-hours", min=0, help="Keep files that left a table for this long.", metavar="N"),
    ] = KEEP_HOURS,
    content_days: ContentDays = CONTENT_DAYS,
    master: Master = "local[*]",
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    driver_memory: DriverMemory = DRIVER_MEMORY,
    as_json: options.AsJSON = False,
) -> None:
    """Make small files of tables into large ones, and delete those that no table has had for a while.

    `pipeline run` does so by itself, a part at a time. This may run beside it, but for --keep-hours below 24.
    """
    need_tables()
    from quaymaster_pipeline.jobs.expiry import expire_content
    from quaymaster_pipeline.jobs.upkeep import compact as compact_tables

    directory = data_directory(data)
    tables = open_warehouse(directory, warehouse, storage_option)
    with contextlib.ExitStack() as stack:
        if keep_hours < KEEP_HOURS:
            # Files that another job has written and commits next would be deleted as well.
            stack.enter_context(only_writer(tables.ingesting()))
        workers = stack.enter_context(_spark(directory, master, driver_memory))
        with progress_bar("Compacting: files and tables", quiet=as_json) as bar:
            watch = bar.show if bar.is_shown else None
            expired = expire_content(workers, tables, _now(), days=content_days)
            done = compact_tables(workers, tables, _now(), keep_hours=keep_hours, watch=watch)
        _delete_old_files_of_others(tables, keep_hours)
        done += _compact_ledger(tables, keep_hours)
    if as_json:
        print_json([{"table": one.table, "before": one.before, "after": one.after} for one in done])
        return
    print_table(("TABLE", "FILES BEFORE", "AFTER"), [(one.table, one.before, one.after) for one in done])
    if expired.blocks:
        note(
            f"The content of {expired.blocks} blocks has expired: they were taken over {content_days} days ago."
        )
    if not done:
        note(
            f"No table has small files to make larger ones of; what none has had for {keep_hours} h is deleted."
        )


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


def _delete_old_files_of_others(tables: Warehouse, keep_hours: int) -> None:
    """Delete what other tables have not had for a while; they are small, and stay as they are."""
    from quaymaster_pipeline.audit.audit import Audit
    from quaymaster_pipeline.billing.store import BillingStore
    from quaymaster_pipeline.warehouse.schemas import BROKER_COUNTS, QUEUES
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    for spec in (BROKER_COUNTS, QUEUES):
        tables.table(spec).vacuum(keep_hours)
    for owner in (BillingStore(tables), Audit(tables)):
        try:
            owner.delete_old_files(keep_hours)
        except WarehouseBusy as error:
            note(f"{error}; its old files stay until the next time.")


@contextlib.contextmanager
def _spark(
    directory: Path, master: str, driver_memory: str, *, verbose: bool = False
) -> Iterator[SparkWorkers]:
    need_tables()
    from quaymaster_pipeline.usage.tasks import SparkWorkers
    from quaymaster_pipeline.warehouse.session import LOG_FILE, SparkMissing, spark_session

    place = (directory / SPARK_DIRECTORY).resolve()
    # Tables tell by themselves; what else finds no room is what Spark writes by the way.
    with telling_full_disk(str(place)), contextlib.ExitStack() as stack:
        try:
            spark = stack.enter_context(
                spark_session(
                    master,
                    directory=place,
                    driver_memory=driver_memory,
                    log=None if verbose else place / LOG_FILE,
                )
            )
        except SparkMissing as error:
            raise WrongUsage(f"{error}.") from None
        yield SparkWorkers(spark)


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


def _keep_up(workers: SparkWorkers, tables: Warehouse, content_days: int) -> None:
    """Do what is due of merging and compacting; once a day let content expire, and delete old files."""
    from quaymaster_pipeline.jobs.expiry import expire_content
    from quaymaster_pipeline.jobs.upkeep import end_day, is_new_day, keep_up

    with _giving_way():
        keep_up(workers, tables, _now())
        if is_new_day(tables, _now()):
            expire_content(workers, tables, _now(), days=content_days)
        if end_day(tables, _now()):
            _delete_old_files_of_others(tables, KEEP_HOURS)


@contextlib.contextmanager
def _giving_way() -> Iterator[None]:
    """Leave files as they are where another process was first, or one cannot be read: batches need no upkeep."""
    try:
        yield
    except (BrokenTable, CommitConflict) as error:
        note(f"{error}. Its files stay as they are until the next time.")


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
            with _giving_way():
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
