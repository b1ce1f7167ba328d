"""The counted time of a store (`coordination/counted_time`) as its rows in memory have it, and the one who counts."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from quaymaster.coordination.counted_time import (
    COUNTED_AT_ONCE_MAX_MS,
    COUNTED_AT_ONCE_MIN_MS,
    COUNTED_TIME,
    begin_counting,
    read_beginning,
    read_counted,
)
from quaymaster.coordination.interface import Put, RevisionMismatch
from quaymaster.coordination.number_rows import encode_number, number_decoder
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import encode_row

Row = TypeVar("Row", bound=msgspec.Struct)


class CountedTime:
    """How long the store has been watched, in ms."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._unchanged_since_s = mirror.monotonic_s()
        self._row: MirrorTable[int] = mirror.table(COUNTED_TIME, number_decoder(COUNTED_TIME), self._on_row)

    @property
    def known_ms(self) -> int:
        """The time as it is in memory: it may be less than it is, so it shows only what is over for certain."""
        return self._row.get("") or 0

    async def read_ms(self) -> int:
        """Return the time as it is in the store. Raises NotNow."""
        return await read_counted(self._mirror.store)

    async def begin_ms(self) -> int:
        """Return from when on is waited for what begins now: what may not be counted yet does not count for it."""
        return await read_beginning(self._mirror.store)

    async def begin_counting(
        self, table: MirrorTable[Row], suffix: str, field: str, *, length_ms: int = 0
    ) -> None:
        """Let a row that a program of before left without a counted time begin to wait. Raises NotNow."""
        row = table.get(suffix)
        if row is None:
            return
        await begin_counting(
            self._mirror.store,
            self._mirror.transact,
            table.compare(suffix),
            row,
            field,
            encode_row,
            length_ms=length_ms,
        )

    async def begin_counting_all(self, table: MirrorTable[Row], field: str) -> None:
        """Let all rows of a table begin to wait that programs of before left without a counted time. Raises NotNow."""
        for suffix, row in table.items():
            if getattr(row, field) is None:
                await self.begin_counting(table, suffix, field)

    async def count(self) -> None:
        """Add the time for which the row has not changed; to be asked again and again. Raises NotNow."""
        passed_ms = int((self._mirror.monotonic_s() - self._unchanged_since_s) * 1000)
        if passed_ms < COUNTED_AT_ONCE_MIN_MS:
            return
        counted_ms = self.known_ms + min(passed_ms, COUNTED_AT_ONCE_MAX_MS)
        put = Put(COUNTED_TIME, encode_number(counted_ms))
        with suppress(RevisionMismatch):  # another process has counted
            await self._mirror.transact([self._row.compare("")], [put])

    def _on_row(self, suffix: str, old: int | None, new: int | None) -> None:
        self._unchanged_since_s = self._mirror.monotonic_s()
