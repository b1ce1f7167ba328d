"""Which handler carries out an action of the table: the method that is called as the action is, in small letters."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple

from quaymaster.frontend.call import Call
from quaymaster.protocol.actions.table import ACTIONS, Action
from quaymaster.protocol.sqs.shapes import Shape

MessageHandler = Callable[[Call, Any], None]
"""Answers the call itself, now or when the broker has; never waits."""
TaskHandler = Callable[[Call, Any], Awaitable[Shape | None]]
"""Returns the output, unless it answered the call itself; runs as a task."""

MONITORING_METHOD: Final = "ask_console"
_INNER_CAPITAL: Final = re.compile(r"(?<!^)[A-Z]")


class Handlers(NamedTuple):
    """The handler of each action, by its name."""

    message: Mapping[str, MessageHandler]
    """Of actions on the message path."""
    task: Mapping[str, TaskHandler]
    """Of all others."""


def method_of(action: Action) -> str:
    """Return what the handler of an action is called: `send_message` of SendMessage; one has all of CloudWatch."""
    if action.service == "monitoring":
        return MONITORING_METHOD
    return _INNER_CAPITAL.sub(lambda capital: f"_{capital[0]}", action.name).lower()


def bind_handlers(owners: Sequence[object]) -> Handlers:
    """Return the handlers of all actions: of each exactly one of the owners has it."""
    message: dict[str, MessageHandler] = {}
    task: dict[str, TaskHandler] = {}
    for action in ACTIONS.values():
        (handler,) = (
            getattr(owner, method_of(action)) for owner in owners if hasattr(owner, method_of(action))
        )
        is_task = action.plane != "message"
        assert iscoroutinefunction(handler) == is_task, f"{action.name} is carried out as its plane says"
        (task if is_task else message)[action.name] = handler
    return Handlers(message, task)
