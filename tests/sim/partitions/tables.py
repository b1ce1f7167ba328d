"""The partition table: which partitions a queue has, who holds which keys, and what a change makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

KEYS = 16
SPAN = 1_000
"""First sequences are multiples of it; nothing stores as many messages in one run."""

State = Literal["new", "open", "closing", "closed", "drained"]


class Entry(NamedTuple):
    """One partition in a table. `is_sealed`: the row knows that the seal is committed."""

    number: int
    journal: int
    state: State
    first: int
    last: int
    first_sequence: int
    parents: tuple[int, ...] = ()
    is_sealed: bool = False
    sealed_ms: int = 0
    """When the row heard of the seal, by the clock of the store. Only removals go by it, after weeks."""

    def holds(self, key: int) -> bool:
        return self.first <= key <= self.last

    @property
    def takes(self) -> bool:
        """Whether it is asked about new messages of its keys."""
        return self.state in ("open", "closing")

    @property
    def is_read(self) -> bool:
        """Whether receives ask it."""
        return self.state in ("open", "closing", "closed")

    @property
    def must_be_sealed(self) -> bool:
        return self.state in ("closing", "closed", "drained")


class Table(NamedTuple):
    """A version of a queue's partitions, oldest first."""

    version: int
    next_number: int
    entries: tuple[Entry, ...]

    def entry(self, number: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.number == number), None)

    def taking(self, key: int) -> list[Entry]:
        """Who is asked about a message of this key, the oldest first."""
        return [entry for entry in self.entries if entry.takes and entry.holds(key)]

    def holding(self, key: int) -> list[Entry]:
        """Every listed partition of this key that front ends use, the oldest first."""
        return [entry for entry in self.entries if entry.state != "new" and entry.holds(key)]

    def in_state(self, *states: State) -> list[Entry]:
        return [entry for entry in self.entries if entry.state in states]

    def changed(self, numbers: Iterable[int], **fields: object) -> Table:
        """The next version, in which these entries have other fields."""
        chosen = set(numbers)
        entries = tuple(
            entry._replace(**fields) if entry.number in chosen else entry  # type: ignore[arg-type]
            for entry in self.entries
        )
        return Table(self.version + 1, self.next_number, entries)

    def with_children(
        self, parents: list[Entry], ranges: list[tuple[int, int]], journals: list[int], *, restarts: bool
    ) -> Table:
        """The next version, with new partitions for the same keys. `restarts`: with the planted bug of this name."""
        base = max(parent.first_sequence for parent in parents)
        first_sequence = base if restarts else (base // SPAN + 1) * SPAN
        children = tuple(
            Entry(
                self.next_number + at,
                journal,
                "new",
                first,
                last,
                first_sequence,
                tuple(parent.number for parent in parents),
            )
            for at, ((first, last), journal) in enumerate(zip(ranges, journals, strict=True))
        )
        return Table(self.version + 1, self.next_number + len(children), self.entries + children)

    def without(self, numbers: Iterable[int]) -> Table:
        """The next version, without these."""
        gone = set(numbers)
        entries = tuple(entry for entry in self.entries if entry.number not in gone)
        return Table(self.version + 1, self.next_number, entries)

    def knows_better_than(self, other: Table) -> bool:
        """Whether a journal that has this one must be believed by a row that has the other one."""
        return self.version > other.version or (
            self.version == other.version and self.entries != other.entries
        )


def merged(row: Table, known: Table) -> Table:
    """What a row becomes that met a table which knows better: its partitions, above both."""
    return Table(max(row.version, known.version) + 1, max(row.next_number, known.next_number), known.entries)


def newer(first: Table, second: Table) -> Table:
    return second if second.version > first.version else first
