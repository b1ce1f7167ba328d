"""Whether this process lives, and whether it should be sent requests.

    starting ──▶ serving ──▶ draining
                  │  ▲
       a check fails  and holds again: the journal stopped, the disk is full, ...

*Live* is a process that answers at all. *Ready* is one that is serving and whose checks all hold; while it starts, a
check may say what it waits for. A process that drains, or is merely full, is not ready either, but *keeps its clients*:
new ones should go elsewhere, those it has are served. It may have notices: what an operator should look at, though
requests are served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from quaymaster.monitoring.logs import log_event

State = Literal["starting", "serving", "draining"]
Check = Callable[[], str | None]
"""Returns why requests cannot be served, or None."""

Notices = Callable[[], list[str]]
"""Returns what an operator should know."""

log = logging.getLogger(__name__)


class Health:
    """What `/health/ready` says."""

    def __init__(self) -> None:
        self._state: State = "starting"
        self._checks: list[Check] = []
        self._room_checks: list[Check] = []
        self._notices: list[Notices] = []

    @property
    def state(self) -> State:
        return self._state

    def set_state(self, state: State) -> None:
        """Say that the process is now `state`."""
        if state != self._state:
            log_event(log, logging.INFO, "state changed", state=state, before=self._state)
            self._state = state

    def add_check(self, check: Check) -> None:
        """Be not ready while `check` gives a reason."""
        self._checks.append(check)

    def add_room_check(self, check: Check) -> None:
        """Be not ready for new clients while `check` gives a reason; those that are there are still served."""
        self._room_checks.append(check)

    def add_notices(self, notices: Notices) -> None:
        """Show what `notices` gives."""
        self._notices.append(notices)

    def notices(self) -> list[str]:
        """Return what an operator should look at."""
        return [text for notices in self._notices for text in notices()]

    def why_not_ready(self) -> str | None:
        """Return the reason not to send new clients here, or None."""
        if self._state == "draining":
            return f"The process is {self._state}."
        return self._why_not_serving() or _first_reason(self._room_checks)

    def keeps_clients(self) -> bool:
        """Tell whether the clients that are here are served, though it may not be ready for new ones."""
        return self._state == "draining" or self._why_not_serving() is None

    def _why_not_serving(self) -> str | None:
        reason = _first_reason(self._checks)
        return reason or (None if self._state == "serving" else f"The process is {self._state}.")


def _first_reason(checks: list[Check]) -> str | None:
    return next((reason for check in checks if (reason := check()) is not None), None)
