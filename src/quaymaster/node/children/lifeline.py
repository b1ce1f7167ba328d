"""What a process hears of the one that started it, on a thread: also while its event loop is busy.

DRAIN, HURRY, CLOSE ──▶ done on the loop
the pipe ends ──▶ that process is gone: hurry, and END_S later end, whatever is not done by then
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

DRAIN: Final = b"d"
"""Take no more requests; finish those that there are."""
HURRY: Final = b"h"
"""Without notice to balancers."""
CLOSE: Final = b"c"
"""No other worker asks anything any more: close the journals, and end."""
END_S: Final = 10.0
OTHERS_S: Final = 20.0
"""A worker that has drained waits so long at most until the others have: they may ask for what its journals hold."""
EXIT_ALONE: Final = 1


class Lifeline:
    """Begin with `watch`, once, on the loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._may_close = asyncio.Event()
        self.has_drained = False
        """Whether this worker asks the others nothing any more."""

    def watch(self, *, drain: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Call `drain` and `hurry` when that is asked for."""
        acts = {DRAIN: drain, HURRY: hurry, CLOSE: self._may_close.set}
        arguments = (asyncio.get_running_loop(), acts)
        threading.Thread(target=self._read, args=arguments, name="lifeline", daemon=True).start()

    async def wait_for_others(self) -> None:
        """Return when the journals may be closed."""
        self.has_drained = True
        with suppress(TimeoutError):
            async with asyncio.timeout(OTHERS_S):
                await self._may_close.wait()

    def _read(self, loop: asyncio.AbstractEventLoop, acts: dict[bytes, Callable[[], None]]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the process is about to
            while said := os.read(self._descriptor, 1):
                if said in acts:
                    loop.call_soon_threadsafe(acts[said])
            loop.call_soon_threadsafe(acts[HURRY])
            loop.call_soon_threadsafe(acts[CLOSE])
        time.sleep(END_S)
        os._exit(EXIT_ALONE)
