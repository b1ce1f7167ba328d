"""Which journals busy brokers give away, and to whom.

    above BUSY_SHARE for `busy_ms` ──▶ the largest journal that leaves its new leader below CALM_SHARE,
                                       to the least busy member: there it is at home, and stays for `load_rest_ms`

So that loads settle before anything else is moved, and nothing goes to and fro:

- The load is smoothed, and counts from the moment on at which the broker began to lead what it leads now.
- A broker gives or takes only when the leaders of all journals of which it has a member are the same for `busy_ms`.
- Between what makes a broker give and what it may take there is a gap, and a broker gives one journal at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from quaymaster.core.cell.cell import JournalSeen, broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.load import CALM_SHARE
from quaymaster.core.cell.loads import LOAD_MIN, Loads

CanTakeOver = Callable[[int, JournalSeen, str], bool]
"""Whether a member could lead a journal now."""


class LoadChoice:
    """Chooses transfers for the sake of load."""

    def __init__(self, cell: CellView, loads: Loads, acting: Collection[int]) -> None:
        """`acting`: journals on which something is being done."""
        self._cell = cell
        self._loads = loads
        self._unsettled = {
            broker_of(member)
            for number, journal in cell.journals.items()
            if number in acting or cell.now_ms - journal.since_ms < cell.settings.busy_ms
            for member in (*journal.configuration.members, journal.configuration.leader)
        }

    def choose(
        self, movable: list[tuple[int, JournalSeen]], can_take_over: CanTakeOver
    ) -> Iterator[tuple[int, JournalSeen, str, str]]:
        """Yield (journal, what is seen of it, member that is to lead it, reason), the busiest broker's first.

        The loads change with each that is yielded: a caller that does not do it must not ask for the next.
        """
        for name in sorted(self._cell.brokers, key=lambda name: -self._loads.of_broker[name]):
            if self._is_busy(name):
                yield from self._of_broker(name, movable, can_take_over)

    def _is_busy(self, name: str) -> bool:
        since_ms = self._cell.brokers[name].busy_since_ms
        return (
            since_ms is not None
            and self._cell.now_ms - since_ms >= self._cell.settings.busy_ms
            and self._cell.is_heard(name)
            and name not in self._unsettled
        )

    def _of_broker(
        self, name: str, movable: list[tuple[int, JournalSeen]], can_take_over: CanTakeOver
    ) -> Iterator[tuple[int, JournalSeen, str, str]]:
        led = [
            (self._loads.of_journal[number], number, journal)
            for number, journal in movable
            if broker_of(journal.configuration.leader) == name and not self._loads.stays(number)
        ]
        for load, number, journal in sorted(led, key=lambda item: (-item[0], item[1])):
            targets = [
                (self._loads.of_broker[broker_of(member)], member)
                for member in journal.configuration.members
                if load >= LOAD_MIN and self._has_room(broker_of(member), load)
                if can_take_over(number, journal, member)
            ]
            if targets:
                before, member = min(targets)
                target = broker_of(member)
                reason = (
                    f"broker {name} is busy ({self._loads.of_broker[name]:.0%}): with {load:.0%} of it broker {target} "
                    f"will be at {before + load:.0%}"
                )
                self._unsettled |= {name, target}
                self._loads.move(number, target)
                yield number, journal, member, reason
                return

    def _has_room(self, name: str, load: float) -> bool:
        return (
            name in self._cell.brokers
            and name not in self._unsettled
            and self._cell.is_settled(name)
            and self._loads.of_broker[name] + load < CALM_SHARE
        )
