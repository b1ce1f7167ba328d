"""Which front ends record usage, in which incarnation, and whether they still do: rows `usage/front_ends/<name>`.

    claimed ──every minute──▶ renewed ──not for usage_abandon_s, or by an operator──▶ sealed by another front end
       ▲                         │                                                          │
       └── it sees another incarnation in its row ◀── comes back ◀──────────────────────────┘

Each change is a compare-and-swap, so an incarnation's number belongs to one start of one front end. A process that
*seals* for a front end that is gone takes the number after its last one, so that it must take another when it comes
back, and then tells the usage queue that of the last one nothing more is known: what was shipped counts, and hours can
be closed.

How long a front end has not renewed is told by counted time (`coordination/counted_time`), not by any wall clock: one
that is a day ahead must not end the incarnations of all others. Rows of programs without it get it when they are seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from quaymaster.coordination.counted_time import begin_counting, read_counted
from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Coordination,
    OutcomeUnknown,
    RevisionMismatch,
)
from quaymaster.core.values.errors import InvalidParameterValue, UnsupportedOperation
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, EncodedBlock, Seal, encode_block
from quaymaster.protocol.usage.usage_rows import NO_ROWS

INCARNATIONS: Final = "usage/front_ends/"
"""In coordination: below it are the names of front ends, each with its incarnation."""
RENEW_S: Final = 60.0
ALIVE_MS: Final = 180_000
"""Who renewed within this is not gone."""
UNKNOWN_MAX: Final = 8
"""A claim ends with OutcomeUnknown when so many of its changes were not answered."""
UNKNOWN_RETRY_S: Final = 0.25


class Incarnation(msgspec.Struct, frozen=True):
    """What coordination keeps of a front end: its last incarnation, by number, and when that was.

    `renewed_us`: when it last said that it runs; 0 where its program does not. `seals`: the number was taken by another
    front end, to seal this one (0: it is the front end's own); `is_told`: the usage queue has the seal, also that of a
    front end that ended in order. `seen_counted_ms`: when it claimed or renewed it last, by counted time.
    """

    number: int = msgspec.field(name="epoch")
    started_us: int
    renewed_us: int = 0
    seals: int = 0
    is_told: bool = False
    seen_counted_ms: int | None = None


class FrontEndIncarnations:
    """Reads and changes the rows. All methods may raise NotNow."""

    def __init__(self, store: Coordination, *, now_us: Callable[[], int]) -> None:
        self._store = store
        self._now_us = now_us

    async def claim(self, front_end: str, *, after: int) -> tuple[int, int | None]:
        """Return a number that no other incarnation of a front end of this name has, and the last one (None: none yet).

        It is larger than `after`, and at least the seconds since 1970: a store that was restored from a backup does
        not give one out again.
        """
        tried: list[tuple[Incarnation, int | None]] = []
        while True:
            seen_ms = await read_counted(self._store)
            row, revision = await self._read(front_end)
            for mine, before in tried:
                if row == mine:  # written, although the answer was lost
                    return mine.number, before
            now_us = self._now_us()
            last = None if row is None else row.number
            number = max(last or 0, after, now_us // 1_000_000 - 1) + 1
            claimed = Incarnation(number, now_us, now_us, seen_counted_ms=seen_ms)
            try:
                if await self._write(front_end, revision, claimed):
                    return number, last
            except OutcomeUnknown:
                tried.append((claimed, last))
                if len(tried) == UNKNOWN_MAX:
                    raise
                await asyncio.sleep(UNKNOWN_RETRY_S)

    async def renew(self, front_end: str, number: int) -> bool:
        """Say that a front end runs. False when this is not its last incarnation any more: it must take another."""
        while True:
            seen_ms = await read_counted(self._store)
            row, revision = await self._read(front_end)
            if row is None or row.number != number:
                return False
            renewed = msgspec.structs.replace(
                row, renewed_us=self._now_us(), is_told=False, seen_counted_ms=seen_ms
            )
            if await self._write(front_end, revision, renewed):
                return True

    async def rows(self) -> dict[str, Incarnation]:
        """Return all front ends there ever were."""
        found, _ = await self._store.list_all(INCARNATIONS)
        return {one.key.removeprefix(INCARNATIONS): _decode(one.value) for one in found}

    async def unseen_ms(self, front_end: str, row: Incarnation) -> int:
        """Return for how long a front end has not renewed, for certain; 0 when that begins to be counted only now."""
        now_ms = await read_counted(self._store)
        if row.seen_counted_ms is not None:
            return max(0, now_ms - row.seen_counted_ms)
        found, revision = await self._read(front_end)
        if found == row:
            unchanged = Compare(INCARNATIONS + front_end, revision)
            await begin_counting(
                self._store, self._store.transaction, unchanged, row, "seen_counted_ms", msgspec.json.encode
            )
        return 0

    async def seal(self, front_end: str, *, unseen_ms: int = ALIVE_MS) -> Incarnation:
        """End the incarnation of a front end that is gone, and return its row; one that was sealed stays as it is.

        Raises:
            InvalidParameterValue: there is no such front end.
            UnsupportedOperation: it said that it runs within `unseen_ms` of counted time.
        """
        while True:
            row, revision = await self._read(front_end)
            if row is None:
                raise InvalidParameterValue(f"No front end {front_end!r} ever recorded usage.")
            if row.seals or row.is_told:
                return row
            if (ago_ms := await self.unseen_ms(front_end, row)) < unseen_ms:
                raise UnsupportedOperation(
                    f"The front end {front_end!r} ran {ago_ms // 1000} s ago, of the time that was counted; it is gone "
                    f"after {unseen_ms // 1000} s."
                )
            now_us = self._now_us()
            number = max(row.number, now_us // 1_000_000 - 1) + 1
            sealed = Incarnation(number, now_us, row.renewed_us, row.number)
            if await self._write(front_end, revision, sealed):
                return sealed

    async def end(self, front_end: str, number: int) -> None:
        """Note that a front end ended in order, with all that it recorded in the usage queue."""
        row, revision = await self._read(front_end)
        if row is not None and row.number == number:
            await self._write(front_end, revision, msgspec.structs.replace(row, is_told=True))

    async def mark_told(self, front_end: str, row: Incarnation) -> None:
        """Note that the usage queue has the seal."""
        found, revision = await self._read(front_end)
        if found == row:
            await self._write(front_end, revision, msgspec.structs.replace(row, is_told=True))

    async def _read(self, front_end: str) -> tuple[Incarnation | None, int]:
        found = await self._store.get(INCARNATIONS + front_end)
        return (None, ABSENT) if found is None else (_decode(found.value), found.revision)

    async def _write(self, front_end: str, revision: int, row: Incarnation) -> bool:
        """Return False when somebody else was faster."""
        with suppress(RevisionMismatch):
            await self._store.compare_and_swap(INCARNATIONS + front_end, revision, msgspec.json.encode(row))
            return True
        return False


def may_be_gone(row: Incarnation) -> bool:
    """Return whether a front end must renew its row, as it neither ended in order nor was sealed."""
    return not row.seals and not row.is_told and row.renewed_us > 0


def lost_block(front_end: str, row: Incarnation, region: str) -> EncodedBlock:
    """Return the block by which a row of a sealed front end is told: the same bytes from each process that does."""
    origin, seal = BlockOrigin(front_end, row.seals, region), Seal(row.seals, None, "lost")
    return encode_block(origin, BlockEnd(), NO_ROWS, low_watermark_us=row.started_us, seal=seal)


def _decode(value: bytes) -> Incarnation:
    return msgspec.json.decode(value, type=Incarnation)
