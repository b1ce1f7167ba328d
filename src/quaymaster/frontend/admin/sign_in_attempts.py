"""How often clients that have signed nothing may try to sign in: in all, by address, and by name.

The console counts failures of browsers and names; this is what reaches a front end, from wherever it comes. An attempt
costs a hash of 0.2 s, or a look into the store.

    an address's first two in a minute    the whole share of all
    its others                            two thirds of that: a few addresses that try all the time leave room
    where this user signed in before      a share of their own: others cannot keep them out
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.values.errors import Overloaded, RequestThrottled
from quaymaster.net.http.forwarded import is_of_this_machine
from quaymaster.net.http.strangers import peer_name

MINUTE_MS: Final = 60_000
OF_ALL_MAX: Final = 60
"""In a minute: a fifth of one processor."""
FIRST_MAX: Final = 2
"""So many of an address are its first ones."""
REPEATED_ALL_MAX: Final = 40
"""Up to so many in all, an address may try again and again."""
OF_KNOWN_MAX: Final = 30
"""Where users signed in before: a tenth of a processor more."""
KNOWN_MAX: Final = 4_096
"""Addresses and users that are remembered, until this process ends."""
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
        self._of_known = 0
        self._known: dict[tuple[str, str], None] = {}
        """Addresses from which users signed in, with these; the latest are last."""

    def succeed(self, peer: str, name: str) -> None:
        """Remember that a user signed in from an address; `name` empty: by a link."""
        known = (peer_name(peer), name)
        self._known.pop(known, None)
        self._known[known] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def enter(self, peer: str, name: str, now_ms: float) -> None:
        """Count one more; `name` empty: of a link. RequestThrottled, Overloaded."""
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            self._minute, self._all, self._of_known = minute, 0, 0
            self._of_peer.clear()
            self._of_name.clear()
        peer_max = OF_THIS_MACHINE_MAX if is_of_this_machine(peer) else OF_PEER_MAX
        source = peer_name(peer)
        tried = self._of_peer.get(source, 0)
        if tried >= peer_max:
            raise RequestThrottled("Too many sign-ins from this address. Wait a minute, then try again.")
        if (source, name) in self._known and self._of_known < OF_KNOWN_MAX:
            self._of_known += 1
            self._of_peer[source] = tried + 1
            return
        if name and self._of_name.get(name, 0) >= OF_NAME_MAX:
            raise RequestThrottled("Too many sign-ins of this user. Wait a minute, then try again.")
        if self._all >= (OF_ALL_MAX if tried < FIRST_MAX else REPEATED_ALL_MAX):
            raise Overloaded
        self._all += 1
        self._of_peer[source] = tried + 1
        if name:
            self._of_name[name] = self._of_name.get(name, 0) + 1
