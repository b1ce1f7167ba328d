"""How long a cell did not take messages: one sender for each of some queues, and the gaps between what succeeded.

A sender has one request under way, gives up after a second, and goes to the other front end then. A gap is from the
start of the last send that succeeded to the end of the next: what a client sees that tries again until it succeeds.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.load import Address, SQSConnection
from harness.process import Environment
from harness.waiting import PATIENCE_S

TIMEOUT_S = 1.0
INTERVAL_S = 0.1
RETRY_INTERVAL_S = 0.03
RETENTION_S = 60


class Success(NamedTuple):
    """A send that was acknowledged."""

    invoked_ns: int
    completed_ns: int


class Probe:
    """One queue that is sent to all the time."""

    def __init__(
        self,
        environment: Environment,
        addresses: Sequence[Address],
        queue: str,
        *,
        number: int,
        interval_s: float,
        clock_offsets_ms: Mapping[Address, int],
    ) -> None:
        self.queue = queue
        self.successes: list[Success] = []
        self.attempts = 0
        self._url = f"{environment.endpoint_url}/{environment.account_id}/{queue}"
        self._connection = SQSConnection(environment, addresses, timeout_s=TIMEOUT_S)
        self._connection.turn(number)
        self._connection.clock_offsets_ms = clock_offsets_ms
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"probe-{queue}", daemon=True)

    def start(self) -> None:
        """Make the queue, and begin."""
        attributes = {"MessageRetentionPeriod": str(RETENTION_S)}
        self._connection.call_until_answered(
            "CreateQueue", {"QueueName": self.queue, "Attributes": attributes}
        )
        self._thread.start()

    def stop(self) -> None:
        """End the sender."""
        self._ending.set()
        self._thread.join(PATIENCE_S)
        self._connection.close()

    def works_since(self, time_ns: int) -> bool:
        """Whether a send that was begun after this time succeeded."""
        return bool(self.successes) and self.successes[-1].invoked_ns > time_ns

    def longest_gap_s(self, start_ns: int = 0, end_ns: int = 1 << 62) -> float:
        """Return the longest gap that overlaps with this interval."""
        return longest_gap_s(list(self.successes), start_ns, end_ns)

    def _run(self) -> None:
        while not self._ending.is_set():
            invoked_ns = time.monotonic_ns()
            self.attempts += 1
            answer = self._connection.call("SendMessage", {"QueueUrl": self._url, "MessageBody": "probe"})
            if answer.status == 200:
                self.successes.append(Success(invoked_ns, time.monotonic_ns()))
            self._ending.wait(self._interval_s if answer.status == 200 else RETRY_INTERVAL_S)


class Probes:
    """Several queues; enough that each journal most likely has one."""

    def __init__(
        self,
        environment: Environment,
        addresses: Sequence[Address],
        queues: int = 6,
        *,
        interval_s: float = INTERVAL_S,
        clock_offsets_ms: Mapping[Address, int] | None = None,
    ) -> None:
        """`interval_s`: between the sends of a queue. `clock_offsets_ms`: of front ends whose clocks are wrong; senders
        have the clock of theirs.
        """
        self._probes = [
            Probe(
                environment,
                addresses,
                f"probe-{number}",
                number=number,
                interval_s=interval_s,
                clock_offsets_ms={} if clock_offsets_ms is None else clock_offsets_ms,
            )
            for number in range(queues)
        ]

    def start(self) -> None:
        """Make the queues, and begin."""
        for probe in self._probes:
            probe.start()

    def stop(self) -> None:
        """End the senders."""
        for probe in self._probes:
            probe.stop()

    def all_work_since(self, time_ns: int) -> bool:
        """Whether every queue took a message that was sent after this time."""
        return all(probe.works_since(time_ns) for probe in self._probes)

    def queue_gap_s(self, start_ns: int = 0, end_ns: int = 1 << 62) -> float:
        """Return the longest gap of any queue."""
        return max(probe.longest_gap_s(start_ns, end_ns) for probe in self._probes)

    def service_gap_s(self, start_ns: int = 0, end_ns: int = 1 << 62) -> float:
        """Return the longest time in which no queue at all took a message."""
        merged = sorted(success for probe in self._probes for success in list(probe.successes))
        return longest_gap_s(merged, start_ns, end_ns)


def longest_gap_s(successes: Sequence[Success], start_ns: int, end_ns: int) -> float:
    """Return the longest gap between successes, in order, of those that overlap with an interval."""
    first = max(0, bisect_right(successes, start_ns, key=lambda success: success.invoked_ns) - 1)
    longest = 0
    for before, after in pairwise(successes[first:]):
        if before.invoked_ns > end_ns:
            break
        longest = max(longest, after.completed_ns - before.invoked_ns)
    return longest / 1e9
