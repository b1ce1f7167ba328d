"""How often a replica began to become leader, and how long each part of it took: figures, made from its roles.

follower ──▶ preparing ──▶ fetching ──▶ elected, activating ──▶ leading
              promise       fetch          activation
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.replication.replication import Role
from quaymaster.monitoring.metrics import Histogram

PHASES: Final[dict[Role, str]] = {
    "preparing": "promise",
    "fetching": "fetch",
    "elected": "activation",
    "activating": "activation",
}


class Elections:
    """Counts the elections of one replica. It hears of a role when something was decided in it."""

    __slots__ = ("_phase", "_since_s", "begun", "durations", "role")

    def __init__(self) -> None:
        self.role: Role = "follower"
        """The one heard of last."""
        self.begun = 0
        self.durations = {phase: Histogram() for phase in ("promise", "fetch", "activation")}
        """By phase, those that came to the next one; an election may be over at any time."""
        self._phase: str | None = None
        self._since_s = 0.0

    def on_role(self, role: Role, now_s: float) -> None:
        """Note that the role has changed, at a time of a clock that does not jump."""
        was, phase = self._phase, PHASES.get(role)
        is_on = phase is not None or role == "leading"
        self.role = role
        if was is None:
            # Of one that has no other members it may be heard only when it leads already.
            self.begun += is_on
        elif was == phase:
            return
        elif is_on:
            self.durations[was].observe(now_s - self._since_s)
        self._phase = phase
        self._since_s = now_s
