"""Receives of queues with several partitions that ended without messages: no partition knows of them by itself.

receive ends without messages ─▶ noted ─▶ told to a partition with the next command that looks for messages
"""

from __future__ import annotations

from collections import Counter

from quaymaster.core.values.commands.messages import ReceiveOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.net.routing.broker_client import Reply


class EmptyReceives:
    """By queue id, what brokers were not told yet."""

    def __init__(self) -> None:
        self._noted: Counter[int] = Counter()

    def note(self, queue_id: int) -> None:
        """A receive has ended without messages."""
        self._noted[queue_id] += 1

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
