"""What a request costs the whole server: CPU time of its process per request, beside a bare responder's.

    python -m bench.serve_cost [--seconds 3] [--connections 32] [--body 256]

Starts the server on a new data directory (Sync, encryption and signatures on) on one core and drives it from the
other with requests that were signed beforehand; then does the same to a bare responder (uvloop, httptools, one
fixed answer). Shared machines are noisy: the ratio of CPU times in one run is what counts, the rate is beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvloop

from bench.http_limit import BareResponder
from quaymaster.protocol.sigv4 import sign

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
REQUESTS_SIGNED = 2_000
HEAD = (
    "POST / HTTP/1.1\r\n"
    "Host: {host}\r\n"
    "User-Agent: Boto3/1.43 md/Botocore#1.43 ua/2.1 os/linux md/arch#x86_64 lang/python#3.11\r\n"
    "Accept-Encoding: identity\r\n"
    "{headers}Content-Length: {length}\r\n\r\n"
)


class Client(asyncio.Protocol):
    """One connection that sends its next request when the reply to the last one is whole."""

    def __init__(self, next_request: Callable[[], bytes | None], on_reply: Callable[[bytes], None]) -> None:
        self._next_request = next_request
        self._on_reply = on_reply
        self._buffer = b""
        self._need = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._need:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            line_end = head.find(b"\r\n", at)
            length = int(head[at + 15 : line_end if line_end > 0 else len(head)])
            self._need = end + 4 + length
        if len(self._buffer) >= self._need:
            reply, self._buffer, self._need = self._buffer, b"", 0
            self._on_reply(reply)
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        request = self._next_request()
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)  # type: ignore[attr-defined]


class Target:
    """A server under load: its address, its process and how to sign for it."""

    def __init__(self, host: str, port: int, pid: int, credentials: dict[str, str]) -> None:
        self.host, self.port, self.pid, self.credentials = host, port, pid, credentials

    def render(self, action: str, fields: dict[str, Any]) -> bytes:
        """Return a signed request as bytes."""
        body = json.dumps(fields).encode()
        headers = [
            (b"host", f"{self.host}:{self.port}".encode()),
            (b"x-amz-target", f"AmazonSQS.{action}".encode()),
            (b"content-type", b"application/x-amz-json-1.0"),
            (b"amz-sdk-invocation-id", str(uuid4()).encode()),
            (b"amz-sdk-request", b"attempt=1"),
        ]
        if self.credentials:
            headers = sign(
                method=b"POST",
                raw_path=b"/",
                raw_query=b"",
                headers=headers,
                body=body,
                access_key_id=self.credentials["access_key_id"],
                secret=self.credentials["secret_access_key"],
                region=self.credentials["region"],
                now_ms=time.time_ns() // 1_000_000,
            )
        lines = "".join(
            f"{name.decode()}: {value.decode()}\r\n" for name, value in headers if name != b"host"
        )
        head = HEAD.format(host=f"{self.host}:{self.port}", headers=lines, length=len(body))
        return head.encode() + body

    def cpu_s(self) -> float:
        """Return the CPU time the process has used, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def call(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the decoded reply."""
        with socket.create_connection((self.host, self.port)) as connection:
            connection.sendall(
                self.render(action, fields).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            )
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = reply.partition(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], reply[:500]
        return dict(json.loads(body or b"{}"))


async def drive(
    target: Target,
    connections: int,
    next_request: Callable[[], bytes | None],
    on_reply: Callable[[bytes], None],
) -> None:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(
            lambda: Client(next_request, on_reply), target.host, target.port
        )
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))


def measure(
    target: Target, name: str, requests: list[bytes], connections: int, seconds: float, messages: int = 1
) -> float:
    """Send for some seconds; print and return the server's CPU microseconds per request."""
    state = {"sent": 0, "failed": 0}
    until = time.monotonic() + seconds

    def next_request() -> bytes | None:
        if time.monotonic() > until:
            return None
        state["sent"] += 1
        return requests[state["sent"] % len(requests)]

    def on_reply(reply: bytes) -> None:
        if not reply.startswith(b"HTTP/1.1 200"):
            state["failed"] += 1

    before, started = target.cpu_s(), time.monotonic()
    uvloop.run(drive(target, connections, next_request, on_reply))
    took = time.monotonic() - started
    each_us = (target.cpu_s() - before) / max(1, state["sent"]) * 1e6
    print(
        f"{name:32s} {each_us:8.1f} us CPU a request  {each_us / messages:7.1f} a message  "
        f"{state['sent'] / took:9.0f} requests/s  failed {state['failed']}",
        flush=True,
    )
    return each_us


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})


def start_server(directory: Path) -> tuple[subprocess.Popen[bytes], Target]:
    process = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("quaymaster")), "serve", "--data", str(directory)),
            *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        ],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: pin(0),
    )
    path = directory / "client.json"
    for _ in range(200):
        if path.exists() and path.stat().st_size:
            break
        time.sleep(0.05)
    facts = json.loads(path.read_text())
    host, _, port = facts["endpoint_url"].removeprefix("http://").rpartition(":")
    return process, Target(host, int(port), process.pid, facts)


def start_bare() -> tuple[int, Target]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    child = os.fork()
    if not child:
        pin(0)

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(BareResponder, sock=listener)
            async with server:
                await server.serve_forever()

        uvloop.run(serve())
        os._exit(0)
    listener.close()
    return child, Target("127.0.0.1", port, child, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--body", type=int, default=256)
    arguments = parser.parse_args()
    pin(1)
    directory = Path(tempfile.mkdtemp(prefix="quaymaster-bench-"))
    process, target = start_server(directory / "data")
    child = 0
    try:
        body = "x" * arguments.body
        url = target.call("CreateQueue", {"QueueName": "bench"})["QueueUrl"]
        send = [
            target.render("SendMessage", {"QueueUrl": url, "MessageBody": body})
            for _ in range(REQUESTS_SIGNED)
        ]
        entries = [{"Id": str(number), "MessageBody": body} for number in range(10)]
        batch = [
            target.render("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
            for _ in range(REQUESTS_SIGNED)
        ]
        receive = [
            target.render("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
            for _ in range(REQUESTS_SIGNED)
        ]
        sent = measure(target, "SendMessage", send, arguments.connections, arguments.seconds)
        batched = measure(
            target, "SendMessageBatch of 10", batch, arguments.connections, arguments.seconds, 10
        )
        received = measure(
            target, "ReceiveMessage of 10", receive, arguments.connections, arguments.seconds, 10
        )
        child, bare = start_bare()
        plain = bare.render("SendMessage", {"QueueUrl": url, "MessageBody": body})
        floor = measure(bare, "bare responder", [plain], arguments.connections, arguments.seconds)
        print(
            f"ratio to the bare responder: SendMessage {floor / sent:.2f}  a message in a batch "
            f"{floor / (batched / 10):.2f}  ReceiveMessage of 10 {floor / received:.2f}"
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
