"""Which leaders a manager appoints though another one holds the lease: those that nobody has appointed for too long.

When a zone is lost, the acting manager may be lost with the leaders of journals. Its lease then lasts two seconds more,
and longer when etcd elects a leader meanwhile. A manager that stands by would have appointed the same leaders, so it
does after a short while in which the acting one did not. If that one is only slow, both write over the same revision,
and one of them is refused. So it does at once where all brokers of the acting manager's zone are lost: that one is most
likely lost with them, and to wait for it is of no use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from quaymaster.core.cell.cell import Action, Appoint, CellSeen, broker_of

PATIENCE_MS: Final = 500
"""More than an acting manager needs: it polls each 250 ms, and appoints by one transaction."""


class StandIn:
    """What a manager that stands by waits for the acting one to do, and since when."""

    def __init__(self, patience_ms: int = PATIENCE_MS) -> None:
        self._patience_ms = patience_ms
        self._since_ms: dict[tuple[int, int], int] = {}
        """By journal and the revision of its configuration."""

    def choose(
        self, seen: CellSeen, planned: Iterable[Action], suspects: Collection[str], acting_zone: str = ""
    ) -> list[Appoint]:
        """Return the planned appointments that are overdue.

        Only those for leaders whose broker is lost, and only while a majority of the brokers is heard: one that is cut
        off knows nothing. `acting_zone`: of the manager that acts; "" where that is not known.
        """
        if 2 * len(suspects) >= len(seen.brokers):
            self._since_ms.clear()
            return []
        wanted = {
            (action.journal, action.revision): action
            for action in planned
            if isinstance(action, Appoint)
            and broker_of(seen.journals[action.journal].configuration.leader) in suspects
        }
        self._since_ms = {key: self._since_ms.get(key, seen.now_ms) for key in wanted}
        patience_ms = 0 if _is_lost(acting_zone, seen, suspects) else self._patience_ms
        return [action for key, action in wanted.items() if seen.now_ms - self._since_ms[key] >= patience_ms]


def _is_lost(zone: str, seen: CellSeen, suspects: Collection[str]) -> bool:
    """Tell whether a zone has brokers, and none of them is heard."""
    brokers = [broker.name for broker in seen.brokers if zone and broker.zone == zone]
    return bool(brokers) and all(name in suspects for name in brokers)
