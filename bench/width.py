"""What many queues and many connections cost, case by case, with the longest pause of the event loop in each.

python -m bench.width [--queues 10000] [--connections 10000] [--cases queues,polls,active] [--json FILE]

queues    so many queues on one node: created, listed, sent to, idle, scraped, started again
polls     a thousand and `--connections` long polls that wait: processor time and memory
active    a thousand and `--connections` connections that send as fast as they are answered
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
import urllib.request
from collections.abc import Callable

from bench import processes
from bench.requests import Endpoint, Signer
from bench.watched import Figures, WatchedServer, report
from bench.work import Receive, Send

IDLE_S = 20.0


class Create:
    """Creates queues `many-0`, `many-1`, ..."""

    kinds: tuple[str, ...] = ("create",)

    def __init__(self, endpoint: Endpoint, queues: int) -> None:
        self._signer = Signer(endpoint)
        self._left = queues

    def next(self, connection: int) -> tuple[int, bytes] | None:
        if not self._left:
            return None
        self._left -= 1
        return 0, self._signer.request(b"CreateQueue", b'{"QueueName":"many-%06d"}' % self._left)

    def done(self, connection: int, kind: int, reply: bytes) -> int:
        return 1


class SendToEach:
    """Sends a message to each queue in turn, in an order that jumps about."""

    kinds: tuple[str, ...] = ("send",)

    def __init__(self, endpoint: Endpoint, account_id: str, queues: int) -> None:
        self._signer = Signer(endpoint)
        self._url = f"http://{endpoint.host}:{endpoint.port}/{account_id}/many-"
        self._queues = queues
        self._left = queues

    def next(self, connection: int) -> tuple[int, bytes] | None:
        if not self._left:
            return None
        self._left -= 1
        number = self._left * 7_919 % self._queues
        body = b'{"QueueUrl":"%b%06d","MessageBody":"%b"}' % (self._url.encode(), number, b"x" * 256)
        return 0, self._signer.request(b"SendMessage", body)

    def done(self, connection: int, kind: int, reply: bytes) -> int:
        return 1


def measure_idle(server: WatchedServer, figures: Figures, seconds: float = IDLE_S) -> None:
    """Note how much of a core the server uses while nothing is asked of it."""
    time.sleep(3)
    cpu_s, began = processes.cpu_s(server.pid), time.monotonic()
    time.sleep(seconds)
    figures["core_share_percent"] = round(
        100 * (processes.cpu_s(server.pid) - cpu_s) / (time.monotonic() - began), 2
    )


def measure_queues(queues: int, connections: int) -> list[Figures]:
    with WatchedServer(control_actions_max=1_000) as server:
        account_id = server.account_id or ""
        before_mib = server.memory_mib()
        with server.case(f"create {queues:,} queues") as figures:
            created = server.run(lambda *_: Create(server.endpoint, queues), connections=64)
            figures["per_s"] = round(created.requests / created.seconds)
            figures["rss_growth_mib"] = server.memory_mib() - before_mib
        with server.case(f"{queues:,} queues, idle") as figures:
            measure_idle(server, figures)
        with server.case("list all queues, page by page") as figures:
            began, pages, token = time.monotonic(), 0, None
            while pages == 0 or token:
                fields = {"MaxResults": 1_000, **({"NextToken": token} if token else {})}
                token = server.call("ListQueues", **fields).get("NextToken")
                pages += 1
            figures["pages"], figures["ms_a_page"] = (
                pages,
                round((time.monotonic() - began) / pages * 1000, 1),
            )
        with server.case(f"a send to each of {queues:,} queues") as figures:
            sent = server.run(lambda *_: SendToEach(server.endpoint, account_id, queues))
            figures["per_s"] = round(sent.requests / sent.seconds)
        with server.case("metrics scraped, a snapshot of all queues") as figures:
            began = time.monotonic()
            for _ in range(5):
                urllib.request.urlopen(f"{server.admin_url}/metrics").read()
            figures["ms_a_scrape"] = round((time.monotonic() - began) / 5 * 1000, 1)
            server.admin("GetStatus")
            time.sleep(65)
        with server.case(f"kill -9 and start, {queues:,} queues") as figures:
            figures["start_s"] = round(server.kill_and_start(), 2)
            figures["recovery_s"] = server.admin("GetStatus")["broker"]["recovery_s"]
        with server.case(f"{queues:,} queues with a message each, idle") as figures:
            measure_idle(server, figures)
        return server.cases


def measure_polls(queues: int, connections: int) -> list[Figures]:
    with WatchedServer(loop_watch_ms=5) as server:
        url = server.create_queue("waiting")
        idle_mib = server.memory_mib()
        for count in (1_000, connections):
            with server.case(f"{count:,} idle long polls") as figures:
                polls = threading.Thread(
                    target=server.run,
                    args=(
                        lambda *_: Receive(server.endpoint, url, empty_max=2, extra=b',"WaitTimeSeconds":20'),
                    ),
                    kwargs={"connections": count, "seconds": 60.0},
                )
                polls.start()
                wait_for_polls(server, count)
                measure_idle(server, figures, 10.0)
                figures["waiting"] = server.admin("GetStatus")["broker"]["long_polls"]
                figures["rss_growth_mib"] = server.memory_mib() - idle_mib
                polls.join()
        return server.cases


def wait_for_polls(server: WatchedServer, count: int) -> None:
    """Wait until so many receives are parked, a minute at most."""
    until = time.monotonic() + 60
    while server.admin("GetStatus")["broker"]["long_polls"] < count and time.monotonic() < until:
        time.sleep(0.2)


def measure_active(queues: int, connections: int) -> list[Figures]:
    with WatchedServer() as server:
        url = server.create_queue("busy")
        for count in (64, 1_000, connections):
            with server.case(f"{count:,} connections that send") as figures:
                sent = server.run(
                    lambda *_: Send(server.endpoint, url, body_bytes=256), connections=count, seconds=10.0
                )
                figures["per_s"] = round(sent.requests / sent.seconds)
                figures["refused"] = sent.failures
        return server.cases


CASES: dict[str, Callable[[int, int], list[Figures]]] = {
    "queues": measure_queues,
    "polls": measure_polls,
    "active": measure_active,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cases: list[Figures] = []
    for name in arguments.cases.split(","):
        print(f"== {name}", flush=True)
        cases += CASES[name](arguments.queues, arguments.connections)
    report("width", cases, arguments.json)


if __name__ == "__main__":
    main()
