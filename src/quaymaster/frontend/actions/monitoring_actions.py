"""CloudWatch on the SQS endpoint: what clients ask is passed on to a console, which has the history and the alarms.

request ──authenticated, decoded, allowed──▶ console ──▶ answer, written in the request's form
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from quaymaster.core.values.errors import Unreachable, UnsupportedOperation
from quaymaster.frontend.call import Call
from quaymaster.protocol.actions.monitoring import MonitoringOutput, encode_response
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.cloudwatch.operations import MonitoringInput
from quaymaster.protocol.rpc.monitoring_calls import MonitoringAnswer, MonitoringCall, encode_members

OUTPUT_ON_LOOP_BYTES_MAX: Final = 32 * 1024
"""Longer outputs, of data points by the thousand, are written on a thread: messages share this loop."""

NO_CONSOLE: Final = "Metrics, alarms and dashboards cannot be reached: no console of this server answers."


class AsksConsole(Protocol):
    """The way to the consoles."""

    async def ask(self, call: MonitoringCall) -> MonitoringAnswer:
        """Return what a console answers. Raises NotNow: Unreachable where there is none."""
        ...


async def answer_of(console: AsksConsole | None, asked: MonitoringCall) -> MonitoringAnswer:
    """Return what a console answers; NotNow. `console`: None where there can be none."""
    if console is None:
        raise Unreachable(NO_CONSOLE)
    try:
        return await console.ask(asked)
    except (Unreachable, UnsupportedOperation):
        # It names addresses, which are not the client's to know; or the console is of an older program.
        raise Unreachable(NO_CONSOLE) from None


class MonitoringActions:
    """The handler of CloudWatch's actions."""

    def __init__(self, console: AsksConsole | None, *, region: str) -> None:
        """`console`: None where there can be none."""
        self._console = console
        self._region = region

    async def ask_console(self, call: Call, given: MonitoringInput) -> MonitoringOutput:
        """Return what a console answers. Raises CloudWatchError, NotNow."""
        output = await self._ask(call, encode_members(given.members))
        if len(output) <= OUTPUT_ON_LOOP_BYTES_MAX:
            return _written(call, output)
        return await asyncio.to_thread(_written, call, output)

    async def _ask(self, call: Call, members: bytes) -> bytes:
        principal = call.principal
        asked = MonitoringCall(
            "cloudwatch",
            call.action.name,
            principal.account_id,
            principal.requester.arn,
            self._region,
            members,
            call.request_id,
        )
        answer = await answer_of(self._console, asked)
        error = answer.error
        if error is not None:
            raise CloudWatchError.told(error.code, error.message, error.status, error.more)
        return answer.output


def _written(call: Call, output: bytes) -> MonitoringOutput:
    members: dict[str, Any] = MonitoringAnswer(output).returned
    return encode_response(call.form, call.action, members, call.request_id)
