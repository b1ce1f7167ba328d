"""The leader of one journal of a server that is no cell: one replica, which its broker is appointed to lead.

    recover ─▶ appoint (compare-and-swap) ─▶ promise ─▶ barrier ─▶ activate (compare-and-swap) ─▶ serve

At each start it takes the journal for the next epoch, as the manager of a cell would.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from quaymaster.broker.broker import Broker
from quaymaster.broker.floor_note import FloorNote, read_floor
from quaymaster.broker.replica.journal_service import (
    JournalMemory,
    JournalOptions,
    JournalService,
    OtherJournals,
)
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.journal_state import (
    STATE_NAME,
    JournalEndsEarly,
    JournalWentBack,
    NotActivated,
    read_state,
)
from quaymaster.coordination.cell_keys import configuration_key, decode_configuration, encode_configuration
from quaymaster.coordination.interface import Coordination, OutcomeUnknown, RevisionMismatch
from quaymaster.coordination.store_mark import DECIDE
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.routing.broker_client import Reply, Submitted

ACTIVATION_TIMEOUT_S = 30.0
BROKER_NAME = "broker-{}"
"""A broker of its own leads each journal of a server: which process that is may change at each start."""

log = logging.getLogger(__name__)


class LoneLeader:
    """Has a broker lead its one journal. Implements `BrokerClient`: the in-memory twin of the transport."""

    def __init__(
        self,
        options: JournalOptions,
        coordination: Coordination,
        *,
        on_stopped: Callable[[Exception], None],
        disk: Disk | None = None,
        takes_any_journal: bool = False,
        others: OtherJournals | None = None,
        memory: JournalMemory | None = None,
    ) -> None:
        """`takes_any_journal`: it was restored, or somebody decided so; else it must be the one that was led last.

        `others`: the other journals of the server, where there are some. `memory`: what those of this process share.
        """
        name = BROKER_NAME.format(options.journal_id)
        self.broker = Broker(
            *(options, name, coordination), on_stopped=on_stopped, disk=disk, others=others, memory=memory
        )
        self._coordination = coordination
        self._journal_id = options.journal_id
        self._takes_any_journal = takes_any_journal
        self._floor_note: FloorNote | None = None
        self._noting: asyncio.Task[None] | None = None
        self.journal: JournalService

    async def start(self) -> JournalService:
        """Recover the journal and begin to lead it; return it when commands are served.

        Raises what recovery raises (`JournalCorrupt`, `DirectoryInUse`, ...), and JournalWentBack: nothing was changed
        then. NotNow: the metadata store does not answer.
        """
        coordination, journal_id = self._coordination, self._journal_id
        found = await coordination.get(configuration_key(journal_id))
        noted = await read_floor(coordination, journal_id)
        if found is not None and not self._takes_any_journal:
            await asyncio.get_running_loop().run_in_executor(
                None, self._check_journal, decode_configuration(found.value)
            )
        self.journal = journal = await self._open(0 if self._takes_any_journal else noted)
        journal.host.on_configuration(await self._appoint(journal))
        await _leading(journal.host)
        self._floor_note = FloorNote(
            coordination, journal_id, lambda: journal.files.durable_floor, noted=noted
        )
        if self._takes_any_journal:
            # What was noted is of a journal that is not asked for any more: the next start, which may come after a
            # kill and without that permission, must not ask this one for it.
            await self._floor_note.write()
        self._noting = supervise(asyncio.create_task(self._floor_note.run(), name="floor-note"))
        log_event(
            log,
            logging.INFO,
            "broker started",
            journal=journal_id,
            epoch=journal.host.replica.epoch,
            replayed=journal.replayed_records,
            recovery_ms=round(journal.recovery_s * 1000),
        )
        return journal

    async def close(self) -> None:
        """Let the broker finish, and note how far the journal came."""
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.gather(self._noting, return_exceptions=True)
        await self.broker.close()
        if self._floor_note is not None:
            await self._floor_note.write_last()

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """See `BrokerClient`."""
        return self.journal.submit(command, reply)

    async def _open(self, noted: int) -> JournalService:
        """Recover the journal. `noted`: it was durable up to this offset, as the metadata says."""
        try:
            return await self.broker.open(self._journal_id, noted_floor=noted)
        except JournalEndsEarly as error:
            raise JournalWentBack(
                f"{error}. The end of the journal is damaged, or an older copy was put back. {DECIDE}."
            ) from None

    def _check_journal(self, known: JournalConfiguration) -> None:
        """Refuse a directory without the journal that was led, with an older copy of it, or with older metadata."""
        directory = f"{self.broker.directory}/{self._journal_id}"
        if not self.broker.disk.exists(f"{directory}/{STATE_NAME}"):
            # Before the first activation there is nothing in it that anybody was told of.
            if known.epoch > 1 or known.activated:
                raise JournalWentBack(
                    f"{directory} has no journal, and the metadata knows one that was led in epoch {known.epoch}: the "
                    f"messages of all queues are missing. {DECIDE}."
                )
            return
        promised_epoch = read_state(self.broker.disk, directory).promised_epoch
        if known.activated and promised_epoch < known.epoch:
            raise JournalWentBack(
                f"{directory} is an older copy of the journal: it has promised epoch {promised_epoch}, and was led in "
                f"epoch {known.epoch}. {DECIDE}."
            )
        if promised_epoch > known.epoch:
            # A server takes an epoch in its metadata first.
            raise JournalWentBack(
                f"The metadata is an older copy: it knows epoch {known.epoch} of the journal, which has promised epoch "
                f"{promised_epoch}. {DECIDE}."
            )

    async def _appoint(self, journal: JournalService) -> JournalConfiguration:
        """Take the journal for the next epoch, as the manager of a cell would."""
        key = configuration_key(self._journal_id)
        member, promised_epoch = journal.member, journal.files.promised_epoch
        while True:
            found = await self._coordination.get(key)
            known = decode_configuration(found.value) if found else None
            epoch = max(known.epoch if known else 0, promised_epoch) + 1
            previous: tuple[str, ...] = ()
            if known is not None:
                previous = known.members if known.activated else known.previous_members
            if len(previous) <= 1:
                # The only member there is. Its storage id is new after an fsync error or a restore.
                previous = (member,)
            configuration = JournalConfiguration(epoch, member, (member,), previous, activated=False)
            try:
                await self._coordination.compare_and_swap(
                    key, found.revision if found else 0, encode_configuration(configuration)
                )
            except (RevisionMismatch, OutcomeUnknown):
                continue
            return configuration


async def _leading(host: ReplicaHost) -> None:
    """Return once the replica leads; NotActivated when it does not come to that."""
    deadline = time.monotonic() + ACTIVATION_TIMEOUT_S
    while not host.replica.is_leading:
        if host.stopped is not None:
            raise NotActivated(f"the journal stopped before it could serve: {host.stopped}")
        if time.monotonic() > deadline:
            raise NotActivated(f"the journal was not activated in {ACTIVATION_TIMEOUT_S} s")
        await asyncio.sleep(0.001)
