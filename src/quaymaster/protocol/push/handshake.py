"""The handshake before an endpoint is pushed to: it says itself that it wants calls, so no queue can flood strangers.

    OPTIONS /orders                                       200 OK
    WebHook-Request-Origin: push.example.com      ──▶     WebHook-Allowed-Origin: push.example.com      (or *)
                                                          WebHook-Allowed-Rate: 120     calls a minute (or *)

No rate is asked for: as many calls are wanted as the endpoint takes, and a number is all that could be said. An answer
without a rate sets no bound. One with something else than a number is no permission: what it allows is not known.

Source: "HTTP 1.1 Web Hooks for Event Delivery" 1.0.2 of CloudEvents, section 4, abuse protection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

HANDSHAKE_METHOD: Final = "OPTIONS"
REQUEST_ORIGIN: Final = "WebHook-Request-Origin"
ALLOWED_ORIGIN: Final = "webhook-allowed-origin"
ALLOWED_RATE: Final = "webhook-allowed-rate"
HANDSHAKE_GOOD_FOR_S: Final = 86_400
"""After a day, and by another pusher, an endpoint is asked again."""


_RATE_DIGITS_MAX: Final = 9
"""Calls cannot be made faster."""
_RATE_SHOWN_MAX: Final = 32


class Permission(NamedTuple):
    """What an endpoint allows: calls if `refusal`, why it gets none, is empty.

    `calls_per_minute` at most; None: as many as it takes.
    """

    refusal: str
    calls_per_minute: int | None = None


def handshake_headers(origin: str) -> dict[str, str]:
    """Return the headers that ask whether an endpoint wants calls from `origin`, the name of this service."""
    return {REQUEST_ORIGIN: origin}


def permission_of(origin: str, status: int | None, headers: Mapping[str, str]) -> Permission:
    """Return what an answer allows. `status` None: there was none. Names of `headers` are in lower case."""
    allowed = headers.get(ALLOWED_ORIGIN, "").strip().lower()
    if status is None or not 200 <= status < 300 or allowed not in ("*", origin.lower()):
        return Permission(f"it answered the handshake with status {status}, and does not allow calls")
    rate = headers.get(ALLOWED_RATE, "*").strip()
    if rate == "*":
        return Permission("")
    digits = rate.lstrip("0")
    if not rate.isascii() or not rate.isdigit() or not digits:
        return Permission(
            f"it answered the handshake with the WebHook-Allowed-Rate {rate[:_RATE_SHOWN_MAX]!r}, "
            "which is neither a number of calls above 0 nor *"
        )
    return Permission("", int(digits) if len(digits) <= _RATE_DIGITS_MAX else None)
