"""`quaymaster archive`: logs become Parquet tables, and messages once more."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory, find_connection
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage, as_sentence
from quaymaster.cli.shared.output import (
    bytes_as_text,
    note,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from quaymaster_pipeline.commands.warehouse import (
    StorageOptions,
    WarehouseURI,
    need_tables,
    only_writer,
    open_warehouse,
    write_metrics_of,
)
from quaymaster_pipeline.warehouse.errors import why_no_room

if TYPE_CHECKING:
    from pyspark_quaymaster.client import Client
    from pyspark_quaymaster.credentials import Endpoint
    from quaymaster_pipeline.archive.job import ArchiveJob, Report
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group(
    "Keep logs as Parquet tables, and send their messages once more. Needs quaymaster[spark]."
)

INTERVAL_S = 60.0
REPLAYS_DIRECTORY = "replays"
FILLED_BY = "`quaymaster archive run --warehouse {uri}` puts messages of logs there."
DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000

Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        help="Archive this log from now on; again for more. Else all whose RetentionPins name archive.",
        metavar="NAME",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ArchiveRunOptions:
    """What is archived, and how long it stays in its queue."""

    data: options.Data = None
    endpoint_url: options.EndpointURL = None
    queue: Queues = None
    after: Annotated[
        float,
        typer.Option(
            "--after", min=0, help="Let archived messages go from the queue at this age.", metavar="DAYS"
        ),
    ] = 7
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, help="So long between the mark that they may go and that.", metavar="HOURS"
        ),
    ] = 24
    close_after: Annotated[
        float,
        typer.Option(
            "--close-after",
            min=0,
            help="Archive what does not fill a file when it is so old.",
            metavar="MINUTES",
        ),
    ] = 60
    once: Annotated[bool, typer.Option("--once", help="End when all that is closed was archived.")] = False
    interval: options.Interval = INTERVAL_S
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on where messages went before they were archived; note it."),
    ] = False
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def run(given: ArchiveRunOptions) -> None:
    """Write closed stretches of logs to Parquet, compare each row, and let them go from the queue days later.

    Nothing goes from a log that is archived before its file was verified; killed anywhere, it resumes where it was.
    Needs no Java. What is let go is deleted by the broker when MessageRetentionPeriod is over, too.
    """
    need_tables()
    from quaymaster_pipeline.archive.job import ArchiveJob, Policy
    from quaymaster_pipeline.archive.ledger import archive_lock
    from quaymaster_pipeline.archive.live_logs import LiveLogs
    from quaymaster_pipeline.archive.metrics import METRICS_FILE, archive_metrics

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option, makes_tables=True)
    policy = Policy(
        round(given.close_after * MINUTE_MS),
        round(given.after * DAY_MS),
        round(given.grace * HOUR_MS),
        given.accept_loss,
    )
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(asking(given.data, given.endpoint_url))
        stack.enter_context(only_writer(archive_lock(tables)))
        with stopping():
            job = ArchiveJob(tables, LiveLogs(client), policy, _now)
        while True:
            report = _run(job, given.queue or [], quiet=given.as_json)
            text = archive_metrics(job.ledger, behind=report.behind, now_s=time.time())
            write_metrics_of(tables, directory, METRICS_FILE, text)
            if given.once:
                break
            time.sleep(given.interval)
    if given.as_json:
        print_json(
            {
                name: getattr(report, name)
                for name in ("archived", "messages", "expiring", "deleted", "lost", "behind", "notes")
            }
        )
        return
    for line in report.notes:
        note(line)
    print_line(
        f"{report.messages} messages in {report.archived} files; {report.expiring} files expiring, "
        f"{report.deleted} deleted from their queues, {report.lost} messages lost"
    )


@app.command()
def status(
    data: options.Data = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show what is archived of each log, how much space it takes, and in which state its files are."""
    need_tables()
    from quaymaster_pipeline.archive.job import summary_of
    from quaymaster_pipeline.archive.ledger import Ledger

    tables = open_warehouse(data_directory(data), warehouse, storage_option, filled_by=FILLED_BY)
    with stopping():
        lines = summary_of(Ledger(tables, _now))
    if as_json:
        print_json(lines)
        return
    print_table(
        ("QUEUE", "PARTITION", "FROM", "TO", "MESSAGES", "SIZE", "ARCHIVED", "EXPIRING", "DELETED", "LOST"),
        [
            (
                *(line[name] for name in ("queue", "partition", "first", "next", "messages")),
                bytes_as_text(int(str(line["file_bytes"]))),
                *(line[name] for name in ("archived", "expiring", "deleted", "lost")),
            )
            for line in lines
        ],
    )
    if not lines:
        note("Nothing is archived. `quaymaster archive run --queue NAME` begins with a log.")


@dataclass(frozen=True, kw_only=True)
class EraseOptions:
    """What is taken out of the archive."""

    queue: Annotated[
        str | None, typer.Option("--queue", help="Of this log, by name or id.", metavar="QUEUE")
    ] = None
    account: Annotated[
        str | None, typer.Option("--account", help="Of all logs of this account.", metavar="ID")
    ] = None
    sender: Annotated[
        list[str] | None, typer.Option("--sender", help="Only what this principal sent.", metavar="ID")
    ] = None
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this message group.", metavar="GROUP")
    ] = None
    message: Annotated[
        list[str] | None, typer.Option("--message", help="Only this message.", metavar="ID")
    ] = None
    reason: Annotated[str, typer.Option("--reason", help="Is kept in the ledger.", metavar="TEXT")] = (
        "asked for"
    )
    confirm: Annotated[
        str | None,
        typer.Option(
            "--confirm", help="Do it: the value of --queue or --account once more.", metavar="VALUE"
        ),
    ] = None
    data: options.Data = None
    endpoint_url: options.EndpointURL = None
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def erase(given: EraseOptions) -> None:
    """Take messages out of the archive for good: files are rewritten without them, and the old ones deleted.

    Rows keep place and time. Without --confirm it only counts. Refused for a log under a legal hold.
    """
    need_tables()
    from quaymaster_pipeline.archive.erasure import Erasure, ErasureScope
    from quaymaster_pipeline.archive.ledger import Ledger, archive_lock
    from quaymaster_pipeline.archive.live_logs import LiveLogs

    if (given.queue is None) == (given.account is None):
        raise WrongUsage("Name either --queue or --account.")
    if given.confirm is not None and given.confirm != (given.queue or given.account):
        raise WrongUsage(
            f"--confirm {given.confirm!r} is not what is to be erased: {given.queue or given.account!r}."
        )
    tables = open_warehouse(
        data_directory(given.data), given.warehouse, given.storage_option, filled_by=FILLED_BY
    )
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(asking(given.data, given.endpoint_url))
        stack.enter_context(only_writer(archive_lock(tables)))
        stack.enter_context(stopping())
        ledger, logs = Ledger(tables, _now), LiveLogs(client)
        chosen = {
            one.queue_id: one.queue
            for one in ledger.stretches()
            if given.account == one.account_id or given.queue in (one.queue, one.queue_id)
        }
        for queue_id, name in chosen.items():
            if logs.is_held(name, queue_id):
                raise CommandRefused(f"{name} is under a legal hold: nothing of it is erased.")
        scope = ErasureScope(
            tuple(sorted(chosen)),
            tuple(given.sender or ()),
            tuple(given.key or ()),
            tuple(given.message or ()),
        )
        with progress_bar("Erasing: files", quiet=given.as_json) as bar:
            done = Erasure(tables, ledger).run(
                scope, given.reason, is_dry_run=given.confirm is None, watch=bar.show
            )
    if given.as_json:
        names = ("messages", "rewritten", "removed")
        print_json({name: getattr(done, name) for name in names} | {"dry_run": given.confirm is None})
        return
    verb = "erased" if given.confirm is not None else "would be erased; --confirm does it"
    print_line(f"{done.messages} messages in {done.rewritten + done.removed} files {verb}")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What is sent once more, and how."""

    source: Annotated[
        str, typer.Option("--from", help="The log whose messages are sent once more.", metavar="NAME")
    ]
    queue: Annotated[str, typer.Option("--queue", help="The queue they are sent to.", metavar="NAME")]
    data: options.Data = None
    endpoint_url: options.EndpointURL = None
    since: Annotated[
        str | None,
        typer.Option("--since", help="From this time on (UTC), as 2026-11-22T10:00.", metavar="TIME"),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Up to this time, without it.", metavar="TIME")
    ] = None
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help="FIELD=TEXT, FIELD!=TEXT or FIELD~REGEX; key, body, message_id, sender_id or attribute.NAME. "
            "Again for more: all must hold.",
            metavar="CONDITION",
        ),
    ] = None
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.01, help="Messages a second.", metavar="N")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be sent.")] = False
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Under this name it resumes after an interruption, and is not done twice (else made of the rest).",
            metavar="NAME",
        ),
    ] = None
    no_mark: Annotated[bool, typer.Option("--no-mark", help="Do not add the attribute replay.source.")] = (
        False
    )
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="Without transactions: an interruption may repeat some.")
    ] = False
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def replay(given: ReplayOptions) -> None:
    """Send messages of a log once more, from archive and queue, to a queue of your choice; each exactly once.

    Each gets the attribute `replay.source`: queue/partition/offset. Interrupted anywhere, the same command resumes.
    """
    need_tables()
    from pyspark_quaymaster.options import parse_source_options
    from quaymaster_pipeline.archive import replay as replays
    from quaymaster_pipeline.archive.live_logs import url_of_queue

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option, filled_by=FILLED_BY)
    filters, period = given.condition or [], (given.since or "", given.until or "")
    how = replays.How(given.rate, given.dry_run, given.at_least_once, not given.no_mark)
    with asking(given.data, given.endpoint_url) as client, stopping():
        job = replays.Replay(
            client,
            parse_source_options(_read_of(given, tables), is_stream=False),
            url_of_queue(client, given.queue),
            filters,
            name=given.name or replays.name_of(given.source, given.queue, *period, *filters),
            directory=directory / REPLAYS_DIRECTORY,
            batch_messages_max=max(
                1, min(replays.BATCH_MESSAGES_MAX, int(given.rate or replays.BATCH_MESSAGES_MAX))
            ),
        )
        was_done = job.progress.is_done
        with progress_bar("Replaying: messages", quiet=given.as_json) as bar:
            done = job.run(how, watch=bar.show)
    if given.as_json:
        names = ("name", "source", "target", "read", "matched", "matched_bytes", "erased")
        print_json({one: getattr(done, one) for one in names} | {"dry_run": given.dry_run})
        return
    verb = "would be sent" if given.dry_run else "were sent before, under this name" if was_done else "sent"
    print_line(f"{done.matched} of {done.read} messages {verb}, {bytes_as_text(done.matched_bytes)}")


def _read_of(given: ReplayOptions, tables: Warehouse) -> dict[str, str]:
    """Return the options of a read of what is replayed: from the queue, and from the archive where there is one."""
    from quaymaster_pipeline.archive.tables import MESSAGES

    endpoint = endpoint_of(given.data, given.endpoint_url)
    read = {
        "endpointUrl": endpoint.url,
        "region": endpoint.region,
        "accessKeyId": endpoint.access_key_id,
        "secretAccessKey": endpoint.secret_access_key,
        "queue": given.source,
    }
    if endpoint.session_token:
        read["sessionToken"] = endpoint.session_token
    if given.since:
        read["startingTimestamp"] = str(_time_ms(given.since, "--since"))
    if given.until:
        read["endingTimestamp"] = str(_time_ms(given.until, "--until"))
    if tables.table(MESSAGES).version >= 0:
        read["archive"] = tables.place(MESSAGES).uri
        read["archiveStorageOptions"] = json.dumps(tables.storage_options)
    return read


@contextlib.contextmanager
def asking(data: Path | None, endpoint_url: str | None) -> Iterator[Client]:
    """Open a connection to the server that flags and environment mean."""
    from pyspark_quaymaster.client import Client

    with Client(endpoint_of(data, endpoint_url)) as client:
        yield client


def endpoint_of(data: Path | None, endpoint_url: str | None) -> Endpoint:
    """Return the server that flags and environment mean. With an endpoint, --data says where the tables are."""
    from pyspark_quaymaster.credentials import Endpoint

    found = find_connection(None if endpoint_url is not None else data, endpoint_url)
    return Endpoint(
        found.endpoint_url,
        found.region,
        found.access_key_id,
        found.secret_access_key,
        found.session_token,
    )


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """What goes wrong ends the command with a sentence; what was done stays done."""
    from deltalake.exceptions import DeltaError

    from pyspark_quaymaster.errors import QuaymasterError, RequestRefused, ServerIsUnavailable
    from quaymaster_pipeline.archive.files import NotAsArchived
    from quaymaster_pipeline.archive.job import MessagesLost
    from quaymaster_pipeline.archive.ledger import LedgerConflict
    from quaymaster_pipeline.archive.live_logs import LogIsGone, LogIsTrimmed
    from quaymaster_pipeline.archive.replay import CannotReplay, FilterIsInvalid, ReplayDiffers
    from quaymaster_pipeline.warehouse.object_stores import reason_of_store

    try:
        yield
    except MessagesLost as error:
        raise CommandRefused(f"{error}. With --accept-loss the archive goes on behind them.") from None
    except (FilterIsInvalid, ReplayDiffers) as error:
        raise WrongUsage(as_sentence(error)) from None
    except (NotAsArchived, LogIsGone, LogIsTrimmed, LedgerConflict, CannotReplay) as error:
        raise CommandRefused(as_sentence(error)) from None
    except RequestRefused as error:
        # Its text has the code as well, which the line that people read ends with.
        about = f"{error.action} of {error.queue}" if error.queue else error.action
        raise CommandRefused(as_sentence(f"{about}: {error.message}"), code=error.code) from None
    except ServerIsUnavailable as error:
        raise NoServer(as_sentence(error)) from None
    except (QuaymasterError, OSError, DeltaError) as error:
        if why_no_room(error) is not None:
            raise  # what ends every command that finds no room says so
        reason = as_sentence(reason_of_store(error))
        raise CommandRefused(f"{reason} What was done stays so; run it again.") from None


def _run(job: ArchiveJob, names: list[str], *, quiet: bool) -> Report:
    with stopping(), progress_bar("Archiving: messages", quiet=quiet) as bar:
        return job.run(
            names,
            lambda one: (
                None
                if quiet
                else note(f"archived {one.queue} partition {one.partition}: {one.first} to {one.end}")
            ),
            bar.show,
        )


def _time_ms(text: str, option: str) -> int:
    time_of = options.parse_time(text, option, "a time like 2026-11-22T10:00 (UTC)")
    return round(time_of.timestamp() * 1_000)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
