"""The simulated coordination store: keys that are swapped, watched, bound to leases; now and then away.

A change that was asked for may happen though its answer never comes; what watches say may be late or never come. Both
are hints' luck: the judge here looks only at what the compare-and-swaps made of the journals' keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from quaymaster.coordination.cell_keys import (
    JOURNALS,
    configuration_key,
    decode_configuration,
    encode_configuration,
    journal_of,
)
from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Event,
    KeyValue,
    LeaseExpired,
    Listing,
    Put,
    RevisionMismatch,
)
from quaymaster.core.values.journal_configuration import JournalConfiguration
from sim.kernel import MS, Kernel, Violation
from sim.network import Network

STORE = "store"
WATCH_US = 1_000 * MS
"""A watch of which nothing is told for so long is answered that nothing has changed."""


class Get(NamedTuple):
    """How are all journals configured? Answered by `Got`."""


class Got(NamedTuple):
    """What the keys hold, with their revisions, by journal."""

    journals: dict[int, tuple[JournalConfiguration, int]]


class Swap(NamedTuple):
    """Put this, if the journal's key is still at that revision. Answered by `Changed`, whether it was done or not."""

    journal: int
    revision: int
    configuration: JournalConfiguration


class Changed(NamedTuple):
    """What a journal's key holds: said to watchers, and to who swapped."""

    journal: int
    configuration: JournalConfiguration
    revision: int


class StoreCall(NamedTuple):
    """A call of the store's whole interface. Answered by `StoreAnswer`."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class StoreAnswer(NamedTuple):
    """What a call returned, or the exception that it raised."""

    number: int
    outcome: object


@dataclass(slots=True)
class StoreFaults:
    """How bad the store is, as drawn for a run."""

    lost_answers: float = 0.0
    lost_watches: float = 0.0
    latency_us: tuple[int, int] = (500, 5 * MS)


class JournalKey:
    """A journal's key, and all that it ever held; checks I1 and I9 at every change."""

    def __init__(self, journal: int) -> None:
        self.journal = journal
        self.revision = ABSENT
        self.changed_us = 0
        self.by_epoch: dict[int, JournalConfiguration] = {}
        self.activated_epochs: set[int] = set()
        self._configuration: JournalConfiguration | None = None
        self._activated_members: tuple[str, ...] = ()

    @property
    def configuration(self) -> JournalConfiguration:
        """What it holds now."""
        assert self._configuration is not None, f"journal {self.journal} was created"
        return self._configuration

    def put(self, new: JournalConfiguration, revision: int) -> None:
        """Hold another configuration."""
        if self._configuration is None:
            self._activated_members = new.previous_members
            self.by_epoch[new.epoch] = new
        else:
            self._check(self._configuration, new)
        self._configuration = new
        self.revision = revision

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


class Store:
    """Holds the keys, answers calls, tells watchers."""

    def __init__(self, kernel: Kernel, network: Network, faults: StoreFaults) -> None:
        self.is_away = False
        self.faults = faults
        self.watchers: list[str] = []
        self.on_write_of_manager: Callable[[int, JournalConfiguration, JournalConfiguration], None] | None = (
            None
        )
        """Judges what a manager writes: journal, what was there, what it puts."""
        self.journals: dict[int, JournalKey] = {}
        """Those that were created."""
        self.configurations = 0
        """How many were put, of all journals."""
        self._keys: dict[int, JournalKey] = {}
        self._rows: dict[str, KeyValue] = {}
        self._revision = 0
        self._events: list[Event] = []
        self._parked: dict[tuple[str, int], tuple[str, int]] = {}
        self._leases: dict[int, tuple[int, int]] = {}
        """Time to live and end of each, in microseconds."""
        self._lease_of: dict[str, int] = {}
        self._leases_granted = 0
        self._kernel = kernel
        self._network = network
        self._random = kernel.random_for("store")
        network.connect(STORE, self._receive)

    def key_of(self, journal: int) -> JournalKey:
        """Return a journal's key, whether it was created already or not."""
        return self._keys.setdefault(journal, JournalKey(journal))

    # Calls

    def _receive(self, sender: str, message: object) -> None:
        if not self.is_away:
            self._kernel.after(self._random.randint(*self.faults.latency_us), self._serve, sender, message)

    def _serve(self, sender: str, message: object) -> None:
        if self.is_away and self._random.random() < 0.5:
            return
        answer: object
        if isinstance(message, Get):
            answer = Got({key.journal: (key.configuration, key.revision) for key in self.journals.values()})
        elif isinstance(message, Swap):
            answer = self._swap(sender, message)
        else:
            assert isinstance(message, StoreCall), f"the store does not know {message}"
            answer = self._call(sender, message)
        if answer is None:
            return
        if self.is_away or self._random.random() < self.faults.lost_answers:
            self._kernel.fault("answer of the store lost")
            return
        self._network.send(STORE, sender, answer)

    def _swap(self, sender: str, swap: Swap) -> Changed:
        journal = swap.journal
        if self.journals[journal].revision == swap.revision:
            key = configuration_key(journal)
            value = encode_configuration(swap.configuration)
            self.transact(sender, (Compare(key, swap.revision),), (Put(key, value),), ())
        key_now = self.journals[journal]
        return Changed(journal, key_now.configuration, key_now.revision)

    def _call(self, sender: str, call: StoreCall) -> StoreAnswer | None:
        if call.method == "watch":
            prefix, after_revision = call.arguments
            if found := self._events_of(prefix, after_revision):
                return StoreAnswer(call.number, (found, self._revision))
            self._parked[sender, call.number] = prefix, after_revision
            self._kernel.after(WATCH_US, self._unpark, sender, call.number)
            return None
        try:
            return StoreAnswer(call.number, getattr(self, f"_{call.method}")(sender, *call.arguments))
        except (RevisionMismatch, LeaseExpired) as error:
            return StoreAnswer(call.number, error)

    def _get(self, sender: str, key: str) -> KeyValue | None:
        return self._rows.get(key)

    def _list(self, sender: str, prefix: str) -> Listing:
        items = tuple(self._rows[key] for key in sorted(self._rows) if key.startswith(prefix))
        return Listing(items, self._revision, more=False)

    def _transact(
        self, sender: str, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]
    ) -> int:
        return self.transact(sender, compares, puts, deletes)

    def transact(
        self, sender: str, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]
    ) -> int:
        """Do all of it or none; return the new revision."""
        for compare in compares:
            row = self._rows.get(compare.key)
            found = ABSENT if row is None else row.revision
            if found != compare.revision:
                raise RevisionMismatch(compare.key, compare.revision, found)
        for put in puts:
            if put.lease_id and put.lease_id not in self._leases:
                raise LeaseExpired(f"lease {put.lease_id} is over")
        self._revision += 1
        for put in puts:
            self._rows[put.key] = KeyValue(put.key, put.value, self._revision)
            self._lease_of[put.key] = put.lease_id
            self._note(sender, Event(put.key, put.value, self._revision))
        for key in deletes:
            if self._rows.pop(key, None) is not None:
                self._note(sender, Event(key, None, self._revision))
        self._tell_parked()
        return self._revision

    def _note(self, sender: str, event: Event) -> None:
        self._events.append(event)
        if event.key.startswith(JOURNALS):
            assert event.value is not None, "a journal's key stays"
            journal = journal_of(event.key)
            new = decode_configuration(event.value)
            self._kernel.tell(STORE, f"{sender} puts journal {journal}, {describe(new)}")
            key = self.key_of(journal)
            if journal in self.journals and sender.startswith("m") and self.on_write_of_manager is not None:
                self.on_write_of_manager(journal, key.configuration, new)
            key.put(new, event.revision)
            self.configurations += 1
            key.changed_us = self._kernel.now_us
            self.journals[journal] = key
            for watcher in self.watchers:
                if self._random.random() >= self.faults.lost_watches:
                    self._network.send(STORE, watcher, Changed(journal, new, event.revision))
        else:
            self._kernel.tell(STORE, f"{sender} puts {event.key} {event.value!r}")

    # Watches

    def _events_of(self, prefix: str, after_revision: int) -> list[Event]:
        found: list[Event] = []
        for event in reversed(self._events):
            if event.revision <= after_revision:
                break
            if event.key.startswith(prefix):
                found.append(event)
        return found[::-1]

    def _tell_parked(self) -> None:
        for (watcher, number), (prefix, after_revision) in list(self._parked.items()):
            if found := self._events_of(prefix, after_revision):
                self._answer_parked(watcher, number, found)

    def _unpark(self, watcher: str, number: int) -> None:
        if (watcher, number) in self._parked:
            self._answer_parked(watcher, number, [])

    def _answer_parked(self, watcher: str, number: int, events: list[Event]) -> None:
        del self._parked[watcher, number]
        if not self.is_away and self._random.random() >= self.faults.lost_answers:
            self._network.send(STORE, watcher, StoreAnswer(number, (events, self._revision)))

    # Leases

    def _grant(self, sender: str, ttl_ms: int) -> int:
        self._leases_granted += 1
        self._keep(self._leases_granted, ttl_ms * MS)
        return self._leases_granted

    def _keep_alive(self, sender: str, lease_id: int) -> None:
        if lease_id not in self._leases:
            raise LeaseExpired(f"lease {lease_id} is over")
        self._keep(lease_id, self._leases[lease_id][0])

    def _keep(self, lease_id: int, ttl_us: int) -> None:
        self._leases[lease_id] = ttl_us, self._kernel.now_us + ttl_us
        self._kernel.after(ttl_us, self._expire, lease_id)

    def _expire(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None and lease[1] <= self._kernel.now_us:
            self._revoke(STORE, lease_id)

    def _revoke(self, sender: str, lease_id: int) -> None:
        if self._leases.pop(lease_id, None) is not None:
            keys = [key for key, owner in self._lease_of.items() if owner == lease_id and key in self._rows]
            if keys:
                self.transact(sender, (), (), keys)


def describe(configuration: JournalConfiguration) -> str:
    """Return a configuration in one line."""
    state = "activated" if configuration.activated else f"after {', '.join(configuration.previous_members)}"
    learners = f", learning: {', '.join(configuration.learners)}" if configuration.learners else ""
    members = ", ".join(configuration.members)
    return f"epoch {configuration.epoch}: {configuration.leader} leads {members} ({state}){learners}"
