"""Whether a request is taken or refused because too many wait: the decision, without clock and loop.

What was received waits until a pass of the HTTP server takes it up, first come, first served. A pass takes all that
waits, up to a number: so a wait is long only when more comes than can be served.

    calm ──waits over the target for longer than is tolerated──▶ guarded ──GUARD_MS after the last hold──▶ calm
     takes all                                   refuses what has waited longer than the target, takes the rest

So bursts are worked off without a refusal, and lasting overload keeps waits short at once whenever it comes back.
Few requests are never refused, however long a slow machine let them wait.

Even a refusal costs time. A client that was refused is held: not read before the moment at which it was told to ask
again. These moments are spread so that one comes back for TAKEN_PER_RETURN requests taken, however many clients there
are. Some come back earlier, by a new connection. So many may do so that refusals alone make everybody wait longer than
the target: LATE_TAKEN requests of each pass are taken all the same.

Source: Controlled Delay Active Queue Management (RFC 8289), from which target and interval are.
"""

from __future__ import annotations

import math
from typing import Final

FEW: Final = 64
"""A pass of so many requests took all that waited."""
LATE_TAKEN: Final = 16
"""So many of a pass are taken however long they waited: a third of the time at worst goes into requests served."""
HOLD_MS_MIN: Final = 1_000
"""How long a refused client is held at least."""
HOLD_MS_MAX: Final = 20_000
"""And at most: less than clients wait for a reply, which is 30 s or more."""
TAKEN_PER_RETURN: Final = 5
"""A refusal costs less than a third of a request, so all refusals together take about a twentieth of the time."""
SPACING_MS_MAX: Final = 10.0
"""Longest time between two that come back."""
PAUSE_MS: Final = 1_000
"""After so long without a pass, no request waited meanwhile or the process was stopped: waits are judged again."""
GUARD_MS: Final = 1_000
"""How long waits are kept short after the last of the refused could come back."""


class Admission:
    """Decides for one HTTP server. Times are milliseconds of any clock that does not jump."""

    __slots__ = (
        "_began_ms",
        "_behind_since_ms",
        "_delay_target_ms",
        "_delay_tolerated_ms",
        "_held_until_ms",
        "_late_room",
        "_measured_ms",
        "_room",
        "_spacing_ms",
        "_taken",
        "in_progress_max",
        "refused",
    )

    def __init__(self, *, delay_target_ms: int, delay_tolerated_ms: int, in_progress_max: int) -> None:
        self._delay_target_ms = delay_target_ms
        self._delay_tolerated_ms = delay_tolerated_ms
        self.in_progress_max = in_progress_max
        self._behind_since_ms: float | None = None
        """Since when no pass found all waits within the target."""
        self._began_ms = -math.inf
        """When the last pass began."""
        self._held_until_ms = -math.inf
        self._spacing_ms = 1.0
        self._taken = 0
        self._measured_ms = 0.0
        """Since when `_taken` requests were taken."""
        self._room = 0
        self._late_room = 0
        """How many late ones this pass still takes."""
        self.refused = 0
        """Requests refused so far."""

    def is_guarded(self, now_ms: float) -> bool:
        """Tell whether requests were refused lately."""
        return now_ms < self._held_until_ms + GUARD_MS

    def has_room(self, count: int, in_progress: int) -> bool:
        """Tell whether so many more may be in progress."""
        return in_progress + count <= self.in_progress_max

    def takes_all(self, now_ms: float, oldest_ms: float, count: int, in_progress: int) -> bool:
        """Begin a pass; tell whether all its requests are taken.

        If not, ask about each: those first that are to be taken first.

        The first that came was received at `oldest_ms`; `in_progress` were taken before and are not answered yet.
        """
        if self._taken >= FEW:
            self._measure(now_ms)
        self._room = self.in_progress_max - in_progress
        if self._room >= count and (count <= FEW or now_ms - oldest_ms <= self._delay_target_ms):
            self._behind_since_ms = None
            self._taken += count
            self._began_ms = now_ms
            return True
        if now_ms - self._began_ms > PAUSE_MS:
            self._behind_since_ms = None
        self._began_ms = now_ms
        self._late_room = LATE_TAKEN
        return False

    def takes(self, now_ms: float, received_ms: float) -> bool:
        """Tell whether one request of the pass is taken."""
        if self._room <= 0:
            return self._refuse(now_ms)
        if now_ms - received_ms > self._delay_target_ms:
            if self._behind_since_ms is None:
                self._behind_since_ms = now_ms
            if now_ms - self._behind_since_ms > self._delay_tolerated_ms or self.is_guarded(now_ms):
                if not self._late_room:
                    return self._refuse(now_ms)
                self._late_room -= 1
        self._room -= 1
        self._taken += 1
        return True

    def hold_ms(self, now_ms: float) -> int:
        """Return how long the client just refused is to be held."""
        return math.ceil(self._held_until_ms - now_ms)

    def _refuse(self, now_ms: float) -> bool:
        self.refused += 1
        next_ms = max(now_ms + HOLD_MS_MIN, self._held_until_ms + self._spacing_ms)
        self._held_until_ms = min(next_ms, now_ms + HOLD_MS_MAX)
        return False

    def _measure(self, now_ms: float) -> None:
        spacing_ms = min(TAKEN_PER_RETURN * (now_ms - self._measured_ms) / self._taken, SPACING_MS_MAX)
        self._spacing_ms += (spacing_ms - self._spacing_ms) / 4
        self._taken = 0
        self._measured_ms = now_ms
