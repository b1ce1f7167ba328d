"""Long polls are judged again when permissions may have been taken away while they wait, and what waits for a leader.

    floor raised ──RECHECK_DELAY_S──▶ every parked poll is judged ──may no more──▶ it ends, refused
                                  └─▶ every other command as well ──may no more, and no broker got it──▶ refused
    messages come for a poll ──floor raised since, or it waited──▶ judged before its answer is rendered

A session expires, and a condition on the time ends, without a change that would raise the floor.

What a poll is refused that has been given messages, its messages are visible again after their timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown
from quaymaster.frontend.call import Call

RECHECK_DELAY_S: Final = 0.25
"""Polls are not looked through more often, however often permissions change."""
RECHECK_DELAY_MAX_S: Final = 1.0
PAUSE_PER_LOOK: Final = 10
"""Between looks passes so many times what one takes, up to RECHECK_DELAY_MAX_S: every tenant can cause them."""
JUDGED_AT_A_TIME: Final = 500
"""So many calls are judged in one turn of the event loop."""


class ParkedPolls:
    """Ends polls that may wait no longer, and commands that wait for a leader and may go to none.

    A leader may be sought for longer than a revoked key may work. `waiting` are all calls whose outcome is awaited.

    `judge` raises what a call is to be told that may not go on. Use within one event loop.
    """

    def __init__(self, waiting: Callable[[], Iterable[Call]], judge: Callable[[Call], None]) -> None:
        self._waiting = waiting
        self._judge = judge
        self._task: asyncio.Task[None] | None = None
        self._is_due = False
        self._is_closed = False
        self._delay_s = RECHECK_DELAY_S

    def look_again(self) -> None:
        """Permissions may have been taken away: judge all polls soon."""
        if self._is_closed:
            return
        self._is_due = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        """Judge no more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        try:
            while self._is_due:
                await asyncio.sleep(self._delay_s)
                self._is_due = False
                began_s = time.monotonic()
                for number, call in enumerate(list(self._waiting()), 1):
                    if not call.is_done:
                        self._end_if_refused(call)
                    if not number % JUDGED_AT_A_TIME:
                        await asyncio.sleep(0)
                pause_s = PAUSE_PER_LOOK * (time.monotonic() - began_s)
                self._delay_s = max(RECHECK_DELAY_S, min(pause_s, RECHECK_DELAY_MAX_S))
        finally:
            self._task = None

    def _end_if_refused(self, call: Call) -> None:
        try:
            self._judge(call)
        except NotYetKnown as unknown:
            unknown.when_known(lambda error: self._on_known(call))
        except (CallerError, NotNow) as error:
            submitted = call.submitted
            assert submitted is not None, "its outcome is awaited"
            if call.wait_ms:
                submitted.cancel()
            elif not submitted.withdraw():
                return
            call.leave(0.0)
            call.fail(error)

    def _on_known(self, call: Call) -> None:
        """What had to be asked for is in memory, or could not be asked for: the broker's floor then ends the poll."""
        if not call.is_done and not self._is_closed:
            self.look_again()
