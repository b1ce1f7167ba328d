"""One limit over several front ends of a real cell: shares follow the load, and the sum stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.load import SQSConnection
from harness.running_cell import RunningCell
from harness.waiting import PATIENCE_S

ROLES = {"broker": 1, "manager": 1, "metadata": 2, "frontend": 3}
FRONT_ENDS = [f"frontend-{number}" for number in range(1, 4)]
REQUESTS_PER_S = 30
PHASE_S = 5.0
REFUSED_PAUSE_S = 0.01
"""Less than it takes until one more request may pass; without a pause, refusals keep all cores busy."""


class Sender:
    """Sends messages by one front end, one after the other, as fast as it lets them through."""

    def __init__(self, connection: SQSConnection, url: str) -> None:
        self.connection = connection
        self._url = url
        self.sent = 0
        self.throttled = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            answer = self.connection.call("SendMessage", {"QueueUrl": self._url, "MessageBody": "x"})
            self.sent += answer.status == 200
            if answer.status == 403:
                self.throttled += 1
                time.sleep(REFUSED_PAUSE_S)

    def has_more_than_its_part(self, least_s: float) -> None:
        """Return when in so much time or more it sent much more than a third of the limit."""
        began_s, before = time.monotonic(), self.sent
        time.sleep(least_s)
        wait_until(lambda: self.sent - before > REQUESTS_PER_S * (time.monotonic() - began_s) * 0.6)


@contextmanager
def sending(senders: Sequence[Sender]) -> Iterator[None]:
    """Have them send during the block."""
    stop = threading.Event()
    threads = [threading.Thread(target=sender.run, args=(stop,)) for sender in senders]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        for sender in senders:
            sender.connection.close()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.05)


def test_front_ends_share_a_limit_by_demand_also_when_its_owner_is_killed(tmp_path: Path) -> None:
    with RunningCell.started(tmp_path, ROLES, settings={"replicas": "1"}) as cell:
        environment = cell.environment()
        first = cell.connection()
        url = first.call_until_answered("CreateQueue", {"QueueName": "jobs"}).fields["QueueUrl"]
        first.close()
        options = ("--account", environment.account_id, "--action", "SendMessage")
        done = cell["frontend-1"].command(
            "limit", "set", *options, "--requests", str(REQUESTS_PER_S), "--json"
        )
        assert done.returncode == 0, done.stderr
        senders = [Sender(cell.connection(name), url) for name in FRONT_ENDS]
        asked = {"QueueUrl": url, "AttributeNames": ["EffectiveLimits"]}
        wait_until(
            lambda: all(
                str(REQUESTS_PER_S) in str(sender.connection.call("GetQueueAttributes", asked).fields)
                for sender in senders
            )
        )
        began_s = time.monotonic()

        def let_through() -> int:
            return sum(sender.sent for sender in senders)

        for sender in senders[:2]:
            with sending([sender]):
                sender.has_more_than_its_part(PHASE_S)
            assert sender.throttled
        with sending(senders):
            time.sleep(PHASE_S)
            cell["metadata-1"].kill9()
            time.sleep(PHASE_S)
            # Whether it was the owner or not: the other one divides the limit now.
            before = let_through()
            cell["metadata-1"].start()
            wait_until(lambda: let_through() > before + 2 * REQUESTS_PER_S)
        took_s = time.monotonic() - began_s

    assert all(sender.throttled for sender in senders)
    assert let_through() <= REQUESTS_PER_S * (took_s + 1) * 1.1
