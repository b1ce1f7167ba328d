"""What commands do to tables now and then: merge, compact, close days, let content expire; ask the brokers.

`pipeline run` does that in a thread of its own (`Upkeep`), so that no batch waits for it.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.shared.output import note
from quaymaster_pipeline.commands.broker_counts import count_brokers
from quaymaster_pipeline.jobs.retention import KEEP_HOURS, Retention
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict, SumsDiffer

if TYPE_CHECKING:
    from quaymaster_pipeline.usage.tasks import Workers
    from quaymaster_pipeline.warehouse.tables import Warehouse

COUNT_EVERY_S = 600.0
"""How often `pipeline run` asks the brokers what they counted."""

ContentDays = Annotated[
    int,
    typer.Option(
        "--content-days",
        min=1,
        help="Keep the content of blocks, with addresses and agents, for so long; headers and sums stay.",
        metavar="N",
    ),
]
UsageDays = Annotated[
    int,
    typer.Option(
        "--usage-days",
        min=1,
        help="Keep single requests and headers of blocks of closed days for so long; their sums stay.",
        metavar="N",
    ),
]

AuditDays = Annotated[
    int,
    typer.Option(
        "--audit-days",
        min=1,
        help="Keep audit events that no hold keeps for so long; the chains still prove the rest.",
        metavar="N",
    ),
]

HourlyMonths = Annotated[
    int,
    typer.Option(
        "--hourly-months",
        min=1,
        help="Keep sums by hour, and latencies, of so many whole months; sums by day stay.",
        metavar="N",
    ),
]


def delete_old_files_of_others(tables: Warehouse, keep_hours: int) -> None:
    """Delete what other tables have not had for a while; they are small, and stay as they are."""
    from quaymaster_pipeline.audit.audit import Audit
    from quaymaster_pipeline.billing.store import BillingStore
    from quaymaster_pipeline.warehouse.schemas import BROKER_COUNTS, BROKER_STATE, QUEUES
    from quaymaster_pipeline.warehouse.tables import WarehouseBusy

    for spec in (BROKER_COUNTS, BROKER_STATE, QUEUES):
        tables.table(spec).vacuum(keep_hours)
    for owner in (BillingStore(tables), Audit(tables)):
        try:
            owner.delete_old_files(keep_hours)
        except WarehouseBusy as error:
            note(f"{error}; its old files stay until the next time.")


class Upkeep:
    """What `pipeline run` does besides batches, a bounded part at a turn. One thread has it, with tables of its own."""

    def __init__(
        self,
        workers: Workers,
        tables: Warehouse,
        directory: Path,
        *,
        retention: Retention,
        counts_brokers: bool,
        now: Callable[[], datetime.datetime],
    ) -> None:
        from quaymaster_pipeline.jobs.close import DayCloser

        self._workers = workers
        self._tables = tables
        self._directory = directory
        self._retention = retention
        self._counts_brokers = counts_brokers
        self._now = now
        self._closer = DayCloser()
        self._done: tuple[int, datetime.datetime] | None = None
        """Up to which batch, and in which hour, nothing is left to do."""
        self.is_behind = False
        """A backlog is being taken: hours that are long over still get batches. Other threads say so."""
        self.closed_until_us: int | None = 0
        """Until when usage is whole, by its coverage. Other threads say so."""

    def turn(self) -> None:
        """Do what is due. What gives way to another process, or finds a wrong file, is tried again in the next turn."""
        is_behind = self.is_behind
        if not is_behind:
            self._compare_brokers()
        seen = self._batch(), self._now().replace(minute=0, second=0, microsecond=0)
        if seen != self._done:
            self._tables.refresh()
            with giving_way("Its files stay as they are until the next time"):
                if self._keep_up(ends_periods=not is_behind) and not is_behind:
                    self._done = seen
        if not is_behind:
            with giving_way("Days are closed the next time"):
                self._close_days()

    def _close_days(self) -> None:
        from quaymaster_pipeline.checks.reconciliation import write_comparisons
        from quaymaster_pipeline.commands.close import tell_closed

        closed = self._closer.keep(self._workers, self._tables, self._now())
        tell_closed(closed)
        if closed.differences:
            write_comparisons(self._tables, list(closed.differences), self._now())

    def _batch(self) -> int:
        from quaymaster_pipeline.usage import gold

        table = self._tables.table(gold.DAILY.spec)
        table.refresh()
        return table.last_batch(gold.APP)

    def _keep_up(self, *, ends_periods: bool) -> bool:
        """Merge and compact; when a day has begun, do what is done once a day. Return whether nothing is left."""
        from quaymaster_pipeline.jobs import upkeep

        merged = upkeep.keep_up(self._workers, self._tables, self._now(), ends_periods=ends_periods)
        if ends_periods and upkeep.is_new_day(self._tables, self._now()):
            self._end_day()
        return not merged

    def _end_day(self) -> None:
        """Do what is done once a day. If a step gives way, the day has not ended: all are done in the next turn."""
        from quaymaster_pipeline.jobs.expiry import expire
        from quaymaster_pipeline.jobs.upkeep import end_day

        for refusal in expire(self._workers, self._tables, self._now, self._retention).refusals:
            note(f"{refusal}. It is tried again tomorrow.")
        if end_day(self._tables, self._now()):
            delete_old_files_of_others(self._tables, KEEP_HOURS)

    def _compare_brokers(self) -> None:
        """Ask the brokers what they counted, now and then, and compare that with usage once that is whole."""
        from quaymaster_pipeline.checks.brokers.broker_counts import (
            check_brokers,
            last_compared,
            last_counted,
            newest_comparable,
        )
        from quaymaster_pipeline.usage.partial_sums import whole_coverage
        from quaymaster_pipeline.warehouse.schemas import BROKER_COUNTS, RECONCILIATION

        tables, now = self._tables, self._now
        for spec in (BROKER_COUNTS, RECONCILIATION):
            tables.table(spec).refresh()
        with giving_way("Brokers are not compared until the next time"):
            counted, compared = last_counted(tables), last_compared(tables)
            is_due = counted is None or (now() - counted).total_seconds() >= COUNT_EVERY_S
            counts = self._counts_brokers and is_due
            if not counts and newest_comparable(tables, self.closed_until_us, compared) is None:
                return
            tables.refresh()
            if counts:
                count_brokers(tables, self._directory, now=now)
            check_brokers(tables, whole_coverage(tables), now=now(), after=compared, workers=self._workers)


@contextlib.contextmanager
def giving_way(then: str) -> Iterator[None]:
    """Note what is left undone where another process was first, or a file is wrong: batches need no upkeep."""
    try:
        yield
    except (BrokenTable, CommitConflict, SumsDiffer) as error:
        note(f"{error}. {then}.")
