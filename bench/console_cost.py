"""What live pages and scrapes cost the data path: CPU time of a message's life in the server's own process.

    python -m bench console_cost [--pages 200] [--queues 1000] [--rounds 10] [--seconds 5] [--rate N]

A real server with its console, at work: messages are sent, received and deleted. In turns the console is left alone,
has so many live pages (half of ten lists, half of a queue each, among them the one at work), or is scraped each 5 s,
as `/metrics` and `/metrics/queues`. The console is another process, and its CPU time is shown beside. With `--rate`
so many requests a second are due (an open loop), else connections send as fast as they are answered.

A message's CPU time differs by a third from one second to the next where other programs run. So each case is measured
at rest as well: what the server takes then of a core, more than when it is alone, comes on top of messages at any rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import statistics
import threading
import time
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from bench import histogram, load, processes
from bench.compare import RESULTS
from bench.console import ACCOUNT, LivePages, cookie_of
from bench.load import Load
from bench.servers import free_port
from bench.watched import WatchedServer
from bench.work import Cycle
from quaymaster.console.web.cookies import Session
from quaymaster.net.console_key import read_console_key

CONNECTIONS = 16
SCRAPE_S = 5.0
SETTLE_S = 2.0
CASES = ("alone", "pages", "scrapes")
GOAL_CPU, GOAL_P99 = 1.05, 1.1

Costs = dict[str, float]


def _session_of(server: WatchedServer) -> Session:
    """Sign in as root."""
    found = server.admin("SignIn")
    return Session(
        csrf="token",
        access_key_id=found["access_key_id"],
        secret=found["secret_access_key"],
        session_token=found["session_token"],
        account=found["account_id"],
        arn=found["arn"],
        name=found["name"],
        is_operator=found["is_operator"],
        expires_ms=found["expires_ms"],
    )


@contextmanager
def _live_pages(port: int, cookie: str, count: int, queues: int) -> Iterator[None]:
    """Have browsers follow so many pages, from a process of their own."""
    context = multiprocessing.get_context("fork")
    followed: Synchronized[int] = context.Value("i", 0)
    events: Synchronized[int] = context.Value("i", 0)

    def follow() -> None:
        async def run() -> None:
            live = LivePages(("127.0.0.1", port), lambda number: cookie)
            await live.open(count, queues)
            while True:
                followed.value, events.value = live.followed, live.events
                await asyncio.sleep(0.2)

        asyncio.run(run())

    process = context.Process(target=follow, daemon=True)
    process.start()
    try:
        if not processes.wait_until(lambda: followed.value >= count, 30.0 + count / 10):
            print(f"   only {followed.value} of {count} pages are followed", flush=True)
        began, began_s = events.value, time.monotonic()
        yield
        shown = (events.value - began) / (time.monotonic() - began_s)
        print(f"   {followed.value} live pages got {shown:.0f} updates/s", flush=True)
    finally:
        process.terminate()
        process.join()


@contextmanager
def _scrapes(admin_url: str) -> Iterator[None]:
    """Scrape as Prometheus does."""
    done = threading.Event()

    def scrape() -> None:
        while True:
            for path in ("/metrics", "/metrics/queues"):
                with urllib.request.urlopen(admin_url + path, timeout=60) as answer:
                    answer.read()
            if done.wait(SCRAPE_S):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _cost(server: WatchedServer, url: str, seconds: float, rate: float | None) -> Costs:
    """Return what a message's life takes of the server's own CPU time (us), of the console's share, and p99 (ms).

    And what the server takes at rest, before, of a core.
    """
    rest_s = processes.own_cpu_s(server.pid)
    time.sleep(seconds)
    rest_s = processes.own_cpu_s(server.pid) - rest_s
    plan = Load(server.endpoint, CONNECTIONS, seconds, rate=rate, naps=rate is not None)
    own_s, all_s, began_s = processes.own_cpu_s(server.pid), processes.cpu_s(server.pid), time.monotonic()
    result = load.run(plan, lambda *_: Cycle(server.endpoint, url, body_bytes=256), server.pid)
    own_s = processes.own_cpu_s(server.pid) - own_s
    others_s = processes.cpu_s(server.pid) - all_s - own_s
    latencies = array("Q", bytes(8 * histogram.BUCKETS))
    for tally in result.tallies.values():
        for bucket, count in enumerate(tally.latencies):
            latencies[bucket] += count
    lives = max(1, result.messages("receive"))
    return {
        "own_us": own_s / lives * 1e6,
        "own_s": own_s,
        "rest_share": rest_s / seconds,
        "lives": lives,
        "console_share": others_s / (time.monotonic() - began_s),
        "p99_ms": histogram.percentiles_ms(latencies, [0.99])[0] or 0.0,
        "failures": result.failures,
    }


def measure(pages: int, queues: int, rounds: int, seconds: float, rate: float | None) -> dict[str, Any]:
    """Print and return what the cases cost, and as parts of the first."""
    port = free_port()
    found: dict[str, list[Costs]] = {case: [] for case in CASES}
    with WatchedServer(console="on", console_listen=f"127.0.0.1:{port}", loop_watch_ms=0) as server:
        urls = [server.create_queue(f"queue-{number:06}") for number in range(1, queues + 1)]
        cookie = cookie_of(read_console_key(server.data), _session_of(server))
        assert server.account_id in (None, ACCOUNT)
        around: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "alone": nullcontext,
            "pages": lambda: _live_pages(port, cookie, pages, queues),
            "scrapes": lambda: _scrapes(server.admin_url),
        }
        for number in range(rounds):
            # In turns also who is first: a machine's clock and neighbours drift.
            for case in [*CASES[number % 3 :], *CASES[: number % 3]]:
                with around[case]():
                    time.sleep(SETTLE_S)
                    costs = _cost(server, urls[0], seconds, rate)
                found[case].append(costs)
                print(
                    f"{case:8s} {costs['own_us']:7.1f} us a life  p99 {costs['p99_ms']:7.2f} ms  "
                    f"{costs['lives'] / seconds:7.0f} lives/s  console {costs['console_share']:.1%} of a core  "
                    f"server at rest {costs['rest_share']:.1%}",
                    flush=True,
                )
    return {case: _summed(case, costs, found["alone"]) for case, costs in found.items()}


def _summed(case: str, costs: list[Costs], alone: list[Costs]) -> dict[str, float]:
    """Print and return what a case costs over all rounds, and in parts of what it costs without."""
    ratios = [one["own_us"] / other["own_us"] for one, other in zip(costs, alone, strict=True)]
    p99s = [one["p99_ms"] / other["p99_ms"] for one, other in zip(costs, alone, strict=True)]
    each_us = _each_us(costs)
    off_by = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
    summed = {
        "own_us": round(each_us, 1),
        "ratio": round(each_us / _each_us(alone), 4),
        "ratio_error": round(off_by, 4),
        "ratio_median": round(statistics.median(ratios), 4),
        "rest_share": round(statistics.mean(one["rest_share"] for one in costs), 4),
        "p99_ms": round(statistics.median(one["p99_ms"] for one in costs), 2),
        "p99_ratio_median": round(statistics.median(p99s), 3),
        "console_share": round(statistics.mean(one["console_share"] for one in costs), 4),
        "failures": sum(one["failures"] for one in costs),
    }
    print(
        f"{case}: {summed['own_us']} us of the server a life, {summed['ratio']:.3f} of alone (standard error "
        f"{off_by:.3f}, median {summed['ratio_median']:.3f}, goal < {GOAL_CPU}); p99 {summed['p99_ms']} ms, median "
        f"ratio {summed['p99_ratio_median']:.2f} (goal < {GOAL_P99}); console {summed['console_share']:.1%}; "
        f"server at rest {summed['rest_share']:.2%} of a core; "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    return summed


def _each_us(costs: list[Costs]) -> float:
    return sum(one["own_s"] for one in costs) / sum(one["lives"] for one in costs) * 1e6


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench console_cost")
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, help="requests a second that are due, instead of all that go")
    options = parser.parse_args()
    found = measure(options.pages, options.queues, options.rounds, options.seconds, options.rate)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "console_cost.json").write_text(json.dumps(vars(options) | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
