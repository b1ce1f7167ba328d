"""A manager's process: the product's in-cluster manager as it is, over a simulated loop, network and store.

Nothing of its wisdom is here. `StoreClient` is its coordination, `Link` its way to a broker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from quaymaster.coordination.cell_keys import (
    JOURNALS,
    BrokerRegistration,
    decode_configuration,
    journal_of,
)
from quaymaster.coordination.interface import (
    LIST_LIMIT_MAX,
    Compare,
    Coordination,
    CoordinationUnavailable,
    Event,
    KeyValue,
    Listing,
    OutcomeUnknown,
    Put,
)
from quaymaster.core.cell.cell import BrokerReport
from quaymaster.core.values.errors import ConnectionLost, Timeout
from quaymaster.managers.broker_link import DROP_TIMEOUT_MS, PREPARE_TIMEOUT_MS, TRANSFER_TIMEOUT_MS
from quaymaster.managers.in_cluster import InClusterManager
from sim.kernel import MS, Clock, Violation
from sim.loop import SimLoop
from sim.messages import BrokerAnswer, BrokerCall, ConnectionClosed
from sim.store import STORE, WATCH_US, StoreAnswer, StoreCall

if TYPE_CHECKING:
    import asyncio

    from sim.cell import Cell

STORE_TIMEOUT_MS = 2_000
WATCH_TIMEOUT_MS = 500 + WATCH_US // MS


class Manager:
    """A host with a manager's process; several do no harm."""

    def __init__(self, cell: Cell, name: str, clock: Clock) -> None:
        self.cell = cell
        self.name = name
        self.clock = clock
        self.is_up = False
        self.loop: SimLoop
        self.product: InClusterManager
        self._kernel = cell.kernel
        self._network = cell.network
        self._numbers = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._on_closed: dict[str, Callable[[], None]] = {}
        self._deferred: deque[tuple[str, object]] = deque()
        self._is_paused = False
        cell.network.connect(name, self._receive)

    # Life

    def start(self) -> None:
        """Start a process, which knows nothing."""
        if self.is_up:
            return
        self.is_up = True
        self._is_paused = False
        self.loop = SimLoop(self._kernel)  # type: ignore[abstract]  # it has what a manager uses
        self._waiting = {}
        self._on_closed = {}
        self._deferred.clear()
        self.product = self.cell.bugs.variant(InClusterManager)(
            self.name,
            StoreClient(self),
            self._connect,
            settings=self.cell.faults.placement,
            now_ms=self.clock.monotonic_ms,
            on_failure=self._on_failure,
        )
        self.product.leadership._now_ms = self.clock.monotonic_ms
        self.loop.call_soon(self.product.start)

    def _on_failure(self, error: Exception) -> None:
        raise error

    def end(self) -> None:
        """The process ends, as if killed."""
        if self.is_up:
            self.is_up = False
            self.loop.end()

    def pause(self) -> None:
        """Stop it for a while; what arrives waits."""
        if self.is_up:
            self._is_paused = True
            self.loop.pause()

    def resume(self) -> None:
        """Go on."""
        if self._is_paused:
            self._is_paused = False
            while self._deferred:
                self._receive(*self._deferred.popleft())
            if self.is_up:
                self.loop.resume()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it do something that a person asked it for."""
        self.loop.create_task(work)

    # What it sends and gets

    def _connect(self, registration: BrokerRegistration, on_closed: Callable[[], None]) -> Link:
        self._on_closed[registration.name] = on_closed
        return Link(self, registration.name)

    async def ask_store(self, method: str, *arguments: Any, timeout_ms: int = STORE_TIMEOUT_MS) -> Any:
        """Call the store; `Timeout` when it does not answer."""
        return await self._ask(STORE, StoreCall(self._next(), method, arguments), timeout_ms)

    async def ask_broker(self, name: str, method: str, *arguments: Any, timeout_ms: int) -> Any:
        """Call a broker; `Timeout` when it does not answer."""
        return await self._ask(name, BrokerCall(self._next(), method, arguments), timeout_ms)

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _ask(self, receiver: str, call: StoreCall | BrokerCall, timeout_ms: int) -> Any:
        if not self.is_up:
            raise Timeout
        answer = self.loop.create_future()
        self._waiting[call.number] = receiver, answer
        self._network.send(self.name, receiver, call)
        self._kernel.after(timeout_ms * MS, self._settle, call.number, Timeout())
        return await answer

    def _settle(self, number: int, outcome: object) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None or not self.is_up or waiting[1].done():
            return
        if isinstance(outcome, Exception):
            waiting[1].set_exception(outcome)
        else:
            waiting[1].set_result(outcome)

    def _receive(self, sender: str, message: object) -> None:
        if not self.is_up:
            return
        if self._is_paused:
            self._deferred.append((sender, message))
        elif isinstance(message, StoreAnswer | BrokerAnswer):
            self._settle(message.number, message.outcome)
        elif isinstance(message, ConnectionClosed):
            lost = [number for number, (receiver, _) in self._waiting.items() if receiver == sender]
            for number in lost:
                self._settle(number, ConnectionLost())
            if sender in self._on_closed:
                self.loop.call_soon(self._on_closed[sender])


class Link:
    """See `BrokerLink`."""

    def __init__(self, manager: Manager, broker: str) -> None:
        self._manager = manager
        self._broker = broker

    async def report(self, timeout_ms: int) -> BrokerReport:
        """See `BrokerLink`."""
        found = await self._manager.ask_broker(self._broker, "report", timeout_ms=timeout_ms)
        assert isinstance(found, BrokerReport), "a broker answers how it is"
        return found

    async def prepare(self, journal: int) -> str:
        """See `BrokerLink`."""
        timeout_ms = PREPARE_TIMEOUT_MS
        return str(await self._manager.ask_broker(self._broker, "prepare", journal, timeout_ms=timeout_ms))

    async def transfer(self, journal: int, member: str) -> bool:
        """See `BrokerLink`."""
        timeout_ms = TRANSFER_TIMEOUT_MS
        return bool(
            await self._manager.ask_broker(self._broker, "transfer", journal, member, timeout_ms=timeout_ms)
        )

    async def drop(self, journal: int, member: str, epoch: int) -> bool:
        """See `BrokerLink`."""
        timeout_ms = DROP_TIMEOUT_MS
        return bool(
            await self._manager.ask_broker(
                self._broker, "drop", journal, member, epoch, timeout_ms=timeout_ms
            )
        )

    async def close(self) -> None:
        """See `BrokerLink`."""


class StoreClient(Coordination):
    """Coordination as a process gets at it: over the network, with answers that may not come."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._unknown: set[int] = set()
        """Journals for which an appointment was written with an unknown outcome, and not read since (M4)."""

    async def _read(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._manager.ask_store(method, *arguments)
        except Timeout as error:
            raise CoordinationUnavailable from error

    async def _change(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._manager.ask_store(method, *arguments)
        except Timeout as error:
            raise OutcomeUnknown from error

    async def get(self, key: str) -> KeyValue | None:
        """See `Coordination`."""
        found: KeyValue | None = await self._read("get", key)
        if key.startswith(JOURNALS):
            self._unknown.discard(journal_of(key))
        return found

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        """See `Coordination`."""
        found: Listing = await self._read("list", prefix)
        self._unknown.clear()
        return found

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """See `Coordination`."""
        appointed = {journal for put in puts if (journal := self._appointed(put)) is not None}
        if unread := appointed & self._unknown:
            raise Violation(
                "M4", f"{self._manager.name} appoints for {unread} again, and has not read what holds"
            )
        try:
            return int(await self._change("transact", tuple(compares), tuple(puts), tuple(deletes)))
        except OutcomeUnknown:
            self._unknown |= appointed
            raise

    def _appointed(self, put: Put) -> int | None:
        """Return the journal for which this is a new epoch, None when it is something else."""
        if not put.key.startswith(JOURNALS):
            return None
        journal = journal_of(put.key)
        known = self._manager.product._journals.get(journal)
        is_newer = known is not None and decode_configuration(put.value).epoch > known.configuration.epoch
        return journal if is_newer else None

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        """See `Coordination`. It asks again and again, so an answer that is lost is late, and no more."""
        silences = 0
        while True:
            try:
                events, after_revision = await self._manager.ask_store(
                    "watch", prefix, after_revision, timeout_ms=WATCH_TIMEOUT_MS
                )
            except Timeout as error:
                silences += 1
                if silences > 2:
                    raise CoordinationUnavailable from error
            else:
                silences = 0
                self._unknown -= {journal_of(event.key) for event in events if event.key.startswith(JOURNALS)}
                if events:
                    yield events

    async def grant_lease(self, ttl_ms: int) -> int:
        """See `Coordination`."""
        return int(await self._change("grant", ttl_ms))

    async def keep_alive(self, lease_id: int) -> None:
        """See `Coordination`."""
        await self._change("keep_alive", lease_id)

    async def revoke_lease(self, lease_id: int) -> None:
        """See `Coordination`."""
        await self._change("revoke", lease_id)

    async def close(self) -> None:
        """See `Coordination`."""


class StoryHandler(logging.Handler):
    """Puts what managers log into the story."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self._cell = cell

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        fields = getattr(record, "fields", {})
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        self._cell.kernel.tell("manager", f"{record.getMessage()} {told}")
