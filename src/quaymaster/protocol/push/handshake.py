"""The handshake before an endpoint is pushed to: it says itself that it wants calls, so no queue can flood strangers.

    OPTIONS /orders                                       200 OK
    WebHook-Request-Origin: push.example.com      ──▶     WebHook-Allowed-Origin: push.example.com      (or *)

Source: "HTTP 1.1 Web Hooks for Event Delivery" 1.0.2 of CloudEvents, section 4, abuse protection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HANDSHAKE_METHOD: Final = "OPTIONS"
REQUEST_ORIGIN: Final = "WebHook-Request-Origin"
ALLOWED_ORIGIN: Final = "webhook-allowed-origin"
HANDSHAKE_GOOD_FOR_S: Final = 86_400
"""After a day, and by another pusher, an endpoint is asked again."""


def handshake_headers(origin: str) -> dict[str, str]:
    """Return the headers that ask whether an endpoint wants calls from `origin`, the name of this service."""
    return {REQUEST_ORIGIN: origin}


def allows_calls(origin: str, status: int | None, headers: Mapping[str, str]) -> bool:
    """Tell whether an answer allows calls. `status` None: there was none. Names of `headers` are in lower case."""
    if status is None or not 200 <= status < 300:
        return False
    allowed = headers.get(ALLOWED_ORIGIN, "").strip().lower()
    return allowed in ("*", origin.lower())
