"""Whose turn it is to be read: the known connections of one account take turns with those of others.

    readable ──▶ its flow's queue ──▶ the flow's turn: FLOW_REQUESTS_MAX requests ──more waits──▶ behind the other flows

So an account with thousands of connections delays the requests of another by one turn, also where each has many
requests. In overload the flows with most requests in a pass are refused first (`frontend/limits/refusals`).

Public: `Flow`, `Flows` (`wait`, `begin_turn`, `end_turn`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

ConnectionT = TypeVar("ConnectionT")

FLOW_REQUESTS_MAX: Final = 16
"""A flow has so many requests read in its turn while others wait."""


class Flow(Generic[ConnectionT]):
    """The connections of one account that wait to be read."""

    __slots__ = ("is_listed", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[ConnectionT] = deque()
        self.is_listed = False
        """Whether it waits for its turn."""


class Flows(Generic[ConnectionT]):
    """The flows that wait, in the order of their turns."""

    def __init__(self) -> None:
        self._turns: deque[Flow[ConnectionT]] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def wait(self, flow: Flow[ConnectionT], connection: ConnectionT) -> None:
        """Have a connection read when its flow's turn comes."""
        flow.waiting.append(connection)
        if not flow.is_listed:
            flow.is_listed = True
            self._turns.append(flow)

    @property
    def are_several(self) -> bool:
        """Whether others wait next to the flow whose turn it is."""
        return len(self._turns) > 1

    def begin_turn(self) -> deque[ConnectionT]:
        """Return the connections of the flow whose turn it is; `end_turn` once some of them were read."""
        return self._turns[0].waiting

    def end_turn(self) -> None:
        """Put the flow behind the others if more of it waits."""
        flow = self._turns.popleft()
        if flow.waiting:
            self._turns.append(flow)
        else:
            flow.is_listed = False
