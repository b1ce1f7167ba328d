"""Messages a second of `quaymaster import` from one server to another: both on one core, the command on another.

    python -m bench importing [--messages 20000] [--bytes 1024] [--workers 8]

The time is that of the command, from its start to its end; CPU times are those of the processes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from bench import processes
from bench.requests import call
from bench.servers import SERVERS, Running

QUEUES = {"orders": {}, "orders.fifo": {"FifoQueue": "true"}}
GROUPS = 100


def measure(folder: Path, name: str, *, messages: int, size: int, workers: int) -> dict[str, float]:
    """Import one queue; return messages a second, and CPU microseconds a message of all three processes."""
    server = SERVERS["quaymaster"]
    with Running(server, folder / "source") as source, Running(server, folder / "target") as target:
        url = source.create_queue(name, QUEUES[name])
        for first in range(0, messages, 10):
            entries = [
                {"Id": str(number), "MessageBody": f"{number:08}".ljust(size, "x")}
                | (
                    {"MessageGroupId": str(number % GROUPS), "MessageDeduplicationId": str(number)}
                    if name.endswith(".fifo")
                    else {}
                )
                for number in range(first, first + 10)
            ]
            call(source.endpoint, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        before = processes.cpu_s(source.pid), processes.cpu_s(target.pid)
        started, children = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        endpoint = source.endpoint
        command: list[str | Path] = [
            *(server.obtain(), "import", "--from", f"http://{endpoint.host}:{endpoint.port}"),
            *("--data", target.folder / "data", "--state", folder / "state"),
            *("--workers", str(workers), "--json"),
        ]
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": endpoint.access_key_id,
            "AWS_SECRET_ACCESS_KEY": endpoint.secret_access_key,
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        elapsed_s, ended = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        assert json.loads(done.stdout)["imported"] == messages, done.stdout
        command_s = (ended.ru_utime + ended.ru_stime) - (children.ru_utime + children.ru_stime)
        return {
            "messages_per_s": messages / elapsed_s,
            "command_us": command_s / messages * 1e6,
            "source_us": (processes.cpu_s(source.pid) - before[0]) / messages * 1e6,
            "target_us": (processes.cpu_s(target.pid) - before[1]) / messages * 1e6,
        }


def main() -> None:
    """Measure a standard queue and a FIFO queue, and print the figures."""
    assert __doc__ is not None, "this module says how it is used"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=1_024)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    processes.pin(processes.LOAD_CORE)
    for name in QUEUES:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(
                Path(folder), name, messages=options.messages, size=options.bytes, workers=options.workers
            )
        shown = "  ".join(f"{key} {value:,.0f}" for key, value in figures.items())
        print(f"{name:12} {shown}", flush=True)
