"""The store in memory: twin of SQLite and etcd for tests and simulations. Nothing survives the process."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

from quaymaster.coordination.interface import (
    ABSENT,
    LEASE_TTL_MIN_MS,
    LIST_LIMIT_MAX,
    Compare,
    Coordination,
    CoordinationUnavailable,
    Event,
    KeyValue,
    LeaseExpired,
    Listing,
    Put,
    RevisionMismatch,
    WatchLost,
    check_limit,
    check_transaction,
)


def wall_clock_ms() -> int:
    """Return the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class MemoryCoordination(Coordination):
    """All keys in one dict, all recent changes in one bounded history. Use within one event loop."""

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms, history_max: int = 10_000) -> None:
        self._now_ms = now_ms
        self._rows: dict[str, KeyValue] = {}
        self._revision = 0
        self._history: deque[Event] = deque()
        self._history_max = history_max
        self._forgotten_revision = 0
        self._watchers: set[asyncio.Event] = set()
        self._lease_of: dict[str, int] = {}
        self._leases: dict[int, tuple[int, int]] = {}  # id -> (ttl, expires)
        self._lease_count = 0
        self._lease_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def get(self, key: str) -> KeyValue | None:
        self._enter()
        return self._rows.get(key)

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        check_limit(limit)
        self._enter()
        keys = sorted(key for key in self._rows if key.startswith(prefix) and key > after)
        return Listing(
            tuple(self._rows[key] for key in keys[:limit]), revision=self._revision, more=len(keys) > limit
        )

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        check_transaction(compares, puts, deletes)
        self._enter()
        for compare in compares:
            row = self._rows.get(compare.key)
            found = row.revision if row else ABSENT
            if found != compare.revision:
                raise RevisionMismatch(compare.key, compare.revision, found)
        for put in puts:
            if put.lease_id and put.lease_id not in self._leases:
                raise LeaseExpired(f"lease {put.lease_id} is over")
        self._apply(puts, deletes)
        return self._revision

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        wake = asyncio.Event()
        self._watchers.add(wake)
        position = after_revision
        try:
            while True:
                self._enter()
                if position < self._forgotten_revision:
                    raise WatchLost(f"changes before revision {self._forgotten_revision} are forgotten")
                wake.clear()
                start = bisect_right(self._history, position, key=lambda event: event.revision)
                events = [
                    event for event in islice(self._history, start, None) if event.key.startswith(prefix)
                ]
                position = max(position, self._revision)
                if events:
                    yield events
                else:
                    await wake.wait()
        finally:
            self._watchers.discard(wake)

    async def grant_lease(self, ttl_ms: int) -> int:
        self._enter()
        self._lease_count += 1
        ttl_ms = max(ttl_ms, LEASE_TTL_MIN_MS)
        self._leases[self._lease_count] = (ttl_ms, self._now_ms() + ttl_ms)
        self._arm_lease_timer()
        return self._lease_count

    async def keep_alive(self, lease_id: int) -> None:
        self._enter()
        if lease_id not in self._leases:
            raise LeaseExpired(f"lease {lease_id} is over")
        ttl_ms, _ = self._leases[lease_id]
        self._leases[lease_id] = (ttl_ms, self._now_ms() + ttl_ms)

    async def revoke_lease(self, lease_id: int) -> None:
        self._enter()
        self._end_lease(lease_id)

    async def close(self) -> None:
        self._closed = True
        if self._lease_timer:
            self._lease_timer.cancel()
        self._wake_watchers()

    def _enter(self) -> None:
        if self._closed:
            raise CoordinationUnavailable("The metadata store is closed.")
        self._expire_leases()

    def _apply(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        self._revision += 1
        for put in puts:
            self._rows[put.key] = KeyValue(put.key, put.value, self._revision)
            self._history.append(Event(put.key, put.value, self._revision))
            self._lease_of.pop(put.key, None)
            if put.lease_id:
                self._lease_of[put.key] = put.lease_id
        for key in deletes:
            if self._rows.pop(key, None):
                self._history.append(Event(key, None, self._revision))
                self._lease_of.pop(key, None)
        while len(self._history) > self._history_max:
            self._forgotten_revision = self._history.popleft().revision
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for wake in self._watchers:
            wake.set()

    def _end_lease(self, lease_id: int) -> None:
        if self._leases.pop(lease_id, None):
            keys = [key for key, owner in self._lease_of.items() if owner == lease_id]
            if keys:
                self._apply([], keys)

    def _expire_leases(self) -> None:
        if self._leases:
            now_ms = self._now_ms()
            for lease_id in [id_ for id_, (_, expires_ms) in self._leases.items() if expires_ms <= now_ms]:
                self._end_lease(lease_id)

    def _arm_lease_timer(self) -> None:
        if self._leases and not self._closed and self._lease_timer is None:
            due_ms = min(expires_ms for _, expires_ms in self._leases.values()) - self._now_ms()
            self._lease_timer = asyncio.get_running_loop().call_later(
                max(due_ms, LEASE_TTL_MIN_MS) / 1000, self._on_lease_timer
            )

    def _on_lease_timer(self) -> None:
        self._lease_timer = None
        self._expire_leases()
        self._arm_lease_timer()
