"""Numbers that are never given twice: set aside in blocks by compare-and-swap, handed out from RAM.

What is left of a block at the end of a process is lost; the next one starts a new block.
"""

from __future__ import annotations

import asyncio
from typing import Final

from quaymaster.coordination.interface import ABSENT, Compare, Put, RevisionMismatch
from quaymaster.metadata.mirror import RowStore
from quaymaster.metadata.rows import IDS

BLOCK: Final = 64
ID_MAX: Final = 2**64 - 1


class IdAllocator:
    """Gives the numbers of one kind, from 1 up."""

    def __init__(self, store: RowStore, kind: str) -> None:
        self._store = store
        self._key = IDS + kind
        self._lock = asyncio.Lock()
        self._next = 1
        self._end = 1

    async def next_id(self) -> int:
        """Return a number nobody was given before."""
        async with self._lock:
            if self._next == self._end:
                await self._set_aside()
            given = self._next
            self._next += 1
            return given

    async def _set_aside(self) -> None:
        while True:
            row = await self._store.get(self._key)
            last, revision = (int(row.value), row.revision) if row else (0, ABSENT)
            assert last + BLOCK <= ID_MAX, "64-bit ids are used up"
            try:
                await self._store.transaction(
                    [Compare(self._key, revision)], [Put(self._key, str(last + BLOCK).encode())]
                )
            except RevisionMismatch:
                continue
            self._next, self._end = last + 1, last + BLOCK + 1
            return
