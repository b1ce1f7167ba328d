"""Work that would hold the event loop up for too long in one piece, done in slices.

    leader:    propose ─▶ [ look for duplicates, a slice a turn ] ─▶ record ─▶ [ apply, a slice a turn ] ─▶ answer
    follower:  record ─▶ [ apply, a slice a turn ] ─▶ the next record

What lies between two slices is seen by no one: commands for these queues wait, a snapshot waits, a follower applies no
further record. So it makes no difference to the state how long slices are, and none of it is written down: who starts
again applies the record again. Work is small or large by its messages, never by time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.values.commands.unions import Decided

AT_ONCE_MESSAGES: Final = 1_024
"""Work on no more messages is done in the turn that begins it."""
SLICE_MESSAGES: Final = 4_096
"""So many messages make a slice where they are handled in columns, at about a microsecond each."""
SLICE_SINGLE_MESSAGES: Final = 512
"""So many where they are handled one by one, at up to ten microseconds each."""

Turn = tuple[int, Proposal]
"""Queue time, and the batch that is being formed."""

Slices = Generator[bool, Turn | None, Decided | None]
"""Gives after each slice whether a record says already what is done, and is sent the turn of the next one.

It returns the outcome that its command is answered with. Until there is a record it changes nothing.
"""


def next_turn() -> Generator[bool, Turn | None, Turn]:
    """End a slice before anything is recorded; return the turn of the next."""
    turn = yield False
    assert turn is not None, "nothing is recorded, so there is a turn"
    return turn


class Work:
    """Slices of work on one family of queues: a log with its consumer groups, or any other queue."""

    __slots__ = ("_slices", "family", "is_decided", "is_done", "outcome", "token", "wait")

    def __init__(self, family: int, slices: Slices, *, is_decided: bool) -> None:
        self.family = family
        self.is_decided = is_decided
        """Whether a record says what is done: then it is done to the end, whatever happens."""
        self.is_done = False
        self.outcome: Decided | None = None
        self.token: object = None
        self.wait: Wait | None = None
        """What the answer to the command with this token waits for; None: it answers no command."""
        self._slices = slices
        if not is_decided:
            next(slices)  # up to where the first turn comes in

    def step(self, turn: Turn | None = None) -> bool:
        """Do one slice; return whether that was the last. Only what is not decided needs a turn."""
        try:
            self.is_decided = self._slices.send(turn) if not self.is_decided else next(self._slices)
        except StopIteration as end:
            self.is_done = True
            self.outcome = end.value
        return self.is_done

    def finish(self, turn: Turn | None = None) -> None:
        """Do all slices that are left."""
        while not self.step(turn):
            pass


class UnfinishedWork:
    """The work of one journal that is under way, by family: at most one each."""

    __slots__ = ("works",)

    def __init__(self) -> None:
        self.works: dict[int, Work] = {}

    def __bool__(self) -> bool:
        return bool(self.works)

    def __contains__(self, family: int) -> bool:
        return family in self.works

    def begin(self, work: Work, messages: int, turn: Turn | None = None) -> None:
        """Take up work on so many messages; a little is done at once."""
        assert work.family not in self.works, "work on a queue waits for the work before it"
        if messages <= AT_ONCE_MESSAGES:
            work.finish(turn)
        else:
            self.works[work.family] = work

    def step(self, turn: Turn) -> Work:
        """Do a slice of what waited longest; return the work it was of."""
        family = next(iter(self.works))
        work = self.works.pop(family)
        if not work.step(turn):
            self.works[family] = work
        return work

    def finish(self) -> None:
        """Do everything that is decided to its end, in one go."""
        for work in [work for work in self.works.values() if work.is_decided]:
            work.finish()
            del self.works[work.family]

    def give_up_undecided(self) -> list[Work]:
        """Leave the work of which nothing is recorded, and return it."""
        left = [work for work in self.works.values() if not work.is_decided]
        for work in left:
            del self.works[work.family]
        return left
