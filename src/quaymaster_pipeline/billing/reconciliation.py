"""Whether an invoice is of exactly what was recorded: the same counts in every layer, as integers. Pure.

    blocks = silver + quarantine + duplicates      everything recorded, whatever its month
    silver = gold = charges                        the month

No difference is tolerated. A provisional invoice shows what differs; a final one is not issued.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def differing(comparisons: Iterable[BillingComparison]) -> list[BillingComparison]:
    """Return those that do not agree."""
    return [comparison for comparison in comparisons if comparison.difference]
