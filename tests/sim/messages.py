"""What clients, hosts and managers of a simulated cell say to each other; replicas' own messages are the product's."""

from __future__ import annotations

from typing import Any, NamedTuple

from quaymaster.core.queues.repeats import as_repeat
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.values.commands.moves import MoveIn
from quaymaster.core.values.commands.partitions import AskGroups
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.records import Batch
from sim.log_disk import Kept, Snapshot
from sim.queue_checker import Delivery


class Request(NamedTuple):
    """A command of a client."""

    number: int
    journal: int
    command: Command


def sent_again(message: object) -> object:
    """Return a message as it is sent once more: a client, and the front end for it, says that it is a repeat."""
    return message._replace(command=as_repeat(message.command)) if isinstance(message, Request) else message


class Sent(NamedTuple):
    """What came of a Send: sequence and message number of each, the number of another for a duplicate.

    `decided_ms`: the queue time at which those that are no duplicates were sent.
    """

    places: list[tuple[int, int]]
    decided_ms: int
    duplicates: frozenset[int] = frozenset()
    """Places in the list that hold duplicates."""


class Received(NamedTuple):
    """What came of a Receive."""

    deliveries: list[Delivery]


class Answer(NamedTuple):
    """What a node answers a client: `Sent`, `Received`, another outcome of the core, or an exception."""

    number: int
    outcome: object


class BrokerCall(NamedTuple):
    """A manager's call of a broker, as `BrokerLink` has them. Answered by `BrokerAnswer`."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class BrokerAnswer(NamedTuple):
    """What a call returned, or the exception that it raised."""

    number: int
    outcome: object


class TakeMoved(NamedTuple):
    """Leader → leader of another journal: take messages. Answered by `BrokerAnswer`."""

    number: int
    journal: int
    command: MoveIn


class AskLeft(NamedTuple):
    """Leader of a partition → leader of an older one: which groups does it still have? Answered by `BrokerAnswer`."""

    number: int
    journal: int
    command: AskGroups


class ConnectionClosed(NamedTuple):
    """The network says that the process at the other end is gone; if it was a broker, which members it had."""

    members: dict[int, str]


class Copy(NamedTuple):
    """Leader → a member whose place in the log is gone: a snapshot, the records it still needs, the log behind it."""

    member: str
    journal: int
    epoch: int
    snapshot: Snapshot
    kept: dict[int, Kept]
    batches: list[Batch]

    @property
    def end(self) -> Position:
        """Where the copied log ends."""
        if not self.batches:
            return Position(self.snapshot.base_offset, self.snapshot.epoch, self.snapshot.chain)
        last = self.batches[-1]
        return Position(last.next_offset, last.epoch, last.chain)


class Copied(NamedTuple):
    """The member has the copy."""

    member: str
    journal: int
