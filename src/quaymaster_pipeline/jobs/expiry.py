"""What expires once a day, in the order in which one lets the next expire: content, requests, headers, quarantine."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import NamedTuple

from quaymaster_pipeline.jobs.content_expiry import (
    Expired,
    ExpiredQuarantine,
    expire_content,
    expire_quarantine,
)
from quaymaster_pipeline.jobs.header_expiry import expire_headers
from quaymaster_pipeline.jobs.retention import Retention
from quaymaster_pipeline.jobs.usage_expiry import expire_usage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.tables import Warehouse


class ExpiredRows(NamedTuple):
    """What expired: content of blocks and of quarantine, requests, and blocks as a whole.

    `refusal` says why no requests or no headers did, where they are not what they must be.
    """

    content: Expired
    quarantine: ExpiredQuarantine
    requests: int
    headers: int
    refusal: str | None = None


def expire(
    workers: Workers, warehouse: Warehouse, now: Callable[[], datetime.datetime], retention: Retention
) -> ExpiredRows:
    """Let expire what is older than its retention. A pipeline may run next to it.

    Raises:
        CommitConflict: others replaced the files again and again.
    """
    content = expire_content(workers, warehouse, now(), days=retention.content_days)
    quarantine = expire_quarantine(workers, warehouse, now(), days=retention.content_days)
    refusal, requests, headers = None, 0, 0
    try:
        requests = expire_usage(workers, warehouse, now(), days=retention.usage_days)
        headers = expire_headers(workers, warehouse, now(), days=retention.usage_days)
    except SumsDiffer as error:
        refusal = str(error)
    return ExpiredRows(content, quarantine, requests, headers, refusal)
