"""Data keys of queues with KmsMasterKeyId: one a day each, wrapped by the key that the attribute names.

    send      the queue's data key of today, in the clear here?  ──yes──▶ encrypt
                 │ no                                    no such key ──▶ service: generate ──▶ two rows, one transaction
                 └──▶ service: decrypt                                   (another front end was first: its key is used)
    receive   the same check, before anything is taken; a queue without a data key: service: describe

A plaintext is used for KmsDataKeyReusePeriodSeconds; then the service is asked again, which may refuse. Keys of the
server itself (`local`) are in memory, so their state counts at each use. Everybody who waits for the same answer waits
for one request. A refusal, or silence, is remembered for a second.

`alias/aws/sqs` is the store's wrapping key: such data keys are wrapped as those of other queues, and new each day.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from quaymaster.coordination.interface import ABSENT, Compare, Put, RevisionMismatch
from quaymaster.core.values.errors import CallerError, NotNow, Overloaded, QueueDoesNotExist, Unreachable
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, decode_queue_definition
from quaymaster.core.values.queues.queue_names import QueueArn, split_group
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.messaging.lent_keys import LentKey
from quaymaster.metadata.keys.data_keys import DataKeys
from quaymaster.metadata.kms.key_names import OWN_KEY_ALIAS, parse_key_name
from quaymaster.metadata.kms.key_service import GeneratedKey, KeyService
from quaymaster.metadata.kms.local_keys import LocalKeys, local_name
from quaymaster.metadata.options import KMSMode
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import (
    DATA_KEYS,
    QUEUE_KEYS,
    QUEUES,
    DataKeyRow,
    QueueKeyRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample
from quaymaster.net.routing.metadata_client import unknown_until

CONTEXT: Final = "aws:sqs:arn"
LOCAL: Final = "local"
DAY_MS: Final = 86_400_000
LENT_MAX: Final = 16_384
ASKED_MAX: Final = 1_000
"""Questions to a service at once; who needs another one is refused."""
ANSWERS_MAX: Final = 16_384
REFUSED_S: Final = 1.0
REUSE_DEFAULT_S: Final = 300
LOGGED_S: Final = 10.0
"""At most so often it is logged that a service does not answer."""

_RESULTS: Final = ("answered", "refused", "failed")

Question = tuple[object, ...]

log = logging.getLogger(__name__)


class QueueKeys:
    """Lends data keys to the cipher of a front end: `LendsKeys`.

    `services` are those that can be asked, by the names in rows; the one of `mode` makes new data keys. Local keys can
    always be used, so messages stay readable when the mode changes.
    """

    def __init__(
        self,
        mode: KMSMode,
        services: Mapping[str, KeyService],
        local: LocalKeys,
        mirror: Mirror,
        data_keys: DataKeys,
        *,
        region: str,
        cell_format: CellFormat,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mode = mode
        self._services = services
        self._local = local
        self._mirror = mirror
        self._data_keys = data_keys
        self._region = region
        self._cell_format = cell_format
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._rows: MirrorTable[QueueKeyRow] = mirror.table(QUEUE_KEYS, row_decoder(QueueKeyRow))
        self._lent: dict[int, LentKey] = {}
        self._reuse_s: dict[int, int] = {}
        self._described_s: dict[tuple[str, str], float] = {}
        """Until when the key that a queue without data keys names counts as usable, by account and attribute."""
        self._refused: dict[Question, tuple[float, CallerError | NotNow]] = {}
        self._asked: dict[Question, asyncio.Task[None]] = {}
        self._logged_s = -LOGGED_S
        self._results: Counter[str] = Counter()

    # What the cipher asks

    def encrypting_key_id(self, definition: QueueDefinition) -> int:
        """Return the data key of a queue's day."""
        if self._mode == "ignore":
            return definition.data_key_id
        self._check_format()
        row = self._row_of_attribute(definition)
        if row is None or self._is_over(row):
            asked_for = ("generate", _queue_id(definition), definition.kms_master_key_id)
            raise self._until_answered(asked_for, lambda: self._generate(definition))
        if row.service:
            self.lent(row.data_key_id)
        return row.data_key_id

    def check_receive(self, definition: QueueDefinition) -> None:
        """Return when what the queue's attribute names can be used, and so what it encrypted can be opened."""
        if self._mode == "ignore":
            return
        self._check_format()
        row = self._row_of_attribute(definition)
        if row is not None and row.service:
            with suppress(KeyError):  # no message needed it any more, and it was deleted
                self.lent(row.data_key_id)
                return
        if self._mode == LOCAL or self._is_own(definition):
            return
        asked_for = (definition.account_id, definition.kms_master_key_id)
        if self._described_s.get(asked_for, 0.0) <= self._monotonic_s():
            raise self._until_answered(("describe", *asked_for), lambda: self._describe(definition))

    def lent(self, data_key_id: int) -> LentKey:
        """Return a data key in the clear. KeyError: there is none of this id."""
        lent = self._lent.get(data_key_id)
        if lent is not None and lent.until_s > self._monotonic_s():
            if lent.local_key:
                self._local.check_key(lent.local_key)
            return lent
        self._lent.pop(data_key_id, None)
        row = self._data_keys.row(data_key_id)
        if row.service == LOCAL:
            return self._keep(row, self._local.decrypt_now(row.kms_key, row.wrapped, _context(row.queue_arn)))
        raise self._until_answered(("decrypt", data_key_id), lambda: self._decrypt(row))

    def drop_expired(self) -> None:
        """Forget what may no longer be used; part of the upkeep."""
        now_s = self._monotonic_s()
        self._lent = {key_id: lent for key_id, lent in self._lent.items() if lent.until_s > now_s}
        self._described_s = {key: until_s for key, until_s in self._described_s.items() if until_s > now_s}
        self._refused = {key: refused for key, refused in self._refused.items() if refused[0] > now_s}

    def samples(self) -> list[Sample]:
        """Give the metrics of keys for queues: a source for `Metrics`."""
        return [
            *(
                Sample("quaymaster_kms_requests_total", self._results[result], (result,))
                for result in _RESULTS
            ),
            Sample("quaymaster_kms_keys_in_use", len(self._lent)),
        ]

    async def close(self) -> None:
        """Ask no more."""
        asked = tuple(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for service in self._services.values():
            await service.close()
        self._lent.clear()

    # Which data key

    def _row_of_attribute(self, definition: QueueDefinition) -> QueueKeyRow | None:
        """Return the queue's data key, of whatever day, if it was made for what its attribute says now.

        Raises what is known without asking: keys of the server itself are in memory.
        """
        queue_id, named = _queue_id(definition), definition.kms_master_key_id
        if len(self._reuse_s) >= ANSWERS_MAX:
            self._reuse_s.clear()
        self._reuse_s[queue_id] = definition.kms_reuse_s
        is_own = self._is_own(definition)
        key = self._local.check(named, definition.account_id) if self._mode == LOCAL and not is_own else None
        row = self._rows.get(id_text(queue_id))
        if row is None or row.kms_master_key_id != named or row.service != ("" if is_own else self._mode):
            return None
        if key is not None and row.kms_key != local_name(key):
            return None  # the alias names another key by now
        return row

    def _is_over(self, row: QueueKeyRow) -> bool:
        return has_passed(row.created_ms, DAY_MS, self._now_ms(), ahead_max_ms=CLOCKS_DIFFER_MAX_MS)

    def _is_own(self, definition: QueueDefinition) -> bool:
        named = definition.kms_master_key_id
        if not named.endswith(OWN_KEY_ALIAS):
            return False
        name = parse_key_name(named, account_id=definition.account_id, region=self._region)
        return name.is_own and name.account_id == definition.account_id

    def _check_format(self) -> None:
        self._cell_format.require(FRONT_DOOR, "Queues have keys of KMS")

    # Asking

    def _until_answered(self, question: Question, work: Callable[[], Awaitable[None]]) -> Exception:
        """Return what to raise until a question is answered: NotYetKnown, or a refusal of a moment ago."""
        refused = self._refused.get(question)
        if refused is not None and refused[0] > self._monotonic_s():
            return refused[1].with_traceback(None)
        task = self._asked.get(question)
        if task is None:
            if len(self._asked) >= ASKED_MAX:
                return Overloaded()
            task = self._asked[question] = asyncio.get_running_loop().create_task(self._run(question, work))
            task.add_done_callback(lambda done: self._on_asked(question, done))
        return unknown_until(task)

    async def _run(self, question: Question, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self._results["answered"] += 1
        except (CallerError, NotNow) as error:
            self._results["failed" if isinstance(error, NotNow) else "refused"] += 1
            now_s = self._monotonic_s()
            if len(self._refused) >= ANSWERS_MAX:
                self._refused.clear()
            self._refused[question] = (now_s + REFUSED_S, error)
            if isinstance(error, NotNow) and now_s - self._logged_s >= LOGGED_S:
                self._logged_s = now_s
                log_event(log, logging.WARNING, "key service not usable", mode=self._mode, reason=str(error))
            raise

    def _on_asked(self, question: Question, done: asyncio.Task[None]) -> None:
        self._asked.pop(question, None)
        if not done.cancelled():
            done.exception()  # those who waited may have gone

    async def _generate(self, definition: QueueDefinition) -> None:
        """Make the data key of a queue's day, unless another front end does at the same time. QueueDoesNotExist."""
        queue_id, named = _queue_id(definition), definition.kms_master_key_id
        is_own = self._is_own(definition)
        unchanged = [self._rows.compare(id_text(queue_id)), await self._compare_queue(definition)]
        arn = str(QueueArn(self._region, definition.account_id, split_group(definition.name)[0]))
        now_ms = self._now_ms()
        # A service that refuses costs no id.
        made = None if is_own else await self._new_key(named, definition.account_id, _context(arn))
        key_id = await self._data_keys.next_id()
        unchanged.append(Compare(DATA_KEYS + id_text(key_id), ABSENT))
        if made is None:
            master_unchanged, wrapped = await self._data_keys.wrapped_key(key_id)
            unchanged.append(master_unchanged)
            row = DataKeyRow(key_id, wrapped, now_ms)
        else:
            row = DataKeyRow(
                key_id,
                made.wrapped,
                now_ms,
                service=self._mode,
                kms_key=made.key,
                queue_arn=arn,
                queue_id=queue_id,
            )
        queue_row = QueueKeyRow(key_id, row.service, named, now_ms, row.kms_key)
        puts = [
            Put(DATA_KEYS + id_text(key_id), encode_row(row)),
            Put(QUEUE_KEYS + id_text(queue_id), encode_row(queue_row)),
        ]
        try:
            await self._mirror.transact(unchanged, puts)
        except RevisionMismatch:
            return  # the queue has another one, or the master key was rotated: who asked looks again
        if made is not None:
            self._keep(row, made.plaintext)

    async def _compare_queue(self, definition: QueueDefinition) -> Compare:
        """Return the condition that the queue stays: who makes a key may not have heard yet that it was deleted."""
        key = f"{QUEUES}{definition.account_id}/{split_group(definition.name)[0]}"
        row = await self._mirror.store.get(key)
        if row is not None:
            queue = decode_queue_definition(row.value)
            if queue.queue_id == _queue_id(definition) and queue.state != "deleting":
                return Compare(key, row.revision)
        raise QueueDoesNotExist

    async def _new_key(self, named: str, account_id: str, context: Mapping[str, str]) -> GeneratedKey:
        if self._mode == LOCAL:
            await self._data_keys.ready()
            return self._local.generate_now(named, account_id, context)
        return await self._service(self._mode).generate(named, account_id, context)

    async def _decrypt(self, row: DataKeyRow) -> None:
        service = self._service(row.service)
        self._keep(row, await service.decrypt(row.kms_key, row.wrapped, _context(row.queue_arn)))

    async def _describe(self, definition: QueueDefinition) -> None:
        named, account_id = definition.kms_master_key_id, definition.account_id
        await self._service(self._mode).describe(named, account_id)
        if len(self._described_s) >= ANSWERS_MAX:
            self._described_s.clear()
        self._described_s[account_id, named] = self._monotonic_s() + definition.kms_reuse_s

    def _service(self, name: str) -> KeyService:
        service = self._services.get(name)
        if service is None:
            raise Unreachable(
                f"Data keys of the service {name} are needed, which there are no settings for here."
            )
        return service

    def _keep(self, row: DataKeyRow, plaintext: bytes) -> LentKey:
        if len(self._lent) >= LENT_MAX:
            del self._lent[next(iter(self._lent))]
        reuse_s = self._reuse_s.get(row.queue_id, REUSE_DEFAULT_S)
        local_key = row.kms_key if row.service == LOCAL else ""
        lent = self._lent[row.key_id] = LentKey(plaintext, self._monotonic_s() + reuse_s, local_key)
        return lent


def _queue_id(definition: QueueDefinition) -> int:
    """Return the queue whose data keys encrypt: of a consumer group, its log."""
    return definition.group_of or definition.queue_id


def _context(arn: str) -> Mapping[str, str]:
    return {CONTEXT: arn}
