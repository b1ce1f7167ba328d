"""Which queue a worker of an import turns to next, how long it waits for messages there, and which queues are done.

    open ──nothing came for `idle_ms`; its service counts no message──▶ closing ──the last worker there is back──▶ done
      ▲                                                                    │
      └────────────────────── a message came, or is counted ───────────────┘

A FIFO queue has one worker at a time: its messages go on in the order in which they came. A dead-letter queue is done
after those that it takes messages of: to receive from them may bring it some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

POLL_MS: Final = 10_000
"""So long a worker waits at a queue where no other waits for it."""
PAUSE_MS: Final = 1_000
"""So long a queue is left alone that had nothing, if there are more queues than workers."""


class Round(NamedTuple):
    """What a worker does next: receive from this queue, waiting so long for the first message."""

    queue: str
    wait_ms: int


class _State:
    __slots__ = ("is_closing", "is_fifo", "next_ms", "quiet_since_ms", "workers")

    def __init__(self, *, is_fifo: bool, now_ms: int) -> None:
        self.is_fifo = is_fifo
        self.next_ms = now_ms
        self.quiet_since_ms = now_ms
        self.workers = 0
        self.is_closing = False


class Rounds:
    """The queues of an import that are not done. Times are of one clock that never goes back."""

    def __init__(
        self,
        queues: Iterable[tuple[str, bool]],
        *,
        workers: int,
        idle_ms: int,
        now_ms: int,
        dead_letter_queues: Mapping[str, str] | None = None,
    ) -> None:
        """`queues` are names, and whether they are FIFO queues; `dead_letter_queues` by queue."""
        self._feeders = _feeders_of(dead_letter_queues or {})
        self._states = {name: _State(is_fifo=is_fifo, now_ms=now_ms) for name, is_fifo in queues}
        self._workers = workers
        self._idle_ms = idle_ms

    @property
    def open(self) -> list[str]:
        """The queues that are not done."""
        return list(self._states)

    def take(self, now_ms: int) -> Round | int | None:
        """Return the next round; or after how many milliseconds there may be one; None when all queues are done."""
        if not self._states:
            return None
        free = {
            name: state
            for name, state in self._states.items()
            if not (state.workers and (state.is_fifo or state.is_closing))
        }
        if not free:
            return PAUSE_MS
        # Those that wait longest come first; where all are worked on, the one with the fewest workers.
        name = min(free, key=lambda each: (free[each].workers, free[each].next_ms))
        state = free[name]
        if state.next_ms > now_ms:
            return state.next_ms - now_ms
        state.workers += 1
        wait_ms = POLL_MS if len(self._states) <= self._workers else 0
        return Round(name, min(wait_ms, max(1_000, self._idle_ms)))

    def give(self, queue: str, received: int, now_ms: int) -> bool:
        """End a round that brought so many messages.

        Return whether the queue may be done: then its messages are to be counted, and `count` is to be told.
        """
        state = self._states[queue]
        state.workers -= 1
        if received:
            self._open(state, now_ms)
            return False
        if len(self._states) > self._workers:
            state.next_ms = now_ms + PAUSE_MS
        return now_ms - state.quiet_since_ms >= self._idle_ms and not (state.is_closing and state.workers)

    def count(self, queue: str, messages: int, now_ms: int) -> bool:
        """Take how many messages a quiet queue has, in whatever state; return whether it is done by that."""
        state = self._states.get(queue)
        if state is None:
            return False
        if messages > 0:
            self._open(state, now_ms)
            state.next_ms = now_ms + PAUSE_MS
            return False
        if not self._feeders.get(queue, set()).isdisjoint(self._states):
            state.next_ms = now_ms + PAUSE_MS
            return False
        state.is_closing = True
        if state.workers:
            return False  # they may have received something
        del self._states[queue]
        return True

    @staticmethod
    def _open(state: _State, now_ms: int) -> None:
        state.is_closing = False
        state.quiet_since_ms = now_ms
        state.next_ms = now_ms


def _feeders_of(dead_letter_queues: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which queues must be done before a dead-letter queue: those that name it, but for circles."""
    feeders: dict[str, set[str]] = {}
    for queue, target in dead_letter_queues.items():
        reached, name = {queue}, target
        while name not in reached and name in dead_letter_queues:
            reached.add(name)
            name = dead_letter_queues[name]
        if name != queue:
            feeders.setdefault(target, set()).add(queue)
    return feeders
