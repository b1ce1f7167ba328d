"""Reading a log in bulk: rows per second and CPU time of built blocks and of the tail, beside Spark on Parquet.

    python -m bench.log_reads [--messages 100000] [--rounds 3] [--readers 2] [--spark [--copies 20]]
    python -m bench.log_reads --workers 0,2 [...]     # the tail alone, with log workers and without (`log_workers`)

Fills a log-retained queue (JSON bodies of about 270 bytes, a tenth of them with attributes), reads it whole with
FetchMessages into Arrow record batches, from the journal and, when they are built, from its blocks. With `--spark` the
same rows are written to Parquet (zstd, 4 files), so many times that what a job costs by itself is little beside it, and
Spark reads them on two cores to `noop`. The best of the rounds
counts, for each figure. CPU is that of server and reader together: on a shared machine it says more than rows/s.
"Readers" are that many processes, each of which reads a stretch of the log: what more cores would bring. CPU a row that
does not grow with them is work that goes in parallel.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench import servers
from bench.requests import Endpoint
from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

SENDERS = 4
BATCH = 10
BUILDING_PATIENCE_S = 300.0
PARQUET_FILES = 4


class Connection:
    """One connection of a client that signs with headers, and wants the answer's body."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=60)

    def call(self, target: str, fields: dict[str, Any]) -> tuple[http.client.HTTPMessage, bytes]:
        """Make a call that must succeed; return headers and body."""
        at, body = self._endpoint, json.dumps(fields).encode()
        unsigned = [(b"host", at.host.encode()), (b"x-amz-target", target.encode())]
        headers = sign(
            UnsignedRequest(b"POST", b"/", b"", unsigned, body),
            Signer(at.access_key_id, at.secret_access_key, at.region),
            now_ms=time.time_ns() // 1_000_000,
        )
        self._connection.putrequest("POST", "/", skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            self._connection.putheader(name.decode(), value.decode())
        self._connection.putheader("content-type", "application/x-amz-json-1.0")
        self._connection.putheader("content-length", str(len(body)))
        self._connection.endheaders(body)
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{target}: {response.status} {data[:300]!r}")
        return response.headers, data

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def fill(endpoint: Endpoint, url: str, messages: int) -> None:
    """Send so many messages over a few connections."""

    def send(sender: int) -> None:
        connection = Connection(endpoint)
        chance = random.Random(sender)
        for first in range(0, messages // SENDERS, BATCH):
            entries = [_entry(chance, number) for number in range(first, first + BATCH)]
            connection.call("AmazonSQS.SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        connection.close()

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _entry(chance: random.Random, number: int) -> dict[str, Any]:
    body = {
        "id": chance.getrandbits(60),
        "user": chance.randrange(10_000),
        "number": number,
        "text": "what was said about it, more or less as it is always said; " * 3,
    }
    entry: dict[str, Any] = {"Id": str(number % BATCH), "MessageBody": json.dumps(body)}
    if number % BATCH == 0:
        entry["MessageAttributes"] = {"kind": {"DataType": "String", "StringValue": "order"}}
    return entry


def read_all(
    endpoint: Endpoint, url: str, columns: list[str] | None, part: int = 0, parts: int = 1
) -> Iterator[pa.RecordBatch]:
    """Read a log from its beginning to its end, or one of so many equal stretches of it."""
    connection = Connection(endpoint)
    described = json.loads(connection.call("Quaymaster.DescribeLog", {"QueueUrl": url})[1])
    earliest, end = (described["Partitions"][0][name] for name in ("EarliestOffset", "NextOffset"))
    count = end - earliest
    at, end = earliest + count * part // parts, earliest + count * (part + 1) // parts
    while at < end:
        fields = {"QueueUrl": url, "Partition": 0, "FromOffset": at, "ToOffset": end}
        headers, body = connection.call(
            "Quaymaster.FetchMessages", fields if columns is None else {**fields, "Columns": columns}
        )
        yield to_record_batch(parse_block(body))
        at = int(headers["x-quaymaster-next-offset"])
    connection.close()


def measure(name: str, rounds: int, pid: int, read: Callable[[], int]) -> None:
    """Print rows/s and CPU of the best round of a read; `pid` is who works beside this process: server or Spark."""
    took: list[float] = []
    spent: list[float] = []
    others: list[float] = []
    for _ in range(rounds):
        started, cpu, other = time.monotonic(), time.process_time(), cpu_s(pid)
        count = read()
        took.append((time.monotonic() - started) / count)
        others.append((cpu_s(pid) - other) / count)
        spent.append((time.process_time() - cpu) / count + others[-1])
    print(
        f"{name:44s} {1 / min(took):11,.0f} rows/s  {min(spent) * 1e6:6.2f} us CPU a row, "
        f"{min(others) * 1e6:.2f} of it the other process's",
        flush=True,
    )


def measure_readers(endpoint: Endpoint, url: str, pid: int, what: str, rounds: int, readers: int) -> None:
    """Print rows/s of so many processes at a time that each read their part of the log, all columns."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        cpu = cpu_s(pid)
        children = [os.pipe() for _ in range(readers)]
        started = time.monotonic()
        for part, (_, report) in enumerate(children):
            if os.fork() == 0:
                # Whatever happens, this copy of the process must not go on as the benchmark.
                try:
                    used = time.process_time()
                    count = sum(one.num_rows for one in read_all(endpoint, url, None, part, readers))
                    os.write(report, json.dumps([count, time.process_time() - used]).encode())
                finally:
                    os._exit(0)
            os.close(report)
        told = [json.loads(os.read(reads, 1000) or "[0, 0]") for reads, _ in children]
        took = time.monotonic() - started
        for reads, _ in children:
            os.close(reads)
            os.wait()
        if not all(count for count, _ in told):
            raise RuntimeError("a reader failed; its error stands above")
        count = sum(count for count, _ in told)
        spent = cpu_s(pid) - cpu + sum(used for _, used in told)
        best = {
            "rows": max(best.get("rows", 0), count / took),
            "cpu": min(best.get("cpu", 1e9), spent / count),
            "server": min(best.get("server", 1e9), (cpu_s(pid) - cpu) / count),
        }
    print(
        f"{what}, all columns, {readers} readers".ljust(44)
        + f" {best['rows']:11,.0f} rows/s  {best['cpu'] * 1e6:6.2f} us CPU a row, "
        f"{best['server'] * 1e6:.2f} of it the server's",
        flush=True,
    )


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, without that of its children."""
    # The clock that clock_getcpuclockid(3) names. /proc/<pid>/stat counts in hundredths of a second: half a microsecond
    # for each of 20,000 rows.
    return time.clock_gettime(~pid << 3 | 2)


def measure_log(endpoint: Endpoint, url: str, pid: int, what: str, rounds: int, readers: int) -> None:
    """Measure reads of all columns, of bodies, and of times; and of all columns by several readers."""

    def read(columns: list[str] | None) -> int:
        return sum(batch.num_rows for batch in read_all(endpoint, url, columns))

    measure(f"{what}, all columns", rounds, pid, lambda: read(None))
    measure(f"{what}, value", rounds, pid, lambda: read(["value"]))
    measure(f"{what}, offset, timestamp", rounds, pid, lambda: read(["offset", "timestamp"]))
    if readers > 1:
        measure_readers(endpoint, url, pid, what, rounds, readers)


def measure_spark(folder: Path, rounds: int) -> None:
    """Measure Spark's own reader on the Parquet files of a folder."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    gateway: Any = spark.sparkContext._gateway
    pid = gateway.proc.pid
    rows = spark.read.parquet(str(folder)).count()

    def read(columns: list[str]) -> int:
        frame = spark.read.parquet(str(folder))
        (frame.select(*columns) if columns else frame).write.format("noop").mode("overwrite").save()
        return rows

    read([])
    measure("Spark, Parquet (zstd), all columns", rounds, pid, lambda: read([]))
    measure("Spark, Parquet (zstd), value", rounds, pid, lambda: read(["value"]))
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--workers", help="numbers of log workers to compare, as 0,2")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if arguments.workers:
            from bench import log_workers  # which needs what is here

            counts = [int(count) for count in arguments.workers.split(",")]
            log_workers.compare(
                folder, counts, messages=arguments.messages, rounds=rounds, readers=arguments.readers
            )
            return
        os.environ["QUAYMASTER_BLOCK_BUILD_INTERVAL_S"] = "0"
        with servers.Running(servers.SERVERS["quaymaster"], folder / "server") as server:
            url = server.create_queue("log", {"RetentionMode": "Log"})
            fill(server.endpoint, url, arguments.messages)
            measure_log(server.endpoint, url, server.pid, "tail", rounds, arguments.readers)
            os.environ["QUAYMASTER_BLOCK_BUILD_INTERVAL_S"] = "1"
            server.restart_after_kill()
            url = f"http://{server.endpoint.host}:{server.endpoint.port}/000000000000/log"
            blocks, seen = folder / "server" / "data" / "blocks", -1
            deadline = time.monotonic() + BUILDING_PATIENCE_S
            while (count := len(list(blocks.glob("*/*/*.qmb")))) != seen or not count:
                if time.monotonic() > deadline:
                    raise RuntimeError("the blocks of the log were not built in time")
                seen = count
                time.sleep(5)
            measure_log(server.endpoint, url, server.pid, "built blocks", rounds, arguments.readers)
            if arguments.spark:
                table = pa.Table.from_batches(read_all(server.endpoint, url, None))
                parquet = folder / "parquet"
                parquet.mkdir()
                each = -(-table.num_rows // PARQUET_FILES)
                for number in range(PARQUET_FILES):
                    part = pa.concat_tables([table.slice(number * each, each)] * arguments.copies)
                    pq.write_table(part, parquet / f"{number}.parquet", compression="zstd")
        if arguments.spark:
            measure_spark(folder / "parquet", rounds)


if __name__ == "__main__":
    main()
