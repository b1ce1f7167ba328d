"""Loads on a cluster: publishers and consumers of one queue at once, in a process each, and what came of them.

    parent    start ─── lead ───┤ use? ─── seconds ───┤ use?
    children  connect, run ─────┤ counted ──────────────┤ end

All three clusters get the same shape of load from clients in Python; what they say is each protocol's own.
A latency is that of one request: a batch of ten, a single send, a publish and its confirm.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import nats
import nats.errors
import nats.js.api
import nats.js.errors
import pika
import pika.adapters.asyncio_connection
import uvloop

from bench import histogram
from bench.clusters import Cluster
from bench.load import NS_PER_S, Driver, Load
from bench.requests import Endpoint
from bench.servers import Unavailable
from bench.work import BATCH, Receive, Send

QUEUE = "bench"
PREFETCH = 200
NATS_FETCH = 100
FETCH_TIMEOUT_S = 1.0
READY_S = 2.0
"""From the start of the load's processes to that of the load, so that all are connected."""
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Span:
    """When a load runs and what of it counts, on the monotonic clock."""

    start_ns: int
    count_from_ns: int
    until_ns: int

    def counts(self, now_ns: int) -> bool:
        return self.count_from_ns <= now_ns < self.until_ns


@dataclass(slots=True)
class Count:
    """What one side did in the counted time: messages, and latencies of its requests."""

    messages: int = 0
    failures: int = 0
    failure: str = ""
    cpu_s: float = 0.0
    latencies: array[int] = field(default_factory=lambda: array("Q", bytes(8 * histogram.BUCKETS)))

    def note(self, since_ns: int, now_ns: int) -> None:
        self.latencies[histogram.bucket_of((now_ns - since_ns) // 1000)] += 1


Side = Callable[[Span], Count]
"""Publishers or consumers: runs in a process of its own and returns what counted."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A load and what the cluster used for it."""

    seconds: float
    sent: Count
    consumed: Count
    used_cpu_s: dict[str, float]
    device_bytes: int | None
    fsyncs: int | None


def measure(cluster: Cluster, sides: Sequence[Side], *, lead_s: float, seconds: float) -> Measured:
    """Run publishers and consumers (in this order) and return what came of them."""
    fork = multiprocessing.get_context("fork")
    start_ns = time.monotonic_ns() + int(READY_S * NS_PER_S)
    count_from_ns = start_ns + int(lead_s * NS_PER_S)
    span = Span(start_ns, count_from_ns, count_from_ns + int(seconds * NS_PER_S))
    children = []
    for side in sides:
        ours, theirs = fork.Pipe()
        child = fork.Process(target=_run_side, args=(side, span, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append((child, ours))
    _sleep_until(span.count_from_ns)
    before, device_before = cluster.used_cpu_s(), cluster.device_bytes()
    fsyncs = cluster.fsyncs() if cluster.traces is not None else 0
    _sleep_until(span.until_ns)
    used = {name: after - before[name] for name, after in cluster.used_cpu_s().items()}
    device_now = cluster.device_bytes()
    device_bytes = None if device_before is None or device_now is None else device_now - device_before
    traced = cluster.fsyncs() - fsyncs if cluster.traces is not None else None
    counts: list[Count] = []
    for _, ours in children:
        try:
            counts.append(ours.recv())
        except EOFError:
            raise RuntimeError("a side of the load ended without a result; its error is above") from None
    for child, _ in children:
        child.join()
    return Measured(seconds, counts[0], counts[1], used, device_bytes, traced)


def _run_side(side: Side, span: Span, pipe: Pipe) -> None:
    count = side(span)
    pipe.send(count)


def _sleep_until(moment_ns: int) -> None:
    time.sleep(max(0.0, (moment_ns - time.monotonic_ns()) / NS_PER_S))


class _CPUTime:
    """Counts this process's CPU time within the counted part."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._before_s: float | None = None

    def look(self, now_ns: int) -> None:
        if self._before_s is None and now_ns >= self._span.count_from_ns:
            self._before_s = time.process_time()

    def used_s(self) -> float:
        return 0.0 if self._before_s is None else time.process_time() - self._before_s


# SQS


def sqs_sender(endpoint: Endpoint, queue_url: str, *, connections: int, batch: int, body_bytes: int) -> Side:
    """Return the side that sends, each connection its next request when the last is answered."""

    def run(span: Span) -> Count:
        work = Send(endpoint, queue_url, body_bytes=body_bytes, batch=batch)
        return _sqs_count(endpoint, work, connections, span, "send")

    return run


def sqs_consumer(endpoint: Endpoint, queue_url: str, *, connections: int, batch: int) -> Side:
    """Return the side that receives with long polls and deletes what it got, up to ten at a time."""

    def run(span: Span) -> Count:
        extra = b',"WaitTimeSeconds":1'
        work = Receive(endpoint, queue_url, batch=batch, empty_max=ENDLESS, extra=extra)
        return _sqs_count(endpoint, work, connections, span, "delete")

    return run


def _sqs_count(endpoint: Endpoint, work: Send | Receive, connections: int, span: Span, kind: str) -> Count:
    lead_s = (span.count_from_ns - span.start_ns) / NS_PER_S
    seconds = (span.until_ns - span.count_from_ns) / NS_PER_S
    load = Load(endpoint, connections, seconds, lead_s)
    result = Driver(load, work, span.start_ns).run()
    tally = result.tallies[kind]
    return Count(
        tally.messages,
        result.failures,
        result.failure[:500],
        result.driver_share * result.seconds,
        tally.latencies,
    )


# RabbitMQ


def rabbitmq_declare(port: int) -> None:
    """Make the quorum queue anew: three members, led by the node that is asked."""
    with contextlib.closing(pika.BlockingConnection(_rabbitmq_parameters(port))) as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        arguments = {
            "x-queue-type": "quorum",
            "x-quorum-initial-group-size": 3,
            "x-queue-leader-locator": "client-local",
        }
        channel.queue_declare(QUEUE, durable=True, arguments=arguments)


def rabbitmq_publisher(ports: Sequence[int], *, connections: int, unconfirmed: int, body_bytes: int) -> Side:
    """Return the side that publishes persistent messages, so many unconfirmed on each connection."""

    def run(span: Span) -> Count:
        count = Count()
        properties = pika.BasicProperties(delivery_mode=2)
        body = b"x" * body_bytes

        def on_channel(channel: Any) -> None:
            waiting: deque[tuple[int, int]] = deque()
            number = 0

            def publish() -> None:
                nonlocal number
                now_ns = time.monotonic_ns()
                if now_ns >= span.until_ns:
                    return
                while len(waiting) < unconfirmed:
                    number += 1
                    waiting.append((number, now_ns))
                    channel.basic_publish("", QUEUE, body, properties)

            def on_confirm(frame: Any) -> None:
                method, now_ns = frame.method, time.monotonic_ns()
                confirmed = []
                if method.multiple:
                    while waiting and waiting[0][0] <= method.delivery_tag:
                        confirmed.append(waiting.popleft())
                else:
                    found = next(one for one in waiting if one[0] == method.delivery_tag)
                    waiting.remove(found)
                    confirmed.append(found)
                if span.counts(now_ns):
                    if isinstance(method, pika.spec.Basic.Ack):
                        count.messages += len(confirmed)
                        for _, since_ns in confirmed:
                            count.note(since_ns, now_ns)
                    else:
                        count.failures += len(confirmed)
                publish()

            channel.confirm_delivery(on_confirm)
            publish()

        return _run_pika(ports, connections, span, count, on_channel)

    return run


def rabbitmq_consumer(ports: Sequence[int], *, connections: int) -> Side:
    """Return the side that consumes, and acknowledges ten messages at once, the rest after a tenth of a second."""

    def run(span: Span) -> Count:
        count = Count()

        def on_channel(channel: Any) -> None:
            last_tag = acknowledged = 0

            def acknowledge() -> None:
                nonlocal acknowledged
                if last_tag > acknowledged and channel.is_open:
                    channel.basic_ack(last_tag, multiple=True)
                    if span.counts(time.monotonic_ns()):
                        count.messages += last_tag - acknowledged
                    acknowledged = last_tag

            def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
                nonlocal last_tag
                last_tag = method.delivery_tag
                if last_tag - acknowledged >= BATCH:
                    acknowledge()

            def now_and_then() -> None:
                acknowledge()
                asyncio.get_event_loop().call_later(0.1, now_and_then)

            channel.basic_qos(prefetch_count=PREFETCH)
            channel.basic_consume(QUEUE, on_message)
            now_and_then()

        return _run_pika(ports, connections, span, count, on_channel)

    return run


def _run_pika(
    ports: Sequence[int], connections: int, span: Span, count: Count, on_channel: Callable[[Any], None]
) -> Count:
    """Open connections to the nodes in turn, start on each when the load starts, and stop in time."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    cpu = _CPUTime(span)

    def on_failure(_: Any, error: BaseException) -> None:
        if time.monotonic_ns() < span.until_ns:
            count.failures += 1
            count.failure = count.failure or repr(error)[:500]

    channels: list[Any] = []
    # Held until the end: who forgets a connection closes it.
    opened = [
        pika.adapters.asyncio_connection.AsyncioConnection(
            _rabbitmq_parameters(ports[number % len(ports)]),
            on_open_callback=lambda one: one.channel(on_open_callback=channels.append),
            on_open_error_callback=on_failure,
            on_close_callback=on_failure,
            custom_ioloop=loop,
        )
        for number in range(connections)
    ]

    async def main() -> None:
        await asyncio.sleep(max(0.0, (span.start_ns - time.monotonic_ns()) / NS_PER_S))
        if len(channels) < len(opened):
            raise RuntimeError(f"only {len(channels)} of {connections} channels were open in time")
        for channel in channels:
            on_channel(channel)
        while (now_ns := time.monotonic_ns()) < span.until_ns:
            cpu.look(now_ns)
            await asyncio.sleep(min(0.05, (span.until_ns - now_ns) / NS_PER_S))
        count.cpu_s = cpu.used_s()

    loop.run_until_complete(main())
    return count


def _rabbitmq_parameters(port: int) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, heartbeat=60, blocked_connection_timeout=60)


# NATS


def nats_declare(urls: Sequence[str]) -> None:
    """Make the stream anew: three replicas, on disk; a message is gone when it is acknowledged."""

    async def declare() -> None:
        client = await nats.connect(list(urls))
        stream = client.jetstream(timeout=10)
        await _until_jetstream_answers(client)
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await stream.delete_stream(QUEUE)
        await stream.add_stream(
            name=QUEUE,
            subjects=[QUEUE],
            num_replicas=3,
            retention=nats.js.api.RetentionPolicy.WORK_QUEUE,
            storage=nats.js.api.StorageType.FILE,
        )
        configuration = nats.js.api.ConsumerConfig(
            durable_name=QUEUE, ack_policy=nats.js.api.AckPolicy.EXPLICIT, max_ack_pending=20_000
        )
        await stream.add_consumer(QUEUE, configuration)
        await client.close()

    asyncio.run(declare())


async def _until_jetstream_answers(client: Any) -> None:
    """Wait for the cluster's first election: until then requests of its API go unanswered."""
    stream = client.jetstream(timeout=1)
    for _ in range(60):
        with contextlib.suppress(nats.errors.Error, nats.js.errors.Error):
            await stream.streams_info()
            return
        await asyncio.sleep(0.2)
    raise Unavailable("JetStream did not answer in time")


def nats_leader(urls: Sequence[str]) -> str | None:
    """Return the node that leads the stream."""

    async def ask() -> str | None:
        client = await nats.connect(list(urls))
        try:
            found = await client.jetstream(timeout=2).stream_info(QUEUE)
            return found.cluster.leader if found.cluster else None
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
            return None
        finally:
            await client.close()

    return asyncio.run(ask())


def nats_is_whole(urls: Sequence[str]) -> bool:
    """Whether all replicas of the stream are current."""

    async def ask() -> bool:
        client = await nats.connect(list(urls))
        try:
            cluster = (await client.jetstream(timeout=2).stream_info(QUEUE)).cluster
            replicas = (cluster.replicas or []) if cluster else []
            return len(replicas) == 2 and all(one.current and not one.offline for one in replicas)
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
            return False
        finally:
            await client.close()

    return asyncio.run(ask())


def nats_publisher(urls: Sequence[str], *, connections: int, unconfirmed: int, body_bytes: int) -> Side:
    """Return the side that publishes, so many unacknowledged on each connection."""

    def run(span: Span) -> Count:
        count = Count()
        body = b"x" * body_bytes

        async def one(number: int) -> None:
            client = await nats.connect(_turned(urls, number))
            stream = client.jetstream(timeout=30, publish_async_max_pending=unconfirmed + 1)
            free = asyncio.Semaphore(unconfirmed)
            await _until(span.start_ns)

            def on_done(since_ns: int, future: asyncio.Future[Any]) -> None:
                now_ns = time.monotonic_ns()
                free.release()
                if not span.counts(now_ns):
                    return
                if future.cancelled() or future.exception() is not None:
                    count.failures += 1
                    count.failure = count.failure or repr(future)[:500]
                else:
                    count.messages += 1
                    count.note(since_ns, now_ns)

            while time.monotonic_ns() < span.until_ns:
                await free.acquire()
                now_ns = time.monotonic_ns()
                future = await stream.publish_async(QUEUE, body)
                future.add_done_callback(partial(on_done, now_ns))

        return _run_nats(one, connections, span, count)

    return run


def nats_consumer(urls: Sequence[str], *, connections: int) -> Side:
    """Return the side that fetches messages by the hundred and acknowledges each."""

    def run(span: Span) -> Count:
        count = Count()

        async def one(number: int) -> None:
            client = await nats.connect(_turned(urls, number))
            stream = client.jetstream(timeout=10)
            subscription = await stream.pull_subscribe_bind(durable=QUEUE, stream=QUEUE)
            await _until(span.start_ns)
            while time.monotonic_ns() < span.until_ns:
                try:
                    messages = await subscription.fetch(NATS_FETCH, timeout=FETCH_TIMEOUT_S)
                except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
                    continue
                for message in messages:
                    await message.ack()
                if span.counts(time.monotonic_ns()):
                    count.messages += len(messages)

        return _run_nats(one, connections, span, count)

    return run


def _run_nats(
    one: Callable[[int], Any],
    connections: int,
    span: Span,
    count: Count,
) -> Count:
    cpu = _CPUTime(span)

    async def main() -> None:
        tasks = [asyncio.create_task(one(number)) for number in range(connections)]
        while (now_ns := time.monotonic_ns()) < span.until_ns:
            cpu.look(now_ns)
            await asyncio.sleep(min(0.05, (span.until_ns - now_ns) / NS_PER_S))
            for task in tasks:
                if task.done() and task.exception() is not None:
                    raise RuntimeError("a client of NATS ended early") from task.exception()
        count.cpu_s = cpu.used_s()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    uvloop.run(main())
    return count


async def _until(moment_ns: int) -> None:
    await asyncio.sleep(max(0.0, (moment_ns - time.monotonic_ns()) / NS_PER_S))


def _turned(urls: Sequence[str], number: int) -> list[str]:
    """Return the nodes with another one first for each client."""
    first = number % len(urls)
    return [*urls[first:], *urls[:first]]
