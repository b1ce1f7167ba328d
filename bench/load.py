"""The load generator: connections that call an SQS server, from one or more processes, and what came of it.

Closed loop: each connection sends its next request when the last one is answered. It finds the most that a server
can do.

Open loop: requests are due at times drawn beforehand (a Poisson process of a given rate), and wait when no connection
is free. Latency counts from the time a request was due, so that a server which stops for a while is charged with
every request that would have come meanwhile, not only with those that were on their way.

A driver is one process with one thread that polls its sockets; a Python object per request is all it makes. How much
of its core it used is in the result: near 1 the figures are the driver's limit, not the server's.
"""

from __future__ import annotations

import multiprocessing
import random
import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Protocol

from bench import histogram, processes
from bench.requests import Endpoint, Replies

RECEIVE_BYTES = 1 << 18
STALL_S = 30.0
"""A driver gives up when nothing at all was answered for so long."""
NS_PER_S = 1_000_000_000


class Work(Protocol):
    """What a driver's connections ask for. `connection` is 0, 1, ...: calls may follow from the last reply."""

    kinds: tuple[str, ...]

    def next(self, connection: int) -> tuple[int, bytes] | None:
        """Return the next request and its kind (an index of `kinds`); None when this connection is done."""

    def done(self, connection: int, kind: int, reply: bytes) -> int:
        """Take the reply (status 200) and return how many messages it was about."""


MakeWork = Callable[[int, int], Work]
"""Makes the work of one process: (which process, how many processes)."""

Note = Callable[[int, int, int], object]
"""Hears of each request that ended: when it was due and answered (monotonic ns), and of how many messages it was.
0 messages: it failed."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a server is driven. `rate` (requests a second) makes it an open loop; `requests_max` ends it early.

    What happens in the first `lead_s` is not counted. With `naps` an open loop sleeps where it would poll again and
    again until the next request is due: others have the processor, and latencies are up to a millisecond longer.
    """

    endpoint: Endpoint
    connections: int
    seconds: float
    lead_s: float = 0.0
    rate: float | None = None
    requests_max: int | None = None
    drivers: int = 1
    naps: bool = False


@dataclass(slots=True)
class Tally:
    """What came of one kind of request."""

    requests: int = 0
    messages: int = 0
    latencies: array[int] = field(default_factory=lambda: array("Q", bytes(8 * histogram.BUCKETS)))

    def add(self, other: Tally) -> None:
        self.requests += other.requests
        self.messages += other.messages
        for bucket, count in enumerate(other.latencies):
            if count:
                self.latencies[bucket] += count


@dataclass(slots=True)
class Result:
    """What came of a load. `driver_share` is how much of their cores the drivers used, 0-1.

    `failures` counts answers other than 200 and broken connections, `failure` is the first of them; `late` are
    requests of an open loop that were due and never sent.
    """

    seconds: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)
    failures: int = 0
    failure: str = ""
    late: int = 0
    server_cpu_s: float = 0.0
    server_bytes_peak: int = 0
    driver_share: float = 0.0

    @property
    def requests(self) -> int:
        return sum(tally.requests for tally in self.tallies.values())

    def messages(self, kind: str) -> int:
        return self.tallies[kind].messages


class _Connection:
    __slots__ = ("is_waiting", "kind", "number", "replies", "since_ns", "sock", "unsent")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sock: socket.socket
        self.replies = Replies()
        self.unsent = b""
        self.is_waiting = False
        self.kind = 0
        self.since_ns = 0


class Driver:
    """The load of one process."""

    def __init__(self, load: Load, work: Work, start_ns: int, note: Note | None = None) -> None:
        self._load = load
        self._work = work
        self._note = note
        self._count_from_ns = start_ns + int(load.lead_s * NS_PER_S)
        self._until_ns = self._count_from_ns + int(load.seconds * NS_PER_S)
        self._start_ns = start_ns
        self._left = -1 if load.requests_max is None else load.requests_max
        """Counted by the thread that runs, and by no other."""
        self._is_stopped = False
        self._poll = select.epoll()
        self._by_fd: dict[int, _Connection] = {}
        self._open = 0
        self._idle: deque[_Connection] = deque()
        self._tallies = [Tally() for _ in work.kinds]
        self._failures = 0
        self._failure = ""
        self._late = 0

    def run(self) -> Result:
        """Make the load and return what came of it."""
        for number in range(self._load.connections):
            self._connect(_Connection(number))
        time.sleep(max(0.0, (self._start_ns - time.monotonic_ns()) / NS_PER_S))
        if self._load.rate is None:
            ended_ns, busy_s = self._run_closed()
        else:
            ended_ns, busy_s = self._run_open(self._load.rate)
        for connection in self._by_fd.values():
            connection.sock.close()
        self._poll.close()
        seconds = max(1, ended_ns - self._count_from_ns) / NS_PER_S
        return Result(
            seconds=seconds,
            tallies=dict(zip(self._work.kinds, self._tallies, strict=True)),
            failures=self._failures,
            failure=self._failure,
            late=self._late,
            driver_share=min(1.0, busy_s / seconds),
        )

    def stop(self) -> None:
        """Send nothing more. The run ends when all that was sent is answered. May be called from another thread."""
        self._is_stopped = True

    def _run_closed(self) -> tuple[int, float]:
        """Return when it ended, and the CPU seconds of the counted part."""
        clock = time.monotonic_ns
        for connection in list(self._by_fd.values()):
            self._send(connection, self._ask(connection), clock())
        cpu_before_s = None
        now_ns = last_ns = clock()
        while self._open and now_ns < self._until_ns:
            if self._is_stopped:
                self._left = 0
            if cpu_before_s is None and now_ns >= self._count_from_ns:
                cpu_before_s = time.process_time()
            wait_s = (self._until_ns - now_ns) / NS_PER_S
            events = self._poll.poll(min(wait_s, 0.1))
            # All replies first, then all requests: a server that is woken for each request alone pays for the
            # waking, and what a figure shows would be how quick this driver is.
            taken = [self._take(fd, event) for fd, event in events]
            asked = [(connection, self._ask(connection)) for connection in taken if connection is not None]
            for connection, request in asked:
                self._send(connection, request, clock())
            now_ns = clock()
            if events:
                last_ns = now_ns
            elif now_ns - last_ns > STALL_S * NS_PER_S:
                self._fail(f"nothing was answered for {STALL_S:g} s")
                break
        return now_ns, time.process_time() - (cpu_before_s or 0.0)

    def _run_open(self, rate: float) -> tuple[int, float]:
        clock = time.monotonic_ns
        dice = random.Random(7)
        self._idle.extend(self._by_fd.values())
        due_ns = float(self._start_ns)
        cpu_before_s = 0.0
        counting = False
        now_ns = last_ns = clock()
        while now_ns < self._until_ns and (self._left or self._open):
            if self._is_stopped:
                self._left = 0
            if not counting and now_ns >= self._count_from_ns:
                counting, cpu_before_s = True, time.process_time()
            while due_ns <= now_ns and self._idle and self._left:
                connection = self._idle.popleft()
                self._send(connection, self._ask(connection), int(due_ns))
                due_ns += dice.expovariate(rate) * NS_PER_S
            if now_ns - last_ns > STALL_S * NS_PER_S:
                self._fail_unanswered(now_ns)
                break
            # The poll sleeps whole milliseconds only; what is due sooner is waited for by polling again and again.
            sleep_ms = (min(due_ns, self._until_ns) - now_ns) // 1_000_000 if self._idle else 1
            for fd, event in self._poll.poll(max(1 if self._load.naps else 0, sleep_ms) / 1000):
                last_ns = now_ns
                free = self._take(fd, event)
                if free is not None:
                    self._idle.append(free)
            now_ns = clock()
            if len(self._idle) == len(self._by_fd):
                last_ns = now_ns
        while due_ns < now_ns and self._left:
            self._late += 1
            due_ns += dice.expovariate(rate) * NS_PER_S
        return now_ns, time.process_time() - cpu_before_s

    def _fail_unanswered(self, now_ns: int) -> None:
        """Give up all requests that an open loop has under way."""
        unanswered = [connection for connection in self._by_fd.values() if connection.is_waiting]
        self._fail(f"nothing was answered for {STALL_S:g} s; {len(unanswered)} requests wait")
        if self._note is not None:
            for connection in unanswered:
                self._note(connection.since_ns, now_ns, 0)

    def _connect(self, connection: _Connection) -> None:
        endpoint = self._load.endpoint
        connection.sock = socket.create_connection((endpoint.host, endpoint.port), STALL_S)
        connection.sock.setblocking(False)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.replies = Replies()
        connection.unsent = b""
        self._by_fd[connection.sock.fileno()] = connection
        self._poll.register(connection.sock, select.EPOLLIN)

    def _reconnect(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        self._poll.unregister(fd)
        del self._by_fd[fd]
        connection.sock.close()
        self._connect(connection)

    def _ask(self, connection: _Connection) -> bytes:
        """Return the connection's next request; empty when there is none."""
        asked = self._work.next(connection.number) if self._left else None
        if asked is None:
            return b""
        self._left -= 1
        self._open += 1
        connection.kind, request = asked
        return request

    def _send(self, connection: _Connection, request: bytes, since_ns: int) -> None:
        if not request:
            return
        connection.since_ns = since_ns
        connection.is_waiting = True
        try:
            sent = connection.sock.send(request)
        except BlockingIOError:
            sent = 0
        except OSError:
            # Closed while it was idle: the poll says so next, and the request counts as failed.
            return
        if sent < len(request):
            connection.unsent = request[sent:]
            self._poll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)

    def _take(self, fd: int, event: int) -> _Connection | None:
        """Read what came; return the connection when it is free for its next request."""
        connection = self._by_fd[fd]
        try:
            if event & select.EPOLLOUT:
                self._send_rest(connection)
            if not event & ~select.EPOLLOUT:
                return None
            data = connection.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._broken(connection)
        reply = connection.replies.feed(data)
        if reply is None:
            return None
        now_ns = time.monotonic_ns()
        self._open -= 1
        connection.is_waiting = False
        messages = 0
        if reply[9:12] != b"200":
            self._fail(f"{self._work.kinds[connection.kind]}: {reply[:1500].decode(errors='replace')}")
        else:
            messages = self._work.done(connection.number, connection.kind, reply)
            if now_ns >= self._count_from_ns:
                tally = self._tallies[connection.kind]
                tally.requests += 1
                tally.messages += messages
                tally.latencies[histogram.bucket_of((now_ns - connection.since_ns) // 1000)] += 1
        if self._note is not None:
            self._note(connection.since_ns, now_ns, messages)
        if b"onnection: close" in reply[:1000]:
            self._reconnect(connection)
        return connection

    def _send_rest(self, connection: _Connection) -> None:
        sent = connection.sock.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            self._poll.modify(connection.sock, select.EPOLLIN)

    def _broken(self, connection: _Connection) -> _Connection | None:
        if not connection.is_waiting:  # the server may close what is idle
            self._reconnect(connection)
            return None
        self._fail("the server broke off")
        connection.is_waiting = False
        if self._note is not None:
            self._note(connection.since_ns, time.monotonic_ns(), 0)
        self._open -= 1
        self._reconnect(connection)
        return connection

    def _fail(self, failure: str) -> None:
        self._failures += 1
        self._failure = self._failure or failure


def run(load: Load, make_work: MakeWork, server_pid: int | None = None) -> Result:
    """Make the load from `load.drivers` processes on the core kept for load; return what came of it.

    With `server_pid`, the CPU time that process and its descendants used in the counted part is in the result, and
    their largest memory until now.
    """
    fork = multiprocessing.get_context("fork")
    start_ns = time.monotonic_ns() + 100_000_000
    children = []
    for number in range(load.drivers):
        ours, theirs = fork.Pipe()
        share = _share_of(load, number)
        child = fork.Process(
            target=_drive, args=(share, make_work, number, load.drivers, start_ns, theirs), daemon=True
        )
        child.start()
        theirs.close()
        children.append((child, ours))
    time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / NS_PER_S + load.lead_s))
    before_s = processes.cpu_s(server_pid) if server_pid else 0.0
    results: list[Result] = []
    for _, ours in children:
        try:
            results.append(ours.recv())
        except EOFError:
            raise RuntimeError("a driver of the load ended without a result; its error is above") from None
        if len(results) == len(children):
            after_s = processes.cpu_s(server_pid) if server_pid else 0.0
    for child, _ in children:
        child.join()
    total = _sum(results)
    total.server_cpu_s = after_s - before_s
    total.server_bytes_peak = processes.memory_bytes(server_pid) if server_pid else 0
    return total


def _drive(share: Load, make_work: MakeWork, number: int, drivers: int, start_ns: int, pipe: Pipe) -> None:
    processes.pin(processes.LOAD_CORE)
    pipe.send(Driver(share, make_work(number, drivers), start_ns).run())


def _share_of(load: Load, number: int) -> Load:
    def part(whole: int) -> int:
        return whole // load.drivers + (number < whole % load.drivers)

    return Load(
        endpoint=load.endpoint,
        connections=max(1, part(load.connections)),
        seconds=load.seconds,
        lead_s=load.lead_s,
        rate=None if load.rate is None else load.rate / load.drivers,
        requests_max=None if load.requests_max is None else part(load.requests_max),
        naps=load.naps,
    )


def _sum(results: list[Result]) -> Result:
    total = Result(
        seconds=max(result.seconds for result in results),
        driver_share=max(result.driver_share for result in results),
    )
    for result in results:
        total.failures += result.failures
        total.failure = total.failure or result.failure
        total.late += result.late
        for kind, tally in result.tallies.items():
            total.tallies.setdefault(kind, Tally()).add(tally)
    return total
