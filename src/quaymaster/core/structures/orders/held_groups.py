"""Which groups of a FIFO partition wait for its parents: older partitions of the same keys, with messages left.

    met by a receive ──▶ held: each parent is asked ──"none left", from all of them──▶ free: given out as usual
                            ▲        └──"still here"──▶ asked again, and again
                            └────────── forgotten, when too many are known to be free

A parent that says so is sealed, and its answer is committed: the group never returns there, with any later leader. So
an answer stays true; what is not known is asked again. Nothing of this is stored.

A question in vain costs both sides something for each group in it. So groups that were never asked about do not wait
for the next question about those that are known to be there: each parent has two lists.

Who is to be told that there is nothing to give needs answers of now: the one that freed a group may be on its way. A
*look* has all groups that are there asked about once more. One is under way at a time; who comes meanwhile waits for
the next, which all of them share.

    want_look ──▶ present becomes stale ──each answered by a question that was sent since──▶ known
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import chain, islice
from typing import Final, Literal, NamedTuple

FREE_MAX: Final = 262_144
"""So many groups are remembered as free; then all are forgotten, and asked about again when they are met."""

Question = Literal["first", "look", "again"]
"""About groups that were never asked about; those that a look needs; those that are there, to wait until one goes."""


class _ParentGroups:
    """The held groups that one parent may have."""

    __slots__ = ("present", "stale", "unasked")

    def __init__(self) -> None:
        # Ordered ones, which are taken from in front again and again: a plain one would pass over what was there.
        self.unasked: OrderedDict[int, None] = OrderedDict()
        self.present: OrderedDict[int, None] = OrderedDict()
        self.stale: OrderedDict[int, None] = OrderedDict()
        """Those that were present before the look that is under way."""

    def discard(self, group: int) -> bool:
        """Take a group out; return whether it was there."""
        for groups in (self.unasked, self.present, self.stale):
            if group in groups:
                del groups[group]
                return True
        return False


class HeldGroups:
    """What the leader of one partition knows of the groups of its parents. Groups are 64-bit hashes."""

    __slots__ = ("_done", "_free", "_free_max", "_held", "_parents", "_wanted", "looks")

    def __init__(self, parents: Iterable[int], *, free_max: int = FREE_MAX) -> None:
        self._parents = {number: _ParentGroups() for number in parents}
        self._held: dict[int, int] = {}
        """How many parents may have a group."""
        self._free: set[int] = set()
        self._free_max = free_max
        self.looks = 0
        """How many looks have begun."""
        self._done = 0
        self._wanted = 0

    @property
    def parents(self) -> Collection[int]:
        """The numbers of the parents."""
        return self._parents.keys()

    def is_free(self, group: int) -> bool:
        """Return whether no parent has a group. One of which that is not known is held from now on."""
        if group in self._free:
            return True
        if group not in self._held:
            self._held[group] = len(self._parents)
            for parent in self._parents.values():
                parent.unasked[group] = None
        return False

    def is_held(self, group: int) -> bool:
        """Return whether a group waits for parents."""
        return group in self._held

    def first_held(self, count_max: int) -> list[int]:
        """Return groups that are held, those first that were so first."""
        return list(islice(self._held, count_max))

    @property
    def count(self) -> int:
        """How many groups are held."""
        return len(self._held)

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to ask at once."""
        return any(parent.unasked or parent.stale for parent in self._parents.values())

    def want_look(self) -> int:
        """Return the number of a look that begins now, or after the one that is under way."""
        self._wanted = self.looks + 1
        self._begin_looks()
        return self._wanted

    def is_known(self, look: int) -> bool:
        """Return whether all parents have said since a look began which of the held groups they have."""
        self._begin_looks()
        return self._done >= look and not any(parent.unasked for parent in self._parents.values())

    def _begin_looks(self) -> None:
        """End the look that is under way when nothing of it is left; begin the next one if it is wanted."""
        while not any(parent.stale for parent in self._parents.values()):
            self._done = self.looks
            if self._wanted <= self.looks:
                return
            self.looks += 1
            for parent in self._parents.values():
                parent.stale, parent.present = parent.present, parent.stale

    def forget(self, group: int) -> None:
        """The partition has no message of a group any more."""
        if self._held.pop(group, 0):
            for parent in self._parents.values():
                parent.discard(group)

    def keep(self, parents: Collection[int]) -> list[int]:
        """Take the parents that there are now; return the groups that are to be looked at again.

        A parent is not there any more when it is drained: it has no message. One that is new, after the store was
        restored, makes all that is known worthless.
        """
        if not self._parents.keys() >= set(parents):
            held = list(self._held)
            self._parents = {number: _ParentGroups() for number in parents}
            self._held, self._free = {}, set()
            return held
        freed: list[int] = []
        for number in [number for number in self._parents if number not in parents]:
            parent = self._parents.pop(number)
            freed += self._none_left([*parent.unasked, *parent.present, *parent.stale])
        return freed

    def to_ask(self, parent: int, count_max: int, question: Question) -> list[int]:
        """Return which groups a parent is to be asked about next by such a question."""
        groups = self._parents.get(parent)
        if groups is None:
            return []
        if question == "first":
            return list(islice(groups.unasked, count_max))
        if question == "look":
            return list(islice(groups.stale, count_max))
        some = list(islice(chain(groups.stale, groups.present), count_max))
        for group in some:
            (groups.stale if group in groups.stale else groups.present).move_to_end(group)
        return some

    def present_at(self, parent: int) -> int:
        """Return how many groups a parent had when it was asked last."""
        groups = self._parents.get(parent)
        return len(groups.present) + len(groups.stale) if groups is not None else 0

    def answered(self, parent: int, asked: Iterable[int], gone: Iterable[int], *, look: int) -> list[int]:
        """A parent has answered: it has none of `gone`, but others that it was asked about. Return those free now.

        `look`: `looks` when the question was sent. Its answer may be older than a look that began since.
        """
        groups = self._parents.get(parent)
        if groups is None:
            return []
        freed = self._none_left([group for group in gone if groups.discard(group)])
        is_of_now = look == self.looks
        for group in asked:
            if group in groups.unasked:
                del groups.unasked[group]
                (groups.present if is_of_now else groups.stale)[group] = None
            elif is_of_now and group in groups.stale:
                del groups.stale[group]
                groups.present[group] = None
        self._begin_looks()
        return freed

    def _none_left(self, groups: Iterable[int]) -> list[int]:
        """One parent has none of these; return those that no other may have."""
        freed: list[int] = []
        for group in groups:
            others = self._held[group] - 1
            if others:
                self._held[group] = others
                continue
            del self._held[group]
            freed.append(group)
            if len(self._free) >= self._free_max:
                self._free.clear()
            self._free.add(group)
        return freed


class Look(NamedTuple):
    """The look that somebody waits for who found nothing to give."""

    holds: HeldGroups
    number: int

    @property
    def is_known(self) -> bool:
        """Whether it is known since that the parents have all the groups that are held."""
        return self.holds.is_known(self.number)
