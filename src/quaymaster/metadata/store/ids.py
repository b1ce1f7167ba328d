"""Numbers that are never given twice: set aside in blocks by compare-and-swap, handed out from RAM.

What is left of a block at the end of a process is lost; the next one starts a new block.

The store may go back: it was restored from an older copy, and sets aside again what others have been given. So each
block is written down under the name of its owner, who compares that row in each transaction that uses a number
(`block_compare`); and the counter is raised above all that the journals have seen (`raise_to`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from quaymaster.coordination.interface import ABSENT, Compare, Put, RevisionMismatch
from quaymaster.coordination.number_rows import encode_number, number_of
from quaymaster.metadata.store.mirror import RowStore
from quaymaster.metadata.store.rows import IDS

BLOCK: Final = 64
ID_MAX: Final = 2**64 - 1


class IdAllocator:
    """Gives the numbers of one kind, from 1 up. `owner`: who else may give them has another name."""

    def __init__(self, store: RowStore, kind: str, owner: str = "") -> None:
        self._store = store
        self._key = IDS + kind
        self.block_key = f"{self._key}@{owner}"
        self._block_revision = ABSENT
        self._lock = asyncio.Lock()
        self._next = 1
        self._end = 1

    async def next_id(self) -> int:
        """Return a number that was never given before."""
        async with self._lock:
            if self._next == self._end:
                await self._set_aside()
            given = self._next
            self._next += 1
            return given

    def block_compare(self) -> Compare:
        """Return the condition that the store still knows of the block that the last number was of."""
        return Compare(self.block_key, self._block_revision)

    def drop_block(self) -> None:
        """Give no number any more that was set aside before."""
        self._next = self._end

    async def last(self) -> int:
        """Return the highest number that was set aside, as the store has it now."""
        return number_of(await self._store.get(self._key))

    async def raise_to(self, last: int) -> bool:
        """Give no number from here on that is not above `last`; return whether the store was behind that."""
        while True:
            row = await self._store.get(self._key)
            if number_of(row) >= last:
                return False
            try:
                await self._store.transaction(
                    [Compare(self._key, row.revision if row else ABSENT)],
                    [Put(self._key, encode_number(last))],
                )
            except RevisionMismatch:
                continue
            self.drop_block()
            return True

    async def _set_aside(self) -> None:
        while True:
            row = await self._store.get(self._key)
            last, revision = number_of(row), row.revision if row else ABSENT
            assert last + BLOCK <= ID_MAX, "64-bit ids are used up"
            end = encode_number(last + BLOCK)
            try:
                self._block_revision = await self._store.transaction(
                    [Compare(self._key, revision)], [Put(self._key, end), Put(self.block_key, end)]
                )
            except RevisionMismatch:
                continue
            self._next, self._end = last + 1, last + BLOCK + 1
            return
