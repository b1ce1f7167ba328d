"""One replica of a journal in this process: recovered, fed with what happens, kept small, and let go again.

    open directory ─▶ load snapshot ─▶ recover journal ─▶ replay ─▶ follow, or lead when appointed

The broker that put it here reads the journal's configuration from coordination, and carries its messages to the other
replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from quaymaster.broker.replica.clock import QueueClock, monotonic_ms
from quaymaster.broker.replica.group_questions import GroupAnswers, GroupCarrier, GroupQuestions
from quaymaster.broker.replica.maintenance.compaction import COMPACT_AFTER_MS, Compaction
from quaymaster.broker.replica.maintenance.expiry import MessageExpiry
from quaymaster.broker.replica.maintenance.snapshots import Snapshots
from quaymaster.broker.replica.moves.message_moves import MessageMoves
from quaymaster.broker.replica.moves.moves_out import MoveCarrier
from quaymaster.broker.replica.moves.queue_places import QueuePlaces
from quaymaster.broker.replica.partition_loads import PartitionLoads
from quaymaster.broker.replica.records import data_key_lists, record_repair
from quaymaster.broker.replica.records.record_bodies import Body
from quaymaster.broker.replica.records.record_repair import RECORDS_MAX, FoundRecord
from quaymaster.broker.replica.records.recovery import Recovered, rebuild, recover
from quaymaster.broker.replica.records.time_file import TimeFile, read_boot
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.broker.storage.chunk_store import ChunkStore
from quaymaster.broker.storage.disk import Disk, RealDisk, is_full
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_recovery import Expected
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.broker.storage.snapshots import SnapshotStore
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.cell_keys import configuration_key, decode_configuration, encode_configuration
from quaymaster.coordination.interface import Coordination, OutcomeUnknown, RevisionMismatch
from quaymaster.core.cell.backup_cut import BackupBarrier
from quaymaster.core.cell.cell import ReplicaSeen
from quaymaster.core.partition.open_stages import ACCOUNT_STAGES_MAX
from quaymaster.core.partition.partition import IN_FLIGHT_MAX
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.replication.replication import TAIL_BYTES_MAX, LogReplica
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.orders.index import ChunkKeeper
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.commands.completions import Complete, CompletionDecided
from quaymaster.core.values.commands.decided import DeadLetter, WriteBarrier
from quaymaster.core.values.commands.move_tasks import StartMoveTask
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome, ListDataKeys
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import JournalStopped, NotLeader, NotNow, Overloaded, StaleEpoch, Timeout
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.records import Batch
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.broker_client import NotTakenBack, Reply, Submitted

COUNTED_AT_A_TIME = 5_000
"""Partitions whose messages are added up in one step."""
ACTIVATION_RETRY_S = 0.2
REBUILD_RETRY_S = 1.0
"""Rebuilding the queues is tried again after so long on a full disk."""
BARRIER_TIMEOUT_S = 5.0
BARRIER_LOOK_S = 0.002
ANSWER_MS = 5_000
"""So long the leader of a journal may take to answer that of another, besides what the question itself waits."""
LAST_COMMIT_TIMEOUT_S = 1.0
"""How long the last snapshot of a replica with others waits for their answers: they may be closing too."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """What a replica of a journal needs to know; the names are those of the settings."""

    directory: Path
    region: str
    journal_id: int
    limits: JournalLimits
    body_cache_bytes: int
    """Of all journals of a process together."""
    snapshot_interval_s: float
    snapshot_records: int
    compaction_live_ratio: float
    retry_window_ms: int
    id_limits: IdLimits = ID_LIMITS
    in_flight_max: int = IN_FLIGHT_MAX
    account_stages_max: int = ACCOUNT_STAGES_MAX
    compaction_age_min_ms: int = COMPACT_AFTER_MS
    cell_format: CellFormat = field(default_factory=CellFormat)
    """What is written goes by it, at every moment; a server that is no cell writes the newest."""

    def make_queues(self, keeper: ChunkKeeper) -> QueueStates:
        """Return queues that no record was applied to."""
        queues = QueueStates(
            keeper,
            retry_window_ms=self.retry_window_ms,
            id_limits=self.id_limits,
            in_flight_max=self.in_flight_max,
            account_stages_max=self.account_stages_max,
            journal_id=self.journal_id,
        )
        queues.cell_format = self.cell_format
        return queues


class JournalMemory(NamedTuple):
    """What the replicas of a process keep of their newest batches, together: most of it is the same bytes twice."""

    bodies: SharedBytes
    tails: SharedBytes


def journal_memory(options: JournalOptions, *, has_peers: bool) -> JournalMemory:
    """Return empty memory; logs without other replicas keep no tail."""
    return JournalMemory(
        SharedBytes(options.body_cache_bytes), SharedBytes(TAIL_BYTES_MAX if has_peers else 0)
    )


class OtherJournals(MoveCarrier, GroupCarrier, Protocol):
    """Journals with other numbers, as a leader reaches them: messages may be moved there."""

    async def find_queue(self, account_id: str, name: str) -> QueueDefinition | None:
        """See `FindQueue`."""


class Peers(OtherJournals, Protocol):
    """The other replicas of journals, as this process reaches them."""

    def send(self, journal_id: int, messages: list[Envelope]) -> None:
        """Send messages to other replicas; they may get lost."""

    def copy_needed(self, journal_id: int, members: list[str]) -> None:
        """These members need a copy of the journal; `host.on_copied` when they have one."""

    def stuck(self, journal_id: int) -> None:
        """The journal could not write what it took on a full disk: open it again, without that."""

    async def stretches(self, journal_id: int, start: int, end: int) -> list[list[Batch]]:
        """Return the batches between two offsets as other members have them, of each that has them."""

    async def records(self, journal_id: int, offsets: list[int]) -> tuple[list[FoundRecord], int]:
        """Return what other members have of these records, and how many others there are."""


class JournalService:
    """One replica. It answers commands while it leads."""

    def __init__(
        self,
        options: JournalOptions,
        node_name: str,
        coordination: Coordination,
        *,
        on_stopped: Callable[[Exception], None],
        disk: Disk | None = None,
        peers: Peers | None = None,
        others: OtherJournals | None = None,
        memory: JournalMemory | None = None,
    ) -> None:
        """Without `peers` it has no other replica; without them and `others` there is no journal but this one.

        `memory` is what it shares with other replicas of the process; one that is alone has its own.
        """
        self._memory = memory or journal_memory(options, has_peers=peers is not None)
        self._options = options
        self._node_name = node_name
        self._coordination = coordination
        self._on_stopped = on_stopped
        self._disk = disk or RealDisk()
        self._peers = peers
        self._others: OtherJournals | None = peers if others is None else others
        self._background: set[asyncio.Task[None]] = set()
        self._start_end_offset = 0
        self.host: ReplicaHost
        self.files: JournalFiles
        self.snapshots: Snapshots
        self.compaction: Compaction
        self._moves: MessageMoves
        self._answers: GroupAnswers
        self._questions: GroupQuestions
        self.replayed_records = 0
        self.recovery_s = 0.0
        self.rebuilds = 0
        self.leaderships = 0
        self.moves_hold = 0
        """What keeps messages of other journals out, by its number; 0 when nothing does."""
        self._holds = 0
        self._hold_ends: asyncio.TimerHandle | None = None

    async def open(self, *, noted_floor: int = 0) -> None:
        """Recover the journal and begin to take part in it; it leads when it hears that it is appointed.

        `noted_floor`: the journal was durable up to this offset, as somebody else noted.

        Raises what recovery raises (`JournalCorrupt`, `DirectoryInUse`, ...): nothing was changed then.
        """
        loop = asyncio.get_running_loop()
        options = self._options
        started = time.monotonic()
        recovered = await loop.run_in_executor(None, self._recover, noted_floor)
        self.recovery_s = time.monotonic() - started
        self.replayed_records = recovered.replayed_records
        self.files = recovered.files
        await loop.run_in_executor(None, self.files.space.release_if_scarce)
        self._start_end_offset = self.files.end_offset
        for warning in recovered.warnings:
            log_event(log, logging.WARNING, "recovery warning", journal=options.journal_id, warning=warning)
        clock = QueueClock(last_stamp_ms=recovered.last_time_ms)
        time_file = TimeFile(self._disk, self._path, self.files.storage_id, boot=read_boot)
        await loop.run_in_executor(None, time_file.resume, clock.queue_time, monotonic_ms)
        self._put_together(loop, recovered, clock)
        self.host.start()
        if self._peers is not None:
            self.host.tick()
        time_kept = time_file.run(clock.queue_time, monotonic_ms)
        for work in (MessageExpiry(self.host).run(), self.snapshots.run(), self.compaction.run(), time_kept):
            self._run(work)

    def _put_together(self, loop: asyncio.AbstractEventLoop, recovered: Recovered, clock: QueueClock) -> None:
        """Make the replica of what was recovered, its host, and what keeps it small."""
        options, peers = self._options, self._peers
        replicated_log = LogReplica(
            self.member,
            promised_epoch=self.files.promised_epoch,
            start=recovered.start,
            positions=recovered.positions,
            now_ms=monotonic_ms(),
            tail_memory=self._memory.tails,
            time=clock.queue_time,
        )
        replica = JournalReplica(
            replicated_log,
            recovered.queues,
            last_time_ms=recovered.last_time_ms,
            cell_format=options.cell_format,
        )
        self.host = ReplicaHost(
            loop,
            replica,
            self.files,
            clock,
            body_memory=self._memory.bodies,
            links=_Links(self),
            loads=None if peers is None else PartitionLoads(),
        )
        places, others = None, self._others
        if others is not None:
            places = QueuePlaces(options.region, others.find_queue, options.cell_format)
        self._moves = MessageMoves(self.host, options.region, places=places, carrier=others)
        self._answers = GroupAnswers(self.host)
        self._questions = GroupQuestions(self.host, self._answers, others)
        self.snapshots = Snapshots(
            self.host,
            recovered.snapshots,
            recovered.chunks,
            interval_s=options.snapshot_interval_s,
            records_max=options.snapshot_records,
            cell_format=options.cell_format,
        )
        self.compaction = Compaction(
            self.host,
            self.snapshots,
            live_ratio=options.compaction_live_ratio,
            age_min_ms=options.compaction_age_min_ms,
            mend=self.mend if peers is not None else None,
        )

    async def close(self) -> None:
        """Answer parked receives, finish what was decided, write a last snapshot, and let go of the directory."""
        self.release_moves()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.compaction.close()
        await self._moves.close()
        await self._questions.close()
        self.host.receives.waiters.answer_all()
        if self.host.stopped is None and self.host.replica.is_ready:
            await self.snapshots.write(None if self._peers is None else LAST_COMMIT_TIMEOUT_S)
        await self.host.close()
        await asyncio.get_running_loop().run_in_executor(None, self.files.close)

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """See `BrokerClient`."""
        if type(command) is StartMoveTask:
            return self.host.submit(command, self._and_start_tasks(reply))
        if type(command) is Complete:
            return self.host.submit(command, self._and_send_outputs(command, reply))
        if type(command) is ListDataKeys:
            self._run(self._list_data_keys(command, reply))
            return NotTakenBack()
        return self.host.submit(command, reply)

    async def _list_data_keys(self, command: ListDataKeys, reply: Reply) -> None:
        """Answer as a leader only: what others have may lack what was committed last."""
        try:
            if self.host.stopped is not None:
                raise JournalStopped(f"The journal stopped: {self.host.stopped}")
            outcome = await asyncio.get_running_loop().run_in_executor(
                None, data_key_lists.list_data_keys, self.files, self._disk, command.after
            )
            if not self.host.replica.is_leading:
                raise NotLeader(None)
        except NotNow as error:
            reply(error)
        except (RecordUnreadable, JournalCorrupt, OSError) as error:
            log_event(log, logging.ERROR, "data keys not listed", journal=self.journal_id, error=str(error))
            reply(NotNow("What the journal holds could not be read."))
        else:
            reply(outcome)

    async def take_moved(self, command: MoveIn) -> MoveInOutcome:
        """Take messages that come from another journal; raises NotNow when that may not have happened."""
        if self.moves_hold:
            raise Overloaded("Nothing is taken from other journals while a backup finds its cut.")
        try:
            async with asyncio.timeout(ANSWER_MS / 1000):
                outcome: object = await self.host.ask(command)
        except TimeoutError:
            raise Timeout from None
        assert isinstance(outcome, MoveInOutcome), "a MoveIn is answered by a MoveInOutcome"
        return outcome

    async def groups_left(self, command: AskGroups) -> GroupsOutcome:
        """Answer which groups a partition has no message of; raises what the journal does, and Timeout."""
        try:
            async with asyncio.timeout((command.wait_ms + ANSWER_MS) / 1000):
                return await self._answers.answer(command)
        except TimeoutError:
            raise Timeout from None

    def hold_moves(self, seconds: float) -> None:
        """Take nothing from other journals for so long, or until `release_moves`; begins another hold each time."""
        self.release_moves()
        self._holds += 1
        self.moves_hold = self._holds
        self._hold_ends = asyncio.get_running_loop().call_later(seconds, self.release_moves)

    def release_moves(self) -> None:
        """Take what other journals send again."""
        self.moves_hold = 0
        if self._hold_ends is not None:
            self._hold_ends.cancel()
            self._hold_ends = None

    async def barrier(self) -> BackupBarrier:
        """Write a barrier; return it once it is committed and durable here (`core/cell/backup_cut`). Raises NotNow."""
        host = self.host
        epoch = host.replica.epoch
        deadline = time.monotonic() + BARRIER_TIMEOUT_S
        try:
            async with asyncio.timeout(BARRIER_TIMEOUT_S):
                await host.ask(WriteBarrier())
        except TimeoutError:
            raise Timeout from None
        commit = host.replica.commit
        while host.replica.durable_end < commit:  # a majority may be ahead of this disk
            if time.monotonic() > deadline:
                raise Timeout
            await asyncio.sleep(BARRIER_LOOK_S)
        if host.replica.epoch != epoch:
            raise StaleEpoch
        return BackupBarrier(epoch, self.moves_hold)

    @property
    def member(self) -> str:
        """The name that this copy has among the members: a copy that is formatted again is another."""
        return f"{self._node_name}@{self.files.storage_id.hex()}"

    @property
    def journal_id(self) -> int:
        """Which journal this is a replica of."""
        return self._options.journal_id

    @property
    def _path(self) -> str:
        return f"{self._options.directory}/{self._options.journal_id}"

    @property
    def records_appended(self) -> int:
        """How many records this start has appended."""
        return self.host.replica.end_offset - self._start_end_offset

    def seen(self) -> ReplicaSeen:
        """Return how the replica is, as the manager wants to know it."""
        replica = self.host.replica
        replicated_log = replica.log
        end = replicated_log.end
        return ReplicaSeen(
            replica.node,
            replica.role,
            replica.epoch,
            replicated_log.promised_epoch,
            end.epoch,
            end.end,
            replicated_log.hears_leader(monotonic_ms()),
            is_ready=self.host.stopped is None,
            is_rebuilding=not replica.is_ready,
            is_tainted=self.host.stopped is not None,
            lag=replicated_log.lag_of() if replica.role in ("activating", "leading") else {},
            expiry_held=self.host.clock.expiry_is_held,
            clock_ahead_ms=self.host.clock.gap_ms,
            time_stepped_ms=self.host.clock.stepped_ms,
        )

    async def status(self) -> dict[str, Any]:
        """Return facts for operators: offsets, segments, caches, queues."""
        host, replica = self.host, self.host.replica
        messages = in_flight = 0
        for number, partition in enumerate(list(replica.queues.partitions.values()), 1):
            messages += partition.alive if partition.log is None else 0
            in_flight += len(partition.in_flight)
            if not number % COUNTED_AT_A_TIME:
                await asyncio.sleep(0)
        segments = self.files.segments()
        return {
            "journal": self._options.journal_id,
            "role": replica.role,
            "epoch": replica.epoch,
            "start_offset": self.files.start_offset,
            "end_offset": replica.end_offset,
            "commit": replica.commit,
            "snapshot_offset": self.snapshots.base_offset,
            "snapshots_written": self.snapshots.written,
            "snapshots_failed": self.snapshots.failed,
            "segments": len(segments),
            "segment_bytes": sum(segment.data_bytes for segment in segments),
            "compacted_segments": self.compaction.compacted_segments,
            "compaction_freed_bytes": self.compaction.freed_bytes,
            "pending_bytes": host.writer.pending_bytes,
            "disk_low": host.writer.disk_low,
            "room": self.files.room.name.lower(),
            "body_cache_bytes": host.bodies.size_bytes,
            "body_cache_hits": host.bodies.hits,
            "body_cache_misses": host.bodies.misses,
            "queues": len(replica.queues.definitions),
            "messages": messages,
            "in_flight": in_flight,
            "long_polls": host.receives.waiters.parked,
            "expiry_held": host.clock.expiry_is_held,
            "clock_ahead_ms": host.clock.gap_ms,
            "recovery_s": round(self.recovery_s, 3),
            "replayed_records": self.replayed_records,
            "rebuilds": self.rebuilds,
            "stopped": str(host.stopped) if host.stopped else None,
        }

    # Inside

    def _recover(self, noted_floor: int) -> Recovered:
        options = self._options
        return recover(
            self._disk,
            str(options.directory),
            journal_id=options.journal_id,
            limits=options.limits,
            make_queues=options.make_queues,
            expected=Expected(noted_floor=noted_floor, is_replicated=self._peers is not None),
        )

    def start_rebuild(self) -> None:
        """Rebuild the queues as soon as the cut that made them worthless is carried out."""
        self.host.after_writes(lambda: self._run(self._rebuild()))

    async def _rebuild(self) -> None:
        """Rebuild the queues, once. Each cut asks for it: one that was overtaken by another cut leaves it to that."""
        async with self.snapshots.replaced() as replace:
            while not self.host.replica.is_ready:
                try:
                    await self._rebuild_now(replace)
                    return
                except OSError as error:
                    if not is_full(error):
                        raise
                log_event(
                    log, logging.WARNING, "queues not made anew", journal=self.journal_id, reason="disk full"
                )
                await asyncio.sleep(REBUILD_RETRY_S)

    async def _rebuild_now(self, replace: Callable[[SnapshotStore, ChunkStore], None]) -> None:
        replica = self.host.replica
        started = time.monotonic()
        truncations = self.files.truncations
        try:
            recovered = await asyncio.get_running_loop().run_in_executor(None, self._rebuilt)
            while not replica.has_kept_from(recovered.end_offset) and replica.log.truncations == truncations:
                # More has come than is kept for the loop to apply: the thread goes on, with what is written by now.
                await self._written()
                await asyncio.get_running_loop().run_in_executor(None, recovered.replay)
        except Exception:
            if replica.log.truncations == truncations:
                raise
            return  # the journal was cut while it was read
        if replica.log.truncations != truncations:
            return
        replace(recovered.snapshots, recovered.chunks)
        self.rebuilds += 1
        log_event(
            log,
            logging.INFO,
            "queues made anew",
            journal=self.journal_id,
            epoch=replica.epoch,
            offset=recovered.end_offset,
            replayed=recovered.replayed_records,
            took_ms=round((time.monotonic() - started) * 1000),
        )
        self.host.rebuilt(recovered.queues, recovered.end_offset, recovered.last_time_ms, truncations)

    def _rebuilt(self) -> Recovered:
        options = self._options
        return rebuild(self._disk, self.files, str(options.directory), options.make_queues)

    async def _written(self) -> None:
        """Return when everything that was given to the writer so far is written."""
        written = asyncio.Event()
        self.host.after_writes(written.set)
        await written.wait()

    async def activate(self, epoch: int) -> bool:
        """Mark the journal's configuration as activated; false when another epoch was appointed."""
        key = configuration_key(self._options.journal_id)
        while True:
            try:
                found = await self._coordination.get(key)
                assert found is not None, "the journal's configuration is in coordination"
                known = decode_configuration(found.value)
                if known.epoch != epoch:
                    self.host.on_configuration(known)
                    return False
                if not known.activated:
                    active = msgspec.structs.replace(known, activated=True, previous_members=known.members)
                    await self._coordination.compare_and_swap(
                        key, found.revision, encode_configuration(active)
                    )
                return True
            except (RevisionMismatch, OutcomeUnknown):
                continue  # read again: it may have been done
            except NotNow:
                await asyncio.sleep(ACTIVATION_RETRY_S)

    async def repaired(self, offsets: list[int]) -> dict[int, Body]:
        """Return records that are damaged here as other replicas have them, and repair them."""
        if self._peers is None:
            return {}
        answers, others = await self._peers.records(self.journal_id, offsets)
        chosen = await asyncio.get_running_loop().run_in_executor(
            None, record_repair.repair, self.files, offsets, answers, others
        )
        await self._repair_batches(offsets)
        return {found.offset: (found.type, found.flags, found.sequence, found.payload) for found in chosen}

    async def _repair_batches(self, offsets: list[int]) -> None:
        """Repair the batches around records whose own rows are damaged, too."""
        if self._peers is None:
            return
        run = asyncio.get_running_loop().run_in_executor
        for start, end in await run(None, record_repair.torn_stretches, self.files, offsets):
            for batches in await self._peers.stretches(self.journal_id, start, end):
                if await run(None, record_repair.repair_stretch, self.files, start, end, batches):
                    break

    async def mend(self) -> bool:
        """Look for damaged records in all segments, and repair those that other replicas have whole.

        Return whether all is whole, as far as is known: what is not may be repaired when others have heard more.
        """
        tried: set[int] = set()
        while True:
            damaged, batches = await asyncio.get_running_loop().run_in_executor(
                None, self.files.damaged_records
            )
            torn = {error.offset for error in batches}
            found = torn.union(damaged)
            if found <= tried:
                break
            tried |= found
            for first in range(0, len(damaged), RECORDS_MAX):
                await self.repaired(damaged[first : first + RECORDS_MAX])
            await self._repair_batches(sorted(torn))  # then look again: what is behind them was not read
        for error in batches:
            log_event(log, logging.ERROR, "batch damaged", journal=self.journal_id, error=str(error))
        return not found

    def leads(self, is_leading: bool) -> None:
        """The replica has begun to lead, or leads no longer."""
        replica = self.host.replica
        log_event(
            log,
            logging.INFO,
            "leader activated" if is_leading else "leader deposed",
            journal=self._options.journal_id,
            epoch=replica.epoch,
            offset=replica.end_offset,
        )
        if is_leading:
            self.leaderships += 1
        self._moves.leads(is_leading)
        self._questions.leads(is_leading)

    def _and_send_outputs(self, command: Complete, reply: Reply) -> Reply:
        def completed(answer: Any) -> None:
            if isinstance(answer, CompletionDecided):
                self._moves.outputs_begun(partition_key(command.queue_id, command.partition), answer.begun)
                answer = answer.outcome
            reply(answer)

        return completed

    def _and_start_tasks(self, reply: Reply) -> Reply:
        def started(outcome: Any) -> None:
            reply(outcome)
            if not isinstance(outcome, Exception):
                self._moves.start_tasks()

        return started

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.host.stop(error if isinstance(error, Exception) else RuntimeError(str(error)))


class _Links:
    """What the replica's host asks of the service. See `ReplicaLinks`."""

    def __init__(self, service: JournalService) -> None:
        self._service = service

    async def activate(self, epoch: int) -> bool:
        return await self._service.activate(epoch)

    def send(self, messages: list[Envelope]) -> None:
        peers = self._service._peers
        assert peers is not None, "a lone replica says nothing to others"
        peers.send(self._service.journal_id, messages)

    def copy_needed(self, members: list[str]) -> None:
        peers = self._service._peers
        assert peers is not None, "a lone replica has no other members"
        peers.copy_needed(self._service.journal_id, members)

    async def repaired(self, offsets: list[int]) -> dict[int, Body]:
        return await self._service.repaired(offsets)

    def rebuild(self) -> None:
        self._service.start_rebuild()

    def stuck(self) -> None:
        peers = self._service._peers
        assert peers is not None, "a lone replica waits for room"
        peers.stuck(self._service.journal_id)

    def leads(self, is_leading: bool) -> None:
        self._service.leads(is_leading)

    def dead_letters(self, letters: list[DeadLetter]) -> None:
        self._service._moves.move_dead_letters(letters)

    def groups_met(self) -> None:
        self._service._questions.look()

    def stopped(self, error: Exception) -> None:
        self._service._on_stopped(error)
