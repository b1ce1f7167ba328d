"""Which logs are read in bulk through this front end: of what a front end of a cell builds blocks.

It does not know all queues, and would build blocks of those that others are asked for. A log that was not read for
a while is forgotten, and its blocks are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

FORGOTTEN_AFTER_S: Final = 3600.0
LOGS_MAX: Final = 1_000
"""So many are remembered; the one that was read longest ago makes room."""


class RecentLogs:
    """The logs that were read lately. `find_queue` tells whether one is still there; on the loop's thread."""

    def __init__(
        self,
        find_queue: Callable[[str, str], QueueDefinition | None],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_queue = find_queue
        self._monotonic_s = monotonic_s
        self._read: dict[int, tuple[QueueDefinition, float]] = {}
        """By queue id, in the order in which they were read last."""

    def note(self, log: QueueDefinition) -> None:
        """A log is read."""
        self._read.pop(log.queue_id, None)
        self._read[log.queue_id] = log, self._monotonic_s()
        if len(self._read) > LOGS_MAX:
            del self._read[next(iter(self._read))]

    def logs(self) -> list[QueueDefinition]:
        """Return the logs that were read lately and are still there, as they are now."""
        since_s = self._monotonic_s() - FORGOTTEN_AFTER_S
        found = []
        for queue_id, (log, read_s) in list(self._read.items()):
            try:
                now = self._find_queue(log.account_id, log.name)
            except NotNow:
                now = log  # not known here at the moment
            if read_s < since_s or now is None or now.queue_id != queue_id:
                del self._read[queue_id]
            else:
                found.append(now)
        return found
