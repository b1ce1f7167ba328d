"""How often browsers may ask, and sign-ins may fail. Memory is bounded: names not seen for longest are forgotten."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

REQUESTS_PER_S: Final = 50
REQUESTS_BURST: Final = 100
"""Of one session; a page with all its files is a dozen."""
FAILURES_PER_ADDRESS: Final = 5
FAILURES_PER_NAME: Final = 20
FAILURES_WINDOW_S: Final = 60
NAMES_MAX: Final = 10_000


class Buckets:
    """Tokens by name: each has up to `burst` of them and gets `per_s` a second."""

    def __init__(
        self,
        *,
        per_s: float,
        burst: float,
        names_max: int = NAMES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._names_max = names_max
        self._clock = clock
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, name: str) -> bool:
        """Tell whether a name has a token; takes none."""
        return self._level(name) >= 1

    def take(self, name: str) -> bool:
        """Take a token of a name; False: it has none."""
        level = self._level(name)
        is_taken = level >= 1
        self._tokens[name] = (level - 1 if is_taken else level, self._clock())
        self._tokens.move_to_end(name)
        if len(self._tokens) > self._names_max:
            self._tokens.popitem(last=False)
        return is_taken

    def _level(self, name: str) -> float:
        known = self._tokens.get(name)
        if known is None:
            return self._burst
        level, at_s = known
        return min(self._burst, level + (self._clock() - at_s) * self._per_s)


class SignInFailures:
    """Counts failed sign-ins, by browser address and by the name that was tried."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._by_address = _failures(FAILURES_PER_ADDRESS, clock)
        self._by_name = _failures(FAILURES_PER_NAME, clock)

    def may_try(self, address: str, name: str) -> bool:
        """Tell whether another try from an address, as a name, is answered at all."""
        return self._by_address.has(address) and self._by_name.has(name)

    def note(self, address: str, name: str) -> None:
        """Note a failed try."""
        self._by_address.take(address)
        self._by_name.take(name)


def _failures(count: int, clock: Callable[[], float]) -> Buckets:
    return Buckets(per_s=count / FAILURES_WINDOW_S, burst=count, clock=clock)
