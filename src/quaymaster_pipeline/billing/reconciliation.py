"""Whether an invoice is of exactly what was recorded: the same counts everywhere, as integers. Pure.

    blocks = silver = gold = closed days        compared when a day is closed (ops.closes)
    closed days = files of closed days          the month, before its invoices are final
    daily rows = charges                        each account

No difference is tolerated. A provisional invoice shows what differs; a final one is not issued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class BillingComparison(NamedTuple):
    """One measure, counted in several places: `counts` are (place, count). All must be equal."""

    scope: str
    measure: str
    counts: tuple[tuple[str, int], ...]

    @property
    def difference(self) -> int:
        """The largest count less the smallest."""
        numbers = [count for _, count in self.counts]
        return max(numbers) - min(numbers)

    def __str__(self) -> str:
        counts = ", ".join(f"{place} {count}" for place, count in self.counts)
        return f"{self.measure} of {self.scope}: {counts}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "scope": self.scope,
            "measure": self.measure,
            "counts": dict(self.counts),
            "difference": self.difference,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> BillingComparison:
        """Return what `as_json` was made of."""
        return cls(fields["scope"], fields["measure"], tuple(fields["counts"].items()))


def differing(comparisons: Iterable[BillingComparison]) -> list[BillingComparison]:
    """Return those that do not agree."""
    return [comparison for comparison in comparisons if comparison.difference]


def of_closes(month: str, closes: Sequence[tuple[str, int, bool]]) -> list[BillingComparison]:
    """Return what closes of a month's days found: (day, difference, whether an operator accepted it) each."""
    found = [
        BillingComparison(
            day, "counts of layers that differ", (("found", count), ("accepted", count if accepted else 0))
        )
        for day, count, accepted in closes
        if count
    ]
    unaccepted = sum(one.difference for one in found)
    return [
        BillingComparison(
            f"closed days of {month}", "counts of layers that differ", (("found", unaccepted), ("allowed", 0))
        ),
        *found,
    ]
