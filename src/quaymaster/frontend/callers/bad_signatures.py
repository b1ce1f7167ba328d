"""Addresses that send many requests with wrong signatures: after some in a second, more are refused unread.

To verify a signature costs more than to refuse a request. An address is an IPv4 address or an IPv6 /64. Connections by
which a valid signature came are not concerned: clients behind the same address continue.
"""

from __future__ import annotations

import math
from typing import Final

from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.strangers import peer_name

BAD_PER_S_MAX: Final = 20
ADDRESSES_MAX: Final = 16_384
"""Addresses counted in a second; those that come later in it are not."""


class BadSignatures:
    """Counts them. Times are ms of any clock that does not jump."""

    def __init__(self) -> None:
        self._second = -math.inf
        self._counts: dict[str, int] = {}
        self.is_refusing = False
        """Whether an address was over its number in the last second."""

    def note(self, request: HTTPRequest, now_ms: float) -> None:
        """Note that a request's signature, key or token is wrong."""
        self._begin(now_ms)
        peer = peer_name(request.peer)
        count = self._counts.get(peer, 0) + 1
        if count == 1 and len(self._counts) >= ADDRESSES_MAX:
            return
        self._counts[peer] = count
        self.is_refusing = self.is_refusing or count >= BAD_PER_S_MAX

    def wait_ms(self, request: HTTPRequest, now_ms: float) -> int:
        """Return for how long a request's address is refused, 0 where it is not."""
        self._begin(now_ms)
        if not request.is_strangers or self._counts.get(peer_name(request.peer), 0) < BAD_PER_S_MAX:
            return 0
        return max(1, int((self._second + 1) * 1_000 - now_ms))

    def _begin(self, now_ms: float) -> None:
        second = now_ms // 1_000
        if second != self._second:
            self._second = second
            self._counts.clear()
            self.is_refusing = False
