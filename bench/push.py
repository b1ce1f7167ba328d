"""What push costs: calls a second and CPU a call, how soon a message is posted, and what idle queues cost.

    python -m bench.push [--messages 20000] [--idle 10000] [--only calls|latency|idle]

The receiver answers each POST with 200 at once, on the core of the load. Messages are in the queue before it has an
endpoint, so that nothing but push is measured. Latency is from the send to the arrival at the receiver.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Final

from bench import processes
from bench.watched import Figures, WatchedServer

BODY_BYTES: Final = 1_024
LATENCY_PER_S: Final = 500
LATENCY_S: Final = 10.0
IDLE_S: Final = 30.0
SETTLED_S: Final = 10.0
"""After so long all queues are watched, and their states told."""
IDLE_CONNECTIONS: Final = 8
CASES: Final[Sequence[tuple[str, int]]] = (
    ("CloudEvents", 1),
    ("Lambda", 1),
    ("CloudEventsJson", 10),
    ("Lambda", 10),
)
"""Formats, and messages of a call."""
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_LENGTH: Final = b"content-length: "


class _Connection(asyncio.Protocol):
    """Answers each request as soon as it is whole."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "it is one of TCP"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            at = head.find(_LENGTH)
            length = 0 if at < 0 else int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
            size = end + 4 + length
            if len(self._buffer) < size:
                return
            self._receiver.on_request(head, self._buffer[end + 4 : size])
            self._buffer = self._buffer[size:]
            self._transport.write(_OK)


class Receiver:
    """A web server on a thread of this process."""

    def __init__(self) -> None:
        self.posts = 0
        self.last_s = 0.0
        self.latencies_s: list[float] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}/hook"

    def on_request(self, head: bytes, body: bytes) -> None:
        """Count a request; with a time as its body, also how long it took."""
        if not head.startswith(b"post"):
            return
        self.posts += 1
        self.last_s = time.monotonic()
        if body.startswith(b"sent "):
            self.latencies_s.append(time.time() - float(body.split(b" ", 2)[1]))

    def _run(self, ready: threading.Event) -> None:
        async def serve() -> None:
            server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await server.serve_forever()

        self._loop.run_until_complete(serve())


def measure_calls(server: WatchedServer, receiver: Receiver, messages: int) -> None:
    """Push a full queue, for each format and size of a batch."""
    for shape, batch in CASES:
        name = f"push-{shape}-{batch}"
        url = server.create_queue(name)
        server.fill(url, messages, body_bytes=BODY_BYTES)
        calls = messages // batch
        before = receiver.posts
        with server.case(f"{messages:,} messages as {shape}, {batch} in a call") as figures:
            began_s, cpu_s = time.monotonic(), processes.cpu_s(server.pid)
            attributes = {
                "PushEndpoint": receiver.url,
                "PushFormat": shape,
                "PushBatchSize": str(batch),
                "PushMaxConcurrency": "100",
            }
            server.call("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
            while receiver.posts - before < calls:
                time.sleep(0.01)
            took_s = receiver.last_s - began_s
            used_s = processes.cpu_s(server.pid) - cpu_s
            figures["calls_per_s"] = round(calls / took_s)
            figures["messages_per_s"] = round(messages / took_s)
            figures["cpu_us_per_call"] = round(used_s / calls * 1e6)
            figures["calls_per_cpu_s"] = round(calls / used_s)
            figures["messages_per_cpu_s"] = round(messages / used_s)
        server.call("DeleteQueue", QueueUrl=url)


def measure_latency(server: WatchedServer, receiver: Receiver, seconds: float) -> None:
    """Send messages at a steady rate, and see when they arrive."""
    url = server.create_queue("push-latency", PushEndpoint=receiver.url, PushMaxConcurrency=100)
    receiver.latencies_s.clear()
    with server.case(f"{LATENCY_PER_S} messages a second") as figures:
        began_s = time.monotonic()
        total = int(LATENCY_PER_S * seconds)
        turns = iter(range(total))
        lock = threading.Lock()

        def send() -> None:
            while True:
                with lock:
                    turn = next(turns, None)
                if turn is None:
                    return
                time.sleep(max(0.0, began_s + turn / LATENCY_PER_S - time.monotonic()))
                server.call("SendMessage", QueueUrl=url, MessageBody=f"sent {time.time()} {'x' * 900}")

        threads = [threading.Thread(target=send) for _ in range(IDLE_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while len(receiver.latencies_s) < total:
            time.sleep(0.01)
        found = statistics.quantiles(receiver.latencies_s[total // 10 :], n=100)
        figures["p50_ms"], figures["p99_ms"] = round(found[49] * 1_000, 1), round(found[98] * 1_000, 1)
    server.call("DeleteQueue", QueueUrl=url)


def measure_idle(server: WatchedServer, receiver: Receiver, queues: int, idle_s: float) -> None:
    """Have so many queues with an endpoint and no message."""
    before_mib = server.memory_mib()
    with server.case(f"{queues:,} queues are created") as figures:
        names = iter(range(queues))
        lock = threading.Lock()

        def create() -> None:
            while True:
                with lock:
                    number = next(names, None)
                if number is None:
                    return
                server.create_queue(f"idle-{number}", PushEndpoint=receiver.url)

        threads = [threading.Thread(target=create) for _ in range(IDLE_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        figures["mib_more"] = server.memory_mib() - before_mib
    time.sleep(min(SETTLED_S, idle_s))
    with server.case(f"{queues:,} idle queues") as figures:
        cpu_s = processes.cpu_s(server.pid)
        time.sleep(idle_s)
        used_s = processes.cpu_s(server.pid) - cpu_s
        figures["cpu_percent"] = round(used_s / idle_s * 100, 1)
        figures["mib_more"] = server.memory_mib() - before_mib


def measure(
    messages: int, idle: int, only: str = "", *, latency_s: float = LATENCY_S, idle_s: float = IDLE_S
) -> list[Figures]:
    """Measure all, or one part alone, for so long; return what was found."""
    receiver = Receiver()
    with WatchedServer(loop_watch_ms=0, console="off", usage="false") as server:
        if only in ("", "calls"):
            measure_calls(server, receiver, messages)
        if only in ("", "latency"):
            measure_latency(server, receiver, latency_s)
        if only in ("", "idle"):
            measure_idle(server, receiver, idle, idle_s)
        return server.cases


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--only", default="", choices=("", "calls", "latency", "idle"))
    options = parser.parse_args()
    measure(options.messages, options.idle, options.only)


if __name__ == "__main__":
    main()
