"""A manager behind the RPC, for operators: how the cell is, what was decided, and which broker is to leave.

    server = RPCServer(ManagerCalls(manager).handlers(), hello)

Any manager may be asked, acting or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from quaymaster.coordination.noted_acts import act_of_peer
from quaymaster.core.cell.cell import BrokerState
from quaymaster.core.values.errors import CallerError, InternalFailure, MalformedInput, NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.managers.in_cluster import InClusterManager
from quaymaster.monitoring.answering_tasks import begin_answer, end_all
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.protocol.rpc.manager_calls import (
    DECISIONS,
    SET_BROKER_STATE,
    STATUS,
    BrokerStateRequest,
    decode_state_request,
    encode_decisions,
)

CALLS_MAX = 64
ACTS: Final[dict[BrokerState, str]] = {
    "active": "ActivateBroker",
    "draining": "DrainBroker",
    "stopping": "StopBroker",
}
"""The names of the acts that set a broker's state, as events have them."""

log = logging.getLogger(__name__)


class OperatorCall(Protocol):
    """A call that has come in (net/rpc's)."""

    body: bytes

    @property
    def peer(self) -> object: ...

    @property
    def address(self) -> str: ...

    @property
    def caller(self) -> str: ...

    def reply(self, body: bytes = b"") -> None: ...

    def fail(self, error: Exception) -> None: ...


class ManagerCalls:
    """Answers calls with what the manager says."""

    def __init__(self, manager: InClusterManager, problems: Callable[[], tuple[str, ...]] = tuple) -> None:
        self._manager = manager
        self._problems = problems
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[str, Callable[[OperatorCall], None]]:
        """Return the handlers for an RPC server."""
        return {
            STATUS: self._on_status,
            DECISIONS: self._on_decisions,
            SET_BROKER_STATE: self._on_set_broker_state,
        }

    async def close(self) -> None:
        """Give up what is in progress."""
        await end_all(self._tasks)

    def _on_status(self, call: OperatorCall) -> None:
        status = self._manager.status()
        told = msgspec.structs.replace(status, problems=(*status.problems, *self._problems()))
        call.reply(msgspec.json.encode(told))

    def _on_decisions(self, call: OperatorCall) -> None:
        call.reply(encode_decisions(self._manager.decisions()))

    def _on_set_broker_state(self, call: OperatorCall) -> None:
        try:
            request = decode_state_request(call.body)
        except UNREADABLE as error:
            call.fail(MalformedInput(f"The request cannot be read: {error}"))
            return
        if len(self._tasks) >= CALLS_MAX:
            call.fail(NotNow("The manager has too much to do."))
            return
        begin_answer(
            self._tasks,
            self._set_broker_state(call, request),
            if_ended=lambda: call.fail(NotNow("The manager is shutting down.")),
        )

    async def _set_broker_state(self, call: OperatorCall, request: BrokerStateRequest) -> None:
        try:
            action, asked = ACTS[request.state], {"broker": request.broker}
            act = act_of_peer(action, request.by, str(call.peer), call.address, asked)
            await self._manager.set_broker_state(request.broker, request.state, act)
        except (CallerError, NotNow) as error:
            call.fail(error)
        except Exception as error:  # noqa: BLE001 -- the call is answered with it
            log_failure(log, "call failed", error, broker=request.broker)
            call.fail(InternalFailure(str(error)))
        else:
            log_event(
                *(log, logging.INFO, "operator set state of broker"),
                broker=request.broker,
                state=request.state,
                by=call.caller,
            )
            call.reply()
