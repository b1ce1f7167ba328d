"""Connections of signed clients, by access key: no key has all of them, and the longest idle gives way to newcomers.

```
    signed ──▶ of its key are too many? ──▶ its longest idle is closed, or the request refused when none is idle
    newcomer, and the server is full of known connections ──▶ the longest idle of the key that has most is closed
```

A signature proves that a key signed this request at some time, not that this client has the key: who saw a presigned
URL, or one request, sends it again by as many connections as it likes.

Keys of one account are read in turn with those of others (`flows`).

Public: `Known` (`add`, `remove`, `wait_for_turn`, `make_room`, `can_make_room`, `forgive`), `KnownConnection`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from quaymaster.net.http.flows import Flow, Flows
from quaymaster.net.http.message import HTTPLimits

LOOKS_MAX: Final = 256
"""So many connections of a key are looked at for the longest idle; the busy ones among them come last next time."""
IDLE_MS_MIN: Final = 2_000
"""One that was asked something less than so long ago is not closed for others: its client is about to ask again."""


class KnownConnection(Protocol):
    """What is asked of a connection."""

    def read(self) -> int:
        """Take what came in; return how many bytes that were."""
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


class Known:
    """The known connections of one server."""

    def __init__(self, limits: HTTPLimits) -> None:
        self._share_max = -(-limits.connections_max * limits.key_connections_percent // 100)
        self._by_key: dict[str, dict[KnownConnection, None]] = {}
        self.flows: Flows[KnownConnection] = Flows()
        """Connections that wait to be read."""
        self._accounts: dict[str, str] = {}
        """Of each key that has connections."""
        self._flow_of: dict[str, Flow[KnownConnection]] = {}
        """Of each account that has keys with connections."""
        self._keys_of: dict[str, int] = {}
        """How many keys with connections an account has."""
        self._keys_with: dict[int, dict[str, None]] = {}
        """Which keys have so many connections."""
        self._most = 0
        """How many connections the key has that has most."""
        self._busy_keys: set[str] = set()
        """Those of which none was idle for long; looked at again after the next sweep, which is when some may be."""

    def wait_for_turn(self, connection: KnownConnection) -> None:
        """Have a connection read when the turn of its account comes."""
        key = connection.key
        assert key is not None, "strangers have turns of their own"
        self.flows.wait(self._flow_of[self._accounts[key]], connection)

    def add(self, connection: KnownConnection, key: str, account: str = "") -> bool:
        """Note whose a connection is; False when the key has too many, and none of them is idle.

        Open authentication knows no keys (""): then all connections are one's, which may have all.
        """
        self.remove(connection)
        own = self._by_key.get(key)
        if own is None:
            own = self._by_key[key] = {}
            self._enter(key, account or key)
        elif key and len(own) >= self._share_max and not self._close_longest_idle(key):
            return False
        connection.key = key
        if key not in self._by_key:  # its last one was just closed
            self._by_key[key] = own
            self._enter(key, account or key)
        own[connection] = None
        self._count(key, len(own) - 1, len(own))
        return True

    def remove(self, connection: KnownConnection) -> None:
        """Note that it is a stranger's, or closed."""
        key = connection.key
        if key is None:
            return
        connection.key = None
        own = self._by_key[key]
        del own[connection]
        self._count(key, len(own) + 1, len(own))
        if not own:
            del self._by_key[key]
            self._leave(key)

    def make_room(self) -> bool:
        """Close the longest idle of the key that has most; False when none is idle for long."""
        key = self._largest()
        return key is not None and self._close_longest_idle(key)

    def can_make_room(self) -> bool:
        """Tell whether `make_room` would."""
        key = self._largest()
        return key is not None and any(
            connection.idle_ms() >= IDLE_MS_MIN for connection in islice(self._by_key[key], LOOKS_MAX)
        )

    def forgive(self) -> None:
        """Look at all keys again; called at each sweep."""
        self._busy_keys.clear()

    def _enter(self, key: str, account: str) -> None:
        self._accounts[key] = account
        self._keys_of[account] = self._keys_of.get(account, 0) + 1
        if account not in self._flow_of:
            self._flow_of[account] = Flow()

    def _leave(self, key: str) -> None:
        account = self._accounts.pop(key)
        self._keys_of[account] -= 1
        if not self._keys_of[account]:
            del self._keys_of[account], self._flow_of[account]

    def _largest(self) -> str | None:
        return next(iter(self._keys_with[self._most])) if self._most else None

    def _count(self, key: str, before: int, now: int) -> None:
        """Note that a key has one connection more, or one less."""
        if before:
            del self._keys_with[before][key]
            if not self._keys_with[before]:
                del self._keys_with[before]
        if now:
            self._keys_with.setdefault(now, {})[key] = None
        if now > self._most or (before == self._most and before not in self._keys_with):
            self._most = now

    def _close_longest_idle(self, key: str) -> bool:
        if key in self._busy_keys:
            return False
        own = self._by_key[key]
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
        self._busy_keys.add(key)
        return False
