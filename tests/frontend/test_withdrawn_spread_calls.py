"""A request to several partitions is taken back only where no broker can have any part of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quaymaster.core.spread.parts import Part
from quaymaster.core.values.commands.messages import CountMessages, SendOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.frontend.partitions.spread_call import SpreadCall

from .support import FakeSubmitted


class Broker:
    """Keeps what is on its way."""

    def __init__(self, *, is_unsent: bool) -> None:
        self.submitted: list[FakeSubmitted] = []
        self._is_unsent = is_unsent

    def submit(self, command: Any, reply: Any) -> FakeSubmitted:
        submitted = FakeSubmitted(command, reply)
        submitted.is_unsent = self._is_unsent
        self.submitted.append(submitted)
        return submitted


class Spread:
    """Asks so many partitions, and another one after each answer."""

    result = None

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def begin(self) -> list[Part]:
        return [Part(number, CountMessages(1)) for number in range(self._parts)]

    def on_outcome(self, part: Part, outcome: Any, definition: Any) -> list[Part]:
        return self.begin()


def started(broker: Broker, parts: int, answers: list[Outcome | Exception]) -> SpreadCall:
    tables = SimpleNamespace(find=lambda queue_id: None)
    call = SpreadCall(
        *(cast("Any", broker), cast("Any", tables)),
        cast("Any", SimpleNamespace(queue_id=1, table_version=1)),
        cast("Any", Spread(parts)),
        answers.append,
    )
    call.start()
    return call


@pytest.mark.parametrize(
    ("parts", "is_unsent", "is_answered", "is_withdrawn"),
    [
        (1, True, False, True),
        (1, False, False, False),
        (2, True, False, False),
        (1, True, True, False),
    ],
)
def test_only_one_part_that_no_broker_got_is_withdrawn(
    parts: int, is_unsent: bool, is_answered: bool, is_withdrawn: bool
) -> None:
    async def scenario() -> None:
        broker, answers = Broker(is_unsent=is_unsent), list[Outcome | Exception]()
        call = started(broker, parts, answers)
        if is_answered:
            broker.submitted[0].reply(SendOutcome([]))

        assert call.withdraw() == is_withdrawn

        assert [one.is_cancelled for one in broker.submitted if one.is_cancelled] == [True] * is_withdrawn
        assert not answers

    asyncio.run(scenario())
