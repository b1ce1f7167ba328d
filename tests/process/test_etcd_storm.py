"""A storm over a real etcd of three: members killed and paused at random, while counters are raised and watched.

Every step of a counter is made exactly once, and all watches see all of them, in order, none twice.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from harness.etcd import EtcdCluster

from quaymaster.coordination.interface import (
    ABSENT,
    Coordination,
    CoordinationUnavailable,
    OutcomeUnknown,
    RevisionMismatch,
)
from quaymaster.coordination.stores import etcd as etcd_module
from quaymaster.coordination.stores import etcd_gateway
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess
from quaymaster.core.values.errors import NotNow

FAULTS = int(os.environ.get("SOAK_RUNS", "4"))
SEED = int(os.environ.get("SOAK_SEED", "7"))
WORKERS = 6
COUNTERS = 3
CALL_TIMEOUT_MS = 1_500
FAULT_MAX_S = 2.0
BETWEEN_FAULTS_MAX_S = 0.8
CATCH_UP_S = 60
RETRY_S = 0.05


class Steps(msgspec.Struct):
    """A counter, and the last step of each who raises it."""

    count: int = 0
    last: dict[str, int] = {}


class EtcdStorm:
    """Workers, watchers and faults over one cluster."""

    def __init__(self, cluster: EtcdCluster, seed: int) -> None:
        endpoints = cluster.endpoints
        self._cluster = cluster
        self._random = random.Random(seed)
        self._stores = [
            EtcdCoordination(
                EtcdAccess(endpoints[first:] + endpoints[:first]), root="storm/", timeout_ms=CALL_TIMEOUT_MS
            )
            for first in range(len(endpoints))
        ]
        self._is_over = False
        self.seen: list[list[tuple[int, str]]] = [[] for _ in self._stores]
        self.tally: Counter[str] = Counter()

    async def run(self, faults: int) -> int:
        """Do so many faults, let the watches catch up, and return what the counters add up to."""
        watching = [asyncio.create_task(self._watch(number)) for number in range(len(self._stores))]
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(WORKERS):
                    store = self._stores[number % len(self._stores)]
                    group.create_task(self._work(f"worker-{number}", store))
                for _ in range(faults):
                    await self._fault()
                self._is_over = True
            rows = [await self._stores[0].get(f"counter/{number}") for number in range(COUNTERS)]
            last = max(row.revision for row in rows if row)
            async with asyncio.timeout(CATCH_UP_S):
                while not all(seen and seen[-1][0] >= last for seen in self.seen):  # noqa: ASYNC110
                    await asyncio.sleep(RETRY_S)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            for store in self._stores:
                await store.close()
        return sum(msgspec.json.decode(row.value, type=Steps).count for row in rows if row)

    async def _work(self, name: str, store: Coordination) -> None:
        step = 0
        while not self._is_over:
            await self._raise(store, f"counter/{step % COUNTERS}", name, step)
            step += 1
            self.tally["steps"] += 1

    async def _raise(self, store: Coordination, key: str, name: str, step: int) -> None:
        may_be_made = False
        while True:
            try:
                row = await store.get(key)
                steps = msgspec.json.decode(row.value, type=Steps) if row else Steps()
                if steps.last.get(name) == step:
                    assert may_be_made, f"step {step} of {name} was made though etcd said that it was not"
                    self.tally["unknown, and made"] += 1
                    return
                after = Steps(steps.count + 1, {**steps.last, name: step})
                await store.compare_and_swap(key, row.revision if row else ABSENT, msgspec.json.encode(after))
                return
            except RevisionMismatch:
                self.tally["mismatch"] += 1
            except OutcomeUnknown:
                self.tally["unknown"] += 1
                may_be_made = True
            except CoordinationUnavailable:
                self.tally["unavailable"] += 1
                await asyncio.sleep(RETRY_S)

    async def _watch(self, number: int) -> None:
        position = 0
        while True:
            try:
                async for events in self._stores[number].watch("counter/", position):
                    self.seen[number] += [(event.revision, event.key) for event in events]
                    position = events[-1].revision
            except NotNow:
                await asyncio.sleep(RETRY_S)

    async def _fault(self) -> None:
        cluster = self._cluster
        one = self._random.randrange(len(cluster.members))
        if self._random.random() < 0.5:
            one = await asyncio.to_thread(cluster.leader)
        kind = self._random.choice(["kill one", "kill two", "kill all", "pause one"])
        self.tally[kind] += 1
        hit = {
            "kill two": [one, (one + 1) % len(cluster.members)],
            "kill all": list(range(len(cluster.members))),
        }.get(kind, [one])
        hurt: Callable[[int], None] = cluster.pause if kind == "pause one" else cluster.kill
        heal: Callable[[int], None] = cluster.resume if kind == "pause one" else cluster.launch
        for number in hit:
            hurt(number)
        await asyncio.sleep(self._random.uniform(0, FAULT_MAX_S))
        for number in hit:
            heal(number)
        await asyncio.to_thread(cluster.wait_until_ready)
        await asyncio.sleep(self._random.uniform(0, BETWEEN_FAULTS_MAX_S))


@pytest.mark.timeout(0 if "SOAK_RUNS" in os.environ else 180)
def test_steps_are_made_once_and_seen_by_all_whatever_happens_to_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "WATCH_PROBE_S", 0.5)
    monkeypatch.setattr(etcd_gateway, "ATTEMPT_TIMEOUT_S", 0.7)

    async def scenario(cluster: EtcdCluster) -> tuple[EtcdStorm, int]:
        storm = EtcdStorm(cluster, SEED)
        return storm, await storm.run(FAULTS)

    with EtcdCluster.started(tmp_path, members=3) as cluster:
        storm, total = asyncio.run(scenario(cluster))

    print(dict(storm.tally))
    assert total == storm.tally["steps"], f"seed {SEED}: {dict(storm.tally)}"
    revisions = [revision for revision, _ in storm.seen[0]]
    assert len(revisions) == total
    assert revisions == sorted(set(revisions))
    assert all(seen == storm.seen[0] for seen in storm.seen)
