"""`quaymaster audit`: who did what, when, from where; the proof of it; legal holds, expiry and erasure."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_line, print_table
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.warehouse import StorageOptions, WarehouseURI, need_tables, open_warehouse
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS

if TYPE_CHECKING:
    from pathlib import Path

    from quaymaster_pipeline.audit.audit import Audit
    from quaymaster_pipeline.audit.audit_chains import Break, Head
    from quaymaster_pipeline.audit.erasure import Subject
    from quaymaster_pipeline.warehouse.tables import Warehouse

app = options.new_group(
    "Show who did what, when, from where, newest first.\n\n"
    "Events are requests that manage something (queues, permissions, tags), and acts of operators. They are what "
    "`quaymaster pipeline run` has put into the tables so far."
)

hold_app = options.new_group("Keep events, however old they get.")
app.add_typer(hold_app, name="hold")

LIMIT = 100
Account = Annotated[str | None, typer.Option("--account", help="Only of this account.", metavar="ID")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="From this time on, as 2026-11-22T10:30 (UTC).", metavar="TIME"),
]
Until = Annotated[str | None, typer.Option("--until", help="Up to this time, without it.", metavar="TIME")]
HoldName = Annotated[str, typer.Argument(help="Name of the hold.", metavar="NAME")]


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Which events are shown."""

    data: options.Data = None
    account: Account = None
    principal: Annotated[
        str | None, typer.Option("--principal", help="Only by this principal.", metavar="ARN")
    ] = None
    action: Annotated[str | None, typer.Option("--action", help="Only this action.", metavar="NAME")] = None
    queue: Annotated[str | None, typer.Option("--queue", help="Only on this queue.", metavar="NAME")] = None
    changes: Annotated[bool, typer.Option("--changes", help="Leave out what only reads, as GetQueueUrl.")] = (
        False
    )
    since: Since = None
    until: Until = None
    limit: Annotated[
        int, typer.Option("--limit", help="At most so many events, up to 10,000.", metavar="N")
    ] = LIMIT
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@app.callback(invoke_without_command=True, no_args_is_help=False)
@options.gathered
def search(context: typer.Context, given: SearchOptions) -> None:
    """Show who did what, when, from where, newest first."""
    if context.invoked_subcommand is not None:
        if given != SearchOptions():
            raise WrongUsage(f"Options of `audit {context.invoked_subcommand}` come after its name.")
        return
    from_time, to_time = _time(given.since, "--since"), _time(given.until, "--until")
    with _audit(given.data, given.warehouse, given.storage_option) as audit:
        from quaymaster_pipeline.audit.audit import Query

        found = audit.search(
            Query(
                given.account,
                given.principal,
                given.action,
                given.queue,
                from_time,
                to_time,
                given.limit,
                given.changes,
            )
        )
    if given.as_json:
        print_json([event | {"event_time": _text(event["event_time"])} for event in found])
    else:
        print_table(
            ("TIME", "ACCOUNT", "PRINCIPAL", "ACTION", "QUEUE", "FROM", "RESULT"),
            (
                (
                    *(_text(event["event_time"]), event["recipient_account_id"] or None),
                    *(event["principal_id"] or None, event["event_name"], event["queue_name"] or None),
                    *(event["source_ip_address"] or None, _result(event)),
                )
                for event in found
            ),
        )
    if len(found) == given.limit:
        note(f"These are the newest {given.limit}; there may be more. See --until and --limit.")


@dataclass(frozen=True, kw_only=True)
class Verifying:
    """What must be in the chains besides."""

    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help="A head that was kept: it must still be in the chain. May be repeated.",
            metavar="FRONT-END=HASH",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(spark.SparkOptions, Verifying):
    """What must be in the chains besides, and with which Spark they are checked."""


@app.command()
@options.gathered
def verify(given: VerifyOptions) -> None:
    """Check that no event is missing, changed or put in: each front end's chain of hashes. Ends with 1 otherwise.

    Prints the head of each chain. Kept elsewhere, it proves later that nothing before it was rewritten.
    """
    kept = []
    for text in given.head or []:
        front_end, equals, hash_text = text.rpartition("=")
        if not equals:
            raise WrongUsage(f"--head takes FRONT-END=HASH, not {text!r}.")
        kept.append((front_end, hash_text))
    directory = data_directory(given.data)
    with _refusing():
        from quaymaster_pipeline.audit.verification import heads_of, verify_chains

        tables = open_warehouse(directory, given.warehouse, given.storage_option)
        heads = heads_of(kept)
        with spark.spark_workers(directory, given.master, given.driver_memory) as workers:
            proof = verify_chains(workers, tables, heads)
    if given.as_json:
        print_json(
            {
                "events": proof.events,
                "expired_content": proof.stubs,
                "erased": proof.erased,
                "breaks": [
                    _published(one)
                    | {"event_time": None if one.event_time is None else _text(one.event_time)}
                    for one in proof.breaks
                ],
                "breaks_total": proof.breaks_total,
                "heads": [_published(one) for one in proof.heads],
            }
        )
    else:
        print_table(
            ("FRONT END", "INCARNATION", "SEQUENCE", "EVENTS", "HEAD"),
            [
                (one.front_end, one.incarnation, one.sequence, one.events, one.record_hash)
                for one in proof.heads
            ],
        )
        if proof.erased:
            note(f"{proof.erased} events were erased: their links hold, and their content is gone.")
    if proof.breaks:
        first = proof.breaks[0]
        when = "" if first.event_time is None else f", {_text(first.event_time)}"
        breaks = "1 break" if proof.breaks_total == 1 else f"{proof.breaks_total} breaks"
        raise CommandRefused(f"{breaks}; the first is {first.where}{when}: {first.reason}")


@hold_app.command("list")
def list_holds(
    data: options.Data = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """List legal holds, also those that were released."""
    with _audit(data, warehouse, storage_option) as audit:
        found = audit.holds()
    if as_json:
        times = ("since", "until", "placed", "released")
        print_json(
            [
                {name: _maybe(value) if name in times else value for name, value in hold._asdict().items()}
                for hold in found
            ]
        )
        return
    print_table(
        ("NAME", "ACCOUNT", "SINCE", "UNTIL", "PLACED", "RELEASED", "REASON"),
        (
            (
                *(hold.name, hold.account_id, _maybe(hold.since), _maybe(hold.until)),
                *(_maybe(hold.placed), _maybe(hold.released), hold.reason or None),
            )
            for hold in found
        ),
    )


@dataclass(frozen=True, kw_only=True)
class HoldOptions:
    """What is kept, and why."""

    name: HoldName
    account: Account = None
    since: Since = None
    until: Until = None
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for those who read it later.", metavar="TEXT")
    ] = ""
    data: options.Data = None
    warehouse: WarehouseURI = None
    storage_option: StorageOptions = None
    as_json: options.AsJSON = False


@hold_app.command("create")
@options.gathered
def create_hold(given: HoldOptions) -> None:
    """Keep events until the hold is released, however old they get: of an account, of a time, or all."""
    from_time, to_time = _time(given.since, "--since"), _time(given.until, "--until")
    with _audit(given.data, given.warehouse, given.storage_option) as audit:
        from quaymaster_pipeline.audit.audit import Hold

        audit.place_hold(Hold(given.name, given.account, from_time, to_time, given.reason, _now(), None))
    _done(given.as_json, name=given.name)


@hold_app.command("release")
def release_hold(
    name: HoldName,
    data: options.Data = None,
    warehouse: WarehouseURI = None,
    storage_option: StorageOptions = None,
    as_json: options.AsJSON = False,
) -> None:
    """Release a hold: what it kept expires as everything else."""
    with _audit(data, warehouse, storage_option) as audit:
        audit.release_hold(name, _now())
    _done(as_json, name=name)


@dataclass(frozen=True, kw_only=True)
class Expiring:
    """What expires."""

    days: Annotated[
        int, typer.Option("--days", min=1, help="Delete what is older than so many days.", metavar="DAYS")
    ]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False


@dataclass(frozen=True, kw_only=True)
class ExpireOptions(spark.SparkOptions, Expiring):
    """What expires, and with which Spark."""


@app.command()
@options.gathered
def expire(given: ExpireOptions) -> None:
    """Delete old events that no hold keeps; the chains still prove the rest. May run next to `pipeline run`.

    Of expired events after one that is held, only the hashes stay.
    """
    now = _now()
    try:
        before = now - datetime.timedelta(days=given.days)
    except OverflowError:
        raise WrongUsage(f"--days {given.days} is before the year 1.") from None
    directory = data_directory(given.data)
    with _refusing():
        from quaymaster_pipeline.audit.expiry import expire_events

        tables = open_warehouse(directory, given.warehouse, given.storage_option)
        with spark.spark_workers(directory, given.master, given.driver_memory) as workers:
            found = expire_events(workers, tables, before, now, is_dry_run=given.dry_run)
    if given.as_json:
        print_json(found._asdict() | {"before": _text(before), "dry_run": given.dry_run})
    else:
        verb = "would be " if given.dry_run else ""
        print_line(
            f"{found.deleted} events {verb}deleted, {found.stubbed} {verb}emptied, {found.held} held "
            f"(older than {_text(before)})"
        )


@dataclass(frozen=True, kw_only=True)
class Erasing:
    """Whose events are erased."""

    principal: Annotated[
        str | None, typer.Option("--principal", help="Erase what this principal did.", metavar="ARN")
    ] = None
    access_key: Annotated[
        str | None,
        typer.Option("--access-key", help="Erase what was done with this access key.", metavar="ID"),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be erased.")] = False


@dataclass(frozen=True, kw_only=True)
class EraseOptions(spark.SparkOptions, Erasing):
    """Whose events are erased, and with which Spark."""


@app.command()
@options.gathered
def erase(given: EraseOptions) -> None:
    """Erase what the tables have of a principal or an access key. The chains of hashes still prove the rest.

    Of each event, its place, time, name and hashes stay. Events that a hold keeps stay whole. Blocks lose their content
    when it expires: the command says by when. A second run changes nothing. May run next to `pipeline run`; run it
    again to erase what that has taken since.
    """
    subject = _subject(given.principal, given.access_key)
    directory = data_directory(given.data)
    with _refusing():
        need_tables()
        from quaymaster.coordination.noted_acts import user_here
        from quaymaster_pipeline.audit.erasure import erase as erase_events

        tables = open_warehouse(directory, given.warehouse, given.storage_option)
        with spark.spark_workers(directory, given.master, given.driver_memory) as workers:
            done = erase_events(
                workers, tables, subject, _now(), operator=user_here(), is_dry_run=given.dry_run
            )
        until = _content_until(tables)
    if given.as_json:
        until_text = None if until is None else until.isoformat()
        print_json(done._asdict() | {"content_until": until_text, "dry_run": given.dry_run})
        return
    verb = "would be " if given.dry_run else ""
    print_line(
        f"{done.events} events and {done.quarantined} rows of quarantine {verb}erased, {done.held} held"
    )
    if until is not None:
        note(
            f"Blocks taken so far have lost their content by {until}, with what is in them of this name, unless "
            f"`pipeline run` keeps it for over {CONTENT_DAYS} days (--content-days). `pipeline run` deletes old files "
            "within two days, `pipeline compact --keep-hours 0` at once."
        )


def _subject(principal: str | None, access_key: str | None) -> Subject:
    if (principal is None) == (access_key is None):
        raise WrongUsage("Say whose events are erased: --principal ARN or --access-key ID, one of them.")
    need_tables()
    from quaymaster_pipeline.audit.erasure import Subject

    if not principal and not access_key:
        raise WrongUsage("--principal and --access-key take a name that is not empty.")
    return Subject("principal", principal) if principal else Subject("access-key", access_key or "")


def _content_until(tables: Warehouse) -> datetime.date | None:
    """Return the day on which the blocks that are there now have no content any more; None if none has."""
    from quaymaster_pipeline.usage.content import content_span

    tables.refresh()
    span = content_span(tables)
    if span is None:
        return None
    return max(span.newest + datetime.timedelta(CONTENT_DAYS + 1), _now().date())


def _result(event: dict[str, Any]) -> str:
    if event["http_status"] is None:
        return "erased"
    return event["error_code"] or "OK"


@contextlib.contextmanager
def _audit(data: Path | None, warehouse: str | None, storage_option: list[str] | None) -> Iterator[Audit]:
    need_tables()
    from quaymaster_pipeline.audit.audit import Audit

    with _refusing():
        yield Audit(open_warehouse(data_directory(data), warehouse, storage_option))


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What cannot be done, or not now, ends the command with a sentence."""
    need_tables()
    from quaymaster_pipeline.audit.audit import AuditMistake
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    try:
        yield
    except AuditMistake as error:
        raise CommandRefused(f"{error}.") from None
    except WarehouseBusy as error:
        raise CommandRefused(f"{error}; stop it, or wait.") from None


def _published(found: Break | Head) -> dict[str, Any]:
    """Return the fields under the names of the columns of tables."""
    return {"epoch" if name == "incarnation" else name: value for name, value in found._asdict().items()}


def _done(as_json: bool, **fields: Any) -> None:
    if as_json:
        print_json(fields)


def _time(text: str | None, name: str) -> datetime.datetime | None:
    return None if text is None else options.parse_time(text, name, "a time such as 2026-11-22T10:30")


def _maybe(time: datetime.datetime | None) -> str | None:
    return None if time is None else _text(time)


def _text(time: datetime.datetime) -> str:
    return time.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
