"""What a console costs: at rest next to a server, and with many queues, alerts, live pages and scrapes.

    python -m bench console [--queues 100000] [--active 1000] [--alerts 10000] [--pages 0] [--shards 20] [--seconds 60]

The console is the real process, as `serve` starts it. Its server is this process: a store with rows of queues and
alerts, and leaders that tell of them by the RPC `queue_metrics`; `--active` queues change in each round of 5 s. Half of
the live pages show ten lists, the other half a queue each. At the end all queues are scraped, in so many shards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import processes
from bench.compare import RESULTS
from quaymaster.console.web.cookies import SESSION_COOKIE, Cookies, Session
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.alerts.alerts import ALERTS, Alert, encode_alert_row, row_name
from quaymaster.core.values.errors import NotNow
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
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    encode_queue_definition,
)
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.net.console_key import make_console_key
from quaymaster.net.listener import bind_all
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCServer
from quaymaster.node.cell.transport import BROKER_ROLE
from quaymaster.node.children.child_settings import plain_values
from quaymaster.node.children.console_child import COMMAND, ConsoleBrief
from quaymaster.node.data.stores import SQLITE_FILE
from quaymaster.node.edge.sockets import CONSOLE_SOCKET, SERVER_SOCKET, unix_address
from quaymaster.protocol.rpc.broker_calls import QUEUE_METRICS
from quaymaster.protocol.rpc.console_calls import QUEUE_METRICS as SCRAPE
from quaymaster.protocol.rpc.console_calls import decode_queue_metrics
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


async def _put_alerts(store: SQLiteCoordination, count: int, queues: int) -> None:
    """Let each of the first queues have an alert."""
    puts = []
    for number in range(1, min(count, queues) + 1):
        alert = Alert(
            account_id=ACCOUNT,
            name=f"queue-{number:06}-old",
            subject="queue",
            pattern=f"queue-{number:06}",
            metric="ApproximateNumberOfMessagesVisible",
            statistic="Maximum",
            period_s=60,
            comparison="GreaterThanThreshold",
            threshold=1e9,
            periods=5,
            breaching=3,
        )
        puts.append(Put(ALERTS + row_name(ACCOUNT, alert.name), encode_alert_row(alert)))
    for first in range(0, len(puts), PUTS_AT_ONCE):
        await store.transaction([], puts[first : first + PUTS_AT_ONCE])


def _start(listen: list[int]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=quiet, stdout=quiet, pass_fds=listen)


def _session(number: int) -> Session:
    """Return the session of one of the operators who signed in: a session has 50 requests a second."""
    return Session(
        csrf="token",
        access_key_id=f"ASIABENCH{number}",
        secret="secret",
        session_token="token",
        account=ACCOUNT,
        arn=f"arn:aws:iam::{ACCOUNT}:root",
        name="root",
        is_operator=True,
        expires_ms=4_000_000_000_000,
    )


def cookie_of(key: bytes, session: Session) -> str:
    """Return the cookie that a browser has of a session."""
    return f"{SESSION_COOKIE}={Cookies(key).seal(SESSION_COOKIE, session)}"


class LivePages:
    """Browsers that follow live pages, and count what they get. `cookie_of` gives that of each page, by its number."""

    def __init__(self, address: tuple[str, int], cookie_of: Callable[[int], str]) -> None:
        self._address = address
        self._cookie_of = cookie_of
        self._tasks: list[asyncio.Task[None]] = []
        self.followed = 0
        self.received = 0
        self.events = 0

    async def open(self, count: int, queues: int) -> None:
        """Open so many."""
        for number in range(count):
            query = f"kind=queues&q={number // 2 % 10}" if number % 2 else ""
            query = query or f"kind=queue&account={ACCOUNT}&name=queue-{number % queues + 1:06}"
            self._tasks.append(asyncio.create_task(self._follow(query, self._cookie_of(number))))
            await asyncio.sleep(0.03)

    async def close(self) -> None:
        """Close them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, query: str, cookie: str) -> None:
        host, port = self._address
        reader, writer = await asyncio.open_connection(host, port)
        head = f"GET /admin/v1/live?{query} HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: {cookie}\r\n\r\n"
        writer.write(head.encode())
        try:
            status = await reader.readline()
            if b" 200 " not in status:
                print(f"no live page: {status!r}")
                return
            self.followed += 1
            while piece := await reader.read(65_536):
                self.received += len(piece)
                self.events += piece.count(b"data: ")
        finally:
            writer.close()


async def _scrape(sockets: Path, shards: int) -> dict[str, float]:
    """Return what it takes to scrape all queues."""
    client = RPCClient(unix_address(sockets / CONSOLE_SOCKET), Hello("default", "frontend", "bench"))
    took: list[float] = []
    size = 0
    try:
        for shard in range(shards):
            began_s = time.monotonic()
            answer = await _asked(client, f"shard={shard}&shards={shards}")
            took.append(time.monotonic() - began_s)
            found = decode_queue_metrics(answer)
            if found.status != 200:
                raise RuntimeError(zlib.decompress(found.text).decode())
            size += len(zlib.decompress(found.text))
    finally:
        await client.close()
    return {
        "scrape_s": round(sum(took), 2),
        "scrape_worst_s": round(max(took), 2),
        "scrape_mib": round(size / 1024**2, 1),
    }


async def _asked(client: RPCClient, query: str) -> bytes:
    """Return a shard; a console that is busy is asked again, which counts."""
    while True:
        try:
            return await client.ask(SCRAPE, query.encode(), 60_000)
        except NotNow:
            await asyncio.sleep(0.1)


async def measure(
    queues: int, active: int, seconds: float, *, alerts: int = 0, pages: int = 0, shards: int = 0
) -> dict[str, float]:
    """Run a console with so many queues, and return what it took."""
    directory = Path(tempfile.mkdtemp(prefix="console-"))
    data, sockets = directory / "data", directory / "run"
    for made in (data, sockets):
        made.mkdir()
    key = make_console_key(data)
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
    await _put_alerts(store, alerts, queues)
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
        live = LivePages(bound[0].getsockname()[:2], lambda number: cookie_of(key, _session(number)))
        await live.open(pages, queues)
        await asyncio.sleep(10)
        events_before = live.events
        cpu_before_s = processes.cpu_s(child.pid)
        measured_s = time.monotonic()
        peak = 0
        while time.monotonic() < measured_s + seconds:
            await asyncio.sleep(0.2)
            peak = max(peak, processes.memory_bytes(child.pid, "VmRSS"))
        cpu_s = processes.cpu_s(child.pid)
        events = live.events - events_before
        scraped = await _scrape(sockets, shards) if shards else {}
        peak = max(peak, processes.memory_bytes(child.pid, "VmHWM"))
        await live.close()
        kept = sum(file.stat().st_size for file in data.rglob("*/history/**/*") if file.is_file())
        return {
            "queues": queues,
            "active": active if queues else 0,
            "known_s": round(known_s, 1),
            "peak_mib": round(peak / 1024**2, 1),
            "cpu_share": round((cpu_s - cpu_before_s) / seconds, 4),
            "history_bytes": kept,
            "alerts": alerts,
            "pages": live.followed,
            "events_per_s": round(events / seconds, 1),
            **scraped,
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
    parser.add_argument("--alerts", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=0)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--no-idle", action="store_true", help="only the one with many queues")
    parser.add_argument("--seconds", type=float, default=70.0, help="more than a minute has the end of one")
    options = parser.parse_args()
    results = []
    if not options.no_idle:
        idle = asyncio.run(measure(10, 0, options.seconds))
        results.append(idle)
        print(
            f"idle: {idle['peak_mib']} MiB (goal < {GOAL_IDLE_MIB}), {idle['cpu_share']:.2%} "
            f"(goal < {GOAL_IDLE_CPU:.1%})",
            flush=True,
        )
    many = asyncio.run(
        measure(
            options.queues,
            options.active,
            options.seconds,
            alerts=options.alerts,
            pages=options.pages,
            shards=options.shards,
        )
    )
    results.append(many)
    print(many)
    print(
        f"{many['queues']} queues: {many['peak_mib']} MiB (goal < {GOAL_MIB}), {many['cpu_share']:.2%} of a core"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "console.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
