"""How much a layer takes as one batch when the one before it is ahead. Pure.

Silver checks all that it took so far against what bronze counted, so it can stop only at a batch of which bronze noted
its control totals. Bronze notes those of the batches that silver has not: few, and ever fewer of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

AHEAD: Final = "ahead"
"""In the note of bronze.blocks: batches that silver did not have, each with the control totals up to its end."""
AHEAD_MAX: Final = 64
BATCH: Final = "batch"
ROWS_OF_TURN: Final = 20_000_000
"""So many requests silver takes as one batch, about as many as the largest batch of bronze has."""

Stop = Mapping[str, int]
"""A batch and the control totals up to its end."""


def stops_ahead(before: Sequence[Stop], refined: int, batch_id: int, totals: Mapping[str, int]) -> list[Stop]:
    """Return the stops after batch `batch_id`, which is one; those up to batch `refined` are not needed any more."""
    stops = [*(stop for stop in before if stop[BATCH] > refined), {BATCH: batch_id, **totals}]
    # Of too many every second one, so that the last stays.
    return stops if len(stops) <= AHEAD_MAX else stops[::-2][::-1]


def next_stop(stops: Sequence[Stop], first: int, rows_before: int) -> Stop | None:
    """Return where to stop from batch `first` on: at most ROWS_OF_TURN further, or at the first stop there is."""
    left = [stop for stop in stops if stop[BATCH] >= first]
    within = [stop for stop in left if stop["rows"] - rows_before <= ROWS_OF_TURN]
    return within[-1] if within else next(iter(left), None)
