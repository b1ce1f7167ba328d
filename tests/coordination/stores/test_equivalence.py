"""The twins give the same answer to the same calls, whatever the calls."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from harness.etcd import EtcdCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.coordination.interface import (
    ABSENT,
    LIST_LIMIT_MAX,
    Compare,
    Coordination,
    Event,
    KeyValue,
    LeaseExpired,
    Listing,
    Put,
    RevisionMismatch,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination

LEASE_MS = 1_000
roots = count()

keys = st.sampled_from(["a", "a/1", "a/2", "b", "a\u00f8", "a\U0001f600"])
guesses = st.integers(0, 3)  # how far behind the key's true revision a caller is; 3: thinks it absent
calls = st.one_of(
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "z"]), keys | st.just(""), st.integers(1, 4)),
    st.tuples(
        st.just("transaction"),
        st.lists(st.tuples(keys, guesses), max_size=2),
        st.lists(
            st.tuples(keys, st.binary(max_size=3), st.integers(0, 3)),
            max_size=3,
            unique_by=lambda put: put[0],
        ),
        st.lists(keys, max_size=2, unique=True),
    ),
    st.tuples(st.just("grant")),
    st.tuples(st.just("keep_alive"), st.integers(1, 4)),
    st.tuples(st.just("revoke"), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.integers(1, 700)),
)


class Revision(int):
    """A revision, told apart from other numbers."""


class Caller:
    """Makes the calls and notes what came of them."""

    def __init__(self, lease_ms: int = LEASE_MS) -> None:
        self._lease_ms = lease_ms

    async def make(self, store: Coordination, call: tuple[Any, ...]) -> object:
        try:
            return await self._make(store, call)
        except RevisionMismatch as error:
            return type(error), error.key, Revision(error.found)
        except (LeaseExpired, ValueError) as error:
            return type(error), str(error)

    async def _make(self, store: Coordination, call: tuple[Any, ...]) -> object:
        match call:
            case ("get", key):
                return await store.get(key)
            case ("list", prefix, after, limit):
                return await store.list_prefix(prefix, after=after, limit=limit)
            case ("transaction", guessed, puts, deletes):
                compares = [Compare(key, await self._guess(store, key, behind)) for key, behind in guessed]
                return Revision(await store.transaction(compares, [Put(*put) for put in puts], deletes))
            case ("grant",):
                return await store.grant_lease(self._lease_ms)
            case ("keep_alive", lease_id):
                await store.keep_alive(lease_id)
                return None
            case ("revoke", lease_id):
                await store.revoke_lease(lease_id)
                return None
            case _:
                return None

    async def _guess(self, store: Coordination, key: str, behind: int) -> int:
        row = await store.get(key)
        return 0 if row is None or behind == 3 else max(row.revision - behind, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(calls, max_size=40))
def test_memory_and_sqlite_answer_alike(script: list[tuple[Any, ...]]) -> None:
    async def main(path: Path) -> None:
        clock = [1_700_000_000_000]
        memory = MemoryCoordination(now_ms=lambda: clock[0])
        sqlite = await SQLiteCoordination.open(path, now_ms=lambda: clock[0])
        caller = Caller()
        try:
            for call in script:
                if call[0] == "wait":
                    clock[0] += call[1]
                assert await caller.make(memory, call) == await caller.make(sqlite, call), call
            assert await memory.list_prefix("") == await sqlite.list_prefix("")
        finally:
            await memory.close()
            await sqlite.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory) / "metadata.sqlite"))


class SmallLeaseIds(Coordination):
    """Another store whose leases are called 1, 2, 3, ..., as those of the twins are."""

    def __init__(self, store: Coordination) -> None:
        self._store = store
        self._ids: list[int] = []

    async def get(self, key: str) -> KeyValue | None:
        return await self._store.get(key)

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        return await self._store.list_prefix(prefix, after=after, limit=limit)

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        real = [Put(put.key, put.value, self._real(put.lease_id) if put.lease_id else 0) for put in puts]
        try:
            return await self._store.transaction(compares, real, deletes)
        except LeaseExpired:
            over = [put.lease_id for put in puts if put.lease_id and not await self._lasts(put.lease_id)]
            raise LeaseExpired(f"lease {over[0]} is over") from None

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        return self._store.watch(prefix, after_revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        self._ids.append(await self._store.grant_lease(ttl_ms))
        return len(self._ids)

    async def keep_alive(self, lease_id: int) -> None:
        if not await self._lasts(lease_id):
            raise LeaseExpired(f"lease {lease_id} is over")

    async def revoke_lease(self, lease_id: int) -> None:
        await self._store.revoke_lease(self._real(lease_id))

    async def close(self) -> None:
        await self._store.close()

    def _real(self, lease_id: int) -> int:
        return self._ids[lease_id - 1] if lease_id <= len(self._ids) else lease_id

    async def _lasts(self, lease_id: int) -> bool:
        try:
            await self._store.keep_alive(self._real(lease_id))
        except LeaseExpired:
            return False
        return True


class Revisions:
    """Which revision of one store is which of the other, as far as seen: the order must be the same."""

    def __init__(self) -> None:
        self._pairs: dict[int, int] = {ABSENT: ABSENT}

    def alike(self, one: object, other: object) -> bool:
        """Whether two answers are the same but for revisions, and those are in the order of the ones before."""
        if isinstance(one, Revision) and isinstance(other, Revision):
            return self._match(one, other)
        if isinstance(one, KeyValue) and isinstance(other, KeyValue):
            return (one.key, one.value) == (other.key, other.value) and self._match(
                one.revision, other.revision
            )
        if isinstance(one, Listing) and isinstance(other, Listing):
            return (
                one.more == other.more
                and self._match(one.revision, other.revision)
                and self.alike(one.items, other.items)
            )
        if isinstance(one, tuple) and isinstance(other, tuple):
            return len(one) == len(other) and all(map(self.alike, one, other))
        return one == other

    def _match(self, one: int, other: int) -> bool:
        known = self._pairs.setdefault(one, other)
        ordered = [self._pairs[key] for key in sorted(self._pairs)]
        return known == other and ordered == sorted(ordered)


@pytest.fixture(scope="module")
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """An etcd of its own: in one that others use, leases that they left end when they like, and revisions grow."""
    with EtcdCluster.started(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@settings(max_examples=60, deadline=None)
@given(script=st.lists(calls.filter(lambda call: call[0] != "wait"), max_size=40))
def test_memory_and_etcd_answer_alike(own_etcd: EtcdCluster, script: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        memory = MemoryCoordination()
        store = SmallLeaseIds(own_etcd.store(f"{next(roots)}/"))
        caller, revisions = Caller(lease_ms=600_000), Revisions()
        # An etcd is at revision 1 or later from its beginning.
        await memory.transaction([], [Put("a", b"")])
        await store.transaction([], [Put("a", b"")])
        try:
            for call in script:
                answers = await caller.make(memory, call), await caller.make(store, call)
                assert revisions.alike(*answers), (call, *answers)
        finally:
            await memory.close()
            await store.close()

    asyncio.run(main())
