"""What must be agreed on, and the little we ask of the store that agrees: etcd, SQLite, or memory.

Keys are text, values bytes. Every change gives the store a new, higher revision, and a key carries the
revision of its last change; all keys of one transaction carry the same one. Safety rests on compare-and-swap
alone. Leases and watches are hints: they may cost availability or a repeated act, never data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import Final

import msgspec

from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.metrics import Histogram

ABSENT: Final = 0
"""The revision of a key that does not exist."""

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 1 << 20
TRANSACTION_OPERATIONS_MAX: Final = 128
TRANSACTION_BYTES_MAX: Final = VALUE_BYTES_MAX + (128 << 10)
"""Keys and values written by one transaction. etcd takes requests of 1.5 MiB, with all that is around them."""
LIST_LIMIT_MAX: Final = 1000
LEASE_TTL_MIN_MS: Final = 10


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    """A key, its value, and the revision of its last change."""

    key: str
    value: bytes
    revision: int


class Listing(msgspec.Struct, frozen=True):
    """Some keys in order. `revision` is the store's at that time; `more`: keys follow the last one."""

    items: tuple[KeyValue, ...]
    revision: int
    more: bool


class Compare(msgspec.Struct, frozen=True, gc=False):
    """A condition: the key's revision is this one (ABSENT: there is no such key)."""

    key: str
    revision: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """A key to write; with a lease (other than 0) it vanishes when the lease does."""

    key: str
    value: bytes
    lease_id: int = 0


class Event(msgspec.Struct, frozen=True, gc=False):
    """A key changed; `value` None: it is gone."""

    key: str
    value: bytes | None
    revision: int


class RevisionMismatch(Exception):
    """A compared key has another revision; nothing was changed. Read again, decide again."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(f"{key} is at revision {found}, not {expected}")
        self.key = key
        self.expected = expected
        self.found = found


class WatchLost(Exception):
    """Changes were missed or may have been. List again and watch from there."""


class LeaseExpired(Exception):
    """The lease is over (or never was), and the keys bound to it are gone."""


class StoreUnusable(Exception):
    """The store cannot be opened: of a newer format, damaged, or not ours. The message says what to do."""


class CoordinationUnavailable(NotNow):
    """Nothing was changed: the store cannot be reached or written now."""

    message = "The metadata store cannot be used now."


class OutcomeUnknown(NotNow):
    """The change may have been made or not: read before deciding anything."""

    message = "The metadata store gave no answer; the outcome is unknown."


class Coordination(ABC):
    """The store. Every method may raise `CoordinationUnavailable`; those that change, `OutcomeUnknown`."""

    @cached_property
    def durations(self) -> dict[str, Histogram]:
        """How long its operations took, by their names (`coordination/timed`)."""
        return {}

    @property
    def why_refused(self) -> str | None:
        """Why the store is not asked any more, for good: it lost changes, or is damaged. None while it is asked."""
        return None

    def check_asked(self) -> None:
        """Raise StoreUnusable when the store is not asked any more: a start has nothing else to continue with."""
        if self.why_refused is not None:
            raise StoreUnusable(self.why_refused)

    async def verify(self) -> None:
        """Read everything once, before it is believed; nothing to do for a store that did so when it was opened.

        Raises StoreUnusable when it is damaged.
        """
        self.check_asked()

    @abstractmethod
    async def get(self, key: str) -> KeyValue | None:
        """Return a key as last changed, or None."""

    @abstractmethod
    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        """Return up to `limit` keys that start with `prefix` and come after `after`, in byte order."""

    @abstractmethod
    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """Do all of it or none: if every compare holds, write and delete; return the new revision.

        Deleting an absent key is no error. Raises RevisionMismatch for the first compare that does not hold,
        and LeaseExpired when a put names a lease that is over.
        """

    @abstractmethod
    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        """Yield the changes under `prefix` after a revision, in order, for ever; a revision is never split.

        Of several changes of one key only the last may be seen. Raises WatchLost when the store no longer
        knows what changed since.
        """

    @abstractmethod
    async def grant_lease(self, ttl_ms: int) -> int:
        """Start a lease and return its id, never reused. A store may give it a longer time than asked for."""

    @abstractmethod
    async def keep_alive(self, lease_id: int) -> None:
        """Let the lease last its full time from now; LeaseExpired when it is over."""

    @abstractmethod
    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease and delete the keys bound to it. No error when it is over already."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted and let go. Watches and later calls raise CoordinationUnavailable."""

    async def read(self, keys: Sequence[str]) -> tuple[list[KeyValue], int]:
        """Return those of the keys that there are, each as last changed, and a revision none of them is older than.

        At most TRANSACTION_OPERATIONS_MAX at once.
        """
        check_read(keys)
        pages = [
            await self.list_prefix(key, limit=1) for key in keys
        ]  # a key is the first that begins with it
        found = [page.items[0] for key, page in zip(keys, pages, strict=True) if _is_first(page, key)]
        return found, min(page.revision for page in pages)

    async def compare_and_swap(
        self, key: str, expected_revision: int, value: bytes | None, *, lease_id: int = 0
    ) -> int:
        """Write a key (None: delete it) if it is still at a revision (ABSENT: does not exist).

        Returns the new revision; raises RevisionMismatch otherwise.
        """
        if value is None:
            if expected_revision == ABSENT:
                raise ValueError("a key that must not exist cannot be deleted")
            return await self.transaction([Compare(key, expected_revision)], deletes=[key])
        return await self.transaction([Compare(key, expected_revision)], [Put(key, value, lease_id)])

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Return every key under `prefix`, and the revision to watch from so that no change is missed.

        Keys may be newer than that revision; the watch then brings them once more.
        """
        page = await self.list_prefix(prefix)
        revision = page.revision
        items = list(page.items)
        while page.more:
            page = await self.list_prefix(prefix, after=items[-1].key)
            items.extend(page.items)
        return items, revision


def _is_first(page: Listing, key: str) -> bool:
    return bool(page.items) and page.items[0].key == key


def check_read(keys: Sequence[str]) -> None:
    """Raise ValueError for a number of keys that no store reads at once."""
    if not 1 <= len(keys) <= TRANSACTION_OPERATIONS_MAX:
        raise ValueError(f"{len(keys)} keys in one read; 1-{TRANSACTION_OPERATIONS_MAX} are possible")


def check_transaction(compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]) -> None:
    """Raise ValueError when a transaction is one that no store takes."""
    if not puts and not deletes:
        raise ValueError("a transaction changes something")
    operations = len(compares) + len(puts) + len(deletes)
    if operations > TRANSACTION_OPERATIONS_MAX:
        raise ValueError(f"{operations} operations in one transaction; at most {TRANSACTION_OPERATIONS_MAX}")
    changed = [put.key for put in puts] + list(deletes)
    if len(set(changed)) != len(changed):
        raise ValueError("a transaction changes each key once")
    for put in puts:
        if not 0 < len(put.key.encode()) <= KEY_BYTES_MAX:
            raise ValueError(f"a key of {len(put.key.encode())} bytes; 1-{KEY_BYTES_MAX} are possible")
        if len(put.value) > VALUE_BYTES_MAX:
            raise ValueError(f"{put.key}: a value of {len(put.value)} bytes; at most {VALUE_BYTES_MAX}")
    if transaction_bytes(puts) > TRANSACTION_BYTES_MAX:
        raise ValueError(
            f"a transaction of {transaction_bytes(puts)} bytes; at most {TRANSACTION_BYTES_MAX} are possible"
        )


def transaction_bytes(puts: Sequence[Put]) -> int:
    """Return the size of the keys and values that are written."""
    return sum(len(put.key.encode()) + len(put.value) for put in puts)


def check_limit(limit: int) -> None:
    """Raise ValueError for a page size outside 1..LIST_LIMIT_MAX."""
    if not 1 <= limit <= LIST_LIMIT_MAX:
        raise ValueError(f"a page has 1-{LIST_LIMIT_MAX} keys, not {limit}")


def prefix_end(prefix: str) -> str | None:
    """Return the least text greater than every key that starts with `prefix`; None when there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < 0x10FFFF:
            # Surrogates cannot be encoded, and no key holds one.
            following = 0xE000 if code == 0xD7FF else code + 1
            return prefix[:at] + chr(following)
    return None
