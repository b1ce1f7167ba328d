"""What `pipeline verify` finds: places where a table is not what it must be, told in words, and counts.

A task answers at most BREAKS_OF_ITEM of them for each item of its work, and how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.tasks import Answers, answer_counts, answer_table

BREAKS_MAX: Final = 100
"""Breaks that are described; further ones are counted."""
BREAKS_OF_ITEM: Final = 20
"""The same, of one item of a task's work."""
GAPS_MAX: Final = 100
"""Gaps that are listed; further ones are counted."""
_VALUE_LENGTH_MAX: Final = 80


class UsageBreak(NamedTuple):
    """A place where a table is not what it must be; None for what does not apply, or is not known."""

    table: str
    reason: str
    front_end: str | None = None
    incarnation: int | None = None
    sequence: int | None = None
    log_partition: int | None = None
    log_offset: int | None = None
    column: str | None = None
    hour: str | None = None
    account_id: str | None = None

    @property
    def where(self) -> str:
        """The place in words."""
        found = [self.table]
        if self.front_end is not None:
            found.append(f"{self.front_end} {self.incarnation}/{self.sequence}")
        if self.log_offset is not None:
            found.append(f"partition {self.log_partition}, offset {self.log_offset}")
        if self.hour is not None:
            found.append(f"hour {self.hour}")
        if self.account_id is not None:
            found.append(f"account {self.account_id or 'nobody'}")
        return ", ".join(found)

    @property
    def text(self) -> str:
        """The place and the reason."""
        return f"{self.where}: {self.reason}"


_SCHEMA = pa.schema(
    [
        (
            name,
            pa.int64() if name in ("incarnation", "sequence", "log_partition", "log_offset") else pa.string(),
        )
        for name in UsageBreak._fields
    ]
)


class Findings:
    """Breaks and counts, of one item of a task's work or of all. `what`: under which name tasks answer them."""

    def __init__(self, breaks_max: int = BREAKS_OF_ITEM, what: str = "breaks") -> None:
        self.breaks: list[UsageBreak] = []
        self.breaks_total = 0
        self.counts: Counter[str] = Counter()
        self._breaks_max = breaks_max
        self._what = what

    def add(self, found: UsageBreak) -> None:
        """Count a break, and keep it if there is room."""
        self.breaks_total += 1
        if len(self.breaks) < self._breaks_max:
            self.breaks.append(found)

    def add_all(self, found: Iterable[UsageBreak]) -> None:
        """Count breaks, and keep those for which there is room."""
        for one in found:
            self.add(one)

    def answers(self) -> Iterator[Any]:
        """Yield what a task answers."""
        if self.breaks_total:
            rows = [one._asdict() for one in self.breaks]
            yield answer_table(self._what, pa.Table.from_pylist(rows, schema=_SCHEMA))
            yield answer_counts(f"{self._what} in all", {"total": self.breaks_total})
        if self.counts:
            yield answer_counts(f"counts of {self._what}", self.counts)

    def take(self, answers: Answers, what: str | None = None) -> None:
        """Add what tasks answered, also under another name than these."""
        what = what or self._what
        total = self.breaks_total + answers.counts(f"{what} in all")["total"]
        for table in answers.tables(what):
            for row in table.to_pylist():
                self.add(UsageBreak(**row))
        self.breaks_total = total
        self.counts.update(answers.counts(f"counts of {what}"))


def differing(found: Any, expected: Any) -> Any:
    """Return where two columns are not the same, as a mask; null is the same as null."""
    is_other = pc.fill_null(pc.not_equal(found, expected), True)
    return pc.and_not(is_other, pc.and_(pc.is_null(found), pc.is_null(expected)))


def shown(value: Any) -> str:
    """Return a value of a column as a reason has it."""
    if isinstance(value, bytes):
        value = value.hex()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}..."
