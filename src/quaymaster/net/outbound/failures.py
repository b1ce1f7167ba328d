"""Why a call to another system has no usable answer. Apart from the client: who expects them need not import it."""

from __future__ import annotations


class OutboundError(Exception):
    """A call without a usable answer. The message says why; it holds neither address nor URL.

    `may_have_acted` tells whether the other side may have received the request; `was_dialed`, whether an address of
    the host was allowed and dialed. Without it nothing is known of where the host is.
    """

    def __init__(self, message: str, *, may_have_acted: bool = False, was_dialed: bool = False) -> None:
        super().__init__(message)
        self.may_have_acted = may_have_acted
        self.was_dialed = was_dialed or may_have_acted


class OutboundRefused(OutboundError):
    """The URL, or each address of its host, may not be called. Trying again does not help."""


class OutboundBusy(OutboundError):
    """Too many calls wait already; nothing was sent."""


class OutboundFailed(OutboundError):
    """No connection, no valid certificate, no HTTP, no answer in time, or one that is too long."""
