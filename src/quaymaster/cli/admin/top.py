"""`quaymaster top`: what queues and the cell do now, on a terminal. Over the admin API, and CloudWatch's for alerts."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.admin.top_figures import (
    JOURNAL_COLUMNS,
    PROCESS_COLUMNS,
    SORTS,
    Look,
    age_text,
    arrange,
    as_json,
    depth_bar,
    journal_rows,
    process_rows,
    rate_text,
    rows_of,
)
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.output import print_json, print_table

if TYPE_CHECKING:
    from quaymaster.cli.shared.client import AdminClient, CloudWatchClient

ALARMS_MAX = 100


class Asker:
    """Asks a server for all that is shown."""

    def __init__(self, admin: AdminClient, monitoring: CloudWatchClient, account_id: str) -> None:
        self._admin = admin
        self._monitoring = monitoring
        self._account_id = account_id

    def look(self) -> Look:
        """Return what it says now. Raises CommandRefused, NoServer."""
        status = self._admin.call("GetStatus")
        queues = list(self._admin.queues(self._account_id))
        return Look(time.time_ns() // 1_000_000, status, queues, self._alarms(), self._cell())

    def _cell(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._admin.call("GetCell")
        except (CommandRefused, NoServer):  # no console, or users may not look at the cell
            return None
        return found

    def _alarms(self) -> list[dict[str, Any]] | None:
        try:
            found = self._monitoring.call("DescribeAlarms", {"MaxRecords": ALARMS_MAX})
        except (CommandRefused, NoServer):  # no console: queues are shown without
            return None
        return list(found.get("MetricAlarms", ()))


def top(
    sort: Annotated[
        str, typer.Option("--sort", help=f"One of {', '.join(SORTS)}.", metavar="FIELD")
    ] = "visible",
    part: Annotated[
        str, typer.Option("--filter", help="Only queues whose names contain this.", metavar="TEXT")
    ] = "",
    interval_s: Annotated[
        float, typer.Option("--interval", help="Seconds between looks.", metavar="SECONDS", min=0.5)
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, so that there are rates, print, and end.")
    ] = False,
    of_cell: Annotated[
        bool, typer.Option("--cell", help="Begin with processes and journals in place of queues.")
    ] = False,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    endpoint_url: options.EndpointURL = None,
    in_json: options.AsJSON = False,
) -> None:
    """Show the queues of the account with their depth, age and rates, and alerts, until q is pressed.

    Of the depth bar, visible messages are solid, those in flight shaded, delayed ones light. With c it shows what the
    processes of the cell use, and journals with their leaders and how many records followers are behind: a console
    tells of them. The screen needs the extra `top`; `--once` does not.
    """
    from quaymaster.cli.shared.client import AdminClient, CloudWatchClient

    if sort not in SORTS:
        raise WrongUsage(f"--sort is one of {', '.join(SORTS)}.")
    connection = find_connection(data, endpoint_url)
    account_id = connection.account_id
    if account_id is None:
        raise WrongUsage("Which account this is, is known with --data or a profile only.")
    with AdminClient(connection, admin_url) as admin, CloudWatchClient(connection) as monitoring:
        asker = Asker(admin, monitoring, account_id)
        first = asker.look()
        if once or in_json:
            time.sleep(interval_s)
            now = asker.look()
            if of_cell and not in_json:
                _print_cell(now)
            else:
                _print(now, first, sort, part, in_json=in_json)
            return
        if not sys.stdout.isatty():
            raise WrongUsage("This draws on a terminal; give --once or --json elsewhere.")
        try:
            from quaymaster.cli.admin.top_screen import TopScreen
        except ModuleNotFoundError as error:
            if error.name != "textual":
                raise
            raise WrongUsage(
                'The screen needs Textual: pip install "quaymaster[top]". Without it there is --once.'
            ) from None
        TopScreen(asker.look, first, sort=sort, part=part, interval_s=interval_s, of_cell=of_cell).run()


def _print_cell(now: Look) -> None:
    if now.cell is None:
        raise NoServer("No console answers, which knows of the cell.")
    print_table([name.upper() for name in PROCESS_COLUMNS], process_rows(now.cell))
    print_table([name.upper() for name in JOURNAL_COLUMNS], journal_rows(now.cell))


def _print(now: Look, before: Look, sort: str, part: str, *, in_json: bool) -> None:
    if in_json:
        print_json(as_json(now, before, sort, part))
        return
    print_table(
        ("QUEUE", "DEPTH", "VISIBLE", "IN FLIGHT", "DELAYED", "OLDEST", "SENT", "DELETED"),
        [
            (
                row.name,
                depth_bar(row),
                row.visible,
                row.in_flight,
                row.delayed,
                age_text(row.age_s),
                rate_text(row.sent_per_s),
                rate_text(row.deleted_per_s),
            )
            for row in arrange(rows_of(now, before), sort, part)
        ],
    )
