"""Each action has one handler, and is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from frontend.support import serving
from quaymaster.frontend.actions.binding import bind_handlers, method_of
from quaymaster.protocol.actions.table import ACTIONS, UNKNOWN_ACTION


def test_a_handler_is_called_as_its_action() -> None:
    names = ("SendMessage", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListMetrics", "PutDashboard")

    assert [method_of(ACTIONS[name]) for name in names] == [
        "send_message",
        "get_queue_url",
        "list_dead_letter_source_queues",
        "ask_console",
        "ask_console",
    ]


def test_every_action_has_a_handler_and_is_counted() -> None:
    async def scenario() -> None:
        async with serving() as service:
            front_end = service.front_end
            handled = [*front_end._message_handlers, *front_end._task_handlers]
            assert sorted(handled) == sorted(ACTIONS)
            assert front_end.calls.metrics.actions.keys() == ACTIONS.keys() | {UNKNOWN_ACTION.name}
            planes = {ACTIONS[name].plane for name in front_end._task_handlers}
            assert planes == front_end._budgets.keys()

    asyncio.run(scenario())


class Everything:
    """Has a handler for each action, of the kind that its plane needs."""

    def __getattr__(self, name: str) -> Any:
        if name in {method_of(action) for action in ACTIONS.values() if action.plane == "message"}:
            return self._answer
        if name in {method_of(action) for action in ACTIONS.values()}:
            return self._run
        raise AttributeError(name)

    def _answer(self, call: Any, given: Any) -> None:
        pass

    async def _run(self, call: Any, given: Any) -> None:
        pass


class SendsInATask:
    """Has a handler of the wrong kind."""

    async def send_message(self, call: Any, given: Any) -> None:
        pass


def test_an_action_that_nobody_or_two_carry_out_is_a_bug() -> None:
    assert bind_handlers([Everything()]).message.keys() < ACTIONS.keys()
    with pytest.raises(ValueError, match="not enough values"):
        bind_handlers([])
    with pytest.raises(ValueError, match="too many values"):
        bind_handlers([Everything(), SendsInATask()])


def test_a_handler_of_the_wrong_kind_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="as its plane says"):
        bind_handlers([SendsInATask()])
