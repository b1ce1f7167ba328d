"""What clients get before a signature of theirs was verified: connections, memory and turns, by peer and in all.

A connection is a *stranger's* until a request that came by it was found signed, and again after one that was not:

```
    accepted ──▶ stranger ──signed──▶ known ──not signed──▶ stranger
                    │
                    ├── its peer has too many of them, or there is no room ──▶ the oldest is closed
                    └── they hold too much memory ──▶ the one heard least lately gives its back:
                        of its peer, or of the peer that holds most where all hold too much
```

So an attacker pushes out his own connections before those of others, and what stalls goes before what comes in. A
peer is an IPv4 address, or a /64 network of IPv6: a client has all addresses of it.

Who was answered and is still a stranger is *late*, the others are *newcomers*. While known connections are served, both
rest after requests that were not signed, and late ones for longer (`UnsignedTime`).

Public: `Strangers` (`may_connect`, `make_room_for`, `make_room`, `forgive`, `add`, `remove`, `keep`, `wait_for_turn`,
`next_turn`, `is_waiting`, `kept_bytes`), `PeerShare`, `Stranger`, `UnsignedTime`.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

from quaymaster.net.http.message import HTTPLimits

LOOKS_MAX: Final = 256
"""So many of the oldest are looked at for one that can be closed, or for one of the peer that holds most."""
REPLACED_MAX: Final = 100
"""So many connections may be closed for others of one peer between two sweeps, which is half a second. To accept and
to close one takes 100 us, so a peer that connects all the time would take much of the loop."""

NEWCOMER_REST: Final = 3
LATE_REST: Final = 15
"""While known connections are served, newcomers and late ones rest for so many times what they used unsigned."""
REST_MAX_S: Final = 0.1
"""No rest is longer, so that one dear request, as a large page of metrics, does not shut everybody out."""
KNOWN_FOR_S: Final = 0.1
"""Known connections are being served when one was within this time."""


class UnsignedTime:
    """How much time strangers have, on all ports of one event loop. All times are seconds of the monotonic clock."""

    __slots__ = ("_known_at_s", "_rest_until_s")

    def __init__(self) -> None:
        self._known_at_s = -KNOWN_FOR_S
        self._rest_until_s = [0.0, 0.0]
        """Of newcomers, and of those that are late."""

    def note_known(self, now_s: float) -> None:
        """Note that a request of a known connection came in."""
        self._known_at_s = now_s

    def is_shared(self, now_s: float) -> bool:
        """Tell whether known connections are being served, with which strangers share the loop."""
        return now_s - self._known_at_s < KNOWN_FOR_S

    def charge(self, used_s: float, now_s: float, *, is_late: bool) -> None:
        """Have newcomers, or late ones, rest after so much unsigned processor time.

        What they used while they rest, by actions that were begun before, makes the rest longer.
        """
        if self.is_shared(now_s):
            rest_s = (LATE_REST if is_late else NEWCOMER_REST) * used_s
            rests_s = max(0.0, self._rest_until_s[is_late] - now_s)
            self._rest_until_s[is_late] = now_s + min(rests_s + rest_s, REST_MAX_S)

    def rest_s(self, now_s: float, *, is_late: bool) -> float:
        """Return for how long they rest from now on; 0 or less when they do not."""
        return self._rest_until_s[is_late] - now_s


class PeerShare:
    """What the strangers of one peer have."""

    __slots__ = ("connections", "heavy", "holders", "is_heavy_next", "kept_bytes", "late", "light", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections: dict[Stranger, None] = {}
        """The oldest first."""
        self.holders: dict[Stranger, None] = {}
        """Those whose memory is counted, the one heard least lately first."""
        self.kept_bytes = 0
        self.light: deque[Stranger] = deque()
        """Newcomers that wait for their turn and sent little so far: who signs is known after one turn."""
        self.heavy: deque[Stranger] = deque()
        """And those that sent much; they and the others are read alternately."""
        self.is_heavy_next = False
        self.late: deque[Stranger] = deque()
        """Late ones that wait for their turn."""

    @property
    def has_newcomers(self) -> bool:
        """Whether a newcomer waits for its turn."""
        return bool(self.light or self.heavy)


class Stranger(Protocol):
    """What is asked of a connection."""

    share: PeerShare | None
    """Its peer's, while it is a stranger's."""
    counted_bytes: int
    """What `Strangers.keep` was told last."""

    @property
    def has_much(self) -> bool:
        """Whether it sent much."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether an answer went to it that was not for something signed."""
        ...

    def read(self, requests_max: int) -> int:
        """Take up to so many requests of what came in; return how many bytes that were."""
        ...

    def abort(self) -> None: ...

    def can_be_closed(self) -> bool:
        """Tell whether no request of it waits for an answer, or to be read for the first time."""
        ...

    def close_for_others(self) -> None:
        """Close it, so that there is room for others."""
        ...

    def give_memory_back(self) -> None:
        """Refuse what is coming in, or close it, so that there is memory for others."""
        ...


class Strangers:
    """The strangers of one server."""

    def __init__(self, limits: HTTPLimits) -> None:
        self._limits = limits
        self._connections: dict[Stranger, None] = {}
        self._holders: dict[Stranger, None] = {}
        self._shares: dict[str, PeerShare] = {}
        self._turns: deque[PeerShare] = deque()
        """Peers some of whose newcomers wait for a turn."""
        self._late_turns: deque[PeerShare] = deque()
        """Peers some of whose late ones do."""
        self.kept_bytes = 0
        """Memory that is counted: received and not taken, and unsent."""
        self._replaced: dict[str, int] = {}
        """How many were closed for others of each peer since the last sweep."""

    def __len__(self) -> int:
        return len(self._connections)

    def may_connect(self, peer: str) -> bool:
        """Tell whether a peer may connect now: not while too many were just closed for others of it."""
        return not self._replaced or self._replaced.get(peer_name(peer), 0) < REPLACED_MAX

    def forgive(self) -> None:
        """Forget what was closed for others; called at each sweep."""
        self._replaced.clear()

    def make_room_for(self, peer: str) -> bool:
        """Let a peer have one more, for another if need be; False when those that could go wait for an answer.

        Where its own are too many, its oldest goes. Where those of all are, its oldest goes if it has more than peers
        have on average, else the oldest of all.
        """
        limits = self._limits
        share = self._shares.get(peer_name(peer))
        of_peer = 0 if share is None else len(share.connections)
        if of_peer < limits.unsigned_peer_connections_max and len(self) < limits.unsigned_connections_max:
            return True
        is_greedy = of_peer >= limits.unsigned_peer_connections_max or of_peer * len(self._shares) > len(self)
        return self._replace(
            share.connections if share is not None and is_greedy else self._connections, peer
        )

    def make_room(self, peer: str) -> bool:
        """Close the oldest for one more of a peer; False when there is none that can be closed."""
        return self._replace(self._connections, peer)

    def can_make_room(self) -> bool:
        """Tell whether `make_room` would."""
        return _oldest(self._connections) is not None

    def add(self, connection: Stranger, peer: str) -> None:
        """Note that a connection is a stranger's."""
        name = peer_name(peer)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = PeerShare(name)
        connection.share = share
        share.connections[connection] = None
        self._connections[connection] = None

    def remove(self, connection: Stranger) -> None:
        """Note that it is known now, or closed."""
        share = connection.share
        if share is None:
            return
        self._count(connection, share, 0)
        connection.share = None
        del share.connections[connection]
        del self._connections[connection]
        if not share.connections:
            del self._shares[share.name]

    def keep(self, connection: Stranger, kept_bytes: int) -> None:
        """Note the memory that a connection takes now, which was just heard; where it is too much, some give theirs."""
        share = connection.share
        if share is None or (kept_bytes == 0 and connection.counted_bytes == 0):
            return
        self._count(connection, share, kept_bytes)
        if share.kept_bytes > self._limits.unsigned_peer_bytes_max:
            self._relieve(share.holders, share)
        elif self.kept_bytes > self._limits.unsigned_bytes_max:
            self._relieve(self._holders, None)

    def wait_for_turn(self, connection: Stranger) -> None:
        """Have a connection read when its turn comes: peers take turns, and so do the connections of each.

        Late ones keep no newcomers waiting, and those of a peer that sent much none that sent little.
        """
        share = connection.share
        assert share is not None, "known connections do not wait among strangers"
        if connection.is_late:
            if not share.late:
                self._late_turns.append(share)
            share.late.append(connection)
        else:
            if not share.has_newcomers:
                self._turns.append(share)
            (share.heavy if connection.has_much else share.light).append(connection)

    def is_waiting(self, *, is_late: bool) -> bool:
        """Tell whether a newcomer, or a late one, waits for a turn."""
        return bool(self._late_turns if is_late else self._turns)

    def next_turn(self, *, is_late: bool) -> Stranger | None:
        """Return which newcomer's, or which late one's, turn it is."""
        if not self.is_waiting(is_late=is_late):
            return None
        return self._next_late() if is_late else self._next_newcomer()

    def _next_late(self) -> Stranger:
        share = self._late_turns.popleft()
        connection = share.late.popleft()
        if share.late:
            self._late_turns.append(share)
        return connection

    def _next_newcomer(self) -> Stranger:
        share = self._turns.popleft()
        is_heavy = bool(share.heavy) and (share.is_heavy_next or not share.light)
        connection = (share.heavy if is_heavy else share.light).popleft()
        share.is_heavy_next = not is_heavy
        if share.has_newcomers:
            self._turns.append(share)
        return connection

    def _replace(self, connections: Iterable[Stranger], peer: str) -> bool:
        oldest = _oldest(connections)
        if oldest is None:
            return False
        name = peer_name(peer)
        self._replaced[name] = self._replaced.get(name, 0) + 1
        oldest.close_for_others()
        return True

    def _count(self, connection: Stranger, share: PeerShare, kept_bytes: int) -> None:
        more = kept_bytes - connection.counted_bytes
        share.kept_bytes += more
        self.kept_bytes += more
        connection.counted_bytes = kept_bytes
        for holders in (share.holders, self._holders):
            holders.pop(connection, None)
            if kept_bytes:
                holders[connection] = None

    def _relieve(self, holders: dict[Stranger, None], share: PeerShare | None) -> None:
        limits = self._limits
        while holders and (
            self.kept_bytes > limits.unsigned_bytes_max
            or (share is not None and share.kept_bytes > limits.unsigned_peer_bytes_max)
        ):
            victim = next(iter(holders)) if share is not None else _of_largest_peer(holders)
            owner = victim.share
            assert owner is not None, "strangers have a share"
            self._count(victim, owner, 0)
            victim.give_memory_back()


def _of_largest_peer(holders: Iterable[Stranger]) -> Stranger:
    """Return the one heard least lately of the peer that holds most, among the first that are looked at."""
    return max(
        islice(holders, LOOKS_MAX),
        key=lambda holder: 0 if holder.share is None else holder.share.kept_bytes,
    )


def peer_name(address: str) -> str:
    """Return what an address is counted as."""
    return _of_prefix(address, 64)


def network_name(address: str) -> str:
    """Return the network that an address is of where one client may have more than what `peer_name` says: a /48."""
    return _of_prefix(address, 48)


def _of_prefix(address: str, bits: int) -> str:
    """Return an IPv4 address as it is, and of IPv6 the network with a prefix of so many bits."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    rest = 128 - bits
    return f"{ipaddress.IPv6Address(int(found) >> rest << rest)}/{bits}"


def _oldest(connections: Iterable[Stranger]) -> Stranger | None:
    return next(
        (connection for connection in islice(connections, LOOKS_MAX) if connection.can_be_closed()), None
    )
