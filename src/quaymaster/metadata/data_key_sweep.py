"""The daily look for data keys that nothing needs; what follows from it is `core/values/data_key_life`.

    begin ─▶ which keys each journal's segments name, asked of every leader ─▶ each key: its next life, or gone
             a journal that does not answer stops the sweep                    compare-and-swap

A day is one of counted time (`coordination/counted_time`): no wall clock makes sweeps follow one another faster.
Rows `/queue_keys/` of queues that are gone go first.

A key is in use while a queue in any state has it, and while a leader names it. A key that was written after the sweep
began is left for the next one. An account whose key is not in use loses it first, and its next queue takes a new one.
Only then can the key retire, so a retiring key is never given to a queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from quaymaster.coordination.cell_keys import JOURNALS, journal_of
from quaymaster.coordination.interface import ABSENT, Compare, Coordination, KeyValue, Put, RevisionMismatch
from quaymaster.core.values.data_key_life import KeyLife, after_sweep
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import SHARED_DATA_KEYS
from quaymaster.metadata.queues.queues import Queues
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import (
    ACCOUNT_KEYS,
    DATA_KEYS,
    KEY_SWEEP,
    QUEUE_KEYS,
    AccountKeyRow,
    DataKeyRow,
    KeySweepRow,
    encode_row,
    row_decoder,
)
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Sample

SWEEP_INTERVAL_MS: Final = 86_400_000
RETRY_MS: Final = 3_600_000
"""A sweep that was stopped begins again after so long."""
JOURNAL_S: Final = 3_600.0
"""The first look at a large journal reads all of it, as slowly as its leader likes."""
TABLES_S: Final = 60.0
LOOK_INTERVAL_MS: Final = 60_000
"""How often each node looks whether a sweep is due."""
CHANGED_AT_A_TIME: Final = 50

log = logging.getLogger(__name__)

_STATES: Final = ("in_use", "unused", "retiring", "deleted")
_decode_key = row_decoder(DataKeyRow)
_decode_sweep = row_decoder(KeySweepRow)


def _state_of(life: KeyLife | None) -> str:
    if life is None:
        return "deleted"
    if life.retiring_since_ms:
        return "retiring"
    return "unused" if life.unused_sweeps else "in_use"


class DataKeySweep:
    """Nodes of one store may all run it: one of them sweeps when it is due."""

    def __init__(
        self,
        store: Coordination,
        mirror: Mirror,
        queues: Queues,
        now_ms: Callable[[], int],
        counted_time: CountedTime,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._queues = queues
        self._now_ms = now_ms
        self._time = counted_time
        self._cell_format = queues.options.cell_format
        self._data_keys = queues.data_keys
        self._found: Counter[str] = Counter()
        """Data keys by their state, as of the last sweep here."""
        self._deleted = 0

    def samples(self) -> list[Sample]:
        """Give the sweep's metrics: a source for `Metrics`. Only the node that swept last has current ones."""
        return [
            *(Sample("quaymaster_data_keys", self._found[state], (state,)) for state in _STATES[:-1]),
            Sample("quaymaster_data_keys_deleted_total", self._deleted),
        ]

    async def run_if_due(self) -> None:
        """Sweep if the last one was a day ago, and no other node does. Raises NotNow when it is stopped."""
        if not self._cell_format.version_of(SHARED_DATA_KEYS) or not self._queues.journals.is_attached:
            return
        row = await self._store.get(KEY_SWEEP)
        due_ms = None if row is None else _decode_sweep(row.value).due_counted_ms
        now_ms = await self._time.read_ms()
        revision = ABSENT if row is None else row.revision
        if due_ms is None:  # not written yet, or by a program that went by wall clocks
            await self._write_due(revision, now_ms + SWEEP_INTERVAL_MS)
        elif now_ms >= due_ms:
            began = await self._write_due(revision, now_ms + RETRY_MS)
            await self._sweep(began)
            await self._write_due(began, await self._time.read_ms() + SWEEP_INTERVAL_MS)

    async def _write_due(self, revision: int, due_ms: int) -> int:
        # Programs that go by wall clocks find that they are to sweep in a day, as they would by themselves.
        row = KeySweepRow(self._now_ms() + SWEEP_INTERVAL_MS, due_ms)
        return await self._store.transaction(
            [Compare(KEY_SWEEP, revision)], [Put(KEY_SWEEP, encode_row(row))]
        )

    async def _sweep(self, began: int) -> None:
        """Look at every key once. Raises NotNow when a journal does not answer: nothing was changed then."""
        try:
            async with asyncio.timeout(TABLES_S):
                await self._mirror.reached(began)  # every queue that had a key by then is known
        except TimeoutError:
            raise NotNow("The tables do not show yet which queues there are.") from None
        await self._drop_keys_of_gone_queues(began)
        named = await self._named_in_journals()
        now_ms = await self._time.read_ms()
        found: Counter[str] = Counter()
        after = ""
        while True:
            page = await self._store.list_prefix(DATA_KEYS, after=after)
            changes: list[tuple[KeyValue, DataKeyRow | None]] = []
            for item in page.items:
                row = _decode_key(item.value)
                if item.revision > began:
                    continue
                is_used = row.key_id in named or self._queues.queues_with_key(row.key_id) > 0
                account_id = None if is_used else self._data_keys.account_with_key(row.key_id)
                if account_id is not None:
                    await self._take_from(account_id, row.key_id)
                    continue
                life = KeyLife(row.unused_sweeps, row.retiring_since_ms)
                next_life = after_sweep(life, is_in_use=is_used, now_ms=now_ms)
                found[_state_of(next_life)] += 1
                if next_life is None:
                    changes.append((item, None))
                elif next_life != life:
                    unused_sweeps, since_ms = next_life
                    changes.append(
                        (item, replace(row, unused_sweeps=unused_sweeps, retiring_since_ms=since_ms))
                    )
            for first in range(0, len(changes), CHANGED_AT_A_TIME):
                await self._change(changes[first : first + CHANGED_AT_A_TIME])
            if not page.more:
                break
            after = page.items[-1].key
        self._deleted += found["deleted"]
        self._found = found
        log_event(log, logging.INFO, "data keys looked at", **{state: found[state] for state in _STATES})

    async def _drop_keys_of_gone_queues(self, began: int) -> None:
        """Delete rows of queues that are gone, made by a program of before that had not heard of that."""
        after, more = "", True
        while more:
            page = await self._store.list_prefix(QUEUE_KEYS, after=after)
            gone = [
                item
                for item in page.items
                if item.revision <= began
                and not self._queues.has_id(int(item.key.removeprefix(QUEUE_KEYS), 16))
            ]
            for first in range(0, len(gone), CHANGED_AT_A_TIME):
                await self._change([(item, None) for item in gone[first : first + CHANGED_AT_A_TIME]])
            more = page.more
            after = page.items[-1].key if page.items else ""

    async def _named_in_journals(self) -> set[int]:
        rows, _ = await self._store.list_all(JOURNALS)
        if not rows:
            raise NotNow("The store lists no journal, so none can say which data keys it needs.")
        named: set[int] = set()
        for row in rows:
            try:
                async with asyncio.timeout(JOURNAL_S):
                    named |= await self._queues.journals.data_keys(journal_of(row.key))
            except TimeoutError:
                raise NotNow(
                    f"The journal at {row.key} did not say in time which data keys it needs."
                ) from None
        return named

    async def _take_from(self, account_id: str, key_id: int) -> None:
        """Let new queues of an account take another key, unless it has another one by now."""
        account_keys = self._data_keys.account_keys
        if account_keys.get(account_id) == AccountKeyRow(key_id):
            await self._transact([account_keys.compare(account_id)], [], [ACCOUNT_KEYS + account_id])

    async def _change(self, changes: list[tuple[KeyValue, DataKeyRow | None]]) -> None:
        await self._transact(
            [Compare(item.key, item.revision) for item, _ in changes],
            [Put(item.key, encode_row(row)) for item, row in changes if row is not None],
            [item.key for item, row in changes if row is None],
        )

    async def _transact(self, compares: list[Compare], puts: list[Put], deletes: list[str]) -> None:
        try:
            await self._mirror.transact(compares, puts, deletes)
        except RevisionMismatch as mismatch:
            # A key was wrapped again, or an account took another one: the next sweep looks at them.
            log_event(log, logging.INFO, "data keys changed meanwhile", key=mismatch.key)
