"""Collections of cyclic garbage that are rare and short, however many objects there are.

A full collection looks at every object that can be in a circle: with 100,000 queues that holds everybody up for half
a second, to find nothing, as what we keep for long is freed by counting references. So what is there after the start
is set aside, and again whatever has become too much to look at. Short-lived circles (of an exception and its frames,
say) are found as ever.

Python counts what is made less what is freed, and not what comes from its stock of freed objects: after sends to
100,000 queues, each of which had made one object that stays, it had counted nothing, and the next collections looked
at all of them, three times in a row. So we look by ourselves too, whenever some work was done.

Whatever makes something of long life that refers to itself has to break that circle when it is done. A circle that was
in use when it was set aside is found no more, so what is set aside is looked at as well: each time while it is little,
and else when it has doubled. So the time that this takes is a small share of what it took to make those objects.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, Final

YOUNG_OBJECTS_MAX: Final = 8_000
"""Young objects are looked at when there are so many more than at the last look: that takes less than a millisecond.
Requests leave no circles, but those in progress are looked at each time; with Python's 700 that was a tenth of the
cost of a request."""

YOUNG_ROUNDS: Final = (0, 0)
"""Objects that survive are looked at in the next collection again, and in the one after that with all that are not
set aside: while queues are made by the thousand, a full collection meets some 25,000 new objects (with Python's 10
and 10, two million: 600 ms). With little new there is none: Python waits until it is a quarter of all."""

FULL_COLLECTION_MAX_S: Final = 0.002
"""What survives a full collection that took longer is looked at no more."""

ALL_OBJECTS_CHEAP: Final = 50_000
"""To look at so many takes some milliseconds."""

LOOK_INTERVAL_S: Final = 0.1
LOOK_AFTER_S: Final = 0.25
"""So much processor time may make a few thousand objects that stay; to look at them takes up to a hundredth of it."""


class GarbageCollection:
    """The collector of this process, between `pause` and `stop`; one at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._began_s = 0.0
        self._looked_s = 0.0
        self._thresholds_before = gc.get_threshold()
        self._aside_at_last = 0
        """How many were set aside when all were looked at last."""
        self._aside = 0
        """The same with what was set aside since, also what was freed meanwhile: to count what is left, Python passes
        through all of it."""
        self._has_set_aside = False
        self.times_set_aside = 0

    def pause(self) -> None:
        """Collect nothing for now: much is being made that will stay."""
        gc.disable()

    def resume(self) -> None:
        """Set aside what is there, and collect what comes."""
        self._set_all_aside()
        gc.callbacks.append(self._on_collection)
        gc.set_threshold(YOUNG_OBJECTS_MAX, *YOUNG_ROUNDS)
        gc.enable()

    def look(self) -> None:
        """Collect, if the thread that calls this has worked for a while since the last time."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_AFTER_S:
            self._looked_s = now_s
            gc.collect()
            if self._has_set_aside:
                self._has_set_aside = False
                if self._aside <= ALL_OBJECTS_CHEAP or self._aside >= 2 * self._aside_at_last:
                    self._look_at_all()

    async def look_for_ever(self) -> None:
        """Look now and then."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        self._set_all_aside()
        self._has_set_aside = False

    def _set_all_aside(self) -> None:
        """Set aside what is there, and count all that is: as long as a look at all of it, and as rare."""
        gc.freeze()
        self._aside = self._aside_at_last = gc.get_freeze_count()

    def stop(self) -> None:
        """Go back to how a process begins."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        gc.unfreeze()
        gc.set_threshold(*self._thresholds_before)
        gc.enable()

    def _on_collection(self, phase: str, facts: dict[str, Any]) -> None:
        if facts["generation"] != 2:
            return
        if phase == "start":
            self._began_s = self._clock()
        elif self._clock() - self._began_s > FULL_COLLECTION_MAX_S:
            self._aside += len(gc.get_objects())  # as many as this collection has just met
            gc.freeze()
            self._has_set_aside = True
            self.times_set_aside += 1
