"""The other front ends of a cell that have master keys: which ones they have, and what their clocks say.

Each writes a row of its own now and then. Nothing is wrapped with a master key that one of them lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from quaymaster.coordination.interface import Put
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.metadata.keys.key_providers import KeyProvider, KeysUnusable
from quaymaster.metadata.options import UPKEEP_INTERVAL_MS
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.other_clocks import OtherClocks
from quaymaster.metadata.store.rows import READERS, ReaderRow, encode_row, row_decoder

GONE_MS: Final = 5 * UPKEEP_INTERVAL_MS
"""A front end not heard of for longer is gone, and need not have a new master key."""


class OtherFrontEnds:
    """What the front end `name` knows of the others."""

    def __init__(
        self, mirror: Mirror, provider: KeyProvider, *, name: str, now_ms: Callable[[], int]
    ) -> None:
        self._mirror = mirror
        self._provider = provider
        self._name = name
        self._now_ms = now_ms
        self._readers: MirrorTable[ReaderRow] = mirror.table(READERS, row_decoder(ReaderRow))
        self._clocks = OtherClocks()

    async def note_own_keys(self) -> None:
        """Tell the others which master keys are here."""
        key_ids = tuple(await asyncio.to_thread(self._provider.key_ids))
        row = ReaderRow(self._name, key_ids, self._now_ms())
        await self._mirror.transact([], [Put(READERS + self._name, encode_row(row))])

    def look_at_clocks(self) -> int | None:
        """Return the time of day by another's clock, or None; to be asked at each turn of the upkeep."""
        return self._clocks.look({row.name: row.seen_ms for row in self._others()})

    def count_alive(self) -> int:
        """Return how many front ends were heard of lately, with this one."""
        now_ms = self._now_ms()
        return 1 + sum(
            not has_passed(row.seen_ms, GONE_MS, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS)
            for row in self._others()
        )

    def check_all_have(self, key_id: str) -> None:
        """Raise KeysUnusable, naming them, when others lack a master key."""
        now_ms = self._now_ms()
        without = sorted(
            row.name
            for row in self._others()
            if not has_passed(row.seen_ms, GONE_MS, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS)
            and key_id not in row.key_ids
        )
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

    def _others(self) -> list[ReaderRow]:
        return [row for _, row in self._readers.items() if row.name != self._name]
