"""How a front end reaches the brokers: the one interface, whatever the transport.

Embedded, the broker itself stands behind it (the in-memory twin: the command object is handed over as it is). In
a cluster it is the framed RPC to the leader of the partition's journal. Callback style, because a request must
not cost a task or a future: `reply` is called exactly once, on the event-loop thread, never from inside `submit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.commands.partitions import AskMarks, ForgetQueue, ListDataKeys, SetQueue
from quaymaster.core.values.commands.unions import Command, Outcome

JournalOf = Callable[[int, int], int | None]
"""Returns which journal has a partition of a queue, None when there is no such queue."""
Reply = Callable[[Outcome | Exception], None]


class Submitted(Protocol):
    """A command on its way."""

    def cancel(self) -> None:
        """Take back a parked receive whose client has gone; the reply is then never called. Others ignore it."""
        ...

    def withdraw(self) -> bool:
        """Take back a command that was given to no broker yet; the reply is then never called.

        False, and nothing is done, where one may have it.
        """
        ...


class NotTakenBack:
    """A command that is answered in any case."""

    __slots__ = ()

    def cancel(self) -> None:
        """Nothing."""

    def withdraw(self) -> bool:
        """A broker may have it."""
        return False


class BrokerClient(Protocol):
    """Where commands go."""

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """Send one command; `reply` gets its outcome, a `CallerError` or a `NotNow`."""
        ...


def journal_of_command(command: Command, journal_of: JournalOf) -> int | None:
    """Return the journal that a command is for; None when there is no such queue."""
    kind = type(command)
    if kind is ListDataKeys or kind is AskMarks:
        return command.journal_id  # type: ignore[union-attr]  # by its kind
    if kind is SetQueue or kind is ForgetQueue:
        journal_id: int | None = command.journal_id  # type: ignore[union-attr]
        if journal_id is not None:
            return journal_id
        if kind is SetQueue:
            return command.definition.partitions[0].journal_id  # type: ignore[union-attr]
    return journal_of(command.queue_id, getattr(command, "partition", ALL_PARTITIONS))  # type: ignore[union-attr]


async def ask(broker: BrokerClient, command: Command) -> Outcome:
    """Send a command and return its outcome. The caller's task has the timeout.

    Raises:
        CallerError: what the broker refused.
        NotNow: nothing can be promised.
    """
    answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def reply(outcome: Outcome | Exception) -> None:
        if answered.done():
            return
        if isinstance(outcome, Exception):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)

    broker.submit(command, reply)
    return await answered
