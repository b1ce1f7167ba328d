"""ops.dim_queue: which queue an id means, whose it is, and when there was one, by what servers list.

    a server is asked what its brokers counted ──▶ queues that it has        made when it says so
                                                   queues that it had        gone when it was asked

Events would tell less: they have the account that asked, which need not be the one that owns the queue, and nothing of
a queue that was not used. So queues made and deleted between two askings are not here, and none are when no server was
asked; rows of usage have name and kind of their queue themselves.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from quaymaster.core.values.queues.queue_names import is_fifo_name, split_group
from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount
from quaymaster_pipeline.warehouse.schemas import QUEUES
from quaymaster_pipeline.warehouse.tables import Warehouse, planning_again
from quaymaster_pipeline.warehouse.times import time_of_us

APP: Final = "queues"

Row = Mapping[str, Any]


def keep_queues(warehouse: Warehouse, listed: Iterable[QueueCount], until: datetime.datetime) -> bool:
    """Keep which queues there are, by an answer that was whole at `until`. False, and no commit, when it is known.

    Raises:
        CommitConflict: others keep them again and again.
    """
    table, counted = warehouse.table(QUEUES), list(listed)

    def keep() -> bool:
        files = table.files()
        before = table.read(files=files).to_pylist()
        rows = next_queues(before, counted, until)
        if rows == before:
            return False
        fresh = pa.Table.from_pylist(rows, schema=QUEUES.schema)
        return table.commit(APP, None, table.write(APP, fresh), removes=files, is_alone=True)

    return planning_again(keep, table)


def next_queues(
    before: Iterable[Row], listed: Iterable[QueueCount], until: datetime.datetime
) -> list[dict[str, Any]]:
    """Return the rows after a server told which queues it has, in the order of their ids.

    A queue that it has no more ended at `until`, or when the next one of its name began. One that it has again, as
    after a restored backup, never ended.
    """
    now = {queue.queue_id: _row(queue) for queue in listed}
    began = {(row["account_id"], row["queue_name"]): row["valid_from"] for row in now.values()}
    found = {row["queue_id"]: dict(row) for row in before}
    for queue_id, row in found.items():
        if queue_id not in now and row["valid_to"] is None:
            successor = began.get((row["account_id"], row["queue_name"]), until)
            # Clocks differ: no queue ends before it began.
            row["valid_to"] = max(row["valid_from"], min(until, successor))
    found |= now
    return [found[queue_id] for queue_id in sorted(found)]


def kind_of_queue(name: str, *, is_log: bool) -> str:
    """Return a queue's kind as usage records name it; a consumer group, `<log>@<group>`, is of its log's."""
    log, group = split_group(name)
    if is_fifo_name(log):
        return "fifo"
    return "log" if is_log or group else "standard"


def _row(queue: QueueCount) -> dict[str, Any]:
    return {
        "queue_id": queue.queue_id,
        "account_id": queue.account_id,
        "queue_name": queue.queue_name,
        "queue_type": queue.queue_type,
        "valid_from": time_of_us(queue.created_ms * 1000),
        "valid_to": None,
    }
