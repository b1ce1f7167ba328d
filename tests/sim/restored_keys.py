"""A cell's processes over a store that is restored: does any believe one that lost changes of keys?

    store (restorable) ◀── changes that count, beats ── nodes
       ▲ StoreWitness of each process: brokers and nodes with a file, front ends without

Each seed draws: access keys changed, beats, copies of the store and restores of them (some raise the revision, as
`etcdutl --bump-revision` does), seconds that pass, processes that end and start, files of witnesses that are lost,
brokers' directories replaced by older copies, processes with directories of their own that come and go, and an operator
who decides to continue.

    W1    when the store lacks a change that a running process has seen, no process believes it after two looks
    W2    a store that was not restored, or from a copy with all that was seen, is believed
    W3    rows of directories have an end

    PYTHONPATH=tests python -m sim.restored_keys 0 500
    PYTHONPATH=tests python -m sim.restored_keys 0 5000 revision-believed
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from quaymaster.coordination import store_witness
from quaymaster.coordination.interface import Compare, KeyValue, Put
from quaymaster.coordination.store_witness import (
    WITNESSES,
    StoreWitness,
    decide_to_continue,
    with_generation,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.store_history import SeenStore, Verdict, WitnessMark, judge
from quaymaster.metadata.store.rows import ACCESS_KEYS, NODES, is_counted
from sim.kernel import Violation

STEPS = 60
BROKERS = ("b1", "b2")
METADATA = ("m1", "m2")
FRONT_ENDS = ("f1",)
COPIES_MAX = 3
KEYS = 4
BUMP = 100_000
HARM = 0.03
PASSES_BY = 0.4
"""So often after a step a process with a directory of its own begins, or comes back."""
ROWS_MAX = 6
DECIDES = 0.5

Content = tuple[dict[str, KeyValue], int]


class RestorableStore(MemoryCoordination):
    """A store with copies of itself, in which changes that count make generations."""

    deletions_count = True

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        counted = deletes if self.deletions_count else ()
        return await super().transaction(compares, with_generation(puts, counted, is_counted), deletes)

    def copied(self) -> Content:
        return dict(self._rows), self._revision

    def restore(self, copy: Content, bump: int) -> None:
        self._rows, self._revision = dict(copy[0]), copy[1] + bump
        self._history.clear()


class File:
    """The file of a directory, which outlives processes."""

    def __init__(self) -> None:
        self.directory = "/data"
        self.content: bytes | None = None

        self.written: list[bytes] = []

    def read(self) -> bytes | None:
        return self.content

    def write(self, data: bytes) -> None:
        self.content = data
        self.written.append(data)


class Copy(NamedTuple):
    """A copy of the store: the changes that are in it, and whether every directory had written down just these."""

    content: Content
    changes: frozenset[int]
    is_settled: bool


class World:
    """What a seed goes through."""

    def __init__(self, seed: int, bug: str | None = None) -> None:
        self.bug = bug
        self.rng = random.Random(f"{seed}-restored-keys")
        self.passing_rng = random.Random(f"{seed}-restored-keys-passing")
        self.passing: list[File] = []
        """Directories of processes that came and went since the store was restored last."""
        self.forgotten = 0
        """How often one came back whose row had been removed."""
        self.store = RestorableStore()
        self.store.deletions_count = bug != "deletions-uncounted"
        self.copies: list[Copy] = []
        self.files = {name: File() for name in (*BROKERS, *METADATA)}
        self.running: dict[str, StoreWitness] = {}
        self.changes: frozenset[int] = frozenset()
        """What the store has."""
        self.seen: dict[str, frozenset[int]] = {}
        """What each directory has seen of it; no more than an operator decided to continue with."""
        self.is_believable = True
        """Whether nothing happened yet that may let a process refuse the store."""
        self.looks = 0
        self.restores = self.refused = 0

    async def run(self) -> None:
        rarer = (self.copy, self.restore, self.restart, self.beat)
        for _ in range(STEPS):
            await self.rng.choice((self.change, self.change, self.pass_second, self.pass_second, *rarer))()
            if self.rng.random() < HARM:
                self.harm()
            if self.passing_rng.random() < PASSES_BY:
                await self.pass_by()

    # Processes

    async def look(self, name: str) -> None:
        """Let a process look, which starts it if it does not run; it ends when it must not use its directory."""
        witness = self.running.get(name)
        if witness is None:
            witness = self.witness(name, self.files.get(name))
            if self.bug == "refusal-kept":
                witness._tell_others = _tell_nobody  # type: ignore[method-assign]
            self.running[name] = witness
        await witness.look()
        if witness.verdict in (Verdict.DIRECTORY_WENT_BACK, Verdict.OTHER_STORE):
            if self.is_believable:
                raise Violation("W2", f"{name} must not start: {witness.problem}")
            del self.running[name]
        elif name in self.files and witness.problem is None and not self.lacking():
            # What is changed in a store that others refuse is for the operator to judge.
            self.seen[name] = self.changes

    def witness(self, name: str, file: File | None) -> StoreWitness:
        return StoreWitness(self.store, name, file, keeps_data=name in BROKERS, rows_max=ROWS_MAX)

    async def pass_by(self) -> None:
        """A process with a directory of its own begins, or comes back, looks twice, and ends."""
        if not self.passing or self.passing_rng.random() < 0.5:
            self.passing.append(File())
        file = self.passing_rng.choice(self.passing)
        witness = self.witness("m-passing", file)
        for _ in range(2):
            await witness.look()
            self.forgotten += witness.verdict is Verdict.FORGOTTEN
        if self.is_believable and witness.problem is not None:
            raise Violation(
                "W2", f"a process that came back refuses a store that lost nothing: {witness.problem}"
            )
        rows, _ = await self.store.list_all(WITNESSES)
        if len(rows) > ROWS_MAX:
            raise Violation("W3", f"{len(rows)} rows of directories")

    def lacking(self) -> dict[str, frozenset[int]]:
        """Return what directories have seen and the store has no more."""
        return {
            name: seen - self.changes
            for name, seen in self.seen.items()
            if self.files[name].content is not None and not seen <= self.changes
        }

    async def pass_second(self) -> None:
        """All processes run and look, twice."""
        lacking = self.lacking()
        for _ in range(2):
            for name in (*BROKERS, *METADATA, *FRONT_ENDS):
                await self.look(name)
        self.looks += 1
        missed = {name: lost for name, lost in lacking.items() if name in self.running}
        for name, witness in self.running.items():
            if missed and witness.problem is None:
                raise Violation("W1", f"{name} believes a store without what {missed} have seen")
            if self.is_believable and witness.problem is not None:
                raise Violation("W2", f"{name} refuses a store that lost nothing: {witness.problem}")
        if any(witness.problem for witness in self.running.values()):
            self.refused += 1
            if self.rng.random() < DECIDES:
                await self.decide()

    async def decide(self) -> None:
        """An operator continues with the store as it is, which counts for all directories."""
        await decide_to_continue(self.store, [])
        self.seen = {name: seen & self.changes for name, seen in self.seen.items()}
        for _ in range(2):
            for name in list(self.running):
                await self.look(name)
        for name, witness in self.running.items():
            if witness.problem is not None:
                raise Violation("W2", f"{name} does not follow what was decided: {witness.problem}")

    # What happens

    async def change(self) -> None:
        """A metadata node that believes the store changes a key in it."""
        nodes = [self.running[name] for name in METADATA if name in self.running]
        if not any(node.problem is None for node in nodes):
            return
        key = f"{ACCESS_KEYS}{self.rng.randrange(KEYS)}"
        number = len(self.changes | frozenset().union(*self.seen.values())) + self.rng.randrange(1 << 40)
        if self.rng.random() < 0.5:
            await self.store.transaction([], [Put(key, str(number).encode())])
        else:
            await self.store.transaction([], [], [key])
        self.changes |= {number}

    async def beat(self) -> None:
        for _ in range(self.rng.randrange(1, 30)):
            await self.store.transaction([], [Put(f"{NODES}m1", b"")])

    async def copy(self) -> None:
        is_settled = self.is_believable and all(
            self.seen.get(name) == self.changes for name, file in self.files.items()
        )
        self.copies = [*self.copies, Copy(self.store.copied(), self.changes, is_settled)][-COPIES_MAX:]

    async def restore(self) -> None:
        if not self.copies:
            return
        copy = self.rng.choice(self.copies)
        self.restores += 1
        self.store.restore(copy.content, BUMP if self.rng.random() < 0.2 else 0)
        self.passing.clear()  # one that began after the copy rightly refuses it, though no change is lost
        if (
            not copy.is_settled
            or copy.changes != self.changes
            or self.seen != dict.fromkeys(self.files, self.changes)
        ):
            self.is_believable = False
        self.changes = copy.changes
        if self.rng.random() < 0.5:
            self.running.clear()
        if self.rng.random() < 0.5:  # those who do not know yet write to it, far beyond where it was
            await self.beat()
            await self.change()

    async def restart(self) -> None:
        if self.running:
            del self.running[self.rng.choice(sorted(self.running))]

    def harm(self) -> None:
        """The file of a process is lost, or a broker's directory replaced by an older copy."""
        name = self.rng.choice(sorted(self.files))
        self.running.pop(name, None)
        file = self.files[name]
        self.is_believable = False
        self.seen.pop(name, None)
        file.content = self.rng.choice(file.written) if file.written and self.rng.random() < 0.5 else None


async def _tell_nobody(reason: str) -> None:
    pass


def _believes_revisions(mark: WitnessMark | None, seen: SeenStore) -> Verdict:
    verdict = judge(mark, seen)
    if mark is not None and verdict is Verdict.STORE_WENT_BACK and seen.generation >= mark.generation:
        return Verdict.DECIDED
    return verdict


def _follows_again(mark: WitnessMark | None, seen: SeenStore) -> Verdict:
    verdict = judge(mark, seen)
    return Verdict.DECIDED if verdict is Verdict.STORE_WENT_BACK and seen.decisions else verdict


def _refuses_forgotten(mark: WitnessMark | None, seen: SeenStore) -> Verdict:
    verdict = judge(mark, seen)
    return Verdict.STORE_WENT_BACK if verdict is Verdict.FORGOTTEN else verdict


def _forgets_all(mark: WitnessMark | None, seen: SeenStore) -> Verdict:
    return judge(mark, msgspec.structs.replace(seen, forgotten=seen.generation if seen.forgotten else 0))


PLANTED: dict[str, Any] = {
    "revision-believed": _believes_revisions,
    "decision-followed-again": _follows_again,
    "forgotten-refused": _refuses_forgotten,
    "forgotten-without-end": _forgets_all,
}
CAUGHT_BY = {
    "revision-believed": 0,
    "decision-followed-again": 1,
    "refusal-kept": 0,
    "deletions-uncounted": 8,
    "forgotten-refused": 10,
    "forgotten-without-end": 39,
}
"""For each planted bug a seed that catches it."""


def run_seed(seed: int, bug: str | None = None) -> World:
    """Go through a seed; Violation when something does not hold."""
    world = World(seed, bug)
    vars(store_witness)["judge"] = PLANTED.get(bug or "", judge)
    try:
        asyncio.run(world.run())
    finally:
        vars(store_witness)["judge"] = judge
    return world


def main(arguments: list[str]) -> None:
    """Go through seeds from the first to before the second; with a bug, until one catches it."""
    logging.disable(logging.CRITICAL)
    first, stop = int(arguments[0]), int(arguments[1])
    bug = arguments[2] if len(arguments) > 2 else None
    restores = refused = 0
    for seed in range(first, stop):
        try:
            world = run_seed(seed, bug)
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return
        restores, refused = restores + world.restores, refused + world.refused
    print(f"{stop - first} seeds, {restores} restores, {refused} times refused: nothing found")


if __name__ == "__main__":
    main(sys.argv[1:])
