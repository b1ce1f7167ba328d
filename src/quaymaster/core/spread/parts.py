"""A part of a request: one command to one partition."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import Unreachable
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

SEVERAL: Final = -2
"""The partition of commands that concern a queue of several: they are spread before they go to brokers."""


class Part(msgspec.Struct, eq=False):
    """A command to a partition. `indexes`: which entries of the request it carries.

    `patience_ms`: after so long without an answer it counts as `Timeout`; 0: its carrier knows best.
    """

    number: int
    command: Command
    indexes: list[int] = []
    attempts: int = 1
    patience_ms: int = 0


def partitions_are_changing() -> Unreachable:
    """Return what is told of a request that no partition takes by the tables that are known."""
    return Unreachable("The partitions of the queue are changing. Try again.")


class Spread(Protocol):
    """A request in progress, as several parts."""

    @property
    def result(self) -> Outcome | Exception | None:
        """What it came to; None until it is done."""
        ...

    def begin(self) -> list[Part]:
        """Return what is to be asked first; the request may also be done at once."""
        ...

    def on_outcome(self, part: Part, outcome: Outcome | Exception, definition: QueueDefinition) -> list[Part]:
        """Take what came of a part; return what is to be asked now. `definition`: the newest that is known."""
        ...

    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        """A partition was not known where a part sought it; this is a newer table. Return what is to be asked now."""
        ...
