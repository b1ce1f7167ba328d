"""Session credentials: those made of a key, and those that are to be deleted, found without a walk.

    session comes ──▶ under its key, its end's minute, its start's minute
    key is switched off or goes ──▶ its sessions are suspects
    look: minutes that have passed, starts that are far ahead, suspects ──▶ judged one by one

A start far ahead was written by a clock that was wrong: such a session is over, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed
from quaymaster.metadata.store.rows import AccessKeyRow

ENDED_TOLD_MS: Final = 3_600_000
"""So long after its end a session's caller is told that it has expired."""
MINUTE_MS: Final = 60_000


class Minutes:
    """Ids by the minute of a time. A session lasts 36 h at most, so there are few minutes however many sessions."""

    def __init__(self) -> None:
        self._ids: defaultdict[int, set[str]] = defaultdict(set)

    def add(self, time_ms: int, name: str) -> None:
        """Note an id under a time."""
        self._ids[time_ms // MINUTE_MS].add(name)

    def discard(self, time_ms: int, name: str) -> None:
        """Forget an id that was noted under a time."""
        minute = time_ms // MINUTE_MS
        self._ids[minute].discard(name)
        if not self._ids[minute]:
            del self._ids[minute]

    def up_to(self, time_ms: int) -> list[str]:
        """Return the ids of times up to this one, and perhaps of the rest of its minute."""
        last = time_ms // MINUTE_MS
        return [name for minute, ids in self._ids.items() if minute <= last for name in ids]

    def since(self, time_ms: int) -> list[str]:
        """Return the ids of times from this one on, and perhaps of its minute before."""
        first = time_ms // MINUTE_MS
        return [name for minute, ids in self._ids.items() if minute >= first for name in ids]


class Sessions:
    """Follows the rows of access keys. `row_of` gives one as it is now, or None."""

    def __init__(self, row_of: Callable[[str], AccessKeyRow | None]) -> None:
        self._row_of = row_of
        self._of_key: dict[str, set[str]] = {}
        self._ends = Minutes()
        self._starts = Minutes()
        self._suspects: set[str] = set()
        """Sessions whose key was perhaps disabled or deleted."""

    def of_key(self, access_key_id: str) -> list[str]:
        """Return the ids of the sessions made of a key."""
        return list(self._of_key.get(access_key_id, ()))

    def note(self, access_key_id: str, old: AccessKeyRow | None, new: AccessKeyRow | None) -> None:
        """A row came, changed or went."""
        if old is not None and old.expires_ms is not None:
            self._forget(access_key_id, old, old.expires_ms)
        if new is not None and new.expires_ms is not None:
            self._add(access_key_id, new, new.expires_ms)
        elif new is None or not new.is_enabled:
            self._suspects.update(self._of_key.get(access_key_id, ()))

    def may_be_over(self, now_ms: int) -> Iterator[str]:
        """Yield the ids of sessions that `is_over` is to judge; others are not over."""
        yield from self._ends.up_to(now_ms - ENDED_TOLD_MS)
        yield from self._starts.since(now_ms + CLOCKS_DIFFER_MAX_MS + ENDED_TOLD_MS)
        yield from tuple(self._suspects)

    def is_over(self, access_key_id: str, now_ms: int) -> bool:
        """Tell whether a session ended so long ago that it is deleted, or outlived its key."""
        row = self._row_of(access_key_id)
        if row is None:
            return False
        if has_ended(row, now_ms, told_ms=ENDED_TOLD_MS) or self._is_orphan(row):
            return True
        self._suspects.discard(access_key_id)
        return False

    def _is_orphan(self, row: AccessKeyRow) -> bool:
        """Tell whether a session was left over when its key was disabled or deleted: by a crash, or by a node
        that did not know it yet."""
        if row.parent_id is None:
            return False
        parent = self._row_of(row.parent_id)
        return parent is None or not parent.is_enabled

    def _add(self, access_key_id: str, row: AccessKeyRow, expires_ms: int) -> None:
        self._ends.add(expires_ms, access_key_id)
        self._starts.add(row.created_ms, access_key_id)
        if row.parent_id is not None:
            self._of_key.setdefault(row.parent_id, set()).add(access_key_id)
            if self._is_orphan(row):
                self._suspects.add(access_key_id)

    def _forget(self, access_key_id: str, row: AccessKeyRow, expires_ms: int) -> None:
        self._ends.discard(expires_ms, access_key_id)
        self._starts.discard(row.created_ms, access_key_id)
        self._suspects.discard(access_key_id)
        if row.parent_id is not None:
            of_key = self._of_key[row.parent_id]
            of_key.discard(access_key_id)
            if not of_key:
                del self._of_key[row.parent_id]


def has_ended(row: AccessKeyRow, now_ms: int, *, told_ms: int = 0) -> bool:
    """Tell whether a session is over, for `told_ms` at least; one that a clock far ahead has made is, too."""
    if row.expires_ms is None:
        return False
    lasts_ms = row.expires_ms - row.created_ms + told_ms
    return has_passed(row.created_ms, lasts_ms, now_ms, ahead_max_ms=CLOCKS_DIFFER_MAX_MS + told_ms)
