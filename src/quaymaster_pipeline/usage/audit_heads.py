"""Heads of audit chains: the last audit event of each front end, as the notes of silver's commits have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from quaymaster_pipeline.usage.partial_sums import SILVER
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import AUDIT_EVENTS
from quaymaster_pipeline.warehouse.tables import Table

HEADS: Final = "heads"
"""In the notes of audit_events and usage_events: the last audit event of each front end."""
HEAD_COLUMNS: Final = ("front_end", "epoch", "sequence", "record_hash")
Heads = dict[str, tuple[int, int, str]]
"""Incarnation, sequence and hash (hex) of the last audit event of each front end."""


def heads_of(events: Any) -> Heads:
    """Return the last of these audit events of each front end."""
    return newest_heads(
        {name: (incarnation, sequence, (record_hash or b"").hex())}
        for name, incarnation, sequence, record_hash in zip(
            *(events.column(name).to_pylist() for name in HEAD_COLUMNS), strict=True
        )
    )


def heads_of_files(place: TablePlace, files: Iterable[DataFile]) -> Heads:
    """Return the last of the audit events of each front end that files have."""
    return newest_heads(
        heads_of(rows)
        for file in files
        for rows in read_row_groups(place, AUDIT_EVENTS, file.path, HEAD_COLUMNS)
    )


def heads_in(table: Table) -> Heads:
    """Return the heads that a table's note has; none where an earlier version wrote it."""
    return {name: (head[0], head[1], head[2]) for name, head in table.note(SILVER).get(HEADS, {}).items()}


def newest_heads(found: Iterable[Heads]) -> Heads:
    """Return the newest head of each front end."""
    newest: Heads = {}
    for heads in found:
        for name, head in heads.items():
            newest[name] = max(newest.get(name, head), head)
    return newest
