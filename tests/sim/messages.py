"""What clients, nodes and managers of a simulated cell say to each other; replicas' own messages are the product's."""

from __future__ import annotations

from typing import NamedTuple

from quaymaster.core.commands import Command
from quaymaster.core.log_tail import Position
from quaymaster.core.records import Batch
from sim.log_disk import Snapshot
from sim.queue_checker import Delivery


class Request(NamedTuple):
    """A command of a client."""

    number: int
    command: Command


class Sent(NamedTuple):
    """What came of a Send: sequence and message number of each, the number of another for a duplicate."""

    places: list[tuple[int, int]]


class Received(NamedTuple):
    """What came of a Receive."""

    deliveries: list[Delivery]


class Answer(NamedTuple):
    """What a node answers a client: `Sent`, `Received`, another outcome of the core, or an exception."""

    number: int
    outcome: object


class Report(NamedTuple):
    """Node → managers, every so often: what it has, whom it hears."""

    node: str
    member: str
    epoch: int
    last_epoch: int
    end: int
    hears_leader: bool
    is_leading: bool
    gave_up: int
    """The epoch that it gave up, or promised to somebody else; 0 while it leads or wants to."""
    lag: dict[str, int]


class TransferTo(NamedTuple):
    """Manager → leader: hand over to this member."""

    member: str


class ConnectionClosed(NamedTuple):
    """The network says that the process at the other end is gone."""

    member: str


class Copy(NamedTuple):
    """Leader → a member whose place in the log is gone: a snapshot, the records it still needs, the log behind it."""

    member: str
    epoch: int
    snapshot: Snapshot
    kept: dict[int, tuple[int, int, int, bytes]]
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
