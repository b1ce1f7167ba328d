"""What comes of an attempt to deliver, and when the next one is due.

    2xx                          delivered
    410                          gone: the receiver wants no more of it
    other answers, none at all   tried again after 5 s, 30 s, 2 min, 10 min, 30 min and then each hour, for a day
    the URL may not be called    failed: trying again does not help

Source: the Standard Webhooks specification, 1.0.0, "Deliverability and reliability".
"""

from __future__ import annotations

from typing import Final, Literal

Outcome = Literal["delivered", "retry", "failed"]

DELAYS_S: Final = (5, 30, 120, 600, 1_800, 3_600)
"""How long after each attempt the next one is due; the last one again and again."""
KEPT_S: Final = 86_400
"""So long after a message was made it is tried."""
GONE: Final = 410


def outcome_of(status: int) -> Outcome:
    """Return what a receiver's answer means."""
    if 200 <= status < 300:
        return "delivered"
    return "failed" if status == GONE else "retry"


def next_attempt_ms(attempts: int, now_ms: int, made_ms: int) -> int | None:
    """Return when to try again after so many attempts, 1 or more; None: not any more."""
    due_ms = now_ms + DELAYS_S[min(attempts, len(DELAYS_S)) - 1] * 1_000
    return None if due_ms > made_ms + KEPT_S * 1_000 else due_ms
