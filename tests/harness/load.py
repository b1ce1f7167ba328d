"""Clients that do everything SQS allows at once, write down what came of it, and outlive the server.

    Load(endpoint, history) ──start──▶ worker threads ──pause/resume around a kill──▶ ... ──drain──▶ all empty

Requests are signed and parsed by hand on plain sockets, so that a worker costs little beside the server on the
same machine. Every message's body says its token, a checksum and a text that follows from both.
"""

from __future__ import annotations

import select
import socket
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

import msgspec

from harness.history import (
    FAIL,
    OK,
    UNKNOWN,
    ChangeVisibility,
    Count,
    CreateQueue,
    Delete,
    DeleteQueue,
    DeliveredMessage,
    Event,
    HandledMessage,
    History,
    MoveTask,
    Outcome,
    Purge,
    QueueFacts,
    Receive,
    Send,
    SentMessage,
    SetQueue,
)
from harness.process import Environment
from quaymaster.protocol.actions.sqs_json import TARGET_PREFIXES
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

from .waiting import PATIENCE_S, eventually

TIMEOUT_S = 30.0
REDRIVE = "RedrivePolicy"
RETRY_FOR_NS = 60_000_000_000
"""A send is tried again for this long: well within the two minutes in which it is remembered."""
RETRY_PAUSE_S = 0.05
TEXT = bytes(33 + number * 7919 % 90 for number in range(65_521)).decode()
"""Bodies are pieces of this text."""
BODY_BYTES_MAX = 200_000
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)

Address = tuple[str, int]

_encode = msgspec.json.encode
_decode = msgspec.json.decode


class Answer(NamedTuple):
    """What came of one request. `status` is 0 when no answer came; `is_broken` when the connection ended."""

    status: int
    fields: dict[str, Any]
    is_broken: bool = False
    was_sent: bool = True
    attempts: int = 1
    """How often the client tried by itself."""

    @property
    def outcome(self) -> Outcome:
        """What is known of the operation. Nothing was done by a request that never reached the server."""
        if self.status == 200:
            return OK
        return FAIL if 400 <= self.status < 500 or not self.was_sent else UNKNOWN

    @property
    def is_open_ended(self) -> bool:
        """Whether the server, still there, may carry it out yet."""
        return self.outcome == UNKNOWN and not self.is_broken

    @property
    def message(self) -> str:
        """What an error says."""
        return str(self.fields.get("message") or self.fields.get("Message") or "")


class Client(Protocol):
    """What a worker makes its calls with."""

    def call(
        self, action: str, fields: Mapping[str, Any], *, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> Answer:
        """Make one call; never raises for what the server or the network does."""
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


class SQSConnection:
    """One keep-alive connection that makes one signed JSON call at a time.

    Of several addresses it uses one until that fails, then the next: as SDKs do behind a name with several addresses.
    """

    def __init__(
        self, environment: Environment, addresses: int | Sequence[Address], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`addresses`: a port of the loopback, or several (host, port)."""
        self._environment = environment
        self._addresses = [("127.0.0.1", addresses)] if isinstance(addresses, int) else list(addresses)
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._rest = b""
        self.clock_offset_ms = 0
        """Added to the time in signatures: for a server whose clock is wrong on purpose."""
        self.clock_offsets_ms: Mapping[Address, int] = {}
        """The same by address, for clients that have the clock of the server that they call; it may change."""
        self.token: str | None = None
        """Of a session."""

    def __del__(self) -> None:
        # A test that failed leaves its connections. The end of them must not fail another test.
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._rest = b""

    def call(
        self, action: str, fields: Mapping[str, Any], *, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> Answer:
        """Make one call; never raises for what the server or the network does."""
        body = _encode(fields)
        environment = self._environment
        unsigned = [
            (b"host", b"%b:%d" % (self._addresses[0][0].encode(), self._addresses[0][1])),
            (b"content-type", b"application/x-amz-json-1.0"),
            (b"x-amz-target", TARGET_PREFIXES[ACTIONS[action].service] + action.encode()),
        ]
        signed = sign(
            UnsignedRequest(b"POST", b"/", b"", unsigned, body),
            Signer(environment.access_key_id, environment.secret_access_key, environment.region, self.token),
            now_ms=time.time_ns() // 1_000_000
            + self.clock_offset_ms
            + self.clock_offsets_ms.get(self._addresses[0], 0),
        )
        lines = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in (*signed, *headers))]
        lines.append(b"content-length: %d" % len(body))
        request = b"\r\n".join((*lines, b"", body))
        try:
            connected = self._connect()
        except OSError:
            self._turn_away()
            return Answer(0, {}, is_broken=True, was_sent=False)
        try:
            connected.sendall(request)
            status, content = self._read(connected)
        except TimeoutError:
            self._turn_away()
            return Answer(0, {})
        except (OSError, EOFError):
            self._turn_away()
            return Answer(0, {}, is_broken=True)
        if content and not content.startswith(b"{"):  # what the HTTP server says by itself is text
            return Answer(status, {"message": content.decode()})
        return Answer(status, _decode(content) if content else {})

    def call_until_answered(self, action: str, fields: Mapping[str, Any]) -> Answer:
        """Make a call that must succeed; it is made again while nobody answers, or 5xx, as every client does."""
        deadline = time.monotonic() + RETRY_FOR_NS / 1e9
        while True:
            answer = self.call(action, fields)
            if answer.status == 200:
                return answer
            is_over = time.monotonic() > deadline or 400 <= answer.status < 500
            assert not is_over, (action, fields, answer)
            time.sleep(RETRY_PAUSE_S)

    def turn(self, steps: int) -> None:
        """Let another address be the first to be used: so do clients of one service spread over its servers."""
        steps %= len(self._addresses)
        self._addresses = self._addresses[steps:] + self._addresses[:steps]

    def _turn_away(self) -> None:
        self.close()
        self.turn(1)

    def _connect(self) -> socket.socket:
        if self._socket is not None and _has_ended(self._socket):
            self.close()  # as the pools of SDKs do: a server may close what was idle for long
        if self._socket is None:
            self._socket = socket.create_connection(self._addresses[0], self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _read(self, connected: socket.socket) -> tuple[int, bytes]:
        data = self._rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive(connected)
        head = data[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        pieces, have = [data[end + 4 :]], len(data) - end - 4
        while have < length:
            piece = self._receive(connected)
            pieces.append(piece)
            have += len(piece)
        content = b"".join(pieces)
        self._rest = content[length:]
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), content[:length]

    @staticmethod
    def _receive(connected: socket.socket) -> bytes:
        piece = connected.recv(262_144)
        if not piece:
            raise EOFError
        return piece


def _has_ended(connected: socket.socket) -> bool:
    """Tell whether the other side closed a connection that owes no answer: then there is something to read."""
    ready = select.poll()
    ready.register(connected, select.POLLIN)
    return bool(ready.poll(0))


def render_body(token: int, text_bytes: int) -> str:
    """Return a body that says its token and can be checked by itself."""
    at = token * 31 % len(TEXT)
    text = TEXT[at : at + text_bytes]
    if len(text) < text_bytes:
        text = (text + TEXT * (text_bytes // len(TEXT) + 1))[:text_bytes]
    return f"{token}:{zlib.crc32(f'{token}:{text}'.encode()):08x}:{text}"


def parse_body(body: str) -> tuple[int | None, bool]:
    """Return the token a body says, None when it says none, and whether the body is as it was sent."""
    token, _, rest = body.partition(":")
    crc, _, text = rest.partition(":")
    if not token.isdigit():
        return None, False
    return int(token), crc == f"{zlib.crc32(f'{token}:{text}'.encode()):08x}"


class LoadQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of the load and how it is used. Weights say how often a worker picks each operation there."""

    facts: QueueFacts
    attributes: dict[str, str]
    weight: int = 10
    send: int = 5
    receive: int = 5
    purge: int = 0
    remake: int = 0
    """Delete the queue and make it again."""
    move: int = 0
    """Start a message move task from it."""
    set: int = 0
    visibility_s: tuple[int, int] = (2, 5)
    groups: int = 0
    delays_s: tuple[int, ...] = ()
    repeats: float = 0.0
    """Share of FIFO sends that use a deduplication id once more."""
    is_content_deduplicated: bool = False
    leave: float = 0.1
    """Share of received messages that are neither deleted nor changed: they come back by themselves."""
    hand_back: float = 0.1
    """Share whose visibility is changed, mostly to 0."""


def _queue(
    name: str,
    attributes: Mapping[str, object] | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
    **use: Any,
) -> LoadQueue:
    is_fifo = name.endswith(".fifo")
    given = {key: str(value) for key, value in (attributes or {}).items()}
    if is_fifo:
        given["FifoQueue"] = "true"
    known = {"family": name, "is_fifo": is_fifo, **(facts or {})}
    return LoadQueue(facts=QueueFacts(name, **known), attributes=given, **use)


def kept_queues() -> list[LoadQueue]:
    """Return queues whose messages are to lie there for long: one of each type."""
    return [_queue("kept"), _queue("kept.fifo", groups=100)]


def mixed_queues(arn_prefix: str) -> list[LoadQueue]:
    """Return queues of all kinds; `arn_prefix` is `arn:aws:sqs:<region>:<account>:`."""

    def policy(target: str, count: int) -> dict[str, str]:
        fields = {"deadLetterTargetArn": arn_prefix + target, "maxReceiveCount": count}
        return {REDRIVE: _encode(fields).decode()}

    dead_facts = {"family": "work"}
    row_facts = {"family": "source.fifo"}
    return [
        _queue("plain-1"),
        _queue("plain-2", set=1),
        _queue("written", {"Durability": "Async"}),
        _queue("memory", {"Durability": "Memory"}, facts={"survives_kill": False}, weight=4),
        _queue("deep", weight=12, send=10, receive=1),
        _queue("deep.fifo", weight=6, send=10, receive=1, groups=400),
        _queue("row.fifo", {"DelaySeconds": 0}, groups=12, repeats=0.2, set=1),
        _queue(
            "content.fifo",
            {"ContentBasedDeduplication": "true"},
            groups=6,
            is_content_deduplicated=True,
            weight=6,
        ),
        _queue(
            "grouped.fifo",
            {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"},
            facts={"dedup_by_group": True},
            groups=8,
            repeats=0.3,
            weight=6,
        ),
        _queue("timed", delays_s=(0, 1, 2, 3), weight=6),
        _queue("later", {"DelaySeconds": 1}, facts={"delay_ms": 1000}, weight=5),
        _queue("short", {"MessageRetentionPeriod": 60}, facts={"retention_ms": 60_000}, weight=4, receive=2),
        _queue("emptied", purge=1, weight=6),
        _queue("remade-1", remake=1, set=2, weight=5),
        _queue("remade-2", remake=1, weight=4, groups=0),
        _queue("dead", facts=dead_facts, send=0, move=1, weight=6),
        _queue(
            "work",
            policy("dead", 2),
            facts={**dead_facts, "max_receive_count": 2, "is_move_target": True},
            hand_back=0.5,
            weight=8,
        ),
        _queue("dead.fifo", facts=row_facts, send=0, move=1, groups=8, weight=5),
        _queue(
            "source.fifo",
            policy("dead.fifo", 2),
            facts={**row_facts, "max_receive_count": 2, "is_move_target": True},
            groups=8,
            hand_back=0.5,
            weight=6,
        ),
    ]


class Figures(msgspec.Struct):
    """What the workers did, for people."""

    calls: int = 0
    acknowledged: int = 0
    """Messages; at least so many, for workers count at the same time."""
    broken: int = 0
    unavailable: int = 0
    refused: defaultdict[str, int] = msgspec.field(default_factory=lambda: defaultdict(int))


class Load:
    """Worker threads against one server that may come and go."""

    def __init__(
        self,
        environment: Environment,
        addresses: int | Sequence[Address],
        *,
        queues: Iterable[LoadQueue] | None = None,
        workers: int = 6,
        seed: int = 1,
        pause_s: float = 0.004,
        text_bytes: tuple[int, ...] = (20, 60, 100, 300, 1000, 5000),
        large_share: float = 0.003,
        run: int = 0,
        timeout_s: float = TIMEOUT_S,
        clients: Sequence[Client] = (),
        clock_offsets_ms: Mapping[Address, int] | None = None,
    ) -> None:
        """Prepare a load; nothing is sent before `create_queues`.

        `addresses` are those of the server's front ends, or a port of the loopback. Each of `clients` is used by a
        worker of its own, beside `workers` who speak to the server by hand.
        Loads that follow each other on one server have different numbers as `run`: so no token and no
        deduplication id of one is used again by another.
        `pause_s` is how long a worker rests between operations, so that the machine has room for others.
        `clock_offsets_ms` are of servers whose clocks are wrong. Every other worker has the clock of the one it calls;
        the requests of the others are refused there.
        `text_bytes` are the sizes of bodies, `large_share` the share of messages of BODY_BYTES_MAX.
        """
        self.environment = environment
        self.addresses = addresses
        self.timeout_s = timeout_s
        self.clock_offsets_ms = {} if clock_offsets_ms is None else clock_offsets_ms
        prefix = f"arn:aws:sqs:{environment.region}:{environment.account_id}:"
        self.queues = list(mixed_queues(prefix) if queues is None else queues)
        self.history = History(queue.facts for queue in self.queues)
        self.figures = Figures()
        self.errors: list[BaseException] = []
        self.arn_prefix = prefix
        self.pause_s = pause_s
        self.text_bytes = text_bytes
        self.large_share = large_share
        self.run = run
        self._may_go = threading.Event()
        self._ending = threading.Event()
        self._lane = self.history.lane()
        self._round = 0
        self._workers = [_Worker(self, number, Random(seed * 1000 + number)) for number in range(workers)]
        self._workers += [
            _Worker(self, number, Random(seed * 1000 + number), client)
            for number, client in enumerate(clients, workers)
        ]
        self._threads: list[threading.Thread] = []

    def create_queues(self) -> None:
        """Make every queue; raises AssertionError when the server refuses one.

        Redrive policies are set afterwards: so a cell does not place queues that belong together in one journal.
        """
        connection = self.connection()
        try:
            for queue in self.queues:
                attributes = {name: queue.attributes[name] for name in queue.attributes if name != REDRIVE}
                connection.call_until_answered(
                    "CreateQueue", {"QueueName": queue.facts.name, "Attributes": attributes}
                )
            for queue in self.queues:
                if REDRIVE in queue.attributes:
                    connection.call_until_answered(
                        "SetQueueAttributes",
                        {
                            "QueueUrl": self.queue_url(queue.facts.name),
                            "Attributes": {REDRIVE: queue.attributes[REDRIVE]},
                        },
                    )
        finally:
            connection.close()

    def start(self) -> None:
        """Start the workers."""
        self._may_go.set()
        for worker in self._workers:
            thread = threading.Thread(
                target=self._run, args=(worker,), name=f"load-{worker.number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def pause(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when no worker has an operation under way; sends that are being tried again wait, too."""
        self._may_go.clear()
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            while not worker.is_resting and not self.errors:
                assert time.monotonic() < deadline, (
                    f"worker {worker.number} did not come to rest in {timeout_s} s"
                )
                time.sleep(0.005)
        self.raise_errors()

    def work_until(self, acknowledged: int) -> None:
        """Return when the server has acknowledged so many messages of the workers since the start."""
        eventually(
            lambda: self.errors or self.figures.acknowledged >= acknowledged, f"{acknowledged} messages"
        )
        self.raise_errors()

    def resume(self) -> None:
        """Let the workers go on."""
        self._may_go.set()

    def stop(self) -> None:
        """End the workers."""
        self._ending.set()
        self._may_go.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} did not end"
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raise what ended a worker, if anything did: a bug of the load."""
        if self.errors:
            raise self.errors[0]

    def connection(self, *, timeout_s: float | None = None) -> SQSConnection:
        """Return a connection of the caller's own."""
        return SQSConnection(self.environment, self.addresses, timeout_s=timeout_s or self.timeout_s)

    def queue_url(self, name: str) -> str:
        """Return the URL of a queue of the default account."""
        return f"{self.environment.endpoint_url}/{self.environment.account_id}/{name}"

    def note_counts(self) -> dict[str, tuple[int, int, int]]:
        """Record the counts of every queue there is; call it while the load is paused."""
        self._round += 1
        connection = self.connection()
        found: dict[str, tuple[int, int, int]] = {}
        try:
            for queue in self.queues:
                name = queue.facts.name
                invoked_ns = time.monotonic_ns()
                answer = connection.call(
                    "GetQueueAttributes", {"QueueUrl": self.queue_url(name), "AttributeNames": list(COUNTS)}
                )
                completed_ns = time.monotonic_ns()
                if answer.status == 400 and "exist" in answer.message:
                    continue
                assert answer.status == 200, (name, answer)
                visible, in_flight, delayed = (int(answer.fields["Attributes"][key]) for key in COUNTS)
                found[name] = (visible, in_flight, delayed)
                self._lane.append(
                    Count(
                        queue=name,
                        invoked_ns=invoked_ns,
                        completed_ns=completed_ns,
                        wall_ms=_wall_ms(),
                        round=self._round,
                        visible=visible,
                        in_flight=in_flight,
                        delayed=delayed,
                    )
                )
        finally:
            connection.close()
        return found

    def add(self, event: Event) -> None:
        """Record an event of the caller's: that the server ended."""
        self._lane.append(event)

    def fill(self, messages: int) -> None:
        """Send so many messages to each queue, without the workers."""
        worker = _Worker(self, len(self._workers) + 1, Random(0))
        try:
            for queue in self.queues:
                worker.fill_queue(queue, messages)
        finally:
            worker.close()

    def drain(self, timeout_s: float = 240.0) -> dict[str, tuple[int, int, int]]:
        """Receive and delete until every queue is empty or time is up; return the last counts.

        Call it after `stop`. Messages in flight and delayed ones are waited for.
        """
        deadline = time.monotonic() + timeout_s
        names = [queue.facts.name for queue in self.queues]
        worker = _Worker(self, len(self._workers), Random(0))
        try:
            while True:
                for name in names:
                    worker.drain_queue(name, deadline)
                counts = self.note_counts()
                names = [name for name, found in counts.items() if any(found)]
                if not names or time.monotonic() > deadline:
                    return counts
                time.sleep(0.2)
        finally:
            worker.close()

    def _run(self, worker: _Worker) -> None:
        try:
            while not self._ending.is_set():
                self.rest(worker)
                worker.step()
                if self.pause_s:
                    time.sleep(self.pause_s)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            worker.close()

    def rest(self, worker: _Worker) -> bool:
        """Wait while the load is paused; False when it has ended."""
        if not self._may_go.is_set():
            worker.is_resting = True
            self._may_go.wait()
            worker.is_resting = False
        return not self._ending.is_set()


class _Worker:
    """One client: picks a queue and an operation, does it, writes down what came of it."""

    def __init__(self, load: Load, number: int, random: Random, client: Client | None = None) -> None:
        self.number = number
        self.is_resting = False
        self._load = load
        self._random = random
        self._lane = load.history.lane()
        self._connection: Client = client or self._own_connection(load, number)
        self._retries_itself = client is not None
        self._next_token = (load.run * 1000 + number) * 1_000_000_000 + 1
        self._next_dedup = 0
        self._recent_dedup: dict[str, list[str]] = defaultdict(list)
        self._choices: list[tuple[LoadQueue, str]] = []
        self._weights: list[int] = []
        for queue in load.queues:
            for operation in ("send", "receive", "purge", "remake", "move", "set"):
                # Purging and re-making are for one worker each, so that their order is known.
                if operation in ("purge", "remake", "set") and number != 0:
                    continue
                share: int = getattr(queue, operation)
                if share:
                    self._choices.append((queue, operation))
                    self._weights.append(queue.weight * share)

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _own_connection(load: Load, number: int) -> SQSConnection:
        connection = load.connection()
        connection.turn(number)
        if number % 4 < 2:  # at each of two servers one of those that begin there
            connection.clock_offsets_ms = load.clock_offsets_ms
        return connection

    def step(self) -> None:
        queue, operation = self._random.choices(self._choices, self._weights)[0]
        getattr(self, f"_{operation}")(queue)

    def fill_queue(self, queue: LoadQueue, messages: int) -> None:
        """Send until the queue was sent so many messages."""
        first = self._next_token
        while self._next_token - first < messages:
            self._send(queue)

    def drain_queue(self, name: str, deadline: float) -> None:
        """Receive and delete until two receives in a row are empty."""
        empty = 0
        while empty < 2 and time.monotonic() < deadline:
            receive = self._receive_from(name, count=10, visibility_s=30)
            messages = receive.messages if receive is not None else []
            if not messages:
                empty += 1
                continue
            empty = 0
            self._delete_messages(name, messages)

    # Operations

    def _send(self, queue: LoadQueue) -> None:
        random = self._random
        count = 1 if random.random() < 0.5 else random.randint(2, 10)
        entries = [self._new_entry(queue) for _ in range(count)]
        sent = [entry for entry, _ in entries]
        name = queue.facts.name
        url = self._load.queue_url(name)
        if count == 1:
            action, fields = "SendMessage", {"QueueUrl": url, **entries[0][1]}
        else:
            listed = [{"Id": str(index), **wire} for index, (_, wire) in enumerate(entries)]
            action, fields = "SendMessageBatch", {"QueueUrl": url, "Entries": listed}
        invocation = f"{self.number}-{sent[0].token}-0000-0000".encode()
        wants_retry = random.random() < 0.8 and not self._retries_itself
        invoked_ns, wall_ms = time.monotonic_ns(), _wall_ms()
        attempts = 0
        may_be_done = is_open_ended = False
        while True:
            headers = (
                (b"amz-sdk-invocation-id", invocation),
                (b"amz-sdk-request", b"attempt=%d; max=9" % (attempts + 1)),
            )
            answer = self._call(action, fields, headers)
            attempts += answer.attempts
            if answer.outcome == OK:
                break
            may_be_done = may_be_done or answer.outcome == UNKNOWN
            is_open_ended = is_open_ended or answer.is_open_ended
            if 400 <= answer.status < 500 or not wants_retry:
                break
            if time.monotonic_ns() - invoked_ns > RETRY_FOR_NS:
                break
            time.sleep(RETRY_PAUSE_S)
            if not self._load.rest(self):
                break
        completed_ns = time.monotonic_ns()
        self._note_sent(sent, answer, may_be_done)
        self._load.figures.acknowledged += sum(entry.outcome == OK for entry in sent)
        outcome: Outcome = OK if answer.status == 200 else UNKNOWN if may_be_done else FAIL
        self._lane.append(
            Send(
                queue=name,
                invoked_ns=invoked_ns,
                completed_ns=completed_ns,
                wall_ms=wall_ms,
                outcome=outcome,
                is_open_ended=is_open_ended and outcome == UNKNOWN,
                entries=sent,
                attempts=attempts,
            )
        )

    @staticmethod
    def _note_sent(sent: list[SentMessage], answer: Answer, may_be_done: bool) -> None:
        if answer.status != 200:
            for entry in sent:
                entry.outcome = UNKNOWN if may_be_done else FAIL
            return
        fields = answer.fields
        if len(sent) == 1 and "MessageId" in fields:
            results = {0: fields}
        else:
            results = {int(one["Id"]): one for one in fields.get("Successful") or ()}
        for index, entry in enumerate(sent):
            result = results.get(index)
            if result is None:
                entry.outcome = UNKNOWN if may_be_done else FAIL
                failed = next((one for one in fields.get("Failed") or () if one["Id"] == str(index)), None)
                assert failed is not None, "each entry of a batch has a result"
                if not failed.get("SenderFault"):
                    entry.outcome = UNKNOWN
                continue
            entry.outcome = OK
            entry.message_id = result["MessageId"]
            number = result.get("SequenceNumber")
            entry.sequence = int(number) if number else None

    def _new_entry(self, queue: LoadQueue) -> tuple[SentMessage, dict[str, Any]]:
        random = self._random
        token = self._next_token
        self._next_token += 1
        is_large = random.random() < self._load.large_share
        text_bytes = BODY_BYTES_MAX // 10 if is_large else random.choice(self._load.text_bytes)
        entry = SentMessage(token, UNKNOWN)
        wire: dict[str, Any] = {"MessageBody": render_body(token, text_bytes)}
        if queue.groups:
            entry.group = f"g{random.randrange(queue.groups)}"
            wire["MessageGroupId"] = entry.group
            if not queue.is_content_deduplicated:
                entry.dedup_id = wire["MessageDeduplicationId"] = self._dedup_id(queue)
        elif queue.delays_s:
            delay_s = random.choice(queue.delays_s)
            entry.delay_ms = delay_s * 1000
            wire["DelaySeconds"] = delay_s
        if random.random() < 0.1:
            wire["MessageAttributes"] = {"token": {"DataType": "Number", "StringValue": str(token)}}
        return entry, wire

    def _dedup_id(self, queue: LoadQueue) -> str:
        recent = self._recent_dedup[queue.facts.name]
        if recent and self._random.random() < queue.repeats:
            return self._random.choice(recent[-20:])
        self._next_dedup += 1
        given = f"{self._load.run}-{self.number}-{self._next_dedup}"
        if queue.repeats:
            recent.append(given)
            del recent[:-20]
        return given

    def _receive(self, queue: LoadQueue) -> None:
        random = self._random
        wait_s = 1 if random.random() < 0.03 else 0
        visibility_s = random.randint(*queue.visibility_s)
        receive = self._receive_from(
            queue.facts.name, count=random.choice((1, 3, 10)), visibility_s=visibility_s, wait_s=wait_s
        )
        if receive is None or not receive.messages:
            return
        delete: list[DeliveredMessage] = []
        change: list[DeliveredMessage] = []
        is_left = False
        for message in receive.messages:
            choice = random.random()
            # Of a FIFO group the rest is left as well: one deletes in order.
            is_left = choice < queue.leave or (is_left and queue.facts.is_fifo)
            if is_left:
                continue
            (change if choice < queue.leave + queue.hand_back else delete).append(message)
        name = queue.facts.name
        if delete:
            self._delete_messages(name, delete)
        if change:
            self._change_messages(name, change, 0 if random.random() < 0.7 else random.randint(1, 8))

    def _receive_from(self, name: str, *, count: int, visibility_s: int, wait_s: int = 0) -> Receive | None:
        fields = {
            "QueueUrl": self._load.queue_url(name),
            "MaxNumberOfMessages": count,
            "VisibilityTimeout": visibility_s,
            "WaitTimeSeconds": wait_s,
            "AttributeNames": ["ApproximateReceiveCount", "MessageGroupId", "SequenceNumber"],
            "MessageAttributeNames": ["All"],
        }
        self._handles: dict[int, str] = {}
        invoked_ns, wall_ms = time.monotonic_ns(), _wall_ms()
        answer = self._call("ReceiveMessage", fields)
        completed_ns = time.monotonic_ns()
        messages = [self._delivered(found) for found in answer.fields.get("Messages") or ()]
        receive = Receive(
            queue=name,
            invoked_ns=invoked_ns,
            completed_ns=completed_ns,
            wall_ms=wall_ms,
            outcome=answer.outcome,
            is_open_ended=answer.is_open_ended,
            visibility_ms=visibility_s * 1000,
            messages=messages if answer.status == 200 else [],
        )
        if receive.messages:  # empty and unknown ones say nothing, and there are many
            self._lane.append(receive)
        return receive

    def _delivered(self, found: dict[str, Any]) -> DeliveredMessage:
        token, is_intact = parse_body(found["Body"])
        attribute = (found.get("MessageAttributes") or {}).get("token")
        if attribute is not None and attribute.get("StringValue") != str(token):
            is_intact = False
        attributes = found["Attributes"]
        sequence = attributes.get("SequenceNumber")
        handle = hash(found["ReceiptHandle"])
        self._handles[handle] = found["ReceiptHandle"]
        return DeliveredMessage(
            token,
            found["MessageId"],
            int(attributes["ApproximateReceiveCount"]),
            handle,
            is_intact,
            int(sequence) if sequence else None,
            attributes.get("MessageGroupId"),
        )

    def _delete_messages(self, name: str, messages: list[DeliveredMessage]) -> None:
        self._handle(Delete, "DeleteMessage", name, messages, {})

    def _change_messages(self, name: str, messages: list[DeliveredMessage], timeout_s: int) -> None:
        self._handle(
            ChangeVisibility, "ChangeMessageVisibility", name, messages, {"VisibilityTimeout": timeout_s}
        )

    def _handle(
        self,
        kind: type[Delete] | type[ChangeVisibility],
        action: str,
        name: str,
        messages: list[DeliveredMessage],
        more: dict[str, int],
    ) -> None:
        url = self._load.queue_url(name)
        fields: dict[str, Any]
        handles = [self._handles[message.handle] for message in messages]
        if len(handles) == 1:
            fields = {"QueueUrl": url, "ReceiptHandle": handles[0], **more}
        else:
            action += "Batch"
            entries = [{"Id": str(index), "ReceiptHandle": one, **more} for index, one in enumerate(handles)]
            fields = {"QueueUrl": url, "Entries": entries}
        invoked_ns, wall_ms = time.monotonic_ns(), _wall_ms()
        answer = self._call(action, fields)
        completed_ns = time.monotonic_ns()
        outcomes = [answer.outcome] * len(messages)
        for failed in answer.fields.get("Failed") or ():
            outcomes[int(failed["Id"])] = FAIL if failed.get("SenderFault") else UNKNOWN
        timeout_ms = more.get("VisibilityTimeout", 0) * 1000
        self._lane.append(
            kind(
                queue=name,
                invoked_ns=invoked_ns,
                completed_ns=completed_ns,
                wall_ms=wall_ms,
                outcome=answer.outcome,
                is_open_ended=answer.is_open_ended,
                entries=[
                    HandledMessage(message.token, message.message_id, message.handle, outcome, timeout_ms)
                    for message, outcome in zip(messages, outcomes, strict=True)
                ],
            )
        )

    def _purge(self, queue: LoadQueue) -> None:
        self._note(Purge, queue, "PurgeQueue", {})

    def _set(self, queue: LoadQueue) -> None:
        attributes = {"VisibilityTimeout": str(self._random.randint(5, 60))}
        self._note(SetQueue, queue, "SetQueueAttributes", {"Attributes": attributes})

    def _move(self, queue: LoadQueue) -> None:
        invoked_ns, wall_ms = time.monotonic_ns(), _wall_ms()
        answer = self._call("StartMessageMoveTask", {"SourceArn": self._load.arn_prefix + queue.facts.name})
        self._record(MoveTask, queue.facts.name, invoked_ns, wall_ms, answer)

    def _remake(self, queue: LoadQueue) -> None:
        """Delete the queue and make it again, however often that has to be tried."""
        self._note(DeleteQueue, queue, "DeleteQueue", {})
        name = queue.facts.name
        while True:
            invoked_ns, wall_ms = time.monotonic_ns(), _wall_ms()
            answer = self._call("CreateQueue", {"QueueName": name, "Attributes": queue.attributes})
            self._record(CreateQueue, name, invoked_ns, wall_ms, answer)
            if answer.status == 200 or not self._load.rest(self):
                return
            time.sleep(RETRY_PAUSE_S)

    def _note(
        self,
        kind: type[Purge] | type[SetQueue] | type[DeleteQueue],
        queue: LoadQueue,
        action: str,
        fields: dict[str, Any],
    ) -> None:
        invoked_ns, wall_ms = time.monotonic_ns(), _wall_ms()
        answer = self._call(action, {"QueueUrl": self._load.queue_url(queue.facts.name), **fields})
        self._record(kind, queue.facts.name, invoked_ns, wall_ms, answer)

    def _record(
        self,
        kind: type[Purge] | type[SetQueue] | type[DeleteQueue] | type[CreateQueue] | type[MoveTask],
        name: str,
        invoked_ns: int,
        wall_ms: int,
        answer: Answer,
    ) -> None:
        self._lane.append(
            kind(
                queue=name,
                invoked_ns=invoked_ns,
                completed_ns=time.monotonic_ns(),
                wall_ms=wall_ms,
                outcome=answer.outcome,
                is_open_ended=answer.is_open_ended,
            )
        )

    def _call(
        self, action: str, fields: Mapping[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> Answer:
        answer = self._connection.call(action, fields, headers=headers)
        figures = self._load.figures
        figures.calls += 1
        if not answer.status:
            figures.broken += 1
            time.sleep(RETRY_PAUSE_S)
        elif answer.status >= 500:
            figures.unavailable += 1
        elif answer.status >= 400:
            figures.refused[f"{action}: {answer.message[:80]}"] += 1
        return answer


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
