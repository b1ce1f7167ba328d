"""The other front ends of a cell that have master keys: which ones they have, and whether they are there.

Each writes a row of its own now and then. Nothing is wrapped with a master key that one of them lacks: the old one is
destroyed when all who are there have the new one. Who is there is told by the counted time in the rows
(`coordination/counted_time`), not by any wall clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quaymaster.coordination.interface import Put
from quaymaster.metadata.keys.key_providers import KeyProvider, KeysUnusable
from quaymaster.metadata.options import UPKEEP_INTERVAL_MS
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import READERS, ReaderRow, encode_row, row_decoder

GONE_MS: Final = 5 * UPKEEP_INTERVAL_MS
"""A front end not heard of for longer, of counted time, is gone, and need not have a new master key."""


class OtherFrontEnds:
    """What the front end `name` knows of the others."""

    def __init__(
        self,
        mirror: Mirror,
        provider: KeyProvider,
        *,
        name: str,
        now_ms: Callable[[], int],
        counted_time: CountedTime,
    ) -> None:
        self._mirror = mirror
        self._provider = provider
        self._name = name
        self._now_ms = now_ms
        self._time = counted_time
        self._readers: MirrorTable[ReaderRow] = mirror.table(READERS, row_decoder(ReaderRow))

    async def note_own_keys(self) -> None:
        """Tell the others which master keys are here."""
        key_ids = tuple(await asyncio.to_thread(self._provider.key_ids))
        row = ReaderRow(self._name, key_ids, self._now_ms(), await self._time.read_ms())
        await self._mirror.transact([], [Put(READERS + self._name, encode_row(row))])

    async def begin_counting(self) -> None:
        """Let those whose programs are of before be there until they are not heard of for long."""
        await self._time.begin_counting_all(self._readers, "seen_counted_ms")

    def count_alive(self) -> int:
        """Return how many front ends were heard of lately, with this one."""
        return 1 + len(self._alive())

    def check_all_have(self, key_id: str) -> None:
        """Raise KeysUnusable, naming them, when others lack a master key."""
        without = sorted(row.name for row in self._alive() if key_id not in row.key_ids)
        if without:
            lack = f"Nothing was rotated: the front ends {', '.join(without)} do not have the new master key {key_id}. "
            if not self._provider.holds(key_id):
                raise KeysUnusable(
                    f"{lack}Restart them with the settings of its key service, then wait half a minute, and try again."
                )
            raise KeysUnusable(
                f"{lack}Unless they read the key directory of {self._name}, give it to them ({key_id}.key from there, "
                f"mode 0600; or QUAYMASTER_MASTER_KEY_PREVIOUS); then wait half a minute, and rotate again."
            )

    def _alive(self) -> list[ReaderRow]:
        gone_ms = self._time.known_ms - GONE_MS
        others = (row for _, row in self._readers.items() if row.name != self._name)
        return [row for row in others if row.seen_counted_ms is None or row.seen_counted_ms > gone_ms]
