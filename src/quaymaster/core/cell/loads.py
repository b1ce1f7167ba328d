"""How much each broker has to do, and how much of it each journal is, as far as a plan has come.

A broker's load is the share of time that its event loop's thread has a processor. What of that is a journal's follows
from the shares of time that the loop works for each replica: what is done before it is known for which journal, as
reading calls, is divided in the same way.
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.load import CALM_SHARE

LOAD_MIN: Final = 0.05
"""A journal with less is not worth a transfer, and has no load that would keep it where it is."""


class Loads:
    """Loads of the brokers that are heard, and of the journals that they lead; 0 where nothing is known."""

    def __init__(self, cell: CellView) -> None:
        self._cell = cell
        self.of_broker: dict[str, float] = {}
        self.of_journal = dict.fromkeys(cell.journals, 0.0)
        totals: dict[str, float] = {}
        for name, broker in cell.brokers.items():
            load = broker.report.load
            self.of_broker[name] = load.cpu_share if cell.is_heard(name) else 0.0
            totals[name] = sum(load.journals.values())
        for number, journal in cell.journals.items():
            name = broker_of(journal.configuration.leader)
            if totals.get(name):
                share = cell.brokers[name].report.load.journals.get(number, 0.0)
                self.of_journal[number] = self.of_broker[name] * share / totals[name]

    def is_calm(self, name: str) -> bool:
        """Tell whether a broker may be given journals for the sake of numbers."""
        return self.of_broker[name] < CALM_SHARE

    def stays(self, number: int) -> bool:
        """Tell whether a journal stays where it is: it has load, and came there a while ago at most."""
        homed_ms = self._cell.journals[number].homed_ms
        return (
            homed_ms is not None
            and self.of_journal[number] >= LOAD_MIN
            and self._cell.now_ms - homed_ms < self._cell.settings.load_rest_ms
        )

    def move(self, number: int, target: str) -> None:
        """Another broker is to lead a journal."""
        load = self.of_journal[number]
        self.of_broker[broker_of(self._cell.journals[number].configuration.leader)] -= load
        self.of_broker[target] += load
