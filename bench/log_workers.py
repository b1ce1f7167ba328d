"""Reading the tail of a log with log workers and without: rows a second, and what the server's processes compute.

    python -m bench.log_reads --workers 0,2 [--messages 100000] [--rounds 8] [--readers 2]

A server for each number of workers, with the same messages and no blocks, on all cores. In each round they are read one
after another, so that what else the machine does strikes all alike; a ratio is the median of those of the rounds. A
reader is a process that asks for the next stretch while it makes Arrow record batches of one, as a task of the Spark
connector does. With two cores for readers, server and workers no more than twice can come of it.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from bench import log_reads, processes, servers
from bench.requests import Endpoint
from bench.spark_source import start_building
from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block

WARM_UP_S = 2.0
"""For so long the log is read before the first round: workers start while it is."""


@dataclass
class _Contender:
    """A server with so many workers, and what was measured of it, an entry for each round."""

    workers: int
    server: servers.Running
    url: str
    rows_per_s: list[float] = field(default_factory=list)
    front_end_us: list[float] = field(default_factory=list)
    all_us: list[float] = field(default_factory=list)


def compare(folder: Path, counts: Sequence[int], *, messages: int, rounds: int, readers: int) -> None:
    """Print the figures of all numbers of workers, with one reader and with so many."""
    with ExitStack() as stack:
        contenders = []
        for count in counts:
            os.environ["QUAYMASTER_LOG_WORKERS_MAX"] = str(count)
            program = replace(servers.SERVERS["quaymaster"], start=start_building(0))
            server = stack.enter_context(servers.Running(program, folder / f"workers-{count}"))
            url = server.create_queue("log", {"RetentionMode": "Log"})
            log_reads.fill(server.endpoint, url, messages)
            contenders.append(_Contender(count, server, url))
        for number in sorted({1, readers}):
            _compare(contenders, rounds, number)


def _compare(contenders: list[_Contender], rounds: int, readers: int) -> None:
    for one in contenders:
        one.rows_per_s, one.front_end_us, one.all_us = [], [], []
        until_s = time.monotonic() + WARM_UP_S
        while time.monotonic() < until_s:
            _read(one.server.endpoint, one.url, readers)
    loads = []
    for _ in range(rounds):
        loads.append(os.getloadavg()[0])
        for one in contenders:
            pid = one.server.pid
            front_end_s, all_s = log_reads.cpu_s(pid), processes.cpu_s(pid)
            rows, took_s = _read(one.server.endpoint, one.url, readers)
            one.rows_per_s.append(rows / took_s)
            one.front_end_us.append((log_reads.cpu_s(pid) - front_end_s) / rows * 1e6)
            one.all_us.append((processes.cpu_s(pid) - all_s) / rows * 1e6)
    print(f"{readers} readers, {rounds} rounds, load average {min(loads):.1f} to {max(loads):.1f}")
    base = contenders[0]
    for one in contenders:
        pairs = zip(one.rows_per_s, base.rows_per_s, strict=True)
        ratios = sorted(rate / with_base for rate, with_base in pairs)
        print(
            f"  {one.workers} workers: {statistics.median(one.rows_per_s):9,.0f} rows/s, best "
            f"{max(one.rows_per_s):9,.0f}; {statistics.median(ratios):.2f} times ({ratios[0]:.2f} to "
            f"{ratios[-1]:.2f}); CPU a row: front end {statistics.median(one.front_end_us):.2f} us, best "
            f"{min(one.front_end_us):.2f}; with its workers {statistics.median(one.all_us):.2f}, best "
            f"{min(one.all_us):.2f}",
            flush=True,
        )


def _read(endpoint: Endpoint, url: str, readers: int) -> tuple[int, float]:
    """Read a log whole by so many processes, each a part of it; return its rows and the seconds that it took."""
    children = [os.pipe() for _ in range(readers)]
    started = time.monotonic()
    for part, (_, report) in enumerate(children):
        if os.fork() == 0:
            try:
                rows = sum(batch.num_rows for batch in _batches(endpoint, url, part, readers))
                os.write(report, str(rows).encode())
            finally:
                os._exit(0)
        os.close(report)
    told = [int(os.read(reads, 100) or "0") for reads, _ in children]
    took_s = time.monotonic() - started
    for reads, _ in children:
        os.close(reads)
        os.wait()
    if not all(told):
        raise RuntimeError("a reader failed; its error stands above")
    return sum(told), took_s


def _batches(endpoint: Endpoint, url: str, part: int, parts: int) -> Iterator[pa.RecordBatch]:
    """Read one of so many equal stretches of a log, with the next fetch on its way while one is decoded."""
    connection = log_reads.Connection(endpoint)
    described = json.loads(connection.call("Quaymaster.DescribeLog", {"QueueUrl": url})[1])
    earliest, end = (described["Partitions"][0][name] for name in ("EarliestOffset", "NextOffset"))
    count = end - earliest
    at, end = earliest + count * part // parts, earliest + count * (part + 1) // parts

    def fetch(start: int) -> tuple[int, bytes]:
        fields = {"QueueUrl": url, "Partition": 0, "FromOffset": start, "ToOffset": end}
        headers, body = connection.call("Quaymaster.FetchMessages", fields)
        return int(headers["x-quaymaster-next-offset"]), body

    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(fetch, at)
        while at < end:
            at, body = coming.result()
            if at < end:
                coming = ahead.submit(fetch, at)
            yield to_record_batch(parse_block(body))
    connection.close()
