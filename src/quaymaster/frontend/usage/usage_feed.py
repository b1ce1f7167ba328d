"""The usage feed of one front end: recorder, spool and shipper, put together; the incarnation of this start.

start: spool read and mended ─▶ incarnation claimed in coordination ─▶ records are taken
once a second: records ─▶ spool (its thread: encoded, written, fsynced) ─▶ shipper
once a minute at the latest: a block although there was nothing, so that hours can be closed
once a minute: the incarnation is renewed, and front ends that did not for long are sealed (`incarnations`)
events cannot be written: no change begins (`audit_gate`), and a write is tried every half second
stop: last records ─▶ seal ─▶ shipped, if that goes quickly; otherwise by the next start
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, ParamSpec, Protocol, TypeVar

from quaymaster.coordination.interface import Coordination, RevisionMismatch
from quaymaster.coordination.left_acts import LeftActs
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.frontend.usage.act_chain import ActChain, NotedCall
from quaymaster.frontend.usage.audit_gate import PROBE_S, WaitingAnswer, give_all
from quaymaster.frontend.usage.incarnations import (
    RENEW_S,
    FrontEndIncarnations,
    Incarnation,
    lost_block,
    may_be_gone,
)
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.frontend.usage.spool_files import SpooledBlock
from quaymaster.frontend.usage.usage_shipper import RETRY_MAX_S, RETRY_MIN_S, UsageShipper
from quaymaster.frontend.usage.usage_spool import SpoolAppend, UsageSpool
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.protocol.sqs.internal_queues import (
    INTERNAL_ACCOUNT,
    PIPELINE_KEY,
    USAGE_QUEUE,
    is_pipeline_key,
)
from quaymaster.protocol.usage.dropped_records import DropReason
from quaymaster.protocol.usage.usage_blocks import decode_header
from quaymaster.protocol.usage.usage_rows import CorruptBlock

STOP_SHIPPING_S: Final = 2.0
CHAIN_FIRST_S: Final = 5.0
"""A start waits so long for the acts that were noted before it."""
PIPELINE_FILE: Final = "pipeline.json"

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class UsageFeed:
    """Starts, runs and ends them. `recorder` is for the front end's calls."""

    def __init__(
        self,
        spool: UsageSpool,
        recorder: UsageRecorder,
        *,
        sync_s: float,
        heartbeat_s: float,
        abandon_s: float,
        now_us: Callable[[], int],
    ) -> None:
        self.recorder = recorder
        self._spool = spool
        self._sync_s = sync_s
        self._heartbeat_s = heartbeat_s
        self._abandon_ms = int(abandon_s * 1000)
        self._now_us = now_us
        self._thread = ThreadPoolExecutor(1, "usage")
        self._write_now = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._shipping: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._shipper: UsageShipper | None = None
        self._is_stopping = False
        self._incarnations: FrontEndIncarnations | None = None
        self._region = ""
        self._sealed = 0
        """Front ends that this one sealed."""
        self._blocked: DropReason | None = None
        """Why records are dropped now, as far as the log says."""
        self._dropped: dict[DropReason, int] = {"spool_full": 0, "disk_failed": 0, "too_many": 0}
        """Each is there from the start: an alarm on a counter's growth needs its zero."""
        self._written = 0
        self._spool_bytes = 0
        self._block_s = 0.0
        """When there was a block last, by the monotonic clock."""
        self._unanswered: list[WaitingAnswer] = []
        """Their events were recorded, and could not be written yet."""
        self._acts: ActChain | None = None
        self._chaining: asyncio.Task[None] | None = None
        self._may_ship = asyncio.Event()
        self._may_ship.set()

    async def start(self, store: Coordination, region: str) -> None:
        """Read the spool, claim an incarnation, and begin to write.

        Raises:
            SpoolUnusable: a newer program wrote the spool.
            NotNow: the incarnation cannot be claimed.
            OSError: the spool cannot be read or written.
        """
        spool = self._spool
        await self._on_thread(spool.open)
        self._incarnations, self._region = FrontEndIncarnations(store, now_us=self._now_us), region
        incarnation, last = await self._incarnations.claim(spool.front_end, after=spool.incarnation)
        lost = last if last is not None and last > spool.incarnation else None
        await self._on_thread(
            lambda: spool.begin(incarnation, region, now_us=self._now_us(), lost_incarnation=lost)
        )
        log_event(
            log, logging.INFO, "usage incarnation begun", front_end=spool.front_end, incarnation=incarnation
        )
        self.recorder.on_many = self._write_now.set
        # The first block names the incarnation: the closing of hours knows of it from then on.
        await self._write(is_heartbeat=True)
        self._writing = supervise(asyncio.create_task(self._write_for_ever(), name="usage-writer"))

        self.recorder.has_writer = True

    async def chain_acts(self, store: Coordination, account_id: str, left: LeftActs) -> None:
        """Put acts that no front end answered into the audit chain, now and from now on. Call before `ship`."""
        self._acts = ActChain(store, self, account_id, left)
        if self._spool.noted_acts:
            # Whether they are in the chain is not known until acts have been read.
            self.hold_shipping()
        try:
            async with asyncio.timeout(CHAIN_FIRST_S):
                await self._acts.take_all()
        except (NotNow, OSError) as error:  # also TimeoutError
            log_event(log, logging.WARNING, "acts of operators not read", reason=str(error))
        self._chaining = supervise(asyncio.create_task(self._acts.run(), name="act-chain"))

    def ship(self, shipper: UsageShipper) -> None:
        """Begin to ship."""
        self._shipper = shipper
        shipper.wake()
        self._shipping = supervise(asyncio.create_task(self._ship_for_ever(shipper), name="usage-shipper"))
        self._keeping = supervise(
            asyncio.create_task(self._keep_incarnations_for_ever(), name="usage-incarnations")
        )

    async def stop(self) -> None:
        """Write the last records, seal the incarnation, ship what can be shipped at once."""
        await _end(self._keeping)  # first: it might begin another incarnation
        await _end(self._chaining)
        self._is_stopping = True
        self._write_now.set()
        if self._writing is not None:
            await self._writing  # not cancelled: what it has taken from the recorder must get to the spool
        await self._write(is_heartbeat=False, is_last=True)
        self.recorder.has_writer = False
        try:
            await self._on_thread(lambda: self._spool.close(now_us=self._now_us()))
        except OSError as error:
            log_event(log, logging.WARNING, "usage incarnation not sealed", reason=str(error))
        for event in self._spool.owed_events():
            log_event(log, logging.ERROR, "audit event lost", **event)
        if self._shipper is not None:
            self._shipper.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SHIPPING_S):
                    await self._shipper.is_idle.wait()
            if self._shipper.is_idle.is_set():
                await self._end_incarnation()
        await _end(self._shipping)
        self._thread.shutdown()

    def abandon(self) -> None:
        """Let go without having started."""
        self._thread.shutdown()

    @property
    def front_end(self) -> str:
        """The name under which records are."""
        return self._spool.front_end

    async def front_ends(self) -> dict[str, Incarnation]:
        """Return all front ends there ever were, by name. Raises NotNow."""
        assert self._incarnations is not None, "started"
        return await self._incarnations.rows()

    async def write_act(self, call: NotedCall) -> bool:
        """Make an act durable in the spool, if it is not there; true when it is."""
        acts = self._spool.noted_acts
        if call.request_id not in acts and self.recorder.audit.trouble is None:
            self.recorder.record(call, "OK", 200, time.monotonic() * 1000, 0)
            await self._write(is_heartbeat=False)
        return call.request_id in acts

    def hold_shipping(self) -> None:
        """Ship nothing that is written from now on."""
        self._may_ship.clear()

    def release_shipping(self) -> None:
        """Ship again."""
        self._may_ship.set()

    def forget_act(self, act_id: str) -> None:
        """Remember no longer that an act is in the spool: its row is gone."""
        self._spool.noted_acts.discard(act_id)

    async def next_block(self) -> SpooledBlock | None:
        """Return the first block that is not shipped; as `UsageSpool.next_block`."""
        await self._may_ship.wait()
        return await self._on_thread(self._spool.next_block)

    async def mark_shipped(self, block: SpooledBlock) -> None:
        """Note that a block is stored in the queue."""
        await self._on_thread(self._spool.mark_shipped, block)
        self._spool_bytes = self._spool.size_bytes

    def notices(self) -> list[str]:
        """Return what an operator should know: a source for `Health`."""
        return self.recorder.audit.notices

    def samples(self) -> Iterable[Sample]:
        """Give the feed's metrics: a source for `Metrics`."""
        shipper = self._shipper
        yield Sample("quaymaster_usage_records_total", self.recorder.recorded)
        yield Sample("quaymaster_usage_records_written_total", self._written)
        for reason, number in self._dropped.items():
            yield Sample("quaymaster_usage_records_dropped_total", number, (reason,))
        yield Sample("quaymaster_usage_records_shipped_total", 0 if shipper is None else shipper.records)
        yield Sample("quaymaster_usage_blocks_shipped_total", 0 if shipper is None else shipper.blocks)
        yield Sample("quaymaster_usage_front_ends_sealed_total", self._sealed)
        yield Sample("quaymaster_usage_changes_refused", int(self.recorder.audit.trouble is not None))
        yield Sample("quaymaster_usage_spool_bytes", self._spool_bytes)
        yield Sample("quaymaster_usage_ship_lag_seconds", 0 if shipper is None else shipper.lag_s)

    async def keep_incarnations(self) -> None:
        """Renew this front end's incarnation, or take another; seal front ends that are gone, and tell of their seals.

        Raises NotNow, TimeoutError: what was not done is done the next time.
        """
        incarnations, shipper = self._incarnations, self._shipper
        assert incarnations is not None, "started"
        assert shipper is not None, "shipping"
        if not await incarnations.renew(self._spool.front_end, self._spool.incarnation):
            await self._begin_anew(incarnations)
        for front_end, row in (await incarnations.rows()).items():
            found = row
            if may_be_gone(row) and await incarnations.unseen_ms(front_end, row) >= self._abandon_ms:
                found = await incarnations.seal(front_end, unseen_ms=self._abandon_ms)
            if found.seals and not found.is_told:
                await self._tell_sealed(incarnations, shipper, front_end, found)

    async def _end_incarnation(self) -> None:
        assert self._incarnations is not None, "started"
        try:
            async with asyncio.timeout(STOP_SHIPPING_S):
                await self._incarnations.end(self._spool.front_end, self._spool.incarnation)
        except (NotNow, TimeoutError):
            pass  # it is sealed once more, when it has been gone for long

    async def _tell_sealed(
        self, incarnations: FrontEndIncarnations, shipper: UsageShipper, front_end: str, row: Incarnation
    ) -> None:
        data = lost_block(front_end, row, self._region).data
        await shipper.ship_once(SpooledBlock(data, decode_header(data), 0, 0))
        await incarnations.mark_told(front_end, row)
        self._sealed += 1
        log_event(
            *(log, logging.WARNING, "usage incarnation sealed for a front end that is gone"),
            front_end=front_end,
            incarnation=row.seals,
        )

    async def _begin_anew(self, incarnations: FrontEndIncarnations) -> None:
        """Others have sealed this incarnation, or the name is used twice: what comes is recorded in another one."""
        spool = self._spool
        before = spool.incarnation
        incarnation, _ = await incarnations.claim(spool.front_end, after=before)

        def change() -> None:
            try:
                spool.close(now_us=self._now_us())
            except OSError as error:  # the next start seals it
                log_event(log, logging.WARNING, "usage incarnation not sealed", reason=str(error))
            spool.begin(incarnation, self._region, now_us=self._now_us())

        await self._write(is_heartbeat=False)
        await self._on_thread(change)
        log_event(
            *(log, logging.WARNING, "usage incarnation was taken over, another one begun"),
            front_end=spool.front_end,
            incarnation=incarnation,
            before=before,
        )
        await self._write(is_heartbeat=True)

    async def _keep_incarnations_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self.keep_incarnations()
            except (NotNow, CallerError, TimeoutError) as error:
                log_event(log, logging.WARNING, "usage incarnations not kept", reason=str(error))

    async def _write_for_ever(self) -> None:
        while not self._is_stopping:
            pause_s = self._sync_s
            if self.recorder.audit.trouble is not None:
                pause_s = min(pause_s, PROBE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._write_now.wait()
            self._write_now.clear()
            await self._write(is_heartbeat=time.monotonic() - self._block_s >= self._heartbeat_s)

    async def _write(self, *, is_heartbeat: bool, is_last: bool = False) -> None:
        audit = self.recorder.audit
        taken = self.recorder.take(is_last=is_last)
        answers = audit.take()
        if audit.trouble is not None and audit.trouble != "spool_full":
            is_heartbeat = True  # the disk shows by a write whether it works again
        if not (taken.count or taken.overflow or is_heartbeat or audit.trouble):
            give_all(answers)
            return
        appended = await self._on_thread(lambda: self._spool.append(taken, is_heartbeat=is_heartbeat))
        self._spool_bytes = self._spool.size_bytes
        self._written += appended.rows
        if appended.rows or is_heartbeat:
            self._block_s = time.monotonic()
        self._tell(appended)
        audit.tell(appended.trouble)
        self._unanswered += answers
        if not appended.owed:
            answers, self._unanswered = self._unanswered, []
            give_all(answers)
        if self._shipper is not None:
            self._shipper.wake()

    def _tell(self, appended: SpoolAppend) -> None:
        reason = appended.reason
        if reason is not None:
            self._dropped[reason] = self._dropped.get(reason, 0) + appended.dropped
            if self._blocked is None:
                log_event(log, logging.ERROR, "usage records are dropped", reason=reason)
            self._blocked = reason
        elif self._blocked is not None and appended.rows:
            dropped = sum(self._dropped.values())
            log_event(log, logging.WARNING, "usage records are written again", dropped_since_start=dropped)
            self._blocked = None

    async def _ship_for_ever(self, shipper: UsageShipper) -> None:
        while True:
            try:
                await shipper.run()
            except (CorruptBlock, OSError) as error:  # the spool cannot be read now
                log_failure(log, "usage records not shipped", error)
                await asyncio.sleep(RETRY_MAX_S)

    async def _on_thread(
        self, call: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*args, **kwargs))


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class PipelineAccessKey(Protocol):
    """An access key with its secret."""

    @property
    def access_key_id(self) -> str: ...
    @property
    def secret(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def is_enabled(self) -> bool: ...
    @property
    def user(self) -> str: ...


class PipelineAccounts(Protocol):
    """The part of metadata that owns accounts and their keys."""

    def account(self, account_id: str) -> object | None: ...
    async def create_account(self, name: str, account_id: str | None = None) -> object: ...
    def list_access_keys(self, account_id: str) -> Iterable[PipelineAccessKey]: ...
    async def create_access_key(self, account_id: str, name: str = "") -> PipelineAccessKey: ...


async def ensure_pipeline_key(accounts: PipelineAccounts) -> PipelineAccessKey:
    """Return the key by which the pipeline reads the usage queue; made, with its account, if it is not there.

    Raises NotNow. A key that an operator disabled stays so, and is replaced by another.
    """
    if accounts.account(INTERNAL_ACCOUNT) is None:
        with suppress(CallerError):  # another front end was faster
            await accounts.create_account("internal", INTERNAL_ACCOUNT)
    for key in accounts.list_access_keys(INTERNAL_ACCOUNT):
        if key.is_enabled and is_pipeline_key(INTERNAL_ACCOUNT, key.name, key.user):
            return key
    return await accounts.create_access_key(INTERNAL_ACCOUNT, PIPELINE_KEY)


def describe_pipeline(key: PipelineAccessKey, *, endpoint_url: str, region: str) -> bytes:
    """Return the file by which the pipeline knows what to read, and as whom."""
    fields = {
        "endpoint_url": endpoint_url,
        "region": region,
        "account_id": INTERNAL_ACCOUNT,
        "access_key_id": key.access_key_id,
        "secret_access_key": key.secret,
        "queue": USAGE_QUEUE,
        "queue_url": f"{endpoint_url}/{INTERNAL_ACCOUNT}/{USAGE_QUEUE}",
    }
    return json.dumps(fields, indent=2).encode() + b"\n"


async def set_up_pipeline(
    accounts: PipelineAccounts,
    shipper: UsageShipper,
    write: Callable[[bytes], None],
    *,
    endpoint_url: str,
    region: str,
) -> None:
    """Make account, key, queue and file as soon as that is possible; returns when all are there."""
    pause_s = RETRY_MIN_S
    while True:
        try:
            key = await ensure_pipeline_key(accounts)
            described = describe_pipeline(key, endpoint_url=endpoint_url, region=region)
            await asyncio.get_running_loop().run_in_executor(None, write, described)
            await shipper.ensure_queue()
        except (NotNow, CallerError, RevisionMismatch, OSError) as error:
            log_event(log, logging.WARNING, "pipeline access not set up", reason=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, pause_s * 2)
        else:
            return
