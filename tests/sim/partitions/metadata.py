"""What metadata nodes do: tell the journals the table, carry changes on from wherever another node stopped, begin new
ones. And what leaders do for their partitions: ask parents for groups, and carry moves."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from .front_end import Request, Script
from .journal import (
    Answer,
    AskGroups,
    AskState,
    Definition,
    Done,
    GroupList,
    Groups,
    Journal,
    MoveIn,
    PartitionState,
    Redirect,
    SetTable,
    Settle,
    Taken,
    Unknown,
)
from .state import S_JOURNAL, WINDOW_MS, S
from .tables import Entry, Table, merged, newer

if TYPE_CHECKING:
    from .world import World

REMOVED_AFTER_MS = 15 * 86_400_000
OPEN_MAX = 4
CANCELLED = 0.1


class Store:
    """The row of the queue's table, changed by compare-and-swap, and what copies of it there are."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.revision = 1
        self.copies: list[tuple[int, Table]] = []

    def swap(self, seen: int, table: Table) -> bool:
        """Write the row if nobody else did since revision `seen`."""
        if self.revision != seen:
            return False
        self.revision += 1
        self.table = table
        return True

    def restore(self, table: Table) -> None:
        """The store is as it was: whatever it said since is gone."""
        self.revision += 1
        self.table = table


def work_on_table(world: World) -> Script:
    """One pass of a metadata node. It may be stopped at any yield, and another may run beside it."""
    store = world.store
    revision, table = store.revision, store.table
    # What journals know better is believed first: the store may be a restored one.
    if "number-reused" not in world.bugs:
        for journal in sorted({entry.journal for entry in table.in_state("open", "closing", "closed")}):
            if (yield from _tell(world, journal, revision, table)) is not True:
                return
    if children := table.in_state("new"):
        yield from _open_children(world, revision, table, children)
    elif parents := table.in_state("closing"):
        yield from _close(world, revision, table, parents)
    elif not (yield from _drain(world, revision, table)) and world.may_change():
        _begin_change(world, revision, table)


def _tell(world: World, journal: int, revision: int, table: Table) -> Generator[Request | None, Answer, bool]:
    """Give a journal the table; true when it has it. What it knows better has become the row's otherwise."""
    answer = yield Request(journal, SetTable(table))
    if isinstance(answer, Definition):
        world.store.swap(revision, merged(table, answer.table))
    return isinstance(answer, Done)


def _open_children(world: World, revision: int, table: Table, children: list[Entry]) -> Script:
    """One compare-and-swap opens the children and closes the parents, once the children's journals know them."""
    numbers = [child.number for child in children]
    if world.random.random() < CANCELLED:
        world.store.swap(revision, table.without(numbers))
        return
    for journal in sorted({child.journal for child in children}):
        if not (yield from _tell(world, journal, revision, table)):
            return
    parents = {parent for child in children for parent in child.parents}
    opened = table.changed(numbers, state="open").changed(parents, state="closing")
    world.store.swap(revision, opened._replace(version=table.version + 1))


def _close(world: World, revision: int, table: Table, parents: list[Entry]) -> Script:
    """Seal the parents; once the seals are committed and older than the id window, they are closed."""
    numbers = [parent.number for parent in parents]
    if not all(parent.is_sealed for parent in parents):
        for parent in parents:
            if not (yield from _tell(world, parent.journal, revision, table)):
                return
        world.store.swap(revision, table.changed(numbers, is_sealed=True, sealed_ms=world.now_ms))
        return
    for parent in parents:
        answer = yield Request(parent.journal, AskState(parent.number))
        if not isinstance(answer, PartitionState) or not answer.is_sealed:
            return
        now_ms = world.now_ms if "window-by-row" in world.bugs else answer.now_ms
        if now_ms - answer.sealed_ms <= WINDOW_MS:
            return
    world.store.swap(revision, table.changed(numbers, state="closed"))


def _drain(world: World, revision: int, table: Table) -> Generator[Request | None, Answer, bool]:
    """Closed partitions without anything are drained, and removed weeks later; tells whether there was one."""
    for entry in table.in_state("closed"):
        answer = yield Request(entry.journal, AskState(entry.number))
        if isinstance(answer, PartitionState) and answer.is_empty:
            world.store.swap(revision, table.changed([entry.number], state="drained"))
            return True
    for entry in table.in_state("drained"):
        if world.now_ms - entry.sealed_ms > REMOVED_AFTER_MS:
            removed = table.without([entry.number])
            if world.store.swap(revision, removed):
                yield Request(entry.journal, SetTable(removed))
            return True
    return False


def _begin_change(world: World, revision: int, table: Table) -> None:
    """Write the children of a split, a merge or a move, for journals out of the blue."""
    random = world.random
    chosen = random.choice(table.in_state("open"))
    parents, ranges = [chosen], [(chosen.first, chosen.last)]
    kind = random.choice(("split", "split", "merge", "move"))
    if kind == "split" and chosen.first < chosen.last and len(table.in_state("open")) < OPEN_MAX:
        middle = random.randrange(chosen.first, chosen.last)
        ranges = [(chosen.first, middle), (middle + 1, chosen.last)]
    elif kind == "merge":
        next_ones = [entry for entry in table.in_state("open") if entry.first == chosen.last + 1]
        if next_ones:
            parents = [chosen, next_ones[0]]
            ranges = [(chosen.first, next_ones[0].last)]
    journals = [random.randrange(len(world.journals)) for _ in ranges]
    restarts = "sequence-restarts" in world.bugs
    world.store.swap(revision, table.with_children(parents, ranges, journals, restarts=restarts))


# Leaders


def ask_parents(world: World, journal: Journal) -> Script:
    """Ask one parent of one partition here which groups it still has, page after page."""
    pairs = [
        (number, parent)
        for number, partition in journal.decided.partitions.items()
        for parent in journal.parents(partition)
    ]
    if not pairs:
        return
    number, parent = world.random.choice(pairs)
    epoch = journal.epoch
    fresh = GroupList()
    after = -1
    while not fresh.is_complete:
        answer = yield Request(parent.journal, AskGroups(parent.number, after))
        if journal.epoch != epoch:
            return
        match answer:
            case Groups(groups, is_last):
                fresh.groups.update(groups)
                fresh.is_complete = is_last
                after = max(groups, default=after)
            case Unknown(table) if table is not None and table.entry(parent.number) is None:
                fresh.is_complete = parent.number < table.next_number
                if not fresh.is_complete:
                    return
            case _:
                return
        if fresh.is_complete or "list-half" in world.bugs:
            journal.lists[number, parent.number] = fresh


def carry_moves(world: World, journal: Journal) -> Script:
    """Bring what left one partition here for one other, committed, to that one's journal, in order."""
    sources = [partition for partition in journal.committed.partitions.values() if partition.moving]
    if not sources:
        return
    source = world.random.choice(sources)
    target = world.random.choice(sorted({move.target for move in source.moving.values()}))
    moves = tuple(
        (number, move.message) for number, move in sorted(source.moving.items()) if move.target == target
    )
    epoch = journal.epoch
    places = journal.places or world.store.table
    entry = places.entry(target)
    if target != S and entry is None:
        journal.places = newer(places, world.store.table)
        return
    home = S_JOURNAL if entry is None else entry.journal
    answer = yield Request(home, MoveIn(target, source.number, moves))
    if journal.epoch != epoch or not journal.is_led:
        return
    if isinstance(answer, Unknown):
        journal.places = newer(places, answer.table or world.store.table)
    if isinstance(answer, Taken):
        if answer.moves:
            journal.propose(Settle(source.number, answer.moves), world.now_ms, None)
        if answer.withdrawn:
            journal.places = newer(places, world.store.table)
            tables = (journal.places, places)
            journal.propose(Redirect(source.number, target, answer.withdrawn, tables), world.now_ms, None)
