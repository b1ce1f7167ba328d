"""What commands do to tables now and then: merge, compact, let content expire, delete old files."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.output import note
from quaymaster_pipeline.jobs.retention import KEEP_HOURS
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict

if TYPE_CHECKING:
    from quaymaster_pipeline.usage.tasks import Workers
    from quaymaster_pipeline.warehouse.tables import Warehouse

ContentDays = Annotated[
    int,
    typer.Option(
        "--content-days",
        min=1,
        help="Keep the content of blocks, with addresses and agents, for so long; headers and sums stay.",
        metavar="N",
    ),
]


def delete_old_files_of_others(tables: Warehouse, keep_hours: int) -> None:
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


def keep_up(
    workers: Workers, tables: Warehouse, content_days: int, now: Callable[[], datetime.datetime]
) -> None:
    """Do what is due of merging and compacting; once a day let content expire, and delete old files."""
    from quaymaster_pipeline.jobs import upkeep
    from quaymaster_pipeline.jobs.expiry import expire_content, expire_quarantine

    with giving_way():
        upkeep.keep_up(workers, tables, now())
        if upkeep.is_new_day(tables, now()):
            expire_content(workers, tables, now(), days=content_days)
            expire_quarantine(workers, tables, now(), days=content_days)
        if upkeep.end_day(tables, now()):
            delete_old_files_of_others(tables, KEEP_HOURS)


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Leave files as they are where another process was first, or one cannot be read: batches need no upkeep."""
    try:
        yield
    except (BrokenTable, CommitConflict) as error:
        note(f"{error}. Its files stay as they are until the next time.")
