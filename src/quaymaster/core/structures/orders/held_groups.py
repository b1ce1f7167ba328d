"""Which groups of a FIFO partition wait for its parents: older partitions of the same keys, with messages left.

    met by a receive ──▶ held: each parent is asked ──"none left", from all of them──▶ free: given out as usual
                            ▲        └──"still here"──▶ asked again, and again
                            └────────── forgotten, when too many are known to be free

A parent that says so is sealed, and its answer is committed: the group never returns there, with any later leader. So
an answer stays true; what is not known is asked again. Nothing of this is stored.

A question in vain costs both sides something for each group in it. So groups that were never asked about do not wait
for the next question about those that are known to be there: each parent has two lists.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

FREE_MAX: Final = 262_144
"""So many groups are remembered as free; then all are forgotten, and asked about again when they are met."""


class _ParentGroups:
    """The held groups that one parent may have."""

    __slots__ = ("present", "unasked")

    def __init__(self) -> None:
        # Ordered ones, which are taken from in front again and again: a plain one would pass over what was there.
        self.unasked: OrderedDict[int, None] = OrderedDict()
        self.present: OrderedDict[int, None] = OrderedDict()

    def discard(self, group: int) -> bool:
        """Take a group out; return whether it was there."""
        for groups in (self.unasked, self.present):
            if group in groups:
                del groups[group]
                return True
        return False


class HeldGroups:
    """What the leader of one partition knows of the groups of its parents. Groups are 64-bit hashes."""

    __slots__ = ("_free", "_free_max", "_held", "_parents")

    def __init__(self, parents: Iterable[int], *, free_max: int = FREE_MAX) -> None:
        self._parents = {number: _ParentGroups() for number in parents}
        self._held: dict[int, int] = {}
        """How many parents may have a group."""
        self._free: set[int] = set()
        self._free_max = free_max

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
        """Whether there is something to ask that was not asked yet."""
        return any(parent.unasked for parent in self._parents.values())

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
            freed += self._none_left([*parent.unasked, *parent.present])
        return freed

    def to_ask(self, parent: int, count_max: int, *, again: bool) -> list[int]:
        """Return what a parent is to be asked about next: groups that it never was asked about, or `again` others."""
        groups = self._parents.get(parent)
        if groups is None:
            return []
        if not again:
            return list(islice(groups.unasked, count_max))
        some = list(islice(groups.present, count_max))
        for group in some:
            groups.present.move_to_end(group)
        return some

    def present_at(self, parent: int) -> int:
        """Return how many groups a parent had when it was asked last."""
        groups = self._parents.get(parent)
        return len(groups.present) if groups is not None else 0

    def answered(self, parent: int, asked: Iterable[int], gone: Iterable[int]) -> list[int]:
        """A parent has answered: it has none of `gone`, but others that it was asked about. Return those free now."""
        groups = self._parents.get(parent)
        if groups is None:
            return []
        freed = self._none_left([group for group in gone if groups.discard(group)])
        for group in asked:
            if group in groups.unasked:
                del groups.unasked[group]
                groups.present[group] = None
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
