"""How long clients wait when the process that leads a queue is killed.

    clients send, one message after another ──▶ kill -9 ──▶ all are acknowledged again ──▶ node back ──▶ next kill

Clients are connected to processes that live on: to the front end of our cell, to the other two nodes of the peers. A
client that is refused tries again after 10 ms. Two figures for each kill: the longest time that one client had to
wait between two acknowledgements, and the longest in which none of them had one.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import nats
import pika

from bench.cell_load import (
    QUEUE,
    nats_is_whole,
    nats_leader,
    rabbitmq_declare,
)
from bench.clusters import NATS, Cell, Cluster, RabbitMQ
from bench.requests import Endpoint, call

CLIENTS = 4
PAUSE_S = 0.01
BEFORE_S = 1.5
AFTER_S = 2.0
WATCH_S = 60.0
NATS_TIMEOUT_S = 1.0
BODY = "x" * 256


class Client(Protocol):
    """Somebody who sends. Any exception means that the message was not acknowledged."""

    def send(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Gap:
    """What clients saw of one kill, in seconds; `refusals` are sends that failed and were tried again."""

    victim: str
    client_s: float
    queue_s: float
    refusals: int


class _Sender(threading.Thread):
    """One client that sends until it is told to stop."""

    def __init__(self, connect: Callable[[], Client], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._connect = connect
        self._stop_asked = stop
        self.acknowledged_s: list[float] = []
        self.refusals = 0

    def run(self) -> None:
        client: Client | None = None
        while not self._stop_asked.is_set():
            try:
                if client is None:
                    client = self._connect()
                client.send()
                self.acknowledged_s.append(time.monotonic())
            except Exception:
                # Whatever a client library raises: the message was not acknowledged.
                self.refusals += 1
            time.sleep(PAUSE_S)
        if client is not None:
            client.close()


def watch_kill(
    cluster: Cluster, find_victim: Callable[[], str], connects: Sequence[Callable[[], Client]]
) -> Gap:
    """Kill the node that is named when the load is there; return what the clients saw. The node stays dead."""
    stop = threading.Event()
    senders = [_Sender(connect, stop) for connect in connects]
    for sender in senders:
        sender.start()
    cluster.wait_until(lambda: all(sender.acknowledged_s for sender in senders), "a first acknowledgement")
    time.sleep(BEFORE_S)
    victim = find_victim()
    refused_before = sum(sender.refusals for sender in senders)
    killed_s = time.monotonic()
    cluster.kill(victim)
    deadline_s = killed_s + WATCH_S
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
        if all(sender.acknowledged_s[-1] > killed_s + AFTER_S for sender in senders):
            break
    ended_s = time.monotonic()
    refusals = sum(sender.refusals for sender in senders) - refused_before
    stop.set()
    each = [list(sender.acknowledged_s) for sender in senders]
    together = sorted(moment for moments in each for moment in moments)
    gap = Gap(
        victim,
        max(longest_gap_s(moments, killed_s, ended_s) for moments in each),
        longest_gap_s(together, killed_s, ended_s),
        refusals,
    )
    for sender in senders:
        sender.join(WATCH_S)
    return gap


def longest_gap_s(moments: Sequence[float], from_s: float, until_s: float) -> float:
    """Return the longest time between two of the moments that reaches into the span; its end counts as a moment."""
    around = [*(moment for moment in moments if moment <= from_s)][-1:]
    around += [moment for moment in moments if from_s < moment < until_s]
    around.append(until_s)
    return max(later - earlier for earlier, later in itertools.pairwise(around))


def describe(gap: Gap) -> str:
    """Return one line about a kill."""
    return (
        f"  killed {gap.victim}: a client waited {gap.client_s:.2f} s, the queue {gap.queue_s:.2f} s, "
        f"{gap.refusals} refusals"
    )


def of_cell(cell: Cell, kills: int, tell: Callable[[str], None]) -> list[Gap]:
    """Kill the broker that leads, again and again; each comes back before the next is killed."""
    url = cell.create_queue("gaps")
    gaps: list[Gap] = []

    def leader() -> str:
        found = cell.leader()
        assert found is not None, "a queue that takes messages has a leader"
        return found

    for _ in range(kills):
        cell.wait_until(cell.is_whole, "the cell is whole")
        gaps.append(watch_kill(cell, leader, [lambda: _SQSClient(cell.endpoint, url)] * CLIENTS))
        tell(describe(gaps[-1]))
        cell.launch(gaps[-1].victim)
    return gaps


def of_rabbitmq(cluster: RabbitMQ, kills: int, tell: Callable[[str], None]) -> list[Gap]:
    """Kill a node that leads the queue: the queue is made anew there before each kill."""
    names = [name for name, node in cluster.nodes.items() if node.role == "node"]
    gaps = []
    for number in range(kills):
        victim = names[number % len(names)]
        cluster.wait_until(cluster.is_whole, "RabbitMQ is whole")
        rabbitmq_declare(cluster.port_of(victim))
        ports = [cluster.port_of(name) for name in names if name != victim]
        connects = [partial(_RabbitMQClient, ports[one % 2]) for one in range(CLIENTS)]
        gaps.append(watch_kill(cluster, partial(str, victim), connects))
        tell(describe(gaps[-1]))
        cluster.launch(victim)
    return gaps


def of_nats(cluster: NATS, kills: int, tell: Callable[[str], None]) -> list[Gap]:
    """Kill the node that leads the stream."""
    gaps = []
    for _ in range(kills):
        cluster.wait_until(lambda: nats_is_whole(cluster.urls), "NATS is whole")
        victim = nats_leader(cluster.urls)
        assert victim is not None, "the stream was whole"
        urls = [url for name, url in zip(cluster.nodes, cluster.urls, strict=True) if name != victim]
        connects = [partial(_NATSClient, urls[one % 2]) for one in range(CLIENTS)]
        gaps.append(watch_kill(cluster, partial(str, victim), connects))
        tell(describe(gaps[-1]))
        cluster.launch(victim)
    return gaps


class _SQSClient:
    def __init__(self, endpoint: Endpoint, queue_url: str) -> None:
        self._endpoint = endpoint
        self._fields = {"QueueUrl": queue_url, "MessageBody": BODY}

    def send(self) -> None:
        call(self._endpoint, "SendMessage", self._fields)

    def close(self) -> None:
        pass


class _RabbitMQClient:
    def __init__(self, port: int) -> None:
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def send(self) -> None:
        self._channel.basic_publish("", QUEUE, BODY.encode(), pika.BasicProperties(delivery_mode=2))

    def close(self) -> None:
        self._connection.close()


class _NATSClient:
    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(nats.connect(url))
        self._stream = self._client.jetstream(timeout=NATS_TIMEOUT_S)

    def send(self) -> None:
        self._loop.run_until_complete(self._stream.publish(QUEUE, BODY.encode()))

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()
