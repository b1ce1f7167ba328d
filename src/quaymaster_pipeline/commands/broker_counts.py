"""What the brokers of a server counted, asked over its admin API, so that usage can be compared with it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.output import note
from quaymaster.cli.shared.profile_files import named_profile

if TYPE_CHECKING:
    from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount
    from quaymaster_pipeline.warehouse.tables import Warehouse

COUNTS_PAGE = 1_000


def count_brokers(
    tables: Warehouse,
    directory: Path,
    admin_url: str | None = None,
    *,
    now: Callable[[], datetime.datetime],
    accept: bool = False,
) -> None:
    """Ask the server what its brokers counted, and keep it, and which queues there are; without an answer, a note.

    Not after a clock was set back, until it has caught up: what is counted then cannot be compared.
    """
    from quaymaster_pipeline.checks.brokers.broker_counts import set_back_from, write_counts
    from quaymaster_pipeline.jobs.queues import keep_queues
    from quaymaster_pipeline.warehouse.tables import planning_again

    counted = now()
    if set_back_from(tables, counted) is not None:
        return
    try:
        counts = read_broker_counts(directory, admin_url)
    except (NoServer, CommandRefused) as error:
        note(f"The brokers were not asked what they counted: {error}")
        return
    until = now()
    planning_again(lambda: write_counts(tables, counts, counted, until, accept=accept), tables)
    keep_queues(tables, counts, until)


def tell_accepted_losses(tables: Warehouse, month: str, *, now: datetime.datetime) -> None:
    """Accept what is booked as lost in a month, and say how much that is."""
    from quaymaster_pipeline.billing.periods import Month
    from quaymaster_pipeline.checks.brokers.loss_table import accept_losses

    try:
        period = Month.parse(month)
    except ValueError as error:
        raise WrongUsage(f"--accept-losses: {error}.") from None
    found = accept_losses(tables, period.start.date(), period.end.date(), now)
    note(
        f"{found.accepted} lost messages of {month} are accepted; usage has {found.messages} sent and deleted."
    )


def read_broker_counts(directory: Path, admin_url: str | None = None) -> list[QueueCount]:
    """Return what the brokers of a server count, of all queues of all accounts.

    Raises:
        NoServer: it cannot be reached.
        CommandRefused: it does not tell.
    """
    from quaymaster.cli.shared.client import AdminClient
    from quaymaster.protocol.sqs.internal_queues import is_internal
    from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount
    from quaymaster_pipeline.jobs.queues import kind_of_queue

    found = []
    server = find_connection(None if named_profile() is not None else directory, None)
    with AdminClient(server, admin_url) as admin:
        for account in list(admin.accounts()):
            account_id = account["account_id"]
            page: dict[str, Any] = {"next_token": None}
            while True:
                asked = {"account_id": account_id, "limit": COUNTS_PAGE, "next_token": page["next_token"]}
                page = admin.call("ListQueues", **asked)
                for row in page["queues"]:
                    found.append((row["name"], row))
                    if row["is_log"]:
                        groups = admin.call("ListConsumerGroups", name=row["name"], account_id=account_id)
                        found += [
                            (f"{row['name']}@{group['group']}", group | {"account_id": account_id})
                            for group in groups["groups"]
                        ]
                if page["next_token"] is None:
                    break
    return [
        QueueCount(
            row["queue_id"],
            row["account_id"],
            name,
            row["sends"],
            row["deletions"],
            row["counted_from"],
            row["is_durable"],
            row["created_ms"],
            kind_of_queue(name, is_log=row.get("is_log", False)),
        )
        for name, row in found
        if not is_internal(row["account_id"], name)
    ]
