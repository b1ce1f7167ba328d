"""How long a store takes is counted by operation, and for how long a process is known to run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import ABSENT, Compare, Put, RevisionMismatch
from quaymaster.coordination.presence import Presence, PresenceRow
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.timed import coordination_histograms


def test_operations_are_timed_whatever_comes_of_them(tmp_path: Path) -> None:
    async def scenario() -> dict[str, int]:
        store = await SQLiteCoordination.open(tmp_path / "store.sqlite")
        await store.get("a")
        await store.get("b")
        await store.transaction([], [Put("a", b"1")])
        with pytest.raises(RevisionMismatch):
            await store.transaction([Compare("a", ABSENT)], [Put("a", b"2")])
        counted = {
            sample.labels[0]: sum(sample.histogram.counts) for sample in coordination_histograms(store)
        }
        await store.close()
        return counted

    assert asyncio.run(scenario()) == {"get": 2, "transaction": 2}


def test_lease_of_a_process_remains_for_a_while_after_it_was_renewed() -> None:
    async def scenario() -> tuple[float, float]:
        presence = Presence(MemoryCoordination(), PresenceRow("broker", "b1", "1"), lease_ms=60_000)
        (before,) = presence.samples()
        async with asyncio.timeout(PATIENCE_S):
            await presence.register()
        (after,) = presence.samples()
        return before.value, after.value

    before, after = asyncio.run(scenario())

    assert before == 0
    assert 0 < after <= 60
