"""Which processes of a cell run: each writes one row, bound to its lease, and takes it away when it ends.

    alive/<role>/<node>    PresenceRow

A process that is killed is seen to be gone once its lease has ended. One whose lease ended while it lives (the store
was away for longer) writes its row again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from quaymaster.coordination.interface import Coordination, LeaseExpired, Put
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import FORMAT_MAX, FORMAT_MIN
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise

ALIVE: Final = "alive/"
LEASE_MS: Final = 10_000
SHORT_LEASE_MS: Final = 2_000
"""Of processes that others look for, and would wait for if they were gone."""


def alive_key(role: str, node: str = "") -> str:
    """Return where a process's row is; without a node, what the rows of all processes of a role begin with."""
    return f"{ALIVE}{role}/{node}"


class PresenceRow(msgspec.Struct, frozen=True):
    """A running process, and the formats that it reads. `address`, `admin`: where it answers, if so found."""

    role: str
    node: str
    version: str
    format_min: int = FORMAT_MIN
    format_max: int = FORMAT_MAX
    zone: str = ""
    address: str = ""
    admin: str = ""

    @property
    def key(self) -> str:
        """Where it is kept."""
        return alive_key(self.role, self.node)


_encode = msgspec.msgpack.Encoder().encode
_rows = msgspec.msgpack.Decoder(PresenceRow)


class Presence:
    """The row of this process, from `register` to `close`."""

    def __init__(
        self,
        store: Coordination,
        row: PresenceRow,
        *,
        lease_ms: int = LEASE_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.row = row
        self._clock = clock
        self._store = store
        self._lease_ms = lease_ms
        self._lease_id = 0
        self._renewed_s = -math.inf
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def renewed_s(self) -> float:
        """When the lease was last asked for, or to be renewed, with success: a time of its clock; -inf: never."""
        return self._renewed_s

    def samples(self) -> Iterator[Sample]:
        """A source for `Metrics`."""
        left_s = self._renewed_s + self._lease_ms / 1_000 - self._clock()
        yield Sample("quaymaster_lease_remaining_seconds", max(0.0, left_s))

    async def register(self) -> None:
        """Write the row. Raises NotNow, LeaseExpired."""
        asked_s = self._clock()
        self._lease_id = await self._store.grant_lease(self._lease_ms)
        await self._store.transaction([], [Put(self.row.key, _encode(self.row), self._lease_id)])
        self._renewed_s = asked_s

    def keep(self) -> None:
        """Keep the row there from now on."""
        self._keeper = supervise(asyncio.create_task(self._keep(), name="presence"))

    async def close(self) -> None:
        """Take the row away, as far as the store can be reached; else it ends with its lease. Once is enough."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if not self._lease_id:
            return  # it was never registered
        with contextlib.suppress(NotNow, TimeoutError):
            async with asyncio.timeout(self._lease_ms / 10_000):
                await self._store.revoke_lease(self._lease_id)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3_000)
            asked_s = self._clock()
            try:
                await self._store.keep_alive(self._lease_id)
                self._renewed_s = asked_s
            except LeaseExpired:
                with contextlib.suppress(NotNow, LeaseExpired):
                    await self.register()
            except NotNow:
                pass  # looked at again in a moment


def decode_presence(value: bytes) -> PresenceRow:
    """Return the row of a process; msgspec.MsgspecError when it cannot be read."""
    return _rows.decode(value)


async def list_alive(store: Coordination) -> list[PresenceRow]:
    """Return the processes that run, and those that have ended a moment ago."""
    items, _ = await store.list_all(ALIVE)
    return [decode_presence(item.value) for item in items]
