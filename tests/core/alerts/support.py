"""An alert for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from quaymaster.core.alerts.alerts import Alert

PLAIN = Alert(
    *("000000000000", "orders-old", "queue", "orders", "ApproximateAgeOfOldestMessage", "Maximum"),
    *(60, "GreaterThanThreshold", 300.0, 3, 3),
    created_ms=1_000,
    updated_ms=1_000,
)


def an_alert(**changes: Any) -> Alert:
    """Return an alert on orders: age over 300 s for 3 of 3 minutes."""
    return msgspec.structs.replace(PLAIN, **changes)
