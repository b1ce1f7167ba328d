"""What a console costs: at rest next to a server, and with many queues.

    python -m bench console [--queues 100000] [--active 1000] [--seconds 60]

The console is the real process, as `serve` starts it. Its server is this process: a store with the rows of the queues,
and leaders that tell of them by the RPC `queue_metrics`; `--active` queues change in each round of 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec

from bench import processes
from bench.compare import RESULTS
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.values.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    encode_queue_definition,
)
from quaymaster.core.values.queue_metrics import (
    PAGE_ROWS_MAX,
    JournalCursor,
    QueueMetricsPage,
    QueueMetricsRow,
    decode_cursor,
    decode_request,
    encode_cursor,
    encode_page,
)
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.net.console_key import make_console_key
from quaymaster.net.listener import bind_all
from quaymaster.net.rpc import IncomingCall, RPCServer
from quaymaster.node.console_child import COMMAND, ConsoleBrief
from quaymaster.node.data.stores import SQLITE_FILE
from quaymaster.node.from_settings import plain_values
from quaymaster.node.sockets import SERVER_SOCKET, unix_address
from quaymaster.node.transport import BROKER_ROLE
from quaymaster.protocol.rpc.broker_calls import QUEUE_METRICS
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.settings import Settings

ACCOUNT = "000000000000"
PUTS_AT_ONCE = 100
GOAL_MIB, GOAL_IDLE_MIB, GOAL_IDLE_CPU = 300, 80, 0.005


class Leader:
    """Tells of `count` queues; `active` of them change before each question after the first listing."""

    def __init__(self, count: int, active: int) -> None:
        self._active = active
        self._rows = [
            QueueMetricsRow(number, 0, 0, 1, number % 50, 0, 0, 0, 1_700_000_000_000, number, number * 900)
            for number in range(1, count + 1)
        ]
        self._changed = 0
        self.questions = 0

    def on_question(self, call: IncomingCall) -> None:
        """Answer with a page."""
        self.questions += 1
        position = decode_cursor(decode_request(call.body).since).get(0, JournalCursor(0, 0)).position
        if position < len(self._rows):
            rows = self._rows[position : position + PAGE_ROWS_MAX]
        else:
            rows = self._change(min(self._active, PAGE_ROWS_MAX))
        reached = min(position + len(rows), len(self._rows)) if position < len(self._rows) else position
        has_more = reached < len(self._rows)
        cursor = encode_cursor({0: JournalCursor(1, reached)})
        call.reply(encode_page(QueueMetricsPage("bench", rows, cursor, [], has_more)))

    def _change(self, count: int) -> list[QueueMetricsRow]:
        rows = []
        for _ in range(count):
            place = self._changed % len(self._rows)
            row = self._rows[place]
            row = msgspec.structs.replace(
                row, sent=row.sent + 3, sent_bytes=row.sent_bytes + 2_700, deleted=row.sent
            )
            self._rows[place] = row
            rows.append(row)
            self._changed += 1
        return rows


def _start(listen: list[int]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=quiet, stdout=quiet, pass_fds=listen)


async def measure(queues: int, active: int, seconds: float) -> dict[str, float]:
    """Run a console with so many queues, and return what it took."""
    directory = Path(tempfile.mkdtemp(prefix="console-"))
    data, sockets = directory / "data", directory / "run"
    for made in (data, sockets):
        made.mkdir()
    make_console_key(data)
    store = await SQLiteCoordination.open(data / SQLITE_FILE)
    placement = (PartitionPlacement(0, 0),)
    for first in range(1, queues + 1, PUTS_AT_ONCE):
        puts = []
        for number in range(first, min(first + PUTS_AT_ONCE, queues + 1)):
            made_ms = 1_700_000_000_000
            name = f"queue-{number:06}"
            row = QueueDefinition(number, ACCOUNT, name, "active", 1, made_ms, made_ms, {}, {}, 1, placement)
            puts.append(Put(f"{QUEUES}{ACCOUNT}/{name}", encode_queue_definition(row)))
        await store.transaction([], puts)
    leader = Leader(queues, active)
    server = RPCServer({QUEUE_METRICS: leader.on_question}, Hello("default", BROKER_ROLE, "bench"))
    await server.start(*unix_address(sockets / SERVER_SOCKET))
    settings = Settings.model_validate({"data_directory": data, "console_listen": "127.0.0.1:0"})
    bound = await bind_all("127.0.0.1", 0, shares_port=False)
    listen = [one.fileno() for one in bound]
    brief = ConsoleBrief(
        plain_values(settings), str(sockets), listen, ("127.0.0.1", 1), ("127.0.0.1", 1), has_workers=False
    )
    child = _start(listen)
    try:
        assert child.stdin is not None
        began_s = time.monotonic()
        child.stdin.write(msgspec.json.encode(brief) + b"\n")
        child.stdin.flush()
        while leader.questions <= queues // PAGE_ROWS_MAX + 1:  # noqa: ASYNC110 -- it gives no events
            await asyncio.sleep(0.05)
        known_s = time.monotonic() - began_s
        await asyncio.sleep(10)
        cpu_before_s = processes.cpu_s(child.pid)
        measured_s = time.monotonic()
        peak = 0
        while time.monotonic() < measured_s + seconds:
            await asyncio.sleep(0.2)
            peak = max(peak, processes.memory_bytes(child.pid, "VmRSS"))
        cpu_s = processes.cpu_s(child.pid)
        kept = sum(file.stat().st_size for file in data.rglob("*/history/**/*") if file.is_file())
        return {
            "queues": queues,
            "active": active if queues else 0,
            "known_s": round(known_s, 1),
            "peak_mib": round(peak / 1024**2, 1),
            "cpu_share": round((cpu_s - cpu_before_s) / seconds, 4),
            "history_bytes": kept,
        }
    finally:
        child.kill()
        child.wait()
        for one in bound:
            one.close()
        await server.close()
        await store.close()
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench console")
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=70.0, help="more than a minute has the end of one")
    options = parser.parse_args()
    results = []
    for queues in (10, options.queues):
        found = asyncio.run(measure(queues, options.active if queues > 10 else 0, options.seconds))
        results.append(found)
        print(found, flush=True)
    idle, many = results
    print(
        f"idle: {idle['peak_mib']} MiB (goal < {GOAL_IDLE_MIB}), {idle['cpu_share']:.2%} (goal < {GOAL_IDLE_CPU:.1%})"
    )
    print(
        f"{many['queues']} queues: {many['peak_mib']} MiB (goal < {GOAL_MIB}), {many['cpu_share']:.2%} of a core"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "console.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
