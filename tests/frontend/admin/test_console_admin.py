"""Operations that a console answers are checked and allowed here, and passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from frontend.admin.test_admin import administered, call_of, error_of
from quaymaster.core.values.errors import Unreachable, UnsupportedOperation
from quaymaster.frontend.admin.admin_calls import AdminRoute
from quaymaster.frontend.admin.console_admin import ConsoleAdmin, RefusedByConsole
from quaymaster.protocol.admin.identities import ListIdentitiesRequest
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.rpc.monitoring_calls import MonitoringAnswer, MonitoringCall, MonitoringRefusal

ACCOUNT = "111122223333"


class PlayedConsole:
    """Answers with what it is given, or raises it."""

    def __init__(self, answer: MonitoringAnswer | Exception) -> None:
        self._answer = answer
        self.asked: list[MonitoringCall] = []

    async def ask(self, call: MonitoringCall) -> MonitoringAnswer:
        self.asked.append(call)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def ask(console: PlayedConsole | None) -> dict[str, Any]:
    given = ListIdentitiesRequest(limit=3)
    return asyncio.run(ConsoleAdmin(console, region="eu").ask("ListAlerts", call_of(ACCOUNT), given))


def test_a_console_is_asked_with_the_members_and_who_asks() -> None:
    console = PlayedConsole(MonitoringAnswer.of({"alerts": []}))

    assert ask(console) == {"alerts": []}
    (call,) = console.asked
    assert (call.service, call.operation, call.account, call.region) == ("admin", "ListAlerts", ACCOUNT, "eu")
    assert call.principal == f"arn:aws:iam::{ACCOUNT}:root"
    assert call.given == {"limit": 3, "next_token": ""}


@pytest.mark.parametrize(
    "console",
    [
        lambda: None,
        lambda: PlayedConsole(Unreachable("10.0.0.1 does not answer.")),
        lambda: PlayedConsole(UnsupportedOperation("It is old.")),
    ],
)
def test_without_a_console_the_operation_is_not_there_now(
    console: Callable[[], PlayedConsole | None],
) -> None:
    with pytest.raises(Unreachable, match="no console") as raised:
        ask(console())
    assert "10.0.0.1" not in raised.value.message


def test_what_a_console_refuses_is_told_with_its_code_and_status() -> None:
    refusal = MonitoringRefusal("ResourceNotFound", "There is no such alert.", 404)

    async def scenario() -> None:
        console = PlayedConsole(MonitoringAnswer(error=refusal))
        route = ConsoleAdmin(console, region="eu")
        async with administered() as port:

            async def passed_on(call: Any, given: Any) -> Any:
                return await route.ask("GetStatus", call, given)

            routes: Any = port.admin.api._routes
            routes["GetStatus"] = AdminRoute(passed_on)
            answer = await port.call("GET", "status")
            assert error_of(answer) == (404, "ResourceNotFound")
            assert answer.json["error"]["message"] == "There is no such alert."

    asyncio.run(scenario())
    with pytest.raises(RefusedByConsole):
        ask(PlayedConsole(MonitoringAnswer(error=refusal)))


def test_each_operation_of_a_console_has_a_route() -> None:
    of_console = {name for name, row in OPERATIONS.items() if row.answered_by == "console"}
    assert set(ConsoleAdmin(None, region="eu").routes()) == of_console
