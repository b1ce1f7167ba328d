"""How far a server's journal was durable, noted in its metadata store: a journal that lost its end is noticed by that.

    durable floor ── stood still for a second, or ten have passed ──▶ row `journal_floors/<id>`; also at the end
    start ── the journal must reach it; else records are damaged, or the directory is an older copy

The journal itself says how far it was durable, too: in each batch of the one before, and in its state file once a
segment. That leaves the last batches before a kill, and a directory that was put back as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from quaymaster.coordination.cell_keys import floor_key
from quaymaster.coordination.interface import Coordination, Put
from quaymaster.core.values.errors import NotNow

LOOK_S: Final = 1.0
BUSY_S: Final = 10.0
"""A journal that is written all the time is noted so often; its batches tell more."""
LAST_S: Final = 2.0
"""A store that does not answer keeps the end of a process waiting for so long."""


class JournalFloor(msgspec.Struct, frozen=True, array_like=True):
    """All records below this offset were durable."""

    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JournalFloor).decode


async def read_floor(store: Coordination, journal_id: int) -> int:
    """Return the offset that was noted last, 0 where none was. Raises NotNow."""
    row = await store.get(floor_key(journal_id))
    return 0 if row is None else _decode(row.value).offset


class FloorNote:
    """Keeps the row of one journal. `floor` returns the offset up to which the journal is durable now."""

    def __init__(
        self, store: Coordination, journal_id: int, floor: Callable[[], int], *, noted: int = 0
    ) -> None:
        """`noted`: what the row says."""
        self._store = store
        self._key = floor_key(journal_id)
        self._floor = floor
        self._noted = noted

    async def run(self) -> None:
        """Keep the row up to date, for ever."""
        loop = asyncio.get_running_loop()
        seen, noted_s = self._noted, loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            floor, before = self._floor(), seen
            seen = floor
            if floor == before or loop.time() - noted_s >= BUSY_S:
                with suppress(NotNow):  # tried again in a second
                    await self.write()
                noted_s = loop.time()

    async def write(self) -> None:
        """Note how far the journal is durable, unless the row says so. Raises NotNow."""
        floor = self._floor()
        if floor != self._noted:
            await self._store.transaction([], [Put(self._key, _encode(JournalFloor(floor)))])
            self._noted = floor

    async def write_last(self) -> None:
        """Note it at the end of the process, if the store answers in time."""
        with suppress(NotNow, TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self.write()
