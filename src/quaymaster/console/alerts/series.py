"""What alerts read of queues and their past: an interface, which history has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PointsAsked:
    """Values of one metric of one queue: `count` periods of `period_s`, the last of which ends at `end_s`.

    `metric` and `statistic` are CloudWatch's. `end_s` is a multiple of 60, in seconds since 1970.
    """

    account_id: str
    queue: str
    metric: str
    statistic: str
    period_s: int
    count: int
    end_s: int


class AlertSeries(Protocol):
    """Where the values come from."""

    def readable_end_s(self) -> int:
        """Return up to where values are complete: the end of a minute, in seconds since 1970."""
        ...

    def accounts(self) -> Sequence[str]:
        """Return the accounts that have queues."""
        ...

    def queues(self, account_id: str) -> Sequence[str]:
        """Return an account's queues by name."""
        ...

    def dead_letter_queues(self, account_id: str) -> Sequence[str]:
        """Return those of them to which dead letters come."""
        ...

    async def points(self, asked: Sequence[PointsAsked]) -> Sequence[Sequence[float | None]]:
        """Return `count` values for each that is asked for, the newest last; None where there is none, never 0."""
        ...
