"""How front ends reach consoles: next to a server one, by a Unix socket; in a cell those that are there.

    request ──▶ consoles that are there, the one that answered last first ──▶ first that is reached ──▶ answer
                                                                 └ outcome unknown, or too late: told to the client

What is in flight is bounded, and so is the time: a console that hangs costs a bounded number of waiting requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from quaymaster.core.values.errors import (
    CallerError,
    InternalFailure,
    NotNow,
    Overloaded,
    Timeout,
    Unreachable,
)
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.protocol.rpc.monitoring_calls import (
    MONITORING,
    MonitoringAnswer,
    MonitoringCall,
    decode_answer,
    encode_call,
)

IN_FLIGHT_MAX: Final = 32
TIMEOUT_MS: Final = 5_000
"""Of a request, whichever consoles it is sent to."""
KNOWN_MS: Final = 1_000
"""So long it is not looked again which consoles are there."""

_BUSY: Final = (
    "Too many requests for metrics, alarms and dashboards are in progress. Reduce your request rate."
)


class AsksPeer(Protocol):
    """A connection to a console."""

    async def ask(self, method: str, body: bytes, deadline_ms: int, *, trace: str = "") -> bytes:
        """Return the answer. Raises CallerError, or NotNow: Unreachable, Timeout, ConnectionLost, ..."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class ConsoleClient:
    """Asks consoles. `find` returns the addresses of those that are there; `connect` makes a connection to one."""

    def __init__(
        self,
        find: Callable[[], Awaitable[Sequence[str]]],
        connect: Callable[[str], AsksPeer],
        *,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1_000,
    ) -> None:
        """`now_ms` is a clock that only goes on."""
        self._find = find
        self._connect = connect
        self._now_ms = now_ms
        self._clients: dict[str, AsksPeer] = {}
        """Connections, that of the console which answered last first."""
        self._looked_ms = float("-inf")
        self._looking = asyncio.Lock()
        self._in_flight = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        """Answers by operation and code."""

    async def close(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for client in clients.values()))

    async def ask(self, call: MonitoringCall) -> MonitoringAnswer:
        """Return what a console answers.

        Raises:
            Unreachable: none was reached.
            NotNow: too many requests are in flight, the answer did not come in time, or the outcome is unknown.
        """
        code = "OK"
        try:
            answer = await self._ask_in_time(call)
            if answer.error is not None:
                code = answer.error.code
            return answer
        except (CallerError, NotNow) as error:
            code = type(error).__name__
            raise
        finally:
            self._counts[call.operation, code] += 1

    def samples(self) -> Iterable[Sample]:
        """Return what was answered so far."""
        for (operation, code), count in self._counts.items():
            yield Sample("quaymaster_monitoring_requests_total", count, (operation, code))

    async def _ask_in_time(self, call: MonitoringCall) -> MonitoringAnswer:
        if self._in_flight >= IN_FLIGHT_MAX:
            raise Overloaded(_BUSY)
        self._in_flight += 1
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1_000):
                return await self._ask_one(encode_call(call))
        except TimeoutError:
            raise Timeout from None
        finally:
            self._in_flight -= 1

    async def _ask_one(self, body: bytes) -> MonitoringAnswer:
        unreached = Unreachable("There is no console.")
        ends_ms = self._now_ms() + TIMEOUT_MS
        for address, client in (await self.consoles()).items():
            try:
                left_ms = max(1, int(ends_ms - self._now_ms()))
                answer = await client.ask(MONITORING, body, left_ms, trace=REQUEST_ID.get())
            except Unreachable as error:
                unreached = error
                continue
            self._prefer(address, client)
            try:
                return decode_answer(answer)
            except UNREADABLE as error:
                raise InternalFailure(f"A console answered what cannot be read: {error}") from error
        raise unreached

    async def consoles(self) -> dict[str, AsksPeer]:
        """Return connections to the consoles that are there."""
        async with self._looking:
            if self._now_ms() - self._looked_ms >= KNOWN_MS:
                await self._look()
        return dict(self._clients)

    async def _look(self) -> None:
        self._looked_ms = self._now_ms()
        try:
            addresses = await self._find()
        except NotNow:  # those that were there may be there yet
            return
        gone = [self._clients.pop(address) for address in self._clients.keys() - set(addresses)]
        for address in addresses:
            if address not in self._clients:
                self._clients[address] = self._connect(address)
        await asyncio.gather(*(client.close() for client in gone))

    def _prefer(self, address: str, client: AsksPeer) -> None:
        """Ask this one first from now on, if it is still there."""
        if self._clients.pop(address, None) is not None:
            self._clients = {address: client, **self._clients}
