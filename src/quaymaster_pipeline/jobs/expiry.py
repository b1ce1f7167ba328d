"""What expires once a day, in the order in which one lets the next expire: content, requests, headers, hours.

Audit events and quarantine expire by their age alone.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from quaymaster_pipeline.audit.audit import AuditMistake
from quaymaster_pipeline.audit.expiry import Expiry, expire_events, has_old_events
from quaymaster_pipeline.jobs.close import complete_closes
from quaymaster_pipeline.jobs.content_expiry import (
    Expired,
    ExpiredQuarantine,
    expire_content,
    expire_quarantine,
)
from quaymaster_pipeline.jobs.header_expiry import expire_headers
from quaymaster_pipeline.jobs.hourly_expiry import expire_hours
from quaymaster_pipeline.jobs.retention import Retention, first_kept
from quaymaster_pipeline.jobs.usage_expiry import expire_usage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.tables import Warehouse, WarehouseBusy

NO_EVENTS: Final = Expiry(0, 0, 0)


class ExpiredRows(NamedTuple):
    """What expired: content of blocks and of quarantine, requests, blocks as a whole, and audit events.

    `months` are those whose hours did. `refusals` say what did not expire, since it is not what it must be.
    """

    content: Expired
    quarantine: ExpiredQuarantine
    requests: int
    headers: int
    events: Expiry
    months: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def expire(
    workers: Workers, warehouse: Warehouse, now: Callable[[], datetime.datetime], retention: Retention
) -> ExpiredRows:
    """Let expire what is older than its retention. A pipeline may run next to it.

    Raises:
        CommitConflict: others replaced the files again and again.
    """
    content = expire_content(workers, warehouse, now(), days=retention.content_days)
    quarantine = expire_quarantine(workers, warehouse, now(), days=retention.content_days)
    requests, headers, events = 0, 0, NO_EVENTS
    months: tuple[str, ...] = ()
    refusals: list[str] = []
    with _noting(refusals):
        requests = expire_usage(workers, warehouse, now(), days=retention.usage_days)
        complete_closes(warehouse)  # or heads that a killed close has only named are missed
        headers = expire_headers(workers, warehouse, now(), days=retention.usage_days)
    with _noting(refusals):
        months = expire_hours(workers, warehouse, now(), months=retention.hourly_months)
    with _noting(refusals):
        events = _expire_audit(workers, warehouse, now(), retention.audit_days)
    return ExpiredRows(content, quarantine, requests, headers, events, months, tuple(refusals))


def _expire_audit(workers: Workers, warehouse: Warehouse, now: datetime.datetime, days: int) -> Expiry:
    """Let audit events of old days expire: whole days, so files that have only these are dropped unread.

    The chains are proved before anything goes, which reads all events; so only if some may be old.
    """
    before = datetime.datetime.combine(first_kept(now, days), datetime.time(), datetime.UTC)
    return expire_events(workers, warehouse, before, now) if has_old_events(warehouse, before) else NO_EVENTS


@contextlib.contextmanager
def _noting(refusals: list[str]) -> Iterator[None]:
    """Note why something does not expire, so that all else does."""
    try:
        yield
    except (SumsDiffer, AuditMistake, WarehouseBusy) as error:
        refusals.append(str(error))
