"""The commands that wait for a replica's next turn, and which of them it takes when there are more than it can decide.

    submit ──▶ waiting ──up to TURN_COMMANDS_MAX──▶ all of them, in their order
                  └──more──▶ fair turns: accounts take turns of 64 KiB, each with its commands in their order

A command that concerns no queue, as a question about all of them, stands behind everything that came before it: the
turn with it takes all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quaymaster.core.structures.fair_turns import FairTurns
from quaymaster.core.values.commands.completions import Complete
from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.commands.moves import MoveIn, MoveMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.commands.unions import Command, InternalCommand
from quaymaster.core.values.partition_tables import journals_of
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

TURN_COMMANDS_MAX: Final = 512
"""A turn decides so many commands, some milliseconds of work."""
TURN_COST_MAX: Final = 4 * 1024 * 1024
QUANTUM: Final = 64 * 1024
"""Each account's part of a round."""
COMMAND_COST: Final = 1_024
"""What a command costs besides the bytes that it stores."""

_STORING: Final = (Send, MoveIn, StageMessages, Complete)
"""What brings messages into the journal, and is refused while the disk cannot take more; see `stores`."""

Waiting = tuple[Command | InternalCommand, object]
"""A command, and who is told its outcome."""


def stores(command: Command | InternalCommand, journal_id: int) -> bool:
    """Tell whether a command writes messages: a move within the journal writes them once more, a way back nothing."""
    if type(command) is MoveMessage:
        return command.payload is not None and (
            command.target is None or journal_id in journals_of(command.target)
        )
    return type(command) in _STORING


class Inbox:
    """Commands in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        """Those since the last turn."""
        self.again: list[Waiting] = []
        """Those of an earlier turn that are to be decided once more, before all others."""
        self._excess: FairTurns[Waiting] = FairTurns(QUANTUM)
        """Those that did not fit in it."""

    def __len__(self) -> int:
        return len(self.again) + len(self.waiting) + len(self._excess)

    def take(self, definitions: Mapping[int, QueueDefinition]) -> list[Waiting]:
        """Return the commands of a turn. `definitions` says whose queues they concern."""
        came, self.waiting = self.waiting, []
        if self._excess or len(came) > TURN_COMMANDS_MAX:
            came = self._take_fairly(came, definitions)
        if self.again:
            again, self.again = self.again, []
            return again + came
        return came

    def _take_fairly(self, came: list[Waiting], definitions: Mapping[int, QueueDefinition]) -> list[Waiting]:
        excess = self._excess
        takes_all = False
        for item in came:
            account_id = _account_of(item[0], definitions)
            takes_all = takes_all or account_id is None
            if not takes_all:
                excess.add(account_id, _cost_of(item[0]), item)
        if not takes_all:
            return excess.take(TURN_COMMANDS_MAX, TURN_COST_MAX)
        before = excess.take(len(excess), 1 << 62)
        at = next(number for number, item in enumerate(came) if _account_of(item[0], definitions) is None)
        return before + came[at:]


def _account_of(command: Command | InternalCommand, definitions: Mapping[int, QueueDefinition]) -> str | None:
    """Return whose queue a command concerns, "" if it is not known here; None where it concerns none."""
    if type(command) is SetQueue:
        return command.definition.account_id
    queue_id = getattr(command, "queue_id", 0)
    if not queue_id:
        return None
    definition = definitions.get(queue_id)
    return "" if definition is None else definition.account_id


def _cost_of(command: Command | InternalCommand) -> int:
    if type(command) is Send or type(command) is StageMessages:
        return COMMAND_COST + sum(len(message.payload) for message in command.messages)
    if type(command) is Complete:
        return COMMAND_COST + sum(len(output.payload) for output in command.outputs)
    if type(command) is MoveIn:
        return COMMAND_COST + sum(len(message.payload or b"") for message in command.messages)
    return COMMAND_COST
