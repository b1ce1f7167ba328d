"""The journals of a server that is no cell, as far as this process has them: it leads each by itself.

    command ──whose queue?──▶ the leader of its journal, if it is here       (`lone_leader`)
    message that moves ──▶ another journal here ──or──▶ `elsewhere`

Which journals there are, the data directory and the store say: each directory `journals/<id>` is one, and so is each
that was ever led. As long as there is only one, nothing is looked up for a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.replica.clock import QueueClock
from quaymaster.broker.replica.group_questions import GroupCarrier
from quaymaster.broker.replica.journal_service import JournalOptions, JournalService, journal_memory
from quaymaster.broker.replica.moves.moves_out import MoveCarrier
from quaymaster.broker.replica.moves.queue_places import FindQueue
from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.journal_state import FIRST_JOURNAL
from quaymaster.coordination.cell_keys import JOURNALS, journal_of
from quaymaster.coordination.interface import Coordination
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.net.routing.broker_client import JournalOf, NotTakenBack, Reply, Submitted, journal_of_command


async def list_journals(directory: Path, coordination: Coordination) -> list[int]:
    """Return the numbers of all journals of a server: those on its disk, and those that the store knows. NotNow."""
    rows, _ = await coordination.list_all(JOURNALS)
    found = await asyncio.get_running_loop().run_in_executor(None, _journals_in, directory)
    return sorted({FIRST_JOURNAL, *found, *(journal_of(row.key) for row in rows)})


def _journals_in(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]


class Elsewhere(MoveCarrier, GroupCarrier, Protocol):
    """The way to journals that other processes lead."""


class OwnJournals:
    """Leads journals of this process. Implements `BrokerClient`: the in-memory twin of the transport."""

    def __init__(
        self,
        options: JournalOptions,
        numbers: Iterable[int],
        coordination: Coordination,
        *,
        journal_of: JournalOf,
        on_stopped: Callable[[Exception], None],
        find_queue: FindQueue,
        elsewhere: Elsewhere | None = None,
        disk: Disk | None = None,
        takes_any_journal: bool = False,
    ) -> None:
        """`options` hold for each journal; the id in them does not count.

        `numbers`: the journals to lead.

        `journal_of` and `find_queue` know the queues of all journals. `elsewhere`: the way to journals that other
        processes lead; without it there are none. `takes_any_journal`: see `LoneLeader`.
        """
        numbers = list(numbers)
        self.directory = Path(options.directory)
        self.journals: dict[int, JournalService] = {}
        """Those that are led, by number."""
        self._journal_of = journal_of
        self._only: JournalService | None = None
        """The one journal of a server, to which every command goes."""
        self._is_only = len(numbers) == 1 and elsewhere is None
        memory = journal_memory(options, has_peers=False)
        others = None if self._is_only else _Others(self.journals, find_queue, elsewhere)
        self._leaders = {
            number: LoneLeader(
                replace(options, journal_id=number),
                coordination,
                on_stopped=on_stopped,
                disk=disk,
                takes_any_journal=takes_any_journal,
                others=others,
                memory=memory,
            )
            for number in numbers
        }

    async def start(self) -> None:
        """Recover the journals and begin to lead them, all at once; raises as `LoneLeader.start`."""
        starting = {number: asyncio.ensure_future(leader.start()) for number, leader in self._leaders.items()}
        await asyncio.gather(*starting.values(), return_exceptions=True)
        failed = [error for start in starting.values() if (error := start.exception()) is not None]
        if failed:
            await self.close()
            raise failed[0]
        self.journals.update((number, start.result()) for number, start in starting.items())
        if self._is_only:
            (self._only,) = self.journals.values()

    async def close(self) -> None:
        """Let the journals finish, and note how far each came."""
        await asyncio.gather(*(leader.close() for leader in self._leaders.values()))

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """See `BrokerClient`. A command for a journal that is not here is answered with NotLeader."""
        if self._only is not None:
            return self._only.submit(command, reply)
        number = journal_of_command(command, self._journal_of)
        if number is None:
            return _refuse(reply, QueueDoesNotExist())
        journal = self.journals.get(number)
        return _refuse(reply, NotLeader()) if journal is None else journal.submit(command, reply)

    def get(self, number: int) -> JournalService:
        """Return a journal; NotLeader when it is not led here."""
        journal = self.journals.get(number)
        if journal is None:
            raise NotLeader
        return journal

    def all(self) -> Collection[JournalService]:
        """Return the journals that are led here, by number."""
        return self.journals.values()

    def clocks(self) -> dict[int, QueueClock]:
        """Return the clock of each journal, by number."""
        return {number: journal.host.clock for number, journal in self.journals.items()}

    def queues(self) -> dict[int, QueueStates]:
        """Return the queues of each journal, by its number."""
        return {number: journal.host.replica.queues for number, journal in self.journals.items()}

    async def status(self) -> list[dict[str, Any]]:
        """Return facts about each journal, for operators (`JournalService.status`)."""
        return [await journal.status() for journal in self.all()]

    def accept_clock(self) -> None:
        """Let messages expire again although the clock jumped: an operator says that it is right."""
        for clock in self.clocks().values():
            clock.accept()

    def why_stopped(self) -> str | None:
        """Return which journal has stopped, and why; None if all do their part."""
        reasons = (leader.broker.why_stopped() for leader in self._leaders.values())
        return next((reason for reason in reasons if reason is not None), None)


class _Others:
    """Implements `OtherJournals`, for each of several journals."""

    def __init__(
        self, journals: dict[int, JournalService], find_queue: FindQueue, elsewhere: Elsewhere | None
    ) -> None:
        self._journals = journals
        self._find_queue = find_queue
        self._elsewhere = elsewhere

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        journal = self._journals.get(journal_id)
        if journal is not None:
            return await journal.take_moved(command)
        if self._elsewhere is None:
            raise NotLeader
        return await self._elsewhere.move(journal_id, command)

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        journal = self._journals.get(journal_id)
        if journal is not None:
            return await journal.groups_left(command)
        if self._elsewhere is None:
            raise NotLeader
        return await self._elsewhere.groups_left(journal_id, command)

    async def find_queue(self, account_id: str, name: str) -> QueueDefinition | None:
        return await self._find_queue(account_id, name)


def _refuse(reply: Reply, error: Exception) -> Submitted:
    asyncio.get_running_loop().call_soon(reply, error)
    return NotTakenBack()
