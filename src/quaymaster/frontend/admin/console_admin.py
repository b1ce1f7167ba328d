"""Operations of the admin API that a console answers: checked, allowed and audited here, and passed on by one RPC."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import msgspec

from quaymaster.core.values.errors import CallerError
from quaymaster.frontend.actions.monitoring_actions import AsksConsole, answer_of
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.protocol.admin.members import AdminRequest
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall, MonitoringRefusal, encode_members


class RefusedByConsole(CallerError):
    """A console refused an operation, and says with which code and HTTP status."""

    def __init__(self, refusal: MonitoringRefusal) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code
        self.status = refusal.status


class ConsoleAdmin:
    """Passes operations on. `console`: None where there can be none."""

    def __init__(self, console: AsksConsole | None, *, region: str) -> None:
        self._console = console
        self._region = region

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation that is a console's."""
        of_console = [name for name, row in OPERATIONS.items() if row.answered_by == "console"]
        return {name: AdminRoute(partial(self.ask, name)) for name in of_console}

    async def ask(self, operation: str, call: AdminCall, given: AdminRequest) -> dict[str, Any]:
        """Return what a console answers. Raises RefusedByConsole, NotNow."""
        members = {name: value for name, value in msgspec.to_builtins(given).items() if value is not None}
        asked = MonitoringCall(
            "admin",
            operation,
            call.owner,
            call.principal.requester.arn,
            self._region,
            encode_members(members),
            str(uuid.uuid4()),
        )
        answer = await answer_of(self._console, asked)
        if answer.error is not None:
            raise RefusedByConsole(answer.error)
        return answer.returned
