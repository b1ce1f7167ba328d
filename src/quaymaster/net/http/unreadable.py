"""Why a request cannot be read on, whether its head or its body is to blame."""

from __future__ import annotations


class UnreadableRequest(Exception):
    """This request cannot be read on. `event` is the name under which it is counted."""

    def __init__(self, status: int, event: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.event = event
        self.message = message


def malformed(message: str) -> UnreadableRequest:
    """Return the refusal of what is not HTTP, or not as HTTP has it."""
    return UnreadableRequest(400, "rejected_malformed", message)
