"""Whether log workers get cores of their own: how long their pieces take, against the processor time they need.

    pieces take about as long as they compute ──▶ workers are used
    they take much longer: cores are busy, or a container has no more ──▶ none is used for a while, then tried again

On a machine that is busy anyway a piece waits twice for a core, there and back, and costs a third more than if the
front end opened it. Pure: times are given.
"""

from __future__ import annotations

from typing import Final

SLOW_RATIO: Final = 2.0
"""From so many times their processor time on, pieces wait for cores."""
PIECES_MIN: Final = 8
"""So many pieces are looked at before anything is said."""
FORGOTTEN: Final = 7 / 8
"""What of the times before counts at the next piece."""
PAUSE_MIN_S: Final = 5.0
PAUSE_MAX_S: Final = 60.0
"""How long no worker is used; it doubles each time, until pieces were fast enough again."""


class OpeningPace:
    """The pace of one front end's workers."""

    def __init__(self) -> None:
        self._paused_until_s = 0.0
        self._pauses_in_turn = 0
        self._took_s = 0.0
        self._cpu_s = 0.0
        self._pieces = 0

    def is_paused(self, now_s: float) -> bool:
        """Tell whether workers are left alone now."""
        return now_s < self._paused_until_s

    def note(self, took_s: float, cpu_s: float, now_s: float) -> bool:
        """Note how long a worker had a piece, and what of that it computed; tell whether a pause begins."""
        if self.is_paused(now_s):
            return False
        self._took_s = FORGOTTEN * self._took_s + took_s
        self._cpu_s = FORGOTTEN * self._cpu_s + cpu_s
        self._pieces += 1
        if self._pieces < PIECES_MIN:
            return False
        if self._took_s < SLOW_RATIO * self._cpu_s:
            self._pauses_in_turn = 0
            return False
        self._paused_until_s = now_s + min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(self._pauses_in_turn, 10))
        self._pauses_in_turn += 1
        self._took_s = self._cpu_s = 0.0
        self._pieces = 0
        return True
