"""How old the keys are that all front ends share, by counted time (`coordination/counted_time`).

What a key protects is lost with it for the clients of all front ends. So no wall clock says how old one is.
"""

from __future__ import annotations

from quaymaster.metadata.store.rows import ReceiptKeyRow, SessionKeyRow


def is_older(row: SessionKeyRow | ReceiptKeyRow, age_ms: int, now_ms: int) -> bool:
    """Tell whether a key was made so long ago, for certain; `now_ms` is the counted time."""
    return row.since_counted_ms is not None and now_ms - row.since_counted_ms >= age_ms


def is_known_everywhere(row: SessionKeyRow | ReceiptKeyRow, lead_ms: int, now_ms: int) -> bool:
    """Tell whether everybody who follows the rows has had a key for `lead_ms`; 0: there are no others."""
    return not lead_ms or row.since_counted_ms is None or is_older(row, lead_ms, now_ms)
