"""What the leader of one journal asks the leader of another: to take messages that move there, and which groups it has.

    move           journal id, u64 little-endian · MoveIn ─▶ MoveInOutcome (core/values/commands)
    groups_left    journal id · AskGroups ─▶ GroupsOutcome

All are MessagePack; fields are only ever appended, with defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.replica.journal_service import ANSWER_MS, JournalService
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome
from quaymaster.net.rpc import CallHandler, IncomingCall, RPCClient
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

MOVE: Final = "move"
GROUPS_LEFT: Final = "groups_left"
CALLERS: Final[dict[str, tuple[str, ...]]] = {MOVE: ("broker",), GROUPS_LEFT: ("broker",)}
"""Which roles may call what."""

_encode = msgspec.msgpack.Encoder().encode
_commands = msgspec.msgpack.Decoder(MoveIn)
_outcomes = msgspec.msgpack.Decoder(MoveInOutcome)
_questions = msgspec.msgpack.Decoder(AskGroups)
_answers = msgspec.msgpack.Decoder(GroupsOutcome)


class MoveCalls:
    """Both ends, for the journals of one process. See `MoveCarrier` and `GroupCarrier`."""

    def __init__(
        self,
        get: Callable[[int], JournalService],
        link: Callable[[int], RPCClient | None],
        tasks: BrokerTasks,
    ) -> None:
        """`get` returns a journal of this process, else raises NotLeader.

        `link` gives the connection to a journal's leader, None when that is this process; NotLeader if it is unknown.
        """
        self._get = get
        self._link = link
        self._tasks = tasks

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {MOVE: self._on_move, GROUPS_LEFT: self._on_groups_left}

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """Have a journal's leader take messages; raises NotNow when that may not have happened."""
        client = self._link(journal_id)
        if client is None:
            return await self._get(journal_id).take_moved(command)
        body = JOURNAL_ID.pack(journal_id) + _encode(command)
        return _outcomes.decode(await client.ask(MOVE, body, ANSWER_MS))

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        """Ask a journal's leader which groups a partition has none of; raises NotNow when it does not answer."""
        client = self._link(journal_id)
        if client is None:
            return await self._get(journal_id).groups_left(command)
        body = JOURNAL_ID.pack(journal_id) + _encode(command)
        return _answers.decode(await client.ask(GROUPS_LEFT, body, command.wait_ms + ANSWER_MS))

    def _on_move(self, call: IncomingCall) -> None:
        (journal_id,) = JOURNAL_ID.unpack_from(call.body)
        command = _commands.decode(memoryview(call.body)[JOURNAL_ID.size :])

        async def take() -> None:
            call.reply(_encode(await self._get(journal_id).take_moved(command)))

        self._tasks.answer(call, take())

    def _on_groups_left(self, call: IncomingCall) -> None:
        (journal_id,) = JOURNAL_ID.unpack_from(call.body)
        command = _questions.decode(memoryview(call.body)[JOURNAL_ID.size :])

        async def tell() -> None:
            call.reply(_encode(await self._get(journal_id).groups_left(command)))

        self._tasks.answer(call, tell())
