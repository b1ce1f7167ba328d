"""A broker: the journal replicas on its disk, which are opened, exchanged for a copy, dropped, and told what they need.

    <journals>/<id>/                     a replica
    <journals>/<id>.damaged-<time>/      one that could not be read

What it has is what is on the disk: each directory with a number for a name is a replica. Who leads them is decided
elsewhere: by the manager of a cell (`cell/broker_service`), or by the server that has no other broker (`lone_leader`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from quaymaster.broker.copies import snapshot_install
from quaymaster.broker.load_meter import LoadMeter
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.broker.replica.journal_service import (
    JournalMemory,
    JournalOptions,
    JournalService,
    OtherJournals,
    Peers,
    journal_memory,
)
from quaymaster.broker.storage.disk import Disk, RealDisk, is_full
from quaymaster.broker.storage.journal_state import JournalCorrupt, JournalState
from quaymaster.broker.storage.snapshots import SnapshotsDamaged
from quaymaster.broker.storage.threads import run_to_end
from quaymaster.coordination.interface import Coordination
from quaymaster.core.cell.cell import BrokerReport, ReplicaSeen
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.values.errors import InternalFailure, NotLeader
from quaymaster.core.values.journal_configuration import JournalConfiguration, named_members
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.protocol.rpc.broker_calls import DropRequest

TRANSFER_LOOK_S = 0.005
ROOM_LOOK_S = 1.0

log = logging.getLogger(__name__)

Exchanged = TypeVar("Exchanged")


class Broker:
    """The replicas of journals in this process."""

    def __init__(
        self,
        options: JournalOptions,
        name: str,
        coordination: Coordination,
        *,
        on_stopped: Callable[[Exception], None],
        peers: Peers | None = None,
        others: OtherJournals | None = None,
        memory: JournalMemory | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`options` hold for each journal; the id in them does not count. Without `peers` no replica has others.

        `others`: the journals that other brokers have; those of `peers` are known by them. `memory` is what it shares
        with other brokers of the process.
        """
        self.directory = Path(options.directory)
        self.journals: dict[int, JournalService] = {}
        """The replicas that are open, by the number of their journal."""
        self.configurations: dict[int, JournalConfiguration] = {}
        """The newest configurations that were seen, of all journals of the cell."""
        self._options = options
        self.name = name
        self._coordination = coordination
        self._peers = peers
        self._other_journals = others
        self._memory = memory or journal_memory(options, has_peers=peers is not None)
        self.disk = disk or RealDisk()
        self._on_stopped = on_stopped
        self._without_room: set[int] = set()
        """Replicas on the disk that could not be opened because it is full."""
        self._others: dict[int, str] = {}
        """The brokers under whose names replicas here are members, as was logged."""
        self._load = LoadMeter()
        self._changing = asyncio.Lock()
        self._away: dict[int, ReplicaSeen] = {}
        """Replicas that are closed for a moment: they are there, and are not to be taken for lost."""

    async def recover(self) -> None:
        """Open every replica on the disk; those that are damaged are put aside."""
        self.disk.make_directory(str(self.directory))
        snapshot_install.settle(self.directory)
        for number in sorted(int(name) for name in os.listdir(self.directory) if name.isdigit()):
            async with self._changing:
                await self._open_if_room(number)

    async def open(self, number: int, *, noted_floor: int = 0) -> JournalService:
        """Return the replica of a journal, a new and empty one if there is none. Raises as `JournalService.open`."""
        async with self._changing:
            found = self.journals.get(number)
            return found if found is not None else await self._open(number, noted_floor)

    def get(self, number: int) -> JournalService:
        """Return the replica of a journal; NotLeader when none is open."""
        journal = self.journals.get(number)
        if journal is None:
            raise NotLeader
        return journal

    def check_unknown(self, number: int) -> None:
        """Raise InternalFailure when there is anything of a journal here, or the cell knows of one with its number."""
        if number in self.configurations:
            raise InternalFailure(f"This cell has a journal {number} already.")
        if (self.directory / str(number)).exists():
            raise InternalFailure(f"Broker {self.name} has a replica of journal {number} already.")

    async def restore(self, state: JournalState) -> JournalService:
        """Put a copy from a backup, which was checked, in the place of a journal that is unknown here, and open it.

        `state` is the identity that it gets.
        """
        number = state.journal_id
        async with self._changing:
            self.check_unknown(number)
            await run_to_end(snapshot_install.adopt_restored, self.directory, state)
            return await self._open(number)

    async def _open(self, number: int, noted_floor: int = 0) -> JournalService:
        journal = JournalService(
            replace(self._options, journal_id=number),
            self.name,
            self._coordination,
            on_stopped=self._on_stopped,
            disk=self.disk,
            peers=self._peers,
            others=self._other_journals,
            memory=self._memory,
        )
        await journal.open(noted_floor=noted_floor)
        self.journals[number] = journal
        self._away.pop(number, None)
        self.tell(number)
        return journal

    async def _open_if_room(self, number: int) -> None:
        """Open a replica; one that is damaged is put aside; on a full disk `open_when_room` does it later.

        The caller holds the lock.
        """
        try:
            if number not in self.journals:
                await self._open(number)
        except (JournalCorrupt, SnapshotsDamaged) as error:
            self._put_aside(number, error)
            self._away.pop(number, None)
            self._without_room.discard(number)
        except OSError as error:
            if not is_full(error):
                self._away.pop(number, None)
                raise
            if number not in self._without_room:
                self._without_room.add(number)
                log_failure(log, "replica not opened on a full disk", error, journal=number)
        else:
            self._without_room.discard(number)

    async def open_when_room(self) -> None:
        """Open replicas that found no room, when there is some; for ever."""
        while True:
            await asyncio.sleep(ROOM_LOOK_S)
            async with self._changing:
                for number in sorted(self._without_room):
                    await self._open_if_room(number)

    async def reopen(self, number: int) -> None:
        """Open a replica again, without what it could not write."""
        log_event(log, logging.WARNING, "replica opened anew on a full disk", journal=number)
        with suppress(NotLeader):  # dropped meanwhile
            await self.exchange(number, lambda _: None)

    def tell(self, number: int) -> None:
        """Tell a replica the newest configuration of its journal, as far as there is one."""
        journal, configuration = self.journals.get(number), self.configurations.get(number)
        if journal is None or configuration is None:
            return
        journal.host.on_configuration(configuration)
        other = _other_name(journal.member, configuration)
        if other != self._others.pop(number, None) and other is not None:
            log_event(log, logging.ERROR, "replica is of another broker", journal=number, broker=other)
        if other is not None:
            self._others[number] = other

    async def exchange(self, number: int, exchange: Callable[[JournalService], Exchanged]) -> Exchanged:
        """Close a replica, let `exchange` change its files on another thread, and open what is there then.

        A caller that is cancelled meanwhile waits: half exchanged, a replica would be opened as a new and empty one.
        """
        work = asyncio.get_running_loop().create_task(self._exchange(number, exchange))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            raise

    async def _exchange(self, number: int, exchange: Callable[[JournalService], Exchanged]) -> Exchanged:
        async with self._changing:
            journal = self.journals.pop(number, None)
            if journal is None:
                raise NotLeader  # it was dropped
            self._away[number] = msgspec.structs.replace(journal.seen(), is_ready=False)
            try:
                await journal.close()
                return await asyncio.get_running_loop().run_in_executor(None, exchange, journal)
            finally:
                await self._open_if_room(number)

    async def transfer(self, journal: JournalService, member: str, timeout_s: float) -> bool:
        """Hand a journal to a member; true when this broker has resigned, and the member has everything."""
        host = journal.host
        epoch = host.replica.epoch
        if not host.transfer(member):
            return False
        deadline = asyncio.get_running_loop().time() + timeout_s
        while host.replica.role == "leading" and host.replica.epoch == epoch:
            if asyncio.get_running_loop().time() > deadline:
                host.end_transfer()
                return False
            await asyncio.sleep(TRANSFER_LOOK_S)
        return True

    async def hand_over_all(self, timeout_s: float) -> None:
        """Resign in favour of the members that have most of each journal: who is appointed has no lease to wait for."""
        await asyncio.gather(*(self._hand_over(journal, timeout_s) for journal in self.journals.values()))

    async def _hand_over(self, journal: JournalService, timeout_s: float) -> None:
        lags = journal.host.replica.log.lag_of()
        configuration = self.configurations.get(journal.journal_id)
        if journal.host.replica.is_leading and configuration is not None:
            others = [member for member in configuration.members if member in lags]
            if others:
                await self.transfer(journal, min(others, key=lambda member: lags[member]), timeout_s)

    async def drop(self, request: DropRequest) -> bool:
        """Delete a replica that is not needed; false when a configuration that is known here names it."""
        number = request.journal
        journal = self.journals.get(number)
        configuration = self.configurations.get(number)
        if journal is None or journal.member != request.member:
            return True
        if (
            configuration is None
            or configuration.epoch < request.epoch
            # An older one than it took part in: of a store that began again, or was restored from a snapshot.
            or configuration.epoch < journal.files.promised_epoch
            or not configuration.activated
            or request.member in (*configuration.members, *configuration.learners)
            # Its directory was put in the place of another's: there it is needed.
            or _other_name(request.member, configuration) is not None
        ):
            return False
        async with self._changing:
            del self.journals[number]
            await journal.close()
            await asyncio.get_running_loop().run_in_executor(
                None, snapshot_install.remove, self.directory, number
            )
        log_event(log, logging.INFO, "replica dropped", journal=number, epoch=configuration.epoch)
        return True

    def report(self) -> BrokerReport:
        """Return how each replica is, as the manager wants to know it."""
        journals = self.journals
        return BrokerReport(
            self._away | {number: journal.seen() for number, journal in journals.items()},
            disk_free_bytes=self.disk.free_bytes(str(self.directory)),
            is_disk_low=any(journal.host.writer.disk_low for journal in journals.values()),
            has_space=not self._without_room
            and all(journal.files.room < DiskPressure.RESERVE for journal in journals.values()),
            load=msgspec.structs.replace(
                self._load.measure(journals),
                long_polls=sum(journal.host.receives.waiters.parked for journal in journals.values()),
                log_bytes=sum(
                    segment.data_bytes
                    for journal in journals.values()
                    for segment in journal.files.segments()
                ),
            ),
            wall_ms=wall_ms(),
        )

    def why_stopped(self) -> str | None:
        """Return which replica has stopped, or counts for nothing, and why; None if all do their part."""
        for number, journal in self.journals.items():
            if journal.host.stopped is not None:
                return f"Journal {number} stopped: {journal.host.stopped}"
            configuration = self.configurations.get(number)
            other = None if configuration is None else _other_name(journal.member, configuration)
            if other is not None:
                return (
                    f"The replica of journal {number} in {self.directory} is a member as that of broker {other}, and "
                    f"counts for nothing at {self.name}. Start each broker with its own directory."
                )
        if self._without_room:
            return f"There is no room to open journals {sorted(self._without_room)}."
        return None

    async def close(self) -> None:
        """Close every replica."""
        await asyncio.gather(*(journal.close() for journal in self.journals.values()))

    def _put_aside(self, number: int, error: Exception) -> None:
        """Keep a damaged replica where it is not opened: the others go on, and the manager replaces this one."""
        aside = self.directory / f"{number}.damaged-{time.time_ns() // 1_000_000}"
        os.rename(self.directory / str(number), aside)
        self.disk.sync_directory(str(self.directory))
        log_failure(log, "replica damaged and put aside", error, journal=number, directory=str(aside))


def _other_name(member: str, configuration: JournalConfiguration) -> str | None:
    """Return the other broker as whose replica this one is a member, None if there is none."""
    broker, _, storage_id = member.partition("@")
    named = named_members(configuration)
    if member in named:
        return None
    others = (name.partition("@") for name in sorted(named))
    return next((name for name, _, its_id in others if its_id == storage_id and name != broker), None)
