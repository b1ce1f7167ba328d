"""How long tests wait for what must happen, and how: until it has, for success returns at once.

A limit is there to end a run that hangs. It says nothing about how long anything may take, so there is one for all,
long enough for a machine that does much else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 300.0
INTERVAL_S = 0.05

T = TypeVar("T")


def eventually(question: Callable[[], T], what: str = "", *, interval_s: float = INTERVAL_S) -> T:
    """Ask until the answer is truthy, and return it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (answer := question()):
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what or question}"
        time.sleep(interval_s)
    return answer
