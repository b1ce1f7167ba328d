"""How often clients that have signed nothing may try to sign in: in all, by address, and by name.

The console counts failures of browsers and names; this is what reaches a front end, from wherever it comes. An attempt
costs a hash of 0.2 s, or a look into the store.
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.values.errors import Overloaded, RequestThrottled
from quaymaster.net.http.forwarded import is_of_this_machine
from quaymaster.net.http.strangers import peer_name

MINUTE_MS: Final = 60_000
OF_ALL_MAX: Final = 60
"""In a minute: a fifth of one processor."""
OF_PEER_MAX: Final = 10
"""Of one IPv4 address, or /64 network of IPv6."""
OF_THIS_MACHINE_MAX: Final = 50
"""A console here, all of whose browsers come from one address."""
OF_NAME_MAX: Final = 20
"""For one user of an account."""


class SignInAttempts:
    """Counts them by the minute. Times are ms of any clock that does not jump."""

    def __init__(self) -> None:
        self._minute = -1.0
        self._all = 0
        self._of_peer: dict[str, int] = {}
        self._of_name: dict[str, int] = {}

    def enter(self, peer: str, name: str, now_ms: float) -> None:
        """Count one more; `name` empty: of a link. RequestThrottled, Overloaded."""
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            self._minute, self._all = minute, 0
            self._of_peer.clear()
            self._of_name.clear()
        peer_max = OF_THIS_MACHINE_MAX if is_of_this_machine(peer) else OF_PEER_MAX
        source = peer_name(peer)
        if self._of_peer.get(source, 0) >= peer_max:
            raise RequestThrottled("Too many sign-ins from this address. Wait a minute, then try again.")
        if name and self._of_name.get(name, 0) >= OF_NAME_MAX:
            raise RequestThrottled("Too many sign-ins of this user. Wait a minute, then try again.")
        if self._all >= OF_ALL_MAX:
            raise Overloaded
        self._all += 1
        self._of_peer[source] = self._of_peer.get(source, 0) + 1
        if name:
            self._of_name[name] = self._of_name.get(name, 0) + 1
