"""A broker of a cell: the replicas of many journals, fed by coordination and by the other brokers, led or following.

    coordination ──journals/, brokers/──▶ configurations, addresses
    other brokers ──replicate──▶ journals ──▶ peer_links ──▶ other brokers
    front ends ──command──▶ the journal's replica ──▶ outcome (NotLeader, with a hint, where it does not lead)
    manager ──report, prepare, transfer, drop──▶

What it holds is what is on its disk: each directory below `journals/` is a replica. It begins a new one only when the
manager asks for it, and drops one only when the manager says so and no configuration names it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quaymaster.broker import journal_copy, record_repair
from quaymaster.broker.disk import Disk, RealDisk
from quaymaster.broker.journal_copy import CopyManifest, CopyRead, CopySource
from quaymaster.broker.journal_files import JournalCorrupt
from quaymaster.broker.journal_service import JournalOptions, JournalService
from quaymaster.broker.peer_links import REPLICATE, PeerLinks, broker_of
from quaymaster.broker.record_repair import RECORD, FoundRecord
from quaymaster.broker.snapshots import SnapshotsDamaged
from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    BrokerRegistration,
    decode_configuration,
    decode_registration,
    encode_registration,
    journal_of,
    registration_key,
)
from quaymaster.coordination.interface import (
    Coordination,
    Event,
    OutcomeUnknown,
    RevisionMismatch,
    WatchLost,
)
from quaymaster.core.cell import BrokerLoad, BrokerReport
from quaymaster.core.errors import CallerError, InternalFailure, NotLeader, NotNow, Overloaded
from quaymaster.core.replication import JournalConfiguration
from quaymaster.core.replication_messages import Envelope
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.net.rpc import IncomingCall, RPCLimits, RPCServer
from quaymaster.net.tls import TransportSecurity
from quaymaster.protocol.broker_calls import (
    DROP,
    JOURNAL_ID,
    PREPARE,
    REPORT,
    TRANSFER,
    DropRequest,
    decode_drop,
    decode_transfer,
)
from quaymaster.protocol.command_codec import decode_command, encode_outcome
from quaymaster.protocol.frames import Hello
from quaymaster.protocol.replication_codec import ReplicationMessageUnreadable, decode_envelope

COMMAND = "command"
FETCH_COPY = "copy.fetch"
COPY_BEGIN = "copy.begin"
COPY_READ = "copy.read"
COPY_END = "copy.end"

DRAIN_MS = 1_000
COPIED_BY = ("activating", "leading")
"""Who may be copied from. An elect may need a member to have a copy before it finds a majority for its first batch."""
COPY_TIMEOUT_MS = 3_600_000
COPY_STEP_TIMEOUT_MS = 30_000
RETRY_S = 0.5
RELIST_S = 30.0
TRANSFER_TIMEOUT_S = 5.0
LAST_TRANSFER_TIMEOUT_S = 1.0
TRANSFER_LOOK_S = 0.005

log = logging.getLogger(__name__)


class CopyOffer(msgspec.Struct, frozen=True):
    """A member is to copy a journal from the broker `source`, which leads it in this epoch."""

    journal: int
    member: str
    source: str
    epoch: int


_encode = msgspec.msgpack.Encoder().encode
_offers = msgspec.msgpack.Decoder(CopyOffer)
_manifests = msgspec.msgpack.Decoder(CopyManifest)
_copy_reads = msgspec.msgpack.Decoder(CopyRead)


@dataclass(frozen=True, slots=True)
class CellBrokerOptions:
    """What a broker of a cell needs to know. `journal` holds for each of its journals; the id in it does not count.

    `advertise` is the host:port that the others reach it by; its port 0 stands for the one it listens on.
    """

    name: str
    zone: str
    cell: str
    listen_host: str
    listen_port: int
    advertise: str
    journal: JournalOptions
    limits: RPCLimits | None = None
    security: TransportSecurity | None = None


class CellBroker:
    """One broker process. `start` returns when it takes part; it leads what it is appointed for."""

    def __init__(
        self,
        options: CellBrokerOptions,
        coordination: Coordination,
        *,
        on_stopped: Callable[[Exception], None],
        disk: Disk | None = None,
    ) -> None:
        self._options = options
        self._coordination = coordination
        self._on_stopped = on_stopped
        self._disk = disk or RealDisk()
        self._hello = Hello(cell=options.cell, role="broker", node=options.name)
        self._links = PeerLinks(
            self._hello,
            on_closed=self._peer_closed,
            limits=options.limits,
            security=options.security,
            cell_format=options.journal.cell_format,
        )
        self._server = RPCServer(
            {
                COMMAND: self._on_command,
                REPORT: self._on_report,
                PREPARE: self._on_prepare,
                TRANSFER: self._on_transfer,
                DROP: self._on_drop,
                FETCH_COPY: self._on_fetch_copy,
                COPY_BEGIN: self._on_copy_begin,
                COPY_READ: self._on_copy_read,
                COPY_END: self._on_copy_end,
                RECORD: self._on_record,
            },
            self._hello,
            batch_handlers={REPLICATE: self._on_replicate},
            limits=options.limits,
            check_peer=None
            if options.security is None
            else options.security.check_peer("broker", "frontend", "manager", "metadata", "operator"),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._copying: set[int] = set()
        self._sources: dict[int, CopySource] = {}
        self.journals: dict[int, JournalService] = {}
        self.configurations: dict[int, JournalConfiguration] = {}
        self.registrations: dict[str, BrokerRegistration] = {}
        self.address = ""

    # Life

    async def start(self) -> None:
        """Recover every journal on the disk, listen, register, and follow coordination."""
        options = self._options
        self._disk.make_directory(str(options.journal.directory))
        journal_copy.settle(Path(options.journal.directory))
        for number in sorted(int(name) for name in os.listdir(options.journal.directory) if name.isdigit()):
            try:
                await self._open(number)
            except (JournalCorrupt, SnapshotsDamaged) as error:
                self._put_aside(number, error)
        if options.security is not None:
            options.security.require_own(self._hello)
        tls = None if options.security is None else options.security.server_context()
        host, port = await self._server.start(options.listen_host, options.listen_port, tls=tls)
        advertised, _, advertised_port = options.advertise.rpartition(":")
        self.address = f"{advertised or host}:{int(advertised_port or 0) or port}"
        await self._register()
        for prefix, take in ((BROKERS, self._take_registrations), (JOURNALS, self._take_configurations)):
            self._run(self._follow(prefix, take))
        log_event(
            log,
            logging.INFO,
            "broker started",
            broker=options.name,
            address=self.address,
            journals=len(self.journals),
        )

    def _put_aside(self, number: int, error: Exception) -> None:
        """Keep a damaged replica where nobody opens it: the others go on, and the manager replaces this one."""
        journals = Path(self._options.journal.directory)
        aside = journals / f"{number}.damaged-{time.time_ns() // 1_000_000}"
        os.rename(journals / str(number), aside)
        self._disk.sync_directory(str(journals))
        log_failure(log, "replica damaged and put aside", error, journal=number, directory=str(aside))

    async def close(self) -> None:
        """Hand over what is led as far as that goes at once, close every journal, stop listening."""
        await asyncio.gather(*(self._hand_over(journal) for journal in self.journals.values()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(source.end() for source in self._sources.values()))
        await asyncio.gather(*(journal.close() for journal in self.journals.values()))
        await self._server.drain(DRAIN_MS)
        await self._links.close()

    async def _hand_over(self, journal: JournalService) -> None:
        """Resign in favour of the member that has most of a journal: whoever is appointed has no lease to wait for."""
        lags = journal.host.replica.log.lag_of()
        configuration = self.configurations.get(journal.journal_id)
        if journal.host.replica.is_leading and configuration is not None:
            others = [member for member in configuration.members if member in lags]
            if others:
                await self.transfer(
                    journal, min(others, key=lambda member: lags[member]), LAST_TRANSFER_TIMEOUT_S
                )

    async def _register(self) -> None:
        options = self._options
        key = registration_key(options.name)
        while True:
            try:
                found = await self._coordination.get(key)
                known = decode_registration(found.value) if found is not None else None
                wanted = BrokerRegistration(options.name, options.zone, self.address)
                if (
                    known is not None and known.state == "draining"
                ):  # it was asked to leave, before it was restarted
                    wanted = msgspec.structs.replace(wanted, state="draining")
                if wanted != known:
                    await self._coordination.compare_and_swap(
                        key, found.revision if found is not None else 0, encode_registration(wanted)
                    )
                return
            except (RevisionMismatch, OutcomeUnknown):
                continue
            except NotNow as error:
                log_event(log, logging.WARNING, "broker not registered yet", reason=str(error))
                await asyncio.sleep(RETRY_S)

    # Coordination

    async def _follow(self, prefix: str, take: Callable[[dict[str, bytes]], None]) -> None:
        """Keep a copy of everything below a prefix up to date, for ever."""
        while True:
            try:
                items, revision = await self._coordination.list_all(prefix)
                known = {item.key: item.value for item in items}
                take(known)
                async with asyncio.timeout(RELIST_S):
                    async for events in self._coordination.watch(prefix, revision):
                        _apply(known, events)
                        take(known)
            except TimeoutError:
                continue
            except WatchLost:
                continue
            except NotNow:
                await asyncio.sleep(RETRY_S)

    def _take_registrations(self, known: dict[str, bytes]) -> None:
        found = _readable(known, decode_registration)
        self.registrations = {registration.name: registration for registration in found.values()}
        addresses = {
            registration.name: registration.address
            for registration in found.values()
            if registration.name != self._options.name
        }
        self._run(self._links.set_addresses(addresses))

    def _take_configurations(self, known: dict[str, bytes]) -> None:
        self.configurations = {
            journal_of(key): configuration
            for key, configuration in _readable(known, decode_configuration).items()
        }
        for number, journal in self.journals.items():
            configuration = self.configurations.get(number)
            if configuration is not None:
                journal.host.on_configuration(configuration)

    # Journals

    async def _open(self, number: int) -> JournalService:
        async with self._opening:
            found = self.journals.get(number)
            if found is not None:
                return found
            journal = JournalService(
                replace(self._options.journal, journal_id=number),
                self._options.name,
                self._coordination,
                on_stopped=self._on_stopped,
                disk=self._disk,
                peers=self,
            )
            await journal.open()
            self.journals[number] = journal
        configuration = self.configurations.get(number)
        if configuration is not None:
            journal.host.on_configuration(configuration)
        return journal

    def send(self, journal_id: int, messages: list[Envelope]) -> None:
        """See `Peers`."""
        self._links.send(journal_id, messages)

    def copy_needed(self, journal_id: int, members: list[str]) -> None:
        """See `Peers`."""
        journal = self.journals[journal_id]
        for member in members:
            log_event(
                log,
                logging.INFO,
                "copy needed",
                journal=journal_id,
                epoch=journal.host.replica.epoch,
                member=member,
            )
            self._run(self._offer_copy(journal, member, journal.host.replica.epoch))

    async def _offer_copy(self, journal: JournalService, member: str, epoch: int) -> None:
        """Have a member copy the journal from here, again and again until it has, or somebody else leads."""
        body = _encode(CopyOffer(journal.journal_id, member, self._options.name, epoch))
        replica = journal.host.replica
        while replica.role in COPIED_BY and replica.epoch == epoch and member in replica.log.lag_of():
            client = self._links.client(broker_of(member))
            if client is not None:
                try:
                    await client.ask(FETCH_COPY, body, COPY_TIMEOUT_MS)
                except (NotNow, CallerError) as error:
                    log_event(
                        log, logging.WARNING, "copy not made", journal=journal.journal_id, reason=str(error)
                    )
                else:
                    journal.host.on_copied(member)
                    return
            await asyncio.sleep(RETRY_S)

    def _on_fetch_copy(self, call: IncomingCall) -> None:
        offer = _offers.decode(call.body)

        async def fetch_copy() -> None:
            await self._fetch_copy(offer)
            call.reply()

        self._answer(call, fetch_copy())

    async def _fetch_copy(self, offer: CopyOffer) -> None:
        """Copy a journal from its leader, and put it in the place of what is here."""
        number = offer.journal
        journal = self.journals.get(number)
        client = self._links.client(offer.source)
        if journal is None or client is None or journal.member != offer.member:
            raise NotLeader
        if number in self._copying:
            raise Overloaded("A copy of this journal is being made already.")
        self._copying.add(number)
        journals = Path(self._options.journal.directory)
        try:
            reply = await client.ask(COPY_BEGIN, JOURNAL_ID.pack(number), COPY_STEP_TIMEOUT_MS)
            manifest = _manifests.decode(reply)

            async def read(name: str, position: int) -> bytes:
                return await client.ask(
                    COPY_READ, _encode(CopyRead(number, name, position)), COPY_STEP_TIMEOUT_MS
                )

            await journal_copy.fetch(journals / f"{number}{journal_copy.COPY_SUFFIX}", manifest, read)
            client.notify(COPY_END, JOURNAL_ID.pack(number))
            try:
                async with self._opening:
                    del self.journals[number]
                    await journal.close()
                    if journal_copy.may_adopt(journal.files, manifest):
                        await asyncio.get_running_loop().run_in_executor(
                            None, journal_copy.adopt, journals, number, journal.files, manifest
                        )
            finally:
                await self._open(number)  # the copy, or what was there before
            log_event(
                log,
                logging.INFO,
                "journal copied",
                journal=number,
                epoch=offer.epoch,
                end_offset=manifest.end,
            )
        finally:
            self._copying.discard(number)

    def _on_copy_begin(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)

        async def begin() -> None:
            journal = self.journals.get(number)
            if journal is None or journal.host.replica.role not in COPIED_BY:
                raise NotLeader
            before = self._sources.get(number)
            if before is not None and not before.is_ended:
                if before.reader != call.peer.node:
                    raise Overloaded("Another broker is copying this journal.")
                await before.end()
            directory = Path(self._options.journal.directory) / str(number)
            source = self._sources[number] = CopySource(journal, directory, reader=call.peer.node)
            call.reply(_encode(await source.begin()))

        self._answer(call, begin())

    def _on_copy_read(self, call: IncomingCall) -> None:
        request = _copy_reads.decode(call.body)

        async def read() -> None:
            source = self._sources.get(request.journal)
            if source is None or source.is_ended or source.reader != call.peer.node:
                raise NotLeader
            call.reply(await source.read(request.name, request.position))

        self._answer(call, read())

    def _on_copy_end(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)
        source = self._sources.get(number)
        if source is not None and source.reader == call.peer.node:
            del self._sources[number]
            self._run(source.end())

    async def records(self, journal_id: int, offsets: list[int]) -> tuple[list[FoundRecord], int]:
        """See `Peers`."""
        configuration = self.configurations.get(journal_id)
        members = () if configuration is None else configuration.members
        others = [name for member in members if (name := broker_of(member)) != self._options.name]
        clients = [client for name in others if (client := self._links.client(name)) is not None]
        return await record_repair.ask_others(clients, journal_id, offsets), len(others)

    def _on_record(self, call: IncomingCall) -> None:
        asked = record_repair.decode_asked(call.body)

        async def read() -> None:
            journal = self.journals.get(asked.journal)
            if journal is None or call.peer.role != "broker":
                raise NotLeader
            call.reply(
                await asyncio.get_running_loop().run_in_executor(
                    None,
                    record_repair.read_records,
                    journal.files,
                    asked.offsets,
                    journal.host.replica.commit,
                )
            )

        self._answer(call, read())

    def _peer_closed(self, broker: str) -> None:
        for journal in list(self.journals.values()):
            replica = journal.host.replica
            leader = replica.log.leader
            if leader is not None and broker_of(leader) == broker:
                journal.host.on_connection_closed(leader)

    def why_not_ready(self) -> str | None:
        """Return why this broker cannot do its part, None if it can."""
        for number, journal in self.journals.items():
            if journal.host.stopped is not None:
                return f"Journal {number} stopped: {journal.host.stopped}"
        return None

    # What others ask

    def _on_command(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)
        journal = self.journals.get(number)
        if journal is None:
            raise NotLeader(self._hint(number))
        command = decode_command(memoryview(call.body)[JOURNAL_ID.size :])
        version = call.body[JOURNAL_ID.size]

        def reply(outcome: object) -> None:
            if isinstance(outcome, NotLeader):
                call.fail(NotLeader(self._hint(number)))
            elif isinstance(outcome, Exception):
                call.fail(outcome)
            else:
                call.reply(encode_outcome(outcome, version=version))  # type: ignore[arg-type]  # what is no error is an outcome

        submitted = journal.submit(command, reply)
        call.on_cancel = submitted.cancel

    def _hint(self, number: int) -> str | None:
        """Return the address of the journal's leader, as far as it is known."""
        configuration = self.configurations.get(number)
        if configuration is None or not configuration.activated:
            return None
        registration = self.registrations.get(broker_of(configuration.leader))
        return None if registration is None else registration.address

    def _on_replicate(self, calls: list[IncomingCall]) -> None:
        received: dict[int, list[Envelope]] = {}
        for call in calls:
            try:
                number, envelope = decode_envelope(call.body)
            except ReplicationMessageUnreadable as error:
                log_failure(log, "replication message unreadable", error, peer=str(call.peer))
                continue
            if call.peer.role != "broker" or broker_of(envelope.sender) != call.peer.node:
                log_event(
                    log,
                    logging.ERROR,
                    "replication message of another",
                    peer=str(call.peer),
                    sender=envelope.sender,
                )
                continue
            received.setdefault(number, []).append(envelope)
        for number, envelopes in received.items():
            journal = self.journals.get(number)
            if journal is not None:
                journal.host.receive(envelopes)

    def _on_report(self, call: IncomingCall) -> None:
        call.reply(_encode(self.report()))

    def report(self) -> BrokerReport:
        """Return how each replica is, as the manager wants to know it."""
        journals = self.journals
        directory = str(self._options.journal.directory)
        return BrokerReport(
            {number: journal.seen() for number, journal in journals.items()},
            disk_free_bytes=self._disk.free_bytes(directory),
            is_disk_low=any(journal.host.writer.disk_low for journal in journals.values()),
            load=BrokerLoad(
                long_polls=sum(journal.host.waiters.parked for journal in journals.values()),
                log_bytes=sum(
                    segment.data_bytes
                    for journal in journals.values()
                    for segment in journal.files.segments()
                ),
            ),
        )

    def _on_prepare(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)

        async def prepare() -> None:
            journal = await self._open(number)
            call.reply(journal.member.encode())

        self._answer(call, prepare())

    def _on_transfer(self, call: IncomingCall) -> None:
        request = decode_transfer(call.body)

        async def transfer() -> None:
            journal = self.journals.get(request.journal)
            if journal is None:
                raise NotLeader
            call.reply(_encode(await self.transfer(journal, request.member)))

        self._answer(call, transfer())

    async def transfer(
        self, journal: JournalService, member: str, timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> bool:
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

    def _on_drop(self, call: IncomingCall) -> None:
        request = decode_drop(call.body)

        async def drop() -> None:
            call.reply(_encode(await self.drop(request)))

        self._answer(call, drop())

    async def drop(self, request: DropRequest) -> bool:
        """Delete a replica that nobody needs; false when a configuration that is known here names it."""
        number = request.journal
        journal = self.journals.get(number)
        configuration = self.configurations.get(number)
        if journal is None or journal.member != request.member:
            return True
        if (
            configuration is None
            or configuration.epoch < request.epoch
            or not configuration.activated
            or request.member in (*configuration.members, *configuration.learners)
        ):
            return False
        async with self._opening:
            del self.journals[number]
            await journal.close()
            journals = Path(self._options.journal.directory)
            await asyncio.get_running_loop().run_in_executor(None, journal_copy.remove, journals, number)
        log_event(log, logging.INFO, "replica dropped", journal=number, epoch=configuration.epoch)
        return True

    def _answer(self, call: IncomingCall, work: Coroutine[Any, Any, None]) -> None:
        async def answer() -> None:
            try:
                await work
            except Exception as error:
                if not isinstance(error, NotNow):
                    log_failure(log, "call failed", error, method=call.method)
                call.fail(error if isinstance(error, NotNow) else InternalFailure(str(error)))

        self._run(answer())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failure = error if isinstance(error, Exception) else RuntimeError(str(error))
            log_failure(log, "broker task failed", failure)
            self._on_stopped(failure)


T = TypeVar("T")


def _readable(known: dict[str, bytes], decode: Callable[[bytes], T]) -> dict[str, T]:
    """Return what can be read; the rest is of a newer program, or damaged, and told of."""
    found: dict[str, T] = {}
    for key, value in known.items():
        try:
            found[key] = decode(value)
        except msgspec.MsgspecError as error:
            log_event(log, logging.ERROR, "coordination key unreadable", key=key, error=str(error))
    return found


def _apply(known: dict[str, bytes], events: list[Event]) -> None:
    for event in events:
        if event.value is None:
            known.pop(event.key, None)
        else:
            known[event.key] = event.value
