"""Messages on their way to other queues: the product's code over a simulated loop and network.

In cells with move tasks `TaskMoves` has the product's `MessageMoves` do all of it. In the others the replica
proposes the moves of dead letters itself, and `Moves` has the product's `MovesAway` carry what leaves its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quaymaster.broker.replica.moves import message_moves
from quaymaster.broker.replica.moves.moves_out import MovesAway
from quaymaster.broker.replica.moves.queue_places import QueuePlaces
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.commands.decided import DeadLetter
from quaymaster.core.values.commands.moves import MoveBegun, MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome
from quaymaster.core.values.commands.unions import InternalCommand
from quaymaster.core.values.errors import NotLeader
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.partition_keys import partition_key
from sim.kernel import Violation

if TYPE_CHECKING:
    from quaymaster.broker.replica.records.record_bodies import Body
    from quaymaster.broker.replica.replica import ReplicaHost
    from quaymaster.core.replication.journal import JournalReplica
    from quaymaster.core.values.commands.unions import Command
    from sim.host import Host
    from sim.replica import Replica

REGION = "local"
READ_MAX_S = 0.05


class Inside:
    """A command that the broker asks of itself, and what its answer is given to."""

    __slots__ = ("on_answer",)

    def __init__(self, on_answer: Callable[[object], None]) -> None:
        self.on_answer = on_answer


class _Files:
    def __init__(self, journal_id: int) -> None:
        self.journal_id = journal_id


class Records:
    """As much of `RecordBodies` as moving needs."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def of(self, offsets: list[int]) -> dict[int, Body]:
        """Return those that are there."""
        return self.found(offsets)

    def found(self, offsets: list[int]) -> dict[int, Body]:
        """Return those that are there."""
        found = {offset: self._replica.find_record(offset) for offset in offsets}
        return {offset: record for offset, record in found.items() if record is not None}


class _RecordsOnDisk(Records):
    """Those that are read: much may happen until then."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._random = replica.cell.kernel.random_for(f"reads of {replica.member}")

    def read(self, offsets: list[int], finish: Callable[[dict[int, Body]], None]) -> None:
        self._replica.host.loop.call_later(
            self._random.uniform(0, READ_MAX_S), lambda: finish(self.found(offsets))
        )

    async def of(self, offsets: list[int]) -> dict[int, Body]:
        await asyncio.sleep(self._random.uniform(0, READ_MAX_S))
        return self.found(offsets)


class MovesHost:
    """As much of a `ReplicaHost` as moving needs. No receive waits in a simulated cell, so none is woken."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.files = _Files(replica.journal_id)
        self.records = Records(replica)

    @property
    def replica(self) -> JournalReplica:
        return self._replica.journal

    def submit(self, command: Command | InternalCommand, reply: Callable[[object], None]) -> None:
        self._replica.propose_inside(command, partial(self._replica.host.loop.call, reply))

    async def ask(self, command: Command | InternalCommand) -> object:
        return await ask_inside(self._replica, command)


async def ask_inside(replica: Replica, command: Command | InternalCommand) -> Any:
    """Have a command decided here; return its outcome once it may be told."""
    answer: asyncio.Future[object] = replica.host.loop.create_future()

    def on_answer(outcome: object) -> None:
        if answer.done():
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    replica.propose_inside(command, on_answer)
    return await answer


class _TasksHost(MovesHost):
    """One whose records come from a disk."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.records = _RecordsOnDisk(replica)


class Carrier:
    """See `MoveCarrier` and `GroupCarrier`: the way of one host to the leaders of other journals."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """See `MoveCarrier`."""
        leader = self._leader_of(journal_id)
        return cast("MoveInOutcome", await self._host.ask_to_take(leader, journal_id, command))

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        """See `GroupCarrier`."""
        leader = self._leader_of(journal_id)
        return cast("GroupsOutcome", await self._host.ask_about_groups(leader, journal_id, command))

    def _leader_of(self, journal_id: int) -> str:
        """Return the broker that leads a journal, as far as this host knows."""
        known = self._host.configurations.get(journal_id)
        if known is None:
            raise NotLeader
        return broker_of(known[0].leader)


class Moves:
    """What `broker/replica/moves` does with messages that leave, for one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._away = replica.cell.bugs.variant(MovesAway)(
            cast("ReplicaHost", MovesHost(replica)),
            REGION,
            Carrier(replica.host),
            targets=QueuePlaces(REGION, replica.cell.find_queue, CellFormat()),
            on_settled=lambda source_key: None,
        )

    def leads(self, is_leading: bool) -> None:
        """The replica has begun to lead, or leads no longer."""
        if is_leading:
            self._replica.journal.queues.elsewhere = self._replica.cell.elsewhere
            self._replica.host.loop.call(self._away.resume)
        else:
            self._replica.host.loop.call(self._away.stop)

    def begun(self, source_key: int, begun: MoveBegun) -> None:
        """That a message leaves is committed."""
        self._replica.host.loop.call(self._away.begun, source_key, begun)

    def outputs_begun(self, source_key: int, begun: list[MoveBegun]) -> None:
        """A completion is committed."""
        for each in begun:
            self.begun(source_key, each)


class TaskMoves:
    """The product's `MessageMoves` for one replica: dead letters, move tasks, and what leaves for other journals."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        cell = replica.cell
        places = QueuePlaces(REGION, cell.find_queue, CellFormat())
        self._moves = cell.bugs.variant(message_moves.MessageMoves)(
            cast("ReplicaHost", _TasksHost(replica)), REGION, places=places, carrier=Carrier(replica.host)
        )

    def leads(self, is_leading: bool) -> None:
        """The replica has begun to lead, or leads no longer."""
        self._replica.host.loop.call(self._moves.leads, is_leading)

    def move_dead_letters(self, letters: list[DeadLetter]) -> None:
        """Move what was received too often; its records must be there, unless somebody deleted it meanwhile (I13)."""
        replica = self._replica
        for letter in letters:
            if replica.find_record(letter.offset) is None:
                partition = replica.journal.queues.partition(letter.queue_id, letter.partition)
                if partition.is_live(letter.sequence):
                    raise Violation(
                        "I13", f"{replica.member} lacks a dead letter, at {letter.offset}", letter.offset
                    )
        replica.host.loop.call(self._moves.move_dead_letters, letters)

    def outputs_begun(self, source_key: int, begun: list[MoveBegun]) -> None:
        """A completion is committed."""
        self._replica.host.loop.call(self._moves.outputs_begun, source_key, begun)

    def start_tasks_of(self, queue_id: int) -> None:
        """A move task of a queue was started."""
        self._replica.host.loop.call(self._moves.start_tasks_of, partition_key(queue_id, 0))

    def close(self) -> None:
        """The replica is closed: nothing of it is carried any further."""
        self._replica.host.loop.create_task(self._moves.close())
