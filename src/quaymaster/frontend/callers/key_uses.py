"""Notes when access keys are used, for those who look for keys that are not used any more.

    verified signature ──note──▶ first of its key in this hour ──▶ due ──every FLUSH_S, some──▶ rows key_uses/
                                    others: nothing

So a key costs a front end at most one write an hour, and front ends that find it noted write nothing. Nothing of it
waits: while the store does not answer, what is due stays due. A server that is killed loses uses of the last seconds,
or of longer where many keys are due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from quaymaster.coordination.interface import (
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Coordination,
    KeyValue,
    Put,
    RevisionMismatch,
    StoreUnusable,
)
from quaymaster.coordination.key_uses import KEY_USES
from quaymaster.coordination.number_rows import encode_number, number_of
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.supervision import supervise

HOUR_MS: Final = 3_600_000
FLUSH_S: Final = 10.0
WRITTEN_TOGETHER: Final = 40
"""Keys of one transaction, with a comparison of the key's own row and of the use; one transaction each FLUSH_S: 14,400
keys an hour."""
DUE_MAX: Final = 65_536
"""Keys whose use is not written yet; uses of others are not noted."""
STOP_S: Final = 1.0
"""How long a last write is waited for when the front end stops."""

log = logging.getLogger(__name__)


class KeyUses:
    """Of one front end. `keys`: the prefix of the keys' own rows; `now_ms` is the wall clock."""

    def __init__(
        self, store: Coordination, cell_format: CellFormat, *, keys: str, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._cell_format = cell_format
        self._keys = keys
        self._now_ms = now_ms
        self._hour_ms = self._this_hour_ms()
        self._noted: set[str] = set()
        """Keys that were used in this hour."""
        self._due: dict[str, int] = {}
        """Hours of uses that are not written yet, by key; those that are due longest first."""
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False

    def start(self) -> None:
        """Begin to write."""
        self._task = supervise(asyncio.get_running_loop().create_task(self._run(), name="key-uses"))

    async def stop(self) -> None:
        """Write some of what is due, if the store answers soon, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.flush()

    def note(self, access_key_id: str) -> None:
        """Note that a request was signed with a key. On the path of every request: 0.1 us."""
        if access_key_id not in self._noted and len(self._due) < DUE_MAX:
            self._noted.add(access_key_id)
            self._due[access_key_id] = self._hour_ms

    async def last_used_ms(self, access_key_ids: Sequence[str]) -> dict[str, int] | None:
        """Return for those of the keys that were ever used the beginning of the hour of the last use.

        None where that cannot be said: the store does not answer, or the cell's format is older.
        """
        if not self._is_kept:
            return None
        found = {key: self._due[key] for key in access_key_ids if key in self._due}
        try:
            for at in range(0, len(access_key_ids), TRANSACTION_OPERATIONS_MAX):
                some = access_key_ids[at : at + TRANSACTION_OPERATIONS_MAX]
                rows, _ = await self._store.read([KEY_USES + key for key in some])
                for row in rows:
                    key = row.key.removeprefix(KEY_USES)
                    found[key] = max(_hour_of(row), found.get(key, 0))
        except NotNow:
            return None
        return found

    async def flush(self) -> None:
        """Write the uses of some keys that are due longest."""
        hour_ms = self._this_hour_ms()
        if hour_ms != self._hour_ms:
            self._hour_ms, self._noted = hour_ms, set()
        some = dict(list(self._due.items())[:WRITTEN_TOGETHER])
        if not some or not self._is_kept:
            return
        try:
            await self._write(some)
        except RevisionMismatch:
            return  # another front end was faster, or a key has changed: next time
        except NotNow as error:
            if not self._is_failing:
                self._is_failing = True
                log_event(log, logging.WARNING, "uses of keys not written", reason=str(error))
            return
        self._is_failing = False
        for key, at_ms in some.items():
            if self._due.get(key) == at_ms:
                del self._due[key]

    async def _write(self, uses: dict[str, int]) -> None:
        """Write uses of keys that there are, and that are not noted as newer."""
        names = [prefix + key for key in uses for prefix in (self._keys, KEY_USES)]
        rows, _ = await self._store.read(names)
        found = {row.key: row for row in rows}
        compares: list[Compare] = []
        puts: list[Put] = []
        for key, at_ms in uses.items():
            own, use = found.get(self._keys + key), found.get(KEY_USES + key)
            if own is None or _hour_of(use) >= at_ms:
                continue
            compares.append(Compare(own.key, own.revision))
            compares.append(Compare(KEY_USES + key, 0 if use is None else use.revision))
            puts.append(Put(KEY_USES + key, encode_number(at_ms)))
        if puts:
            await self._store.transaction(compares, puts)

    @property
    def _is_kept(self) -> bool:
        return bool(self._cell_format.version_of(FRONT_DOOR))

    def _this_hour_ms(self) -> int:
        return self._now_ms() // HOUR_MS * HOUR_MS

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()


def _hour_of(row: KeyValue | None) -> int:
    """Return when the hour of the last use began; 0 where no row says so, also of one that is damaged."""
    with suppress(StoreUnusable):
        return number_of(row)
    return 0
