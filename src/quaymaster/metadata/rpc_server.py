"""A metadata node behind the RPC: one method, whose body is a request of `protocol/rpc/metadata_messages`.

    server = RPCServer(MetadataCalls(node).handlers(), hello)

Front ends ask everything. Managers find queues and change their partitions, and are refused all else.

Each request is a task, bounded in number and by the time its caller waits. One that changes something is not given up
with its caller: what was begun ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from quaymaster.coordination.interface import (
    LeaseExpired,
    OutcomeUnknown,
    RevisionMismatch,
)
from quaymaster.core.values.errors import AccessDenied, CallerError, NotNow, Overloaded, Timeout
from quaymaster.metadata.node import MetadataNode
from quaymaster.monitoring.answering_tasks import begin_answer, end_all
from quaymaster.protocol.rpc.error_codec import travels
from quaymaster.protocol.rpc.metadata_messages import (
    METHOD,
    ChangePartitions,
    FindQueues,
    GetChanges,
    Greet,
    Request,
    decode_request,
    encode_message,
)

log = logging.getLogger(__name__)

CALLS_MAX: Final = 4_096
MANAGER: Final = "manager"
MANAGERS_MAY: Final = Greet | FindQueues | ChangePartitions
CHANGE_MS_MIN: Final = 30_000
"""How long a change may go on, whether or not somebody still waits for it."""


class Caller(Protocol):
    """Who calls, as it said and its certificate confirms."""

    @property
    def role(self) -> str: ...


class IncomingRequest(Protocol):
    """A call that has come in (net/rpc's)."""

    body: bytes
    on_cancel: Callable[[], None] | None

    @property
    def peer(self) -> Caller: ...

    @property
    def deadline_ms(self) -> int: ...

    def reply(self, body: bytes) -> None: ...

    def fail(self, error: Exception) -> None: ...


class MetadataCalls:
    """Answers calls with what the node says."""

    def __init__(self, node: MetadataNode, *, calls_max: int = CALLS_MAX) -> None:
        self._node = node
        self._calls_max = calls_max
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[str, Callable[[IncomingRequest], None]]:
        """Return the handlers for an RPC server."""
        return {METHOD: self.on_call}

    def on_call(self, call: IncomingRequest) -> None:
        """Answer a call, later."""
        if len(self._tasks) >= self._calls_max:
            call.fail(Overloaded())
            return
        try:
            request = decode_request(call.body)
        except CallerError as error:
            call.fail(error)
            return
        if call.peer.role == MANAGER and not isinstance(request, MANAGERS_MAY):
            call.fail(AccessDenied(f"A manager may not ask for {type(request).__name__}."))
            return
        task = begin_answer(self._tasks, self._answer(call, request), if_ended=lambda: call.fail(Timeout()))
        if isinstance(request, GetChanges):
            call.on_cancel = lambda: _cancel(task)

    async def close(self) -> None:
        """Give up what is in progress."""
        await end_all(self._tasks)

    async def _answer(self, call: IncomingRequest, request: Request) -> None:
        limit_ms = (
            call.deadline_ms if isinstance(request, GetChanges) else max(call.deadline_ms, CHANGE_MS_MIN)
        )
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                answer = encode_message(await self._node.answer(request))
        except Exception as error:  # noqa: BLE001 -- the call is answered with it
            call.fail(_as_travelling(error))
        else:
            call.reply(answer)
        finally:
            if not isinstance(request, GetChanges):  # that waits for changes
                self._node.durations_of(type(request).__name__).observe(time.perf_counter() - began_s)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _as_travelling(error: Exception) -> Exception:
    """Return the error as others know it: the store's own are known to nodes only."""
    match error:
        case CallerError():
            return error
        case OutcomeUnknown() | TimeoutError():
            return Timeout()
        case NotNow():
            return error if travels(error) else NotNow(error.message)
        case RevisionMismatch() | LeaseExpired():
            return NotNow("Others changed the same at the same time.")
    log.error("metadata request failed", exc_info=error)
    return NotNow("The metadata node could not answer.")
