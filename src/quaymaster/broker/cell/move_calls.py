"""Messages that move between journals, from the leader of one to the leader of the other.

    move    journal id, u64 little-endian · MoveIn ─▶ MoveInOutcome (core/values/commands)

Both are MessagePack; fields are only ever appended, with defaults.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from quaymaster.broker.broker import Broker
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.peer_links import PeerLinks
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.commands import MoveIn, MoveInOutcome
from quaymaster.core.values.errors import NotLeader, Timeout
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

MOVE: Final = "move"
MOVE_TIMEOUT_MS: Final = 5_000
CALLERS: Final[dict[str, tuple[str, ...]]] = {MOVE: ("broker",)}
"""Which roles may call what."""

_encode = msgspec.msgpack.Encoder().encode
_commands = msgspec.msgpack.Decoder(MoveIn)
_outcomes = msgspec.msgpack.Decoder(MoveInOutcome)


class MoveCalls:
    """Both ends, for one broker. See `MoveCarrier`."""

    def __init__(self, broker: Broker, links: PeerLinks, tasks: BrokerTasks) -> None:
        self._broker = broker
        self._links = links
        self._tasks = tasks

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {MOVE: self._on_move}

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """Have a journal's leader take messages; raises NotNow when that may not have happened."""
        configuration = self._broker.configurations.get(journal_id)
        if configuration is None:
            raise NotLeader
        leader = broker_of(configuration.leader)
        if leader == self._broker.name:
            return await self._take(journal_id, command)
        client = self._links.client(leader)
        if client is None:
            raise NotLeader
        body = JOURNAL_ID.pack(journal_id) + _encode(command)
        return _outcomes.decode(await client.ask(MOVE, body, MOVE_TIMEOUT_MS))

    async def _take(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        journal = self._broker.get(journal_id)
        try:
            async with asyncio.timeout(MOVE_TIMEOUT_MS / 1000):
                return await journal.take_moved(command)
        except TimeoutError:
            raise Timeout from None

    def _on_move(self, call: IncomingCall) -> None:
        (journal_id,) = JOURNAL_ID.unpack_from(call.body)
        command = _commands.decode(memoryview(call.body)[JOURNAL_ID.size :])

        async def take() -> None:
            call.reply(_encode(await self._take(journal_id, command)))

        self._tasks.answer(call, take())
