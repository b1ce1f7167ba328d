"""CPU time of the front end per request, without sockets, journal or queue state.

    python -m bench.frontend_cost [--requests N] [--profile] [--usage]

Requests go through the real HTTP connection (head parsing, signature, checksums, encryption, rendering, metrics)
over an in-memory transport to a broker that answers at once from a list; what is measured is one core's CPU time.
Figures are for comparing two states of this code on one machine. With `--usage` every second round records what its
requests use; what that adds, writing the records into blocks included (not to disk), is shown beside.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import cProfile
import gc
import hashlib
import json
import pstats
import time
from typing import Any

from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import (
    Delivery,
    Done,
    EntriesOutcome,
    NewMessage,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    SendResult,
)
from quaymaster.core.values.commands.partitions import AskMarks, MarksOutcome, SetQueue
from quaymaster.core.values.queues.queue_marks import QueueMarks
from quaymaster.core.values.records import RecordType
from quaymaster.frontend.assembly import make_front_end, spread_over, tables_of
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.metadata.keys.key_providers import EnvironmentKeyProvider
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.http.connection import HTTPConnection
from quaymaster.net.http.message import HTTPLimits
from quaymaster.net.http.server import HTTPServer
from quaymaster.protocol.rpc.metadata_messages import CreateQueue
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign
from quaymaster.protocol.usage.usage_blocks import ROWS_PER_BLOCK_MAX, BlockEnd, BlockOrigin, encode_block
from quaymaster.settings import load_settings

ACCOUNT = "000000000000"
REGION = "us-east-1"
BODY = "x" * 1024
PER_TURN = 16
"""Connections with a request each: they come in one pass and are answered in one, as by one commit."""
REQUESTS_PER_ROUND = 160
"""The best of many short rounds is shown: on a shared machine a long one always meets other work."""


class Pending:
    """A command that the broker answers at the end of the turn."""

    def cancel(self) -> None:
        pass

    def withdraw(self) -> bool:
        return False


class InstantBroker:
    """Answers everything in the next `answer`, and always has the last sent message to give."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Any]] = []
        self.last: NewMessage | None = None
        self.sequence = 0

    def submit(self, command: Any, reply: Any) -> Pending:
        if isinstance(command, SetQueue):
            asyncio.get_running_loop().call_soon(reply, Done())
        elif isinstance(command, AskMarks):
            asyncio.get_running_loop().call_soon(reply, MarksOutcome(QueueMarks()))
        else:
            self.waiting.append((command, reply))
        return Pending()

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for command, reply in waiting:
            reply(self._outcome(command))

    def _outcome(self, command: Any) -> Any:
        if isinstance(command, Send):
            results = []
            for message in command.messages:
                self.sequence += 1
                results.append(SendResult(self.sequence, message.message_id))
                self.last = message
            return SendOutcome(results)
        if isinstance(command, Receive):
            last = self.last
            assert last is not None
            delivery = Delivery(1, 1, 1, 1, RecordType.SEND, last.flags, last.payload)
            return ReceiveOutcome(1, [delivery] * command.count_max)
        return EntriesOutcome([None] * len(command.receipts))


class MemoryTransport(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, data: Any) -> None:
        self.written.extend(bytes(part) for part in data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Client:
    """One connection, which sends the same request again and again."""

    def __init__(self, server: HTTPServer, request: bytes) -> None:
        self.transport = MemoryTransport()
        self._request = request
        self._connection = HTTPConnection(server)
        self._connection.connection_made(self.transport)

    def ask(self) -> None:
        """Send the request, and forget the reply to the last one."""
        self.transport.written.clear()
        self._connection.data_received(self._request)

    def leave(self) -> None:
        """Hang up."""
        self._connection.connection_lost(None)


def render(action: str, fields: dict[str, Any], key_id: str, secret: str, attempt: int) -> bytes:
    """Return a signed request as boto3 sends it."""
    body = json.dumps(fields).encode()
    headers = [
        (b"host", b"127.0.0.1:9324"),
        (b"x-amz-target", f"AmazonSQS.{action}".encode()),
        (b"content-type", b"application/x-amz-json-1.0"),
        (b"user-agent", b"Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux#6.1 md/arch#x86_64 lang/python#3.11"),
        (b"amz-sdk-invocation-id", f"5e8a0f3c-0d5c-4b0e-8f4a-{attempt:012x}".encode()),
        (b"amz-sdk-request", b"attempt=1"),
    ]
    signed = sign(
        UnsignedRequest(b"POST", b"/", b"", headers, body),
        Signer(key_id, secret, REGION),
        now_ms=time.time_ns() // 1_000_000,
    )
    lines = [b"POST / HTTP/1.1", *(name + b": " + value for name, value in signed)]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", b""]) + body


def measure_reference_us() -> float:
    """Return what a fixed piece of work costs now: other load on a shared machine changes all figures alike."""
    data = BODY.encode()
    started = time.process_time()
    for _ in range(500):
        hashlib.md5(data, usedforsecurity=False).hexdigest()
    return (time.process_time() - started) / 500 * 1e6


def measure_blocks_us(usage: UsageRecorder) -> float:
    """Return what making blocks of the records taken so far costs, each."""
    taken = usage.take()
    origin = BlockOrigin("bench", 1, REGION)
    started = time.process_time()
    for start in range(0, taken.count, ROWS_PER_BLOCK_MAX):
        rows = taken.columns(start, min(start + ROWS_PER_BLOCK_MAX, taken.count))
        encode_block(origin, BlockEnd(start), rows, low_watermark_us=taken.watermark_us)
    return (time.process_time() - started) / taken.count * 1e6


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def measure(requests: int, profile: bool, with_usage: bool) -> None:
    """Print the cost of each action."""
    settings = load_settings(environment={}, flags={"log_level": "error"})
    broker = InstantBroker()
    options = MetadataOptions(REGION, ACCOUNT)
    registry = QueueRegistry(MemoryCoordination(), options, now_ms=_now_ms)
    provider = EnvironmentKeyProvider(base64.b64encode(b"m" * 32).decode())
    metadata = MetadataService(registry, provider, options, now_ms=_now_ms)
    await metadata.start()
    registry.attach_journal(BrokerQueueJournal(broker))
    await metadata.queues.change(CreateQueue(ACCOUNT, "jobs", {}))
    front_end = make_front_end(
        settings,
        broker=spread_over(broker, tables_of(metadata.queues), metadata.queues),
        metadata=metadata,
        metrics=Metrics("0"),
        now_ms=_now_ms,
        connections_max=settings.http_connections_max,
    )
    server = HTTPServer(front_end.handle, HTTPLimits(), name="bench", admit=front_end.admit)
    server._loop = asyncio.get_running_loop()
    key = metadata.default_access_key
    assert key is not None
    gc.collect()
    gc.freeze()
    url = f"http://127.0.0.1:9324/{ACCOUNT}/jobs"
    send = {"QueueUrl": url, "MessageBody": BODY}
    entries = [{"Id": str(n), "MessageBody": BODY} for n in range(10)]
    handle = metadata.receipt_handles.mint(metadata.queue(ACCOUNT, "jobs").queue_id, 0, 1, 1, 1)
    handles = [{"Id": str(n), "ReceiptHandle": handle} for n in range(10)]
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("SendMessage", send, 1),
        ("SendMessageBatch", {"QueueUrl": url, "Entries": entries}, 10),
        ("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 1}, 1),
        ("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["All"]}, 10),
        ("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle}, 1),
        ("DeleteMessageBatch", {"QueueUrl": url, "Entries": handles}, 10),
    ]
    for action, fields, messages in cases:
        clients = [
            Client(server, render(action, fields, key.access_key_id, key.secret, n)) for n in range(PER_TURN)
        ]

        async def turn(clients: list[Client] = clients) -> None:
            for client in clients:
                client.ask()
            while not all(client.transport.written for client in clients):
                broker.answer()
                await asyncio.sleep(0)

        for _ in range(50):
            await turn()
        for client in clients:
            assert client.transport.written[0].startswith(b"HTTP/1.1 200"), client.transport.written
        profiler = cProfile.Profile() if profile else None
        rounds = max(1, requests // REQUESTS_PER_ROUND)
        turns = REQUESTS_PER_ROUND // PER_TURN
        best_us = reference_us = best_recorded_us = blocks_us = float("inf")
        usage = UsageRecorder(now_us=lambda: time.time_ns() // 1000)
        for number in range(rounds):
            is_recorded = with_usage and number % 2 == 1
            front_end.calls.usage = usage if is_recorded else None
            if profiler is not None:
                profiler.enable()
            started = time.process_time()
            for _ in range(turns):
                await turn()
            spent = time.process_time() - started
            if profiler is not None:
                profiler.disable()
            each_us = spent / (turns * PER_TURN) * 1e6
            if is_recorded:
                best_recorded_us = min(best_recorded_us, each_us)
            else:
                best_us = min(best_us, each_us)
            if usage.waiting >= ROWS_PER_BLOCK_MAX // 2:
                blocks_us = min(blocks_us, measure_blocks_us(usage))
            reference_us = min(reference_us, measure_reference_us())
        label = f"{action} ({messages})"
        print(
            f"{label:24} {best_us:7.1f} us a request {best_us / messages:7.1f} us a message"
            f"   (machine: {reference_us:.2f} us for one MD5 of 1 KiB)"
        )
        if with_usage:
            added_us = best_recorded_us - best_us + blocks_us
            print(
                f"{'':24} {added_us:7.1f} us added by its usage record, {added_us / best_us:.1%}: "
                f"{best_recorded_us - best_us:.2f} noting it, {blocks_us:.2f} making blocks"
            )
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
        for client in clients:
            client.leave()
    await metadata.close()


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=16_000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--usage", action="store_true")
    given = parser.parse_args()
    asyncio.run(measure(given.requests, given.profile, given.usage))


if __name__ == "__main__":
    main()
