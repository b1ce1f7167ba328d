"""What leaves a replica's journal for another one: the product's `MovesAway`, over a simulated loop and network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from quaymaster.broker.moves_out import MovesAway
from quaymaster.core.cell import broker_of
from quaymaster.core.commands import EndMoves, InternalCommand, MoveBegun, MoveIn, MoveInOutcome
from quaymaster.core.errors import NotLeader

if TYPE_CHECKING:
    import asyncio

    from quaymaster.broker.replica import Body, ReplicaHost
    from quaymaster.core.journal import JournalReplica
    from sim.host import Host
    from sim.replica import Replica

REGION = "local"


class Inside:
    """A command that the broker asks of itself, and what its answer is given to."""

    __slots__ = ("on_answer",)

    def __init__(self, on_answer: Callable[[object], None]) -> None:
        self.on_answer = on_answer


class _Files:
    def __init__(self, journal_id: int) -> None:
        self.journal_id = journal_id


class _MovesHost:
    """As much of a `ReplicaHost` as carrying needs."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.files = _Files(replica.journal_id)

    @property
    def replica(self) -> JournalReplica:
        return self._replica.journal

    async def bodies_of(self, offsets: list[int]) -> dict[int, Body]:
        found = {offset: self._replica.find_record(offset) for offset in offsets}
        return {offset: record for offset, record in found.items() if record is not None}

    async def ask(self, command: EndMoves) -> object:
        return await ask_inside(self._replica, command)


async def ask_inside(replica: Replica, command: InternalCommand) -> Any:
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


class Carrier:
    """See `MoveCarrier`: the way of one host to the leaders of other journals."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """See `MoveCarrier`."""
        known = self._host.configurations.get(journal_id)
        if known is None:
            raise NotLeader
        name = broker_of(known[0].leader)
        return cast("MoveInOutcome", await self._host.ask_to_take(name, journal_id, command))


class Moves:
    """What `broker/moves` does with messages that leave, for one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._away = replica.cell.bugs.variant(MovesAway)(
            cast("ReplicaHost", _MovesHost(replica)),
            REGION,
            Carrier(replica.host),
            on_gone=lambda queue_id: None,
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
