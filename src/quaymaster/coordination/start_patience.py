"""What has a process that starts wait for its metadata store: one missed answer does not end it, and none of many does
for ever.

    no answer ──▶ wait, and say so ──an answer──▶ go on
                     └──── no answer for START_WAIT_S ──▶ CoordinationUnavailable, which ends the start

Only calls that changed nothing are made again. Once the process serves, its parts know what to do without the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quaymaster.coordination.interface import CoordinationUnavailable
from quaymaster.monitoring.logs import log_event

START_WAIT_S: Final = 30.0
RETRY_S: Final = 0.25

log = logging.getLogger(__name__)

T = TypeVar("T")


class StartPatience:
    """Makes the calls of one store until they are answered, as long as the process starts."""

    def __init__(self, *, wait_s: float = START_WAIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._silent_since_s: float | None = None
        self._is_over = False
        self.waits_for: str | None = None
        """What the start waits for now, as a sentence; None while it waits for nothing."""

    def end(self) -> None:
        """Let calls fail at once from now on: the process has started."""
        self._is_over = True
        self.waits_for = None

    async def call(self, make: Callable[[], Awaitable[T]], is_asked: Callable[[], bool]) -> T:
        """Return what a call returns that is made again while the store does not answer.

        `is_asked`: whether it makes sense to ask the store again. Raises what the call raises; CoordinationUnavailable
        once the store has not answered for so long.
        """
        while True:
            try:
                answer = await make()
            except CoordinationUnavailable as error:
                self._note_silence(error, is_asked)
            else:
                if self.waits_for is not None:
                    log_event(log, logging.INFO, "metadata store answers again")
                self._silent_since_s = self.waits_for = None
                return answer
            await asyncio.sleep(RETRY_S)

    def _note_silence(self, error: CoordinationUnavailable, is_asked: Callable[[], bool]) -> None:
        """Return when the call is to be made again; raise when not."""
        if self._is_over or not is_asked():
            raise error
        now_s = self._clock()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        reason = str(error).rstrip(".")
        if now_s - self._silent_since_s >= self._wait_s:
            error.args = (
                f"the metadata store has not answered for {self._wait_s:g} s: {reason}. Start again when it does",
            )
            raise error
        if self.waits_for is None:
            log_event(log, logging.WARNING, "waiting for the metadata store", reason=reason)
        self.waits_for = f"The process waits for the metadata store: {reason}."
