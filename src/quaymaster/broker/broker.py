"""A broker: opens its journal, rebuilds the queues, gets itself appointed, serves, and lets go again.

    open directory ─▶ load snapshot ─▶ recover journal ─▶ replay ─▶ appoint (compare-and-swap) ─▶ promise
        ─▶ barrier ─▶ activate (compare-and-swap) ─▶ serve

With one replica the manager's part is done here: at each start the broker appoints itself for the next epoch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from quaymaster.broker.clock import QueueClock
from quaymaster.broker.disk import Disk, RealDisk
from quaymaster.broker.journal_files import JournalFiles
from quaymaster.broker.maintenance import COMPACT_AFTER_MS, Compaction, Expiry, Snapshots
from quaymaster.broker.moves import Moves
from quaymaster.broker.recovery import Recovered, recover
from quaymaster.broker.replica import ReplicaHost
from quaymaster.broker.space import JournalLimits
from quaymaster.coordination.interface import Coordination, OutcomeUnknown, RevisionMismatch
from quaymaster.core.commands import Command, StartMoveTask
from quaymaster.core.journal import JournalReplica
from quaymaster.core.partition import IN_FLIGHT_MAX
from quaymaster.core.replication import JournalConfiguration
from quaymaster.monitoring.logs import log_event
from quaymaster.net.broker_client import Reply, Submitted

ACTIVATION_TIMEOUT_S = 30.0
COUNTED_AT_A_TIME = 5_000
"""Partitions whose messages are added up in one step."""


class NotActivated(Exception):
    """The journal was recovered, but could not begin to serve; the message says why."""


log = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JournalConfiguration)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What a broker needs to know; the names are those of the settings."""

    directory: Path
    region: str
    journal_id: int
    limits: JournalLimits
    body_cache_bytes: int
    snapshot_interval_s: float
    snapshot_records: int
    compaction_live_ratio: float
    retry_window_ms: int
    retry_ids_max: int | None = None
    in_flight_max: int = IN_FLIGHT_MAX
    compaction_age_min_ms: int = COMPACT_AFTER_MS


class Broker:
    """One broker with its home journal. Implements `BrokerClient`: the in-memory twin of the transport."""

    def __init__(
        self,
        options: BrokerOptions,
        coordination: Coordination,
        *,
        on_stopped: Callable[[Exception], None],
        disk: Disk | None = None,
    ) -> None:
        self._options = options
        self._coordination = coordination
        self._on_stopped = on_stopped
        self._disk = disk or RealDisk()
        self._background: set[asyncio.Task[None]] = set()
        self.host: ReplicaHost
        self.files: JournalFiles
        self.snapshots: Snapshots
        self.compaction: Compaction
        self._moves: Moves
        self._start_end_offset = 0
        self.replayed_records = 0
        self.recovery_s = 0.0

    async def start(self) -> None:
        """Recover the journal and begin to lead it; returns when commands are served.

        Raises what recovery raises (`JournalCorrupt`, `DirectoryInUse`, ...): nothing was changed then.
        """
        loop = asyncio.get_running_loop()
        options = self._options
        started = time.monotonic()
        recovered = await loop.run_in_executor(None, self._recover)
        self.recovery_s = time.monotonic() - started
        self.replayed_records = recovered.replayed_records
        self.files = recovered.files
        await loop.run_in_executor(None, self.files.space.release_if_scarce)
        self._start_end_offset = self.files.end_offset
        for warning in recovered.warnings:
            log_event(log, logging.WARNING, "recovery warning", journal=options.journal_id, warning=warning)
        clock = QueueClock(last_stamp_ms=recovered.last_time_ms)
        if clock.expiry_is_held:
            log_event(
                log,
                logging.WARNING,
                "expiry held",
                journal=options.journal_id,
                reason="the clock is more than an hour from the journal's last stamp",
            )
        replica = JournalReplica(
            self._node,
            recovered.queues,
            promised_epoch=self.files.promised_epoch,
            end_offset=self.files.end_offset,
            end_chain=self.files.end_chain,
            last_time_ms=recovered.last_time_ms,
        )
        self.host = ReplicaHost(
            loop,
            replica,
            self.files,
            clock,
            body_cache_bytes=options.body_cache_bytes,
            activate=self._activate,
            on_dead_letters=lambda letters: self._moves.move_dead_letters(letters),
            on_stopped=self._on_stopped,
        )
        self._moves = Moves(self.host, options.region)
        self.snapshots = Snapshots(
            self.host,
            recovered.snapshots,
            recovered.chunks,
            interval_s=options.snapshot_interval_s,
            records_max=options.snapshot_records,
        )
        self.compaction = Compaction(
            self.host,
            self.snapshots,
            live_ratio=options.compaction_live_ratio,
            age_min_ms=options.compaction_age_min_ms,
        )
        self.host.start()
        configuration = await self._appoint(self.files.promised_epoch)
        assert replica.appoint(configuration), "the epoch appointed is higher than any promised"
        self.host.carry_out()
        await self._leading()
        log_event(
            log,
            logging.INFO,
            "leader activated",
            journal=options.journal_id,
            epoch=replica.epoch,
            offset=replica.end_offset,
            replayed=recovered.replayed_records,
            recovery_ms=round(self.recovery_s * 1000),
        )
        self._moves.start_tasks()
        for work in (Expiry(self.host).run(), self.snapshots.run(), self.compaction.run()):
            self._run(work)

    async def close(self) -> None:
        """Answer parked receives, finish what was decided, write a last snapshot, and let go of the directory."""
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.compaction.close()
        await self._moves.close()
        self.host.waiters.answer_all_empty()
        if self.host.stopped is None and self.host.replica.is_leading:
            await self.snapshots.write()
        await self.host.close()
        await asyncio.get_running_loop().run_in_executor(None, self.files.close)

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """See `BrokerClient`."""
        if type(command) is StartMoveTask:
            return self.host.submit(command, self._and_start_tasks(reply))
        return self.host.submit(command, reply)

    @property
    def records_appended(self) -> int:
        """How many records this start has appended."""
        return self.host.replica.end_offset - self._start_end_offset

    async def status(self) -> dict[str, Any]:
        """Return facts for operators: offsets, segments, caches, queues."""
        host, replica = self.host, self.host.replica
        messages = in_flight = 0
        for number, partition in enumerate(list(replica.queues.partitions.values()), 1):
            messages += partition.alive
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
            "body_cache_bytes": host.bodies.size_bytes,
            "body_cache_hits": host.bodies.hits,
            "body_cache_misses": host.bodies.misses,
            "queues": len(replica.queues.definitions),
            "messages": messages,
            "in_flight": in_flight,
            "long_polls": host.waiters.parked,
            "expiry_held": host.clock.expiry_is_held,
            "recovery_s": round(self.recovery_s, 3),
            "replayed_records": self.replayed_records,
            "stopped": str(host.stopped) if host.stopped else None,
        }

    # Inside

    @property
    def _node(self) -> str:
        return f"broker-0@{self.files.storage_id.hex()}"

    @property
    def _configuration_key(self) -> str:
        return f"journals/{self._options.journal_id}"

    def _recover(self) -> Recovered:
        options = self._options
        return recover(
            self._disk,
            str(options.directory),
            journal_id=options.journal_id,
            limits=options.limits,
            retry_window_ms=options.retry_window_ms,
            retry_ids_max=options.retry_ids_max,
            in_flight_max=options.in_flight_max,
        )

    async def _appoint(self, promised_epoch: int) -> JournalConfiguration:
        """Take the journal for the next epoch, as the manager of a cell would."""
        key = self._configuration_key
        while True:
            found = await self._coordination.get(key)
            known = _decoder.decode(found.value) if found else None
            epoch = max(known.epoch if known else 0, promised_epoch) + 1
            previous: tuple[str, ...] = ()
            if known is not None:
                previous = known.members if known.activated else known.previous_members
            if len(previous) <= 1:
                # The only member there is. Its storage id is new after an fsync error or a restore.
                previous = (self._node,)
            configuration = JournalConfiguration(epoch, self._node, (self._node,), previous, activated=False)
            try:
                await self._coordination.compare_and_swap(
                    key, found.revision if found else 0, _encoder.encode(configuration)
                )
            except (RevisionMismatch, OutcomeUnknown):
                continue
            return configuration

    async def _activate(self, epoch: int) -> None:
        key = self._configuration_key
        while True:
            found = await self._coordination.get(key)
            assert found is not None, "the journal's configuration is in coordination"
            known = _decoder.decode(found.value)
            if known.epoch != epoch:
                raise RuntimeError(f"epoch {known.epoch} was appointed while {epoch} was activated")
            if known.activated:
                return
            active = msgspec.structs.replace(known, activated=True, previous_members=known.members)
            try:
                await self._coordination.compare_and_swap(key, found.revision, _encoder.encode(active))
            except (RevisionMismatch, OutcomeUnknown):
                continue  # read again: it may have been done

    async def _leading(self) -> None:
        deadline = time.monotonic() + ACTIVATION_TIMEOUT_S
        while not self.host.replica.is_leading:
            if self.host.stopped is not None:
                raise NotActivated(f"the journal stopped before it could serve: {self.host.stopped}")
            if time.monotonic() > deadline:
                raise NotActivated(f"the journal was not activated in {ACTIVATION_TIMEOUT_S} s")
            await asyncio.sleep(0.001)

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
