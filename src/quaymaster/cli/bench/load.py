"""The load behind `quaymaster bench`: connections that each send, receive and delete, one call after another.

A connection asks for the next thing when the last is answered, so the number of connections is how much is
asked at once. Client and server share this machine's cores: the figures say what both do together, and a
server alone does more. `bench/` measures that properly.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from quaymaster.cli.shared.client import JSON_TYPE, TARGET_PREFIX
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

CALL_TIMEOUT_S = 30.0
ACTIONS = ("send", "receive", "delete")


class LoadPlan(NamedTuple):
    """What to do: for how long, by how many connections, with which messages. `batch` is 1-10."""

    connections: int
    duration_s: float
    message_bytes: int
    batch: int


class ActionFigures(NamedTuple):
    """What came of one action. Durations are of calls, as the client saw them."""

    calls: int
    messages: int
    messages_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class Tally:
    """Calls of one action while they are made."""

    def __init__(self) -> None:
        self.durations_ms = array("d")
        self.messages = 0

    def figures(self, elapsed_s: float) -> ActionFigures:
        """Return the figures over `elapsed_s`; durations are 0 when there were no calls."""
        ordered = sorted(self.durations_ms)
        if not ordered:
            return ActionFigures(0, 0, 0.0, 0.0, 0.0, 0.0)
        return ActionFigures(
            calls=len(ordered),
            messages=self.messages,
            messages_per_s=self.messages / elapsed_s,
            p50_ms=ordered[len(ordered) // 2],
            p99_ms=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            max_ms=ordered[-1],
        )


class Load:
    """One run against one queue. `run` returns the figures of each action."""

    def __init__(self, connection: ServerConnection, queue_url: str, plan: LoadPlan) -> None:
        self._connection = connection
        self._queue_url = queue_url
        self._plan = plan
        self._parts = urlsplit(connection.endpoint_url)
        self._tallies = {action: Tally() for action in ACTIONS}
        self._deadline = 0.0
        body = "x" * plan.message_bytes
        self._send_call = self._render_send(body)

    async def run(self, on_progress: Callable[[float], None]) -> dict[str, ActionFigures]:
        """Make the load; `on_progress` is told the seconds that have passed.

        Raises:
            NoServer, CommandRefused: the first call that failed says why; nothing is measured past it.
        """
        started = time.perf_counter()
        self._deadline = started + self._plan.duration_s
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(self._work()) for _ in range(self._plan.connections)]
                reporter = group.create_task(self._report(started, on_progress))
                await asyncio.wait(workers)
                reporter.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        elapsed_s = time.perf_counter() - started
        return {action: tally.figures(elapsed_s) for action, tally in self._tallies.items()}

    async def _report(self, started: float, on_progress: Callable[[float], None]) -> None:
        while True:
            on_progress(min(self._plan.duration_s, time.perf_counter() - started))
            await asyncio.sleep(0.1)

    async def _work(self) -> None:
        parts = self._parts
        try:
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port, ssl=True if parts.scheme == "https" else None, limit=1 << 24
            )
        except OSError as error:
            raise NoServer(f"{self._connection.endpoint_url}: {error.strerror or error}.") from None
        try:
            while time.perf_counter() < self._deadline:
                await self._round(reader, writer)
        finally:
            writer.close()

    async def _round(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._call(reader, writer, "send", *self._send_call, count=self._plan.batch)
        fields = {"QueueUrl": self._queue_url, "MaxNumberOfMessages": self._plan.batch}
        received = await self._call(reader, writer, "receive", "ReceiveMessage", json.dumps(fields).encode())
        messages = received.get("Messages") or []
        self._tallies["receive"].messages += len(messages)
        if messages:
            handles = [message["ReceiptHandle"] for message in messages]
            await self._call(reader, writer, "delete", *self._render_delete(handles), count=len(handles))

    async def _call(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kind: str,
        action: str,
        body: bytes,
        *,
        count: int = 0,
    ) -> dict[str, Any]:
        tally = self._tallies[kind]
        request = self._render_request(action, body)
        started = time.perf_counter()
        writer.write(request)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                answer = await reader.readexactly(_content_length(head))
        except TimeoutError:
            raise NoServer(f"{action}: no answer within {CALL_TIMEOUT_S:g} s.") from None
        except (OSError, EOFError) as error:
            raise NoServer(f"{action}: the server broke off ({type(error).__name__}).") from None
        tally.durations_ms.append((time.perf_counter() - started) * 1000)
        tally.messages += count
        result: dict[str, Any] = json.loads(answer or b"{}")
        if not head.startswith(b"HTTP/1.1 200"):
            raise CommandRefused(f"{action}: {result.get('message', answer.decode(errors='replace'))}")
        if result.get("Failed"):
            raise CommandRefused(f"{action}: {result['Failed'][0].get('Message')}")
        return result

    def _render_request(self, action: str, body: bytes) -> bytes:
        connection = self._connection
        path = self._parts.path or "/"
        signer = Signer(
            connection.access_key_id,
            connection.secret_access_key,
            connection.region,
            connection.session_token,
        )
        unsigned = [
            (b"host", self._parts.netloc.encode()),
            (b"content-type", JSON_TYPE),
            (b"x-amz-target", (TARGET_PREFIX + action).encode()),
        ]
        request = UnsignedRequest(b"POST", path.encode(), b"", unsigned, body)
        headers = sign(request, signer, now_ms=time.time_ns() // 1_000_000)
        lines = [b"POST %b HTTP/1.1" % path.encode(), *(b"%b: %b" % header for header in headers)]
        lines.append(b"content-length: %d" % len(body))
        return b"\r\n".join((*lines, b"", body))

    def _render_send(self, body: str) -> tuple[str, bytes]:
        batch = self._plan.batch
        if batch == 1:
            return "SendMessage", json.dumps({"QueueUrl": self._queue_url, "MessageBody": body}).encode()
        entries = [{"Id": str(index), "MessageBody": body} for index in range(batch)]
        return "SendMessageBatch", json.dumps({"QueueUrl": self._queue_url, "Entries": entries}).encode()

    def _render_delete(self, handles: list[str]) -> tuple[str, bytes]:
        if len(handles) == 1:
            fields: dict[str, Any] = {"QueueUrl": self._queue_url, "ReceiptHandle": handles[0]}
            return "DeleteMessage", json.dumps(fields).encode()
        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
        return "DeleteMessageBatch", json.dumps({"QueueUrl": self._queue_url, "Entries": entries}).encode()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise NoServer("the answer has no Content-Length: is this an SQS endpoint?")
