"""The last decisions of a manager, and what came of them: for the log, and for people who ask."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from quaymaster.core.cell.cell import Action
from quaymaster.core.cell.decisions import DecisionTaken, ManagerDecisions, decision_of, is_same_decision
from quaymaster.core.cell.partition_plans import PlannedChange
from quaymaster.monitoring.logs import log_event

KEPT_MAX: Final = 1_000
ERROR_CHARACTERS_MAX: Final = 300

log = logging.getLogger(__name__)


class DecisionLog:
    """Keeps the last KEPT_MAX decisions. A manager that starts knows of none before."""

    def __init__(self, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._taken: deque[DecisionTaken] = deque(maxlen=KEPT_MAX)

    def note(self, action: Action | PlannedChange, result: str, error: str | None) -> None:
        """Tell of an action that was carried out, or was not."""
        decision = decision_of(action)
        log_event(
            log,
            logging.WARNING if result == "failed" else logging.INFO,
            "manager acted",
            action=decision.action,
            result=result,
            journal=decision.journal,
            broker=decision.broker,
            epoch=decision.epoch,
            leader=decision.leader,
            because=decision.reason,
            reason=error,
        )
        error = None if error is None else error[:ERROR_CHARACTERS_MAX]
        taken = DecisionTaken(self._wall_ms(), decision, result, error)
        if self._taken and is_same_decision(self._taken[-1], taken):
            taken = msgspec.structs.replace(taken, times=self._taken.pop().times + 1)
        self._taken.append(taken)

    def told_by(self, manager: str) -> ManagerDecisions:
        """Return all that are kept."""
        return ManagerDecisions(manager, tuple(self._taken))
