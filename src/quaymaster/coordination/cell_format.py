"""Which format a cell writes, and which its processes read: how versions live side by side (`core/values/formats`).

    format                 number, as text    the newest when the cell begins, then `raise_format`'s
    alive/<role>/<node>    PresenceRow        what each process reads (`coordination/presence`)

A process says what it reads before it looks at the format, and follows the format as long as it runs. One that cannot
read what the cell writes does not start, or stops, and says why; what it has on its disk stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from quaymaster.coordination.cell_keys import BROKERS, JOURNALS, decode_registration
from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Coordination,
    LeaseExpired,
    OutcomeUnknown,
    Put,
    RevisionMismatch,
    StoreUnusable,
)
from quaymaster.coordination.noted_acts import NotedAct, put_act
from quaymaster.coordination.number_rows import encode_number, number_of
from quaymaster.coordination.presence import Presence, list_alive
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import FORMAT_MIN, CellFormat, why_unreadable
from quaymaster.monitoring.logs import log_event

FORMAT_KEY: Final = "format"
FIRST_FORMAT: Final = 1
"""That of a cell without the key: it was begun when there was one format, and never raised."""
RETRY_S: Final = 0.5

log = logging.getLogger(__name__)


class FormatRefused(Exception):
    """The format stays as it is; the message says why."""


class CellMember:
    """This process in its cell. Once it has joined, `cell_format` says what is written in the cell, at any time."""

    def __init__(
        self,
        store: Coordination,
        presence: Presence,
        *,
        on_unreadable: Callable[[Exception], None],
        before_raise: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`on_unreadable` is called when the cell begins to write what this process cannot read: it must stop.

        `before_raise` is called with each format before anything of it is written.
        """
        self._before_raise = before_raise
        self.cell_format = CellFormat(FORMAT_MIN)
        self._store = store
        self._presence = presence
        self._on_unreadable = on_unreadable
        self._watch = WatchedPrefix(store, FORMAT_KEY, self._on_row)

    async def join(self) -> None:
        """Return once the cell knows of this process and the format is known; waits for the store as long as it takes.

        Raises StoreUnusable when this program cannot read what the cell writes, or the store is damaged.
        """
        while True:
            try:
                await self._presence.register()
                await self._begin()
                number = await read_format(self._store)
                break
            except (NotNow, LeaseExpired) as error:
                self._store.check_asked()
                log_event(log, logging.WARNING, "cell not joined yet", reason=str(error))
                await asyncio.sleep(RETRY_S)
        reason = why_unreadable(number)
        if reason is not None:
            await self._presence.close()
            raise StoreUnusable(reason)
        self._before_raise(number)
        self.cell_format.raise_to(number)
        self._presence.keep()
        self._watch.start()

    async def close(self) -> None:
        """Leave the cell, as far as the store can be reached."""
        await self._watch.close()
        await self._presence.close()

    async def _begin(self) -> None:
        """Let a cell that has no broker and no journal yet write the newest format that all who are there read."""
        store = self._store
        if await store.get(FORMAT_KEY) is not None:
            return
        for prefix in (BROKERS, JOURNALS):
            if (await store.list_all(prefix))[0]:
                return
        newest = min(one.format_max for one in await list_alive(store))
        with contextlib.suppress(RevisionMismatch):  # somebody else was first
            await store.compare_and_swap(FORMAT_KEY, ABSENT, encode_number(newest))

    def _on_row(self, key: str, value: bytes | None) -> None:
        if key != FORMAT_KEY or value is None:
            return
        number = int(value)
        reason = why_unreadable(number)
        if reason is not None:
            self._on_unreadable(StoreUnusable(reason))
        elif number > self.cell_format.number:
            self._before_raise(number)
            self.cell_format.raise_to(number)
            log_event(log, logging.INFO, "format raised", format=number)


async def read_format(store: Coordination) -> int:
    """Return the format that the cell writes."""
    found = await store.get(FORMAT_KEY)
    return FIRST_FORMAT if found is None else number_of(found)


async def raise_format(store: Coordination, wanted: int, act: NotedAct | None = None) -> bool:
    """Let the cell write another format from now on; false when it does so already. There is no way back.

    `act` is noted with the change.

    Raises FormatRefused when a process would not be able to read it, or a broker does not run: nobody knows of what
    version it is when it comes back.
    """
    found = await store.get(FORMAT_KEY)
    now = FIRST_FORMAT if found is None else number_of(found)
    if now == wanted:
        return False
    if wanted < now:
        raise FormatRefused(f"The cell writes format {now}, and what it has written stays so.")
    processes = await list_alive(store)
    old = [one for one in processes if not one.format_min <= wanted <= one.format_max]
    if old:
        listed = ", ".join(
            f"{one.role} {one.node} (version {one.version}, formats {one.format_min} to {one.format_max})"
            for one in old
        )
        raise FormatRefused(f"Format {wanted} cannot be read by {listed}.")
    brokers, _ = await store.list_all(BROKERS)
    there = {one.node for one in processes if one.role == "broker"}
    away = sorted({decode_registration(item.value).name for item in brokers} - there)
    if away:
        raise FormatRefused(
            f"Nobody knows what these brokers read, which do not run: {', '.join(away)}. Start or drain them."
        )
    try:
        await store.transaction(
            [Compare(FORMAT_KEY, found.revision if found is not None else ABSENT)],
            [Put(FORMAT_KEY, encode_number(wanted)), *([] if act is None else [put_act(act)])],
        )
    except RevisionMismatch:
        raise FormatRefused("The format was changed meanwhile: look again.") from None
    except OutcomeUnknown:
        if await read_format(store) != wanted:
            raise
    return True
