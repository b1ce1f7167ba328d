"""How many ids of each kind a partition remembers."""

from __future__ import annotations

from typing import Final, NamedTuple


class IdLimits(NamedTuple):
    """Of retried sends and of settled deliveries the oldest are forgotten first; None: none is.

    Deduplication ids are never forgotten early: where a window is longer than five minutes, new ones beyond
    `dedup_ids_max` are refused.
    """

    retry_ids_max: int | None = None
    dedup_ids_max: int = 1_000_000
    settled_ids_max: int = 1_000_000


ID_LIMITS: Final = IdLimits()
