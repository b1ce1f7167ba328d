"""How fast an endpoint is called: not more often in any minute than it allowed.

A bucket (`core/limits/bucket`) has a second's calls and one more, so that a pusher that looks a moment late loses
nothing. It fills so much slower than the endpoint allows that no minute has more calls than that, the full bucket
included:

    burst + (calls that come back in a minute) = calls_per_minute + 1, of which the last is due as the minute ends

Pure: times are milliseconds of a clock that does not jump.
"""

from __future__ import annotations

import math
import sys
from typing import Final

from quaymaster.core.limits.bucket import Bucket

MINUTE_MS: Final = 60_000
_PART: Final = 1e-6
"""Parts of a call add up to it, as in a bucket."""


class Pace:
    """The calls of one pusher to one endpoint. `calls_per_minute` None: as many as it takes."""

    def __init__(self) -> None:
        self.calls_per_minute: int | None = None
        self._bucket: Bucket | None = None
        self._call_ms = 0.0
        """In so long a call comes back."""

    def allow(self, calls_per_minute: int | None, now_ms: int) -> None:
        """The endpoint allows so many calls from now on, 1 or more. What was called before counts."""
        if calls_per_minute == self.calls_per_minute:
            return
        self.calls_per_minute = calls_per_minute
        if calls_per_minute is None:
            self._bucket = None
            return
        burst = 1 + calls_per_minute // 60
        per_minute = calls_per_minute + 1 - burst
        self._call_ms = MINUTE_MS / per_minute
        rate = per_minute / 60
        more = 0.0
        if self._bucket is None:
            self._bucket = Bucket(rate, now_ms)
            more = burst - self._bucket.tokens
        self._bucket.accrue(rate, now_ms, burst=burst, more=more)

    def room(self, now_ms: int, asked: int) -> int:
        """Return how many more calls may begin now, when `asked` others are about to."""
        if self._bucket is None:
            return sys.maxsize
        self._bucket.has_tokens(now_ms)
        return max(0, math.floor(self._bucket.tokens + _PART) - asked)

    def next_ms(self, now_ms: int, asked: int) -> int | None:
        """Return when there may be room again; None: there is, or no call has to wait for time."""
        if self.room(now_ms, asked) or self._bucket is None:
            return None
        wait_ms = self._call_ms if asked else self._bucket.wait_ms(now_ms)
        return now_ms + max(1, math.ceil(wait_ms))

    def begin(self, now_ms: int) -> None:
        """A call begins."""
        if self._bucket is not None:
            self._bucket.charge(1, now_ms)
