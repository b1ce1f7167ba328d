"""Whether changes may begin, which is while their audit events can be written; and answers that wait for events.

    change ──check──▶ carried out ──recorded──▶ answer waits ──event on the disk──▶ answered
               │                                   └── not within WRITE_WAIT_S ──▶ 503, the outcome is unknown
               └── events cannot be written ──▶ 503, nothing was changed

Who writes events says what the trouble is (`tell`), tries again at least every PROBE_S, and says when it is over. So
a refusal never outlives its cause. Everything happens on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Literal

from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.logs import log_event

WRITE_WAIT_S: Final = 5.0
"""Answers to changes wait so long for the disk to have their events."""
PROBE_S: Final = 0.5

Trouble = Literal["disk_failed", "disk_late", "spool_full"]

_WHAT_TO_DO: Final[dict[Trouble, str]] = {
    "disk_failed": "The disk of this front end's usage/ is full or fails: make room on it, or replace it.",
    "disk_late": "The disk of this front end's usage/ does not answer: see what keeps it busy, or replace it.",
    "spool_full": "This front end's spool of usage records is full, because no broker takes them: see to the "
    "brokers, or raise usage_spool_bytes_max.",
}

log = logging.getLogger(__name__)


class WaitingAnswer:
    """An answer that is given once: when its event is on the disk, or when it has waited for too long."""

    def __init__(self, on_written: Callable[[], None], on_late: Callable[[], None]) -> None:
        self._on_written = on_written
        self._on_late = on_late
        self._timer = asyncio.get_running_loop().call_later(WRITE_WAIT_S, self._give_up)
        self._is_given = False

    def give(self) -> None:
        """Give the answer, if it was not given: the event is on the disk."""
        self._timer.cancel()
        if not self._is_given:
            self._is_given = True
            self._on_written()

    def _give_up(self) -> None:
        self._is_given = True
        self._on_late()


class AuditGate:
    """Lets changes begin, and their answers out. Open until `tell` says otherwise."""

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        """Why events cannot be written now."""
        self._waiting: list[WaitingAnswer] = []

    @property
    def notices(self) -> list[str]:
        """What an operator should know: a source for `Health`."""
        if self.trouble is None:
            return []
        return [f"Changes are refused: their audit events cannot be written. {_WHAT_TO_DO[self.trouble]}"]

    def check(self) -> None:
        """Raise NotNow while no change may begin."""
        if self.trouble is not None:
            raise NotNow(
                "Nothing was changed: the audit event of this could not be written. "
                + _WHAT_TO_DO[self.trouble]
            )

    def not_written(self) -> NotNow:
        """Return what the client of a change is told whose event is not on the disk."""
        return NotNow(
            "The outcome is unknown: this was carried out, but its audit event is not on the disk yet. Look at what "
            "there is before you try again. A secret that was made is not shown again. "
            + _WHAT_TO_DO[self.trouble or "disk_late"]
        )

    def wait(self, on_written: Callable[[], None], on_late: Callable[[], None] | None) -> None:
        """Call `on_written` once what was recorded so far is written, else `on_late` after WRITE_WAIT_S.

        `on_late` None: nothing was changed. `on_written` is called then, at once where events cannot be written.
        """
        if on_late is None and self.trouble is not None:
            on_written()
            return

        def give_up() -> None:
            if self.trouble is None:
                self.tell("disk_late")
            (on_late or on_written)()

        self._waiting.append(WaitingAnswer(on_written, give_up))

    def take(self) -> list[WaitingAnswer]:
        """Return the answers that wait for what was recorded since the last time."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def tell(self, trouble: Trouble | None) -> None:
        """Say whether events can be written now. The log has a line of each change."""
        if trouble == self.trouble:
            return
        if trouble is None:
            log_event(log, logging.WARNING, "changes are taken again: their audit events can be written")
        elif self.trouble is None:
            log_event(
                *(log, logging.ERROR, "changes are refused: their audit events cannot be written"),
                reason=trouble,
            )
        self.trouble = trouble


def give_all(answers: Iterable[WaitingAnswer]) -> None:
    """Give answers whose events are on the disk."""
    for answer in answers:
        answer.give()
