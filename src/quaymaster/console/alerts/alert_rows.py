"""The rows of alerts as a console has them: in memory, kept fresh by a watch; what it writes is there at once.

    start ──list──▶ memory ◀──watch── store ◀──transact── this console, others
                       ▲                           │
                       └──────── applied at once ──┘

Each change is a compare-and-swap, so two consoles that decide the same at once do it once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from quaymaster.coordination.interface import ABSENT, Compare, Coordination, Put, RevisionMismatch
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.alerts.alerts import (
    ALERT_DESTINATIONS,
    ALERT_STATES,
    ALERTS,
    PAST_ALERTS,
    ROWS,
    Alert,
    AlertStatus,
    Destination,
    PastAlert,
    decode_alert_row,
    parse_row_name,
    row_name,
)
from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.supervision import supervise

RETRY_S: Final = 1.0

T = TypeVar("T", bound=msgspec.Struct)


class AlertTable(Generic[T]):
    """The rows under one prefix, by account and name, with the revision of each."""

    def __init__(self, prefix: str, kind: type[T]) -> None:
        self.prefix = prefix
        self._kind = kind
        self._rows: dict[str, dict[str, tuple[int, T]]] = {}

    def get(self, account_id: str, name: str) -> T | None:
        """Return a row, or None."""
        found = self._rows.get(account_id, {}).get(name)
        return None if found is None else found[1]

    def revision(self, account_id: str, name: str) -> int:
        """Return the revision to compare with, ABSENT where there is no such row."""
        found = self._rows.get(account_id, {}).get(name)
        return ABSENT if found is None else found[0]

    def compare(self, account_id: str, name: str) -> Compare:
        """Return the condition that a row is still as it is here."""
        return Compare(self.key(account_id, name), self.revision(account_id, name))

    def key(self, account_id: str, name: str) -> str:
        """Return the key of a row."""
        return self.prefix + row_name(account_id, name)

    def of_account(self, account_id: str) -> list[T]:
        """Return an account's rows by name."""
        return [row for _, (_, row) in sorted(self._rows.get(account_id, {}).items())]

    def count(self, account_id: str) -> int:
        """Return how many rows an account has."""
        return len(self._rows.get(account_id, ()))

    def accounts(self) -> list[str]:
        """Return the accounts that have rows."""
        return sorted(self._rows)

    def __iter__(self) -> Iterator[T]:
        for account_id in self.accounts():
            yield from self.of_account(account_id)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        """Take over a change, unless a newer one is known. UnknownAlertFormat."""
        account_id, name = parse_row_name(key.removeprefix(self.prefix))
        rows = self._rows.setdefault(account_id, {})
        if value is not None:
            if name not in rows or rows[name][0] < revision:
                rows[name] = revision, decode_alert_row(value, self._kind)
        else:
            rows.pop(name, None)
        if not rows:
            del self._rows[account_id]


class PastRow(NamedTuple):
    """An alert's history, and the condition that it is still so."""

    past: PastAlert
    unchanged: Compare


class AlertRows:
    """All alerts, their states and destinations. Histories are read when they are asked for."""

    def __init__(self, store: Coordination) -> None:
        self._store = store
        self.alerts: Final = AlertTable(ALERTS, Alert)
        self.states: Final = AlertTable(ALERT_STATES, AlertStatus)
        self.destinations: Final = AlertTable(ALERT_DESTINATIONS, Destination)
        self._tables = (self.alerts, self.states, self.destinations)
        self.waiting: Final[dict[tuple[str, str], None]] = {}
        """The alerts, by account and name, that have something to deliver."""
        self._watch = WatchedPrefix(store, ROWS, self._on_row)
        self._written: dict[str, int] = {}
        """Keys that this console wrote, and the watch has not brought yet."""
        self._doubtful: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Read everything, and keep up from then on. Waits while the store cannot be reached."""
        self._watch.start()
        await self._watch.listed.wait()

    async def close(self) -> None:
        """Stop following. The store stays open."""
        await self._watch.close()
        for task in list(self._doubtful):
            task.cancel()
        await asyncio.gather(*self._doubtful, return_exceptions=True)

    def state(self, alert: Alert) -> AlertStatus:
        """Return how an alert stands; of one that was never evaluated, how it begins."""
        found = self.states.get(alert.account_id, alert.name)
        return AlertStatus(changed_ms=alert.created_ms) if found is None else found

    async def past(self, account_id: str, name: str) -> PastRow:
        """Return the history of an alert as it is stored; NotNow."""
        value, unchanged = await self.stored(PAST_ALERTS + row_name(account_id, name))
        return PastRow(PastAlert() if value is None else decode_alert_row(value, PastAlert), unchanged)

    async def stored(self, key: str) -> tuple[bytes | None, Compare]:
        """Return a row that is not kept in memory, and the condition that it is still so; NotNow."""
        row = await self._store.get(key)
        return (None, Compare(key, ABSENT)) if row is None else (row.value, Compare(key, row.revision))

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> None:
        """Do all of it or nothing; RevisionMismatch: the row is as it is now; NotNow."""
        try:
            revision = await self._store.transaction(compares, puts, deletes)
        except RevisionMismatch as mismatch:
            await self._refresh(mismatch.key)
            raise
        for put in puts:
            if put.key.startswith(ROWS):
                self._written[put.key] = revision
            self._apply(put.key, put.value, revision)
        for key in deletes:
            self._written.pop(key, None)
            self._apply(key, None, revision)

    def _on_row(self, key: str, value: bytes | None) -> None:
        revision = self._watch.revision_of(key)
        own = self._written.get(key)
        if own is not None and value is None:
            # Of before the own write, or after it: the watch does not say.
            task = supervise(asyncio.create_task(self._read_again(key), name="alert row"))
            self._doubtful.add(task)
            task.add_done_callback(self._doubtful.discard)
            return
        if own is not None and own <= revision:
            del self._written[key]
        self._apply(key, value, revision)

    async def _read_again(self, key: str) -> None:
        while True:
            with contextlib.suppress(NotNow):
                await self._refresh(key)
                return
            await asyncio.sleep(RETRY_S)

    async def _refresh(self, key: str) -> None:
        row = await self._store.get(key)
        self._written.pop(key, None)
        self._apply(key, None if row is None else row.value, 0 if row is None else row.revision)

    def _apply(self, key: str, value: bytes | None, revision: int) -> None:
        for table in self._tables:
            if key.startswith(table.prefix):
                table.apply(key, value, revision)
        if key.startswith(ALERT_STATES):
            place = parse_row_name(key.removeprefix(ALERT_STATES))
            status = self.states.get(*place)
            if status is not None and status.outbox:
                self.waiting[place] = None
            else:
                self.waiting.pop(place, None)
