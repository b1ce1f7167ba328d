"""Front ends and owners of one limit, with the reports between them, on a clock of their own.

Each front end reports each 250 ms at a moment of its own; a report takes a few ms each way, or fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from quaymaster.core.limits.bucket import Bucket
from quaymaster.core.limits.division import REPORT_MS, Division, Grant
from quaymaster.core.limits.share import Share
from quaymaster.core.structures.rendezvous import owner_of

DELAY_MS = 4.0
FAILURE_SEEN_MS = 200.0
NEW_OWNER_MS = 2_000.0
STEP_MS = 4.0
FAILURES_MAX = 2
PROBE_MS = 1_000.0


class SimulatedOwner:
    """A metadata node."""

    def __init__(self, rate: float, *, is_whole: bool) -> None:
        self.rate = rate
        self.is_whole = is_whole
        self.is_up = True
        self.division: Division | None = None

    def report(self, front_end: str, demand: float, unused: float, now_ms: float, *, is_full: bool) -> Grant:
        if self.division is None:
            self.division = Division(self.rate, now_ms, is_whole=self.is_whole, is_full=is_full)
        return self.division.report(front_end, demand, unused, now_ms)


class SimulatedFrontEnd:
    """Takes requests of a size at a rate, and lets through what it has tokens for."""

    def __init__(self, name: str, rate: float, front_ends: int, now_ms: float) -> None:
        self.name = name
        self.bucket = Bucket(rate, now_ms)
        self.share = Share(self.bucket, rate, front_ends, now_ms)
        self.load = 0.0
        self.clients: list[float] = []
        """When each client that waits as it is told asks again."""
        self.is_up = True
        self.owner = ""
        self.owner_since_ms = now_ms
        self.failures: dict[str, int] = {}
        """How often each owner failed in a row; with FAILURES_MAX it is down until a probe finds it up."""
        self.sees: set[str] | None = None
        """The owners that it can reach; None: all."""
        self._due = 0.0

    def take(self, now_ms: float, cost: float) -> float:
        """Take what comes in a step; return what went through."""
        self._due += self.load * STEP_MS / 1_000
        through = 0.0
        while self._due >= cost:
            self._due -= cost
            if self.bucket.has_tokens(now_ms):
                self.bucket.charge(cost, now_ms)
                through += cost
            else:
                self.bucket.refuse(cost, now_ms)
        for number, at_ms in enumerate(self.clients):
            if at_ms <= now_ms:
                if self.bucket.has_tokens(now_ms):
                    self.bucket.charge(cost, now_ms)
                    through += cost
                    self.clients[number] = now_ms + STEP_MS
                else:
                    self.clients[number] = now_ms + self.bucket.refuse(cost, now_ms)
        return through


class SimulatedCell:
    """All of them. `through` is what went through in each step."""

    def __init__(
        self, rate: float, front_ends: int, owners: int, *, seed: int, cost: float = 1.0, loss: float = 0.0
    ) -> None:
        self.now_ms = 0.0
        self.rate = rate
        self.cost = cost
        self.loss = loss
        self.random = random.Random(seed)
        self.through: list[float] = []
        names = [f"fe{number}" for number in range(front_ends)]
        self.front_ends = {name: SimulatedFrontEnd(name, rate, front_ends, 0.0) for name in names}
        is_whole = cost == 1.0
        self.owners = {f"md{number}": SimulatedOwner(rate, is_whole=is_whole) for number in range(owners)}
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._number = 0
        for name in names:
            self._at(self.random.uniform(0, REPORT_MS), self._report, name)

    def run(self, ms: float) -> None:
        """Let so much time pass."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            while self._events and self._events[0][0] <= self.now_ms:
                _, _, event, given = heappop(self._events)
                event(given)
            alive = sum(front_end.is_up for front_end in self.front_ends.values())
            for front_end in self.front_ends.values():
                was_busy = front_end.share.is_busy()
                front_end.share.on_time(self.now_ms, alive)
                if not was_busy and (front_end.load or front_end.clients) and front_end.is_up:
                    self._at(self.now_ms + STEP_MS, self._report_now, front_end.name)
            self.through.append(
                sum(
                    front_end.take(self.now_ms, self.cost)
                    for front_end in self.front_ends.values()
                    if front_end.is_up
                )
            )
            self.now_ms += STEP_MS

    def worst(self, window_ms: int, since_ms: int) -> tuple[float, float]:
        """Return the least and the most that went through in a window, as parts of the limit."""
        sums = [0.0]
        for amount in self.through:
            sums.append(sums[-1] + amount)
        allowed = self.rate * window_ms / 1_000
        window, since = int(window_ms / STEP_MS), int(since_ms / STEP_MS)
        parts = [
            (sums[at + window] - sums[at]) / allowed for at in range(since, len(self.through) - window + 1, 5)
        ]
        return min(parts), max(parts)

    def rate_of_last(self, ms: float) -> float:
        """Return what went through in the last time, as a part of the limit."""
        return sum(self.through[-int(ms / STEP_MS) :]) / (self.rate * ms / 1_000)

    def load(self, **loads: float) -> None:
        """Give front ends these loads, and the others none."""
        for name, front_end in self.front_ends.items():
            front_end.load = loads.get(name, 0.0)

    def _at(self, at_ms: float, event: Callable[..., None], given: Any) -> None:
        self._number += 1
        heappush(self._events, (at_ms, self._number, event, given))

    def _report(self, name: str) -> None:
        self._at(self.now_ms + REPORT_MS, self._report, name)
        self._report_now(name)

    def _report_now(self, name: str) -> None:
        front_end = self.front_ends[name]
        if not front_end.is_up or not front_end.share.is_busy():
            return
        reachable = [
            owner
            for owner in (self.owners if front_end.sees is None else front_end.sees)
            if front_end.failures.get(owner, 0) < FAILURES_MAX
        ]
        owner = owner_of("000000000001", reachable)
        if owner is None:
            front_end.share.on_failure(self.now_ms)
            return
        if owner != front_end.owner:
            front_end.owner, front_end.owner_since_ms = owner, self.now_ms
        is_new = self.now_ms - front_end.owner_since_ms < NEW_OWNER_MS
        report = front_end.share.report(self.now_ms, is_new_owner=is_new)
        if not self.owners[owner].is_up or self.random.random() < self.loss:
            self._at(self.now_ms + FAILURE_SEEN_MS, self._failed, (name, owner))
            return
        self._at(self.now_ms + DELAY_MS, self._reported, (name, owner, report, not is_new))

    def _reported(self, given: Any) -> None:
        name, owner, report, is_full = given
        grant = self.owners[owner].report(name, report.demand, report.unused, self.now_ms, is_full=is_full)
        self._at(self.now_ms + DELAY_MS, self._granted, (name, grant))

    def _granted(self, given: Any) -> None:
        name, grant = given
        if self.front_ends[name].is_up:
            self.front_ends[name].failures.pop(self.front_ends[name].owner, None)
            self.front_ends[name].share.on_grant(grant, self.now_ms)

    def _failed(self, given: Any) -> None:
        name, owner = given
        front_end = self.front_ends[name]
        front_end.failures[owner] = front_end.failures.get(owner, 0) + 1
        if front_end.failures[owner] == FAILURES_MAX:
            self._at(self.now_ms + PROBE_MS, self._probe, (name, owner))
        front_end.share.on_failure(self.now_ms)

    def _probe(self, given: Any) -> None:
        name, owner = given
        if self.owners[owner].is_up:
            self.front_ends[name].failures[owner] = 0
        else:
            self._at(self.now_ms + PROBE_MS, self._probe, given)
