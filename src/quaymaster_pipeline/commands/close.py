"""`quaymaster pipeline close`: days become final now, and not when `pipeline run` looks next."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import data_directory
from quaymaster.cli.shared.failures import CommandRefused
from quaymaster.cli.shared.output import note, print_json, print_table
from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.commands.warehouse import need_tables, open_warehouse

if TYPE_CHECKING:
    from quaymaster_pipeline.jobs.close import Closed

BREAKS_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Accepting:
    """What is closed although its layers differ."""

    data: options.Data = None
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            help="Close this although its layers differ: a day, or batches, as the difference names them.",
            metavar="NAME",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CloseOptions(spark.SparkOptions, Accepting):
    """What is closed, and with which Spark."""


@options.gathered
def close(given: CloseOptions) -> None:
    """Close the days that every front end is past, also usage that came late to closed days.

    `pipeline run` closes days by itself. Each request is compared in all layers first; a day whose layers differ stays
    open, and the days after it, too, until `pipeline backfill` repairs it or --accept names it. Ends with 1 then.
    """
    need_tables()
    from quaymaster_pipeline.checks.reconciliation import write_comparisons
    from quaymaster_pipeline.jobs.close import close_days

    directory = data_directory(given.data)
    tables = open_warehouse(directory, given.warehouse, given.storage_option)
    with spark.spark_workers(directory, given.master, given.driver_memory) as workers:
        closed = close_days(
            workers,
            tables,
            datetime.datetime.now(datetime.UTC),
            takes_late=True,
            accepted=given.accept or (),
        )
        if closed.differences:
            write_comparisons(tables, list(closed.differences), datetime.datetime.now(datetime.UTC))
    if given.as_json:
        print_json(
            {
                "closes": [row.to_json() for row in closed.closes],
                "differences": [one._asdict() for one in closed.differences],
                "breaks": [one._asdict() for one in closed.breaks],
            }
        )
    else:
        _print(closed)
    accepted = set(given.accept or ())
    for name in sorted(accepted.difference(closed.open_days)):
        note(f"--accept: nothing differs in {name!r}.")
    still_open = [name for name in closed.open_days if name not in accepted]
    if still_open:
        raise CommandRefused(
            f"layers differ, so these stay open: {', '.join(still_open)}; `quaymaster pipeline backfill` repairs "
            "sums, `quaymaster pipeline verify` says what was changed"
        )


def tell_closed(closed: Closed) -> None:
    """Say on stderr what `pipeline run` closed, and what it did not."""
    days = [row.day.isoformat() for row in closed.closes if not row.is_late]
    if days:
        note(f"Closed: {days[0]}{'' if len(days) == 1 else f' to {days[-1]}'}.")
    for name in closed.open_days:
        note(f"Layers differ, so this stays open: {name}; `quaymaster pipeline close` says by how much.")


def _print(closed: Closed) -> None:
    print_table(
        ("DAY", "LATE", "REQUESTS", "BILLED", "MESSAGES", "BYTES", "FILES", "THROUGH BATCH"),
        [
            (
                *(row.day, row.is_late, row.requests, row.billed_requests, row.messages, row.bytes),
                *(len(row.files), row.through_batch),
            )
            for row in closed.closes
        ],
    )
    for one in closed.differences:
        note(
            f"{one.scope}, {one.measure}: blocks {one.blocks}, duplicates {one.duplicates}, quarantine "
            f"{one.quarantine}, silver {one.silver}, gold {one.gold}"
        )
    for found in closed.breaks[:BREAKS_SHOWN]:
        note(found.text)
    if not closed.closes and not closed.differences:
        note("No further day is due: a day is closed once every front end is past it.")
