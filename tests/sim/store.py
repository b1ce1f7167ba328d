"""The simulated coordination store: one journal's configuration, swapped, watched, now and then away.

A change that was asked for may happen though its answer never comes; watches may be late or silent. Both are hints'
luck: the judge here looks only at what the compare-and-swaps made of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from quaymaster.core.replication import JournalConfiguration
from sim.kernel import MS, Kernel, Violation
from sim.network import Network

STORE = "store"


class Get(NamedTuple):
    """What does the key hold? Answered by `Got`."""

    request: int


class Got(NamedTuple):
    """The key and its revision."""

    request: int
    configuration: JournalConfiguration
    revision: int


class Swap(NamedTuple):
    """Put this, if the key is still at that revision. Answered by `Swapped`."""

    request: int
    revision: int
    configuration: JournalConfiguration


class Swapped(NamedTuple):
    """Whether it was done, and what the key holds now."""

    request: int
    is_done: bool
    configuration: JournalConfiguration
    revision: int


class Changed(NamedTuple):
    """A watch says that the key changed."""

    configuration: JournalConfiguration
    revision: int


@dataclass(slots=True)
class StoreFaults:
    """How bad the store is, as drawn for a run."""

    lost_answers: float = 0.0
    lost_watches: float = 0.0
    latency_us: tuple[int, int] = (500, 5 * MS)


class Store:
    """Holds the key, answers requests, tells watchers, and checks I1 and I9 at every change."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        faults: StoreFaults,
        configuration: JournalConfiguration,
    ) -> None:
        self.configuration = configuration
        self.revision = 1
        self.is_away = False
        self.faults = faults
        self.watchers: list[str] = []
        self.by_epoch: dict[int, JournalConfiguration] = {configuration.epoch: configuration}
        self.activated_epochs: set[int] = set()
        self._activated_members = configuration.previous_members
        self._kernel = kernel
        self._network = network
        self._random = kernel.random_for("store")
        network.connect(STORE, self._receive)

    def _receive(self, sender: str, message: object) -> None:
        if self.is_away:
            return
        self._kernel.after(self._random.randint(*self.faults.latency_us), self._serve, sender, message)

    def _serve(self, sender: str, message: object) -> None:
        if self.is_away and self._random.random() < 0.5:
            return
        answer: Got | Swapped
        if isinstance(message, Get):
            answer = Got(message.request, self.configuration, self.revision)
        else:
            assert isinstance(message, Swap), f"the store does not know {message}"
            is_done = message.revision == self.revision
            if is_done:
                self._put(sender, message.configuration)
            answer = Swapped(message.request, is_done, self.configuration, self.revision)
        if self.is_away or self._random.random() < self.faults.lost_answers:
            self._kernel.fault("answer of the store lost")
            return
        self._network.send(STORE, sender, answer)

    def _put(self, sender: str, new: JournalConfiguration) -> None:
        old = self.configuration
        self._kernel.tell(STORE, f"{sender} puts {describe(new)}")
        self._check(old, new)
        self.configuration = new
        self.revision += 1
        for watcher in self.watchers:
            if self._random.random() >= self.faults.lost_watches:
                self._network.send(STORE, watcher, Changed(new, self.revision))

    def _check(self, old: JournalConfiguration, new: JournalConfiguration) -> None:
        if new.epoch < old.epoch:
            raise Violation("I1", f"the epoch went back from {old.epoch} to {new.epoch}")
        if new.epoch == old.epoch:
            as_activated = msgspec.structs.replace(old, activated=True, previous_members=old.members)
            if msgspec.structs.replace(new, learners=old.learners) not in (old, as_activated):
                raise Violation("I1", f"epoch {old.epoch} was {describe(old)} and is now {describe(new)}")
        else:
            if new.activated:
                raise Violation("I9", f"epoch {new.epoch} was activated before it was led")
            if set(new.previous_members) != set(self._activated_members):
                raise Violation(
                    "I9",
                    f"epoch {new.epoch} follows members {new.previous_members}, but {self._activated_members} "
                    "were activated last",
                )
            self.by_epoch[new.epoch] = new
        if new.activated:
            self._activated_members = new.members
            self.activated_epochs.add(new.epoch)


def describe(configuration: JournalConfiguration) -> str:
    """Return a configuration in one line."""
    state = "activated" if configuration.activated else f"after {', '.join(configuration.previous_members)}"
    learners = f", learning: {', '.join(configuration.learners)}" if configuration.learners else ""
    members = ", ".join(configuration.members)
    return f"epoch {configuration.epoch}: {configuration.leader} leads {members} ({state}){learners}"
