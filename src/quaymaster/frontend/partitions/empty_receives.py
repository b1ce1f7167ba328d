"""Receives of queues with several partitions that ended without messages: no partition knows of them by itself.

receive ends without messages ─▶ noted ─▶ told to a partition with the next command that looks for messages
                                       └── none within a second: with one of its own
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from quaymaster.core.values.commands.messages import ReceiveOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.net.routing.broker_client import Reply

TELL_S: Final = 1.0
"""So long it is waited for a command that can tell it, too: consumers usually ask again at once."""


class EmptyReceives:
    """By queue id, what brokers were not told yet."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        """`tell(queue_id)`: have brokers told of a queue now, of which no command has come for a while."""
        self._tell = tell
        self._noted: Counter[int] = Counter()
        self._waiting: set[int] = set()

    def note(self, queue_id: int) -> None:
        """A receive has ended without messages."""
        self._noted[queue_id] += 1
        if queue_id not in self._waiting:
            self._waiting.add(queue_id)
            asyncio.get_running_loop().call_later(TELL_S, self._look, queue_id)

    def _look(self, queue_id: int) -> None:
        self._waiting.discard(queue_id)
        if queue_id in self._noted:
            self._tell(queue_id)

    def take(self, queue_id: int) -> int:
        """Return how many are to be told with a command now."""
        return self._noted.pop(queue_id, 0)

    def counted(self, queue_id: int, reply: Reply) -> Reply:
        """Return a reply that notes it if there are no messages."""

        def answer(outcome: Outcome | Exception) -> None:
            if isinstance(outcome, ReceiveOutcome) and not outcome.deliveries:
                self.note(queue_id)
            reply(outcome)

        return answer
