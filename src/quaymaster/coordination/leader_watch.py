"""Feeds a leader table from coordination: the journals' configurations and the brokers' registrations."""

from __future__ import annotations

import asyncio

from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    decode_configuration,
    decode_registration,
    journal_of,
)
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.watched_prefix import RELIST_S, WatchedPrefix
from quaymaster.core.cell.leader_table import LeaderTable


class LeaderWatch:
    """Keeps a table as new as coordination lets it; while it is down, the table stays as it is."""

    def __init__(self, store: Coordination, table: LeaderTable, *, relist_s: float = RELIST_S) -> None:
        self._table = table
        self._brokers = WatchedPrefix(store, BROKERS, self._on_broker, relist_s=relist_s)
        self._journals = WatchedPrefix(store, JOURNALS, self._on_journal, relist_s=relist_s)

    def start(self) -> None:
        """Begin to follow. Commands may be sent at once: they wait until a leader is known."""
        self._brokers.start()
        self._journals.start()

    async def wait_listed(self) -> None:
        """Return when everything was read once."""
        await asyncio.gather(self._brokers.listed.wait(), self._journals.listed.wait())

    def refresh(self) -> None:
        """Read everything again soon: somebody who was said to lead does not."""
        self._brokers.refresh()
        self._journals.refresh()

    async def close(self) -> None:
        """Stop following. The store stays open."""
        await self._brokers.close()
        await self._journals.close()

    def _on_broker(self, key: str, value: bytes | None) -> None:
        address = None if value is None else decode_registration(value).address
        self._table.set_address(key.removeprefix(BROKERS), address)

    def _on_journal(self, key: str, value: bytes | None) -> None:
        configuration = None if value is None else decode_configuration(value)
        self._table.set_configuration(journal_of(key), configuration)
