"""Whether blocks are taken, for those who look from elsewhere: a note in ops.reconciliation, at each change of it."""

from __future__ import annotations

from typing import Final

from quaymaster_pipeline.warehouse.schemas import RECONCILIATION
from quaymaster_pipeline.warehouse.tables import Warehouse

APP: Final = "ingest"
_STOPPED: Final = "stopped"


def stopped_ingest(warehouse: Warehouse) -> str | None:
    """Return why no blocks are taken, as a sentence; None while they are."""
    found: str | None = warehouse.table(RECONCILIATION).note(APP).get(_STOPPED)
    return found


def keep_ingest_state(warehouse: Warehouse, stopped: str | None) -> None:
    """Note that no blocks are taken, and why, or that they are again."""
    table = warehouse.table(RECONCILIATION)
    table.refresh()
    if stopped_ingest(warehouse) != stopped:
        table.commit(APP, None, [], note={_STOPPED: stopped})
