"""Messages whose retention is over are deleted, and what is gone is freed, a little in each step."""

from __future__ import annotations

import asyncio
import logging
import time

from quaymaster.broker.replica.maintenance.steps import STEP_S
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.core.partition.expiry import may_find_expired
from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.commands.decided import ExpireMessages
from quaymaster.monitoring.logs import log_event

EXPIRY_STEP_S = 0.1
EXPIRY_ROUND_S = 1.0
"""One look at every partition takes at least so long."""
EXPIRY_PARTITIONS_PER_STEP = 1_000
"""So 100,000 partitions are looked at in ten seconds, for two hundredths of a core. Receives look for themselves."""
EMPTIED_PER_STEP = 16
"""Of what is gone (a purged queue of a million messages in flight) so much is freed in one step: pages of rows."""

log = logging.getLogger(__name__)


class MessageExpiry:
    """Looks at every partition's oldest messages in turn."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        # A tuple, which collections of garbage look at only once; a list of 100,000 takes them milliseconds each time.
        self._keys: tuple[int, ...] = ()
        self._next = 0
        self._round_began = -EXPIRY_ROUND_S
        self._is_held = False

    async def run(self) -> None:
        """Go round for ever."""
        while True:
            await asyncio.sleep(EXPIRY_STEP_S)
            self._host.clock.follow_wall()
            queues = self._host.replica.queues
            self._tell_if_held(self._host.clock.expiry_is_held)
            queues.expiry_is_held = self._is_held
            queues.empty_some(EMPTIED_PER_STEP)
            if self._host.replica.is_leading:
                self.step()

    def _tell_if_held(self, is_held: bool) -> None:
        if is_held == self._is_held:
            return
        self._is_held = is_held
        clock = self._host.clock
        log_event(
            log,
            logging.WARNING if is_held else logging.INFO,
            "expiry held" if is_held else "expiry goes on",
            journal=self._host.files.journal_id,
            queue_time=clock.time_ms(),
            clocks_ahead_ms=clock.gap_ms,
            stepped_ms=clock.stepped_ms,
        )

    def step(self) -> None:
        """Look at the next few partitions, and propose an end to what has expired."""
        queues = self._host.replica.queues
        if self._next == len(self._keys):
            if time.monotonic() - self._round_began < EXPIRY_ROUND_S:
                return
            self._round_began = time.monotonic()
            self._keys, self._next = tuple(queues.partitions), 0
        now_ms = self._host.clock.time_ms()
        since_ms = queues.staged_since_ms(now_ms)
        until = time.perf_counter() + STEP_S
        for key in self._keys[self._next : self._next + EXPIRY_PARTITIONS_PER_STEP]:
            self._next += 1
            found = queues.partitions.get(key)
            if found is None or found.log is not None:  # a group's expire with their log's
                continue
            has_expired = found.staged is not None and bool(found.staged.expired(now_ms, since_ms))
            may_expire = found.alive > 0 and not queues.expiry_is_held
            if has_expired or (may_expire and may_find_expired(found, now_ms)):
                self._expire(found)
            if time.perf_counter() > until:  # heads had to be looked up in chunks on the disk
                break

    def _expire(self, found: Partition) -> None:
        """Propose an end to what has expired; where that was a part of it only, again and again."""
        before = found.head

        def answered(answer: object) -> None:
            if found.alive and found.head > before and not isinstance(answer, Exception):
                now_ms = self._host.clock.time_ms()
                if not found.has_moved_in and may_find_expired(found, now_ms):
                    self._expire(found)

        self._host.submit(ExpireMessages(found.definition.queue_id, found.number), answered)
