"""Connections of signed clients, by account and access key: none has all, and the longest idle gives way to newcomers.

```
    signed ──▶ of its account, or of its key, are too many? ──▶ the longest idle of these is closed, or the request
                                                                refused when none is idle
    newcomer, and the server is full of known connections ──▶ the longest idle of the account that has most is closed
    newcomer signed, and no known one was idle ──▶ the account that has most gives one up, if it has more by two
```

So accounts that keep all connections busy, however few they are, leave others as many as they have themselves. What is
given up is closed behind its next answer, and a poll on it is ended: its client loses nothing.

All keys of an account count together, those of its sessions too: an account makes as many as it likes.

A signature proves that a key signed this request at some time, not that this client has the key: who saw a presigned
URL, or one request, sends it again by as many connections as it likes. So a key has a part of what its account has.

Keys of one account are read in turn with those of others (`flows`).

Public: `Known` (`add`, `remove`, `wait_for_turn`, `make_room`, `can_make_room`, `is_shared`, `forgive`),
`KnownConnection`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from quaymaster.core.structures.largest import Largest
from quaymaster.net.http.flows import Flow, Flows
from quaymaster.net.http.message import HTTPLimits

LOOKS_MAX: Final = 256
"""So many of an account or a key are looked at for the longest idle; the busy ones among them come last next time."""
GIVEN_UP_LOOKS_MAX: Final = 64
"""So many of the account that has most are looked at for the one that has done nothing new for longest."""
IDLE_MS_MIN: Final = 2_000
"""One that was asked something less than so long ago is not closed for others: its client is about to ask again."""


class KnownConnection(Protocol):
    """What is asked of a connection."""

    def read(self, requests_max: int) -> int:
        """Take up to so many requests of what came in; return how many bytes that were."""
        ...

    def abort(self) -> None: ...

    key: str | None
    """The access key that signed its last request; None while it is a stranger's."""

    def idle_ms(self) -> float:
        """Return for how long it had nothing to do; 0 while it has."""
        ...

    def close_idle(self) -> bool:
        """Close it for others; False, and nothing is done, when something of its client has just come in."""
        ...

    gives_way: bool
    """Whether it is about to be closed for others."""

    def unchanged_ms(self) -> float:
        """Return for how long it has been doing what it does: nothing, or waiting for the same answer."""
        ...

    def give_way(self) -> None:
        """Have it closed for others as soon as its client loses nothing by that."""
        ...


class _Group:
    """The connections of a key."""

    __slots__ = ("connections",)

    def __init__(self) -> None:
        self.connections: dict[KnownConnection, None] = {}


class _Account(_Group):
    """The connections of an account, and which of them wait to be read."""

    __slots__ = ("flow",)

    def __init__(self) -> None:
        super().__init__()
        self.flow: Flow[KnownConnection] = Flow()


class Known:
    """The known connections of one server."""

    def __init__(self, limits: HTTPLimits) -> None:
        self._connections_max = limits.connections_max
        self._count_of_all = 0
        self._giving_way = 0
        """How many of them give way: their places are given already, so that one newcomer costs others one at most."""
        self._account_max = _part(limits.connections_max, limits.account_connections_percent)
        self._key_max = _part(self._account_max, limits.key_connections_percent)
        self.flows: Flows[KnownConnection] = Flows()
        """Connections that wait to be read."""
        self._keys: dict[str, _Group] = {}
        self._accounts: dict[str, _Account] = {}
        self._account_of: dict[str, str] = {}
        """Of each key that has connections."""
        self._with_most: Largest[_Account] = Largest()
        """Accounts by their connections."""
        self._busy: set[_Group] = set()
        """Those of which none was idle for long; looked at again after the next sweep, which is when some may be."""

    def wait_for_turn(self, connection: KnownConnection) -> None:
        """Have a connection read when the turn of its account comes."""
        key = connection.key
        assert key is not None, "strangers have turns of their own"
        self.flows.wait(self._accounts[self._account_of[key]].flow, connection)

    def add(self, connection: KnownConnection, key: str, account: str = "") -> bool:
        """Note whose a connection is; False when its account or its key has too many, and none of them is idle.

        Also when all connections are known ones, and no other account has more than its account by two.

        `account`: of the key; "" where each key is one of its own. Open authentication knows no keys (""): then all
        connections are one's, which may have all.
        """
        self.remove(connection)
        name = account or key
        if key and not (
            self._has_room(self._keys.get(key), self._key_max)
            and self._has_room(self._accounts.get(name), self._account_max)
            and (
                self._count_of_all - self._giving_way < self._connections_max
                or self._is_given_place(self._accounts.get(name))
            )
        ):
            return False
        connection.key = key
        self._account_of[key] = name
        self._keys.setdefault(key, _Group()).connections[connection] = None
        own = self._accounts.setdefault(name, _Account())
        own.connections[connection] = None
        self._count_of_all += 1
        self._giving_way += connection.gives_way
        self._with_most.count(own, len(own.connections) - 1, len(own.connections))
        return True

    def account_of(self, key: str) -> str:
        """Return whose a key is that has connections."""
        return self._account_of[key]

    def remove(self, connection: KnownConnection) -> None:
        """Note that it is a stranger's, or closed."""
        key = connection.key
        if key is None:
            return
        connection.key = None
        name = self._account_of[key]
        of_key, own = self._keys[key], self._accounts[name]
        del of_key.connections[connection], own.connections[connection]
        self._count_of_all -= 1
        self._giving_way -= connection.gives_way
        self._with_most.count(own, len(own.connections) + 1, len(own.connections))
        if not of_key.connections:
            del self._keys[key], self._account_of[key]
            self._busy.discard(of_key)
        if not own.connections:
            del self._accounts[name]
            self._busy.discard(own)

    @property
    def is_shared(self) -> bool:
        """Whether several accounts have connections."""
        return len(self._accounts) > 1

    def make_room(self) -> bool:
        """Close the longest idle of the account that has most; False when none is idle for long."""
        largest = self._with_most.find()
        return largest is not None and self._close_longest_idle(largest)

    def can_make_room(self) -> bool:
        """Tell whether `make_room` would."""
        largest = self._with_most.find()
        return largest is not None and any(
            connection.idle_ms() >= IDLE_MS_MIN for connection in islice(largest.connections, LOOKS_MAX)
        )

    def forgive(self) -> None:
        """Look at all accounts and keys again; called at each sweep."""
        self._busy.clear()

    def _has_room(self, group: _Group | None, connections_max: int) -> bool:
        return group is None or len(group.connections) < connections_max or self._close_longest_idle(group)

    def _is_given_place(self, own: _Account | None) -> bool:
        """Have the account that has most give one up; one that would have as many then only gives up an idle one."""
        largest = self._with_most.find()
        if largest is None or len(largest.connections) < (len(own.connections) if own else 0) + 2:
            return own is not None and self._close_longest_idle(own)
        chosen = max(
            (one for one in islice(largest.connections, GIVEN_UP_LOOKS_MAX) if not one.gives_way),
            key=lambda one: one.unchanged_ms(),
            default=None,
        )
        if chosen is None:
            return False
        del largest.connections[chosen]
        largest.connections[chosen] = None  # behind those that have not given way
        chosen.give_way()
        self._giving_way += 1
        return True

    def _close_longest_idle(self, group: _Group) -> bool:
        if group in self._busy:
            return False
        own = group.connections
        idle = [(connection.idle_ms(), connection) for connection in islice(own, LOOKS_MAX)]
        for idle_ms, connection in sorted(idle, key=lambda found: -found[0]):
            if idle_ms < IDLE_MS_MIN:
                break
            if connection.close_idle():
                return True
        for idle_ms, connection in idle:
            if idle_ms < IDLE_MS_MIN:
                del own[connection]
                own[connection] = None
        self._busy.add(group)
        return False


def _part(number: int, percent: int) -> int:
    return -(-number * percent // 100)
