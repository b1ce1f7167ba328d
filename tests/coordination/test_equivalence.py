"""The twins give the same answer to the same calls, whatever the calls."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.coordination.interface import (
    Compare,
    Coordination,
    LeaseExpired,
    Put,
    RevisionMismatch,
)
from quaymaster.coordination.memory import MemoryCoordination
from quaymaster.coordination.sqlite import SQLiteCoordination

LEASE_MS = 1_000

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


class Caller:
    """Makes the calls and notes what came of them."""

    async def make(self, store: Coordination, call: tuple[Any, ...]) -> object:
        try:
            return await self._make(store, call)
        except (RevisionMismatch, LeaseExpired, ValueError) as error:
            return type(error), str(error)

    async def _make(self, store: Coordination, call: tuple[Any, ...]) -> object:
        match call:
            case ("get", key):
                return await store.get(key)
            case ("list", prefix, after, limit):
                return await store.list_prefix(prefix, after=after, limit=limit)
            case ("transaction", guessed, puts, deletes):
                compares = [Compare(key, await self._guess(store, key, behind)) for key, behind in guessed]
                return await store.transaction(compares, [Put(*put) for put in puts], deletes)
            case ("grant",):
                return await store.grant_lease(LEASE_MS)
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
