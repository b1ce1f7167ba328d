"""A front end on a real HTTP server, with a small broker in memory behind it, and a client to talk to both.

async with serving() as service:
    answer = await service.json("SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import urlencode
from xml.etree import ElementTree

from harness.server_metadata import ServerMetadata
from harness.waiting import PATIENCE_S

from frontend.fake_claims import FakeClaims
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.partition.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.values.commands.claims import Claim, DescribeClaims, ReadClaim, ReleaseClaims, Settle
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome
from quaymaster.core.values.commands.logs import (
    Fetch,
    FetchOutcome,
    FindOffset,
    FoundOffset,
    LogBounds,
    LogBoundsOutcome,
    ResetGroup,
    SetGroupOffset,
)
from quaymaster.core.values.commands.messages import (
    QUEUE_DEFAULT,
    RECEIPT_HANDLE_PLACEHOLDER,
    ChangeVisibility,
    CountMessages,
    Delete,
    Delivery,
    Done,
    EntriesOutcome,
    NewMessage,
    Peek,
    PeekedMessage,
    PeekOutcome,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    SendResult,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.commands.partitions import (
    AskIds,
    AskMarks,
    AskPartition,
    DataKeysOutcome,
    ForgetQueue,
    IdsOutcome,
    ListDataKeys,
    MarksOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    NotNow,
    OffsetOutOfRange,
    QueueDoesNotExist,
    StageNotFound,
)
from quaymaster.core.values.messages import decode_message, message_id_of, prefix_bytes, split_prefix
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueMarks
from quaymaster.core.values.records import RecordType
from quaymaster.frontend.actions.monitoring_actions import AsksConsole
from quaymaster.frontend.admin.admin import make_owner_api
from quaymaster.frontend.assembly import make_front_end, make_opening_pool, spread_over, tables_of
from quaymaster.frontend.call import Calls
from quaymaster.frontend.callers.standing import Enforced
from quaymaster.frontend.logs.built_blocks import BuiltBlocks
from quaymaster.frontend.logs.opening_pool import OpeningPool
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.frontend.server import FrontEnd
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.metadata.keys.key_providers import EnvironmentKeyProvider, FileKeyProvider, KeyProvider
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.http.server import HTTPLimits, HTTPServer
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.rpc.metadata_messages import CreateQueue
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign
from quaymaster.settings import Settings, load_settings

ACCOUNT = "000000000000"
REGION = "us-east-1"
EPOCH = 3


class FakeMessage:
    """A message as the fake broker keeps it."""

    def __init__(self, sequence: int, new: NewMessage, sent_ms: int) -> None:
        self.sequence = sequence
        self.new = new
        self.sent_ms = sent_ms
        self.count = 0
        self.first_receive_ms = 0
        self.visible_ms = 0


class FakeQueue:
    """The messages of one queue."""

    def __init__(self, definition: QueueDefinition) -> None:
        self.definition = definition
        self.messages: dict[int, FakeMessage] = {}
        self.last_sequence = 0
        self.dedup: dict[bytes, tuple[int, bytes]] = {}
        self.tasks: list[MoveTask] = []
        self.staged: dict[tuple[str, int], dict[str, list[NewMessage]]] = {}
        self.committed: dict[str, int] = {}
        self.outputs_under_way = 0
        self.claims = FakeClaims()

    def copy(self, sequence: int) -> FakeMessage:
        """Return a message as a consumer group of a log-retained queue first has it."""
        message = self.messages[sequence]
        return FakeMessage(sequence, message.new, message.sent_ms)


class FakeSubmitted:
    """A command on its way to the fake broker."""

    def __init__(self, command: Command, reply: Callable[[Any], None]) -> None:
        self.command = command
        self.reply = reply
        self.is_cancelled = False
        self.is_unsent = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def withdraw(self) -> bool:
        self.is_cancelled |= self.is_unsent
        return self.is_unsent


class FakeBroker:
    """Enough of a broker for the front end: no log, no fairness, timeouts by the clock.

    `failure` is answered to everything while it is set; `is_silent` answers nothing at all. While `is_sought`,
    commands wait for a leader in `held`.
    """

    def __init__(self) -> None:
        self.queues: dict[int, FakeQueue] = {}
        self.commands: list[Command] = []
        self.parked: list[tuple[FakeSubmitted, Receive]] = []
        self.failure: NotNow | None = None
        self.is_silent = False
        self.is_sought = False
        self.held: list[FakeSubmitted] = []
        self.fetch_messages_max = FETCH_MESSAGES_MAX
        self.ignores_commits = False
        """It is an older broker, which only stages what a StageMessages with `commit` brings."""

    def submit(self, command: Command, reply: Callable[[Outcome | Exception], None]) -> FakeSubmitted:
        self.commands.append(command)
        submitted = FakeSubmitted(command, reply)
        if self.is_sought:
            submitted.is_unsent = True
            self.held.append(submitted)
            return submitted
        asyncio.get_running_loop().call_soon(self._answer, submitted)
        return submitted

    def _answer(self, submitted: FakeSubmitted) -> None:
        if self.is_silent or submitted.is_cancelled:
            return
        if self.failure is not None:
            submitted.reply(self.failure)
            return
        command = submitted.command
        try:
            outcome = self._carry_out(command)
        except Exception as error:
            submitted.reply(error)
            return
        if isinstance(command, Receive) and command.wait_ms:
            assert isinstance(outcome, ReceiveOutcome)
            if not outcome.deliveries:
                self.parked.append((submitted, command))
                asyncio.get_running_loop().call_later(command.wait_ms / 1000, self._give_up, submitted)
                return
        submitted.reply(outcome)
        if isinstance(command, Send):
            self._serve_parked()

    def _give_up(self, submitted: FakeSubmitted) -> None:
        for waiting in list(self.parked):
            if waiting[0] is submitted:
                self.parked.remove(waiting)
                if not submitted.is_cancelled:
                    submitted.reply(ReceiveOutcome(EPOCH, []))

    def _serve_parked(self) -> None:
        for waiting in list(self.parked):
            submitted, command = waiting
            if submitted.is_cancelled:
                self.parked.remove(waiting)
                continue
            outcome = self._receive(command)
            if outcome.deliveries:
                self.parked.remove(waiting)
                submitted.reply(outcome)

    def _carry_out(self, command: Command) -> Outcome:
        match command:
            case AskMarks():
                return MarksOutcome(QueueMarks(max(self.queues, default=0)))
            case SetQueue(definition):
                log = self.queues.get(definition.group_of)
                if log is not None and definition.queue_id not in self.queues:
                    self.queues[definition.queue_id] = group = FakeQueue(definition)
                    group.messages = {number: log.copy(number) for number in log.messages}
                known = self.queues.setdefault(definition.queue_id, FakeQueue(definition))
                known.definition = definition
                return Done()
            case ListDataKeys():
                return DataKeysOutcome([])
            case ForgetQueue(queue_id):
                self.queues.pop(queue_id, None)
                return Done()
            case Send():
                return self._send(command)
            case Receive():
                return self._receive(command)
            case Watch(queue_id):
                there = self._queue(queue_id).messages.values()
                return WatchOutcome(any(message.visible_ms <= now_ms() for message in there))
            case AskPartition(queue_id):
                count = len(self._queue(queue_id).messages)
                outputs = self._queue(queue_id).outputs_under_way
                return PartitionOutcome(None, not count, count, count, 0, 1, outputs)
            case AskIds():
                return IdsOutcome(b"", is_known=False)
            case Delete():
                errors = [self._delete(command.queue_id, receipt) for receipt in command.receipts]
                return EntriesOutcome(errors)
            case Complete():
                return self._complete(command)
            case ChangeVisibility():
                pairs = zip(command.receipts, command.visibility_timeouts_ms, strict=True)
                return EntriesOutcome([self._change(command.queue_id, *pair) for pair in pairs])
            case Purge(queue_id):
                self._queue(queue_id).messages.clear()
                return Done()
            case CountMessages(queue_id):
                return self._counts(queue_id)
            case Peek():
                return self._peek(command)
            case Fetch():
                return self._fetch(command)
            case LogBounds(queue_id):
                return LogBoundsOutcome(*self._bounds(queue_id))
            case FindOffset(queue_id, _, time_ms):
                _, end = self._bounds(queue_id)
                kept = self._queue(queue_id).messages.values()
                later = [message.sequence for message in kept if message.sent_ms >= time_ms]
                return FoundOffset(min(later, default=end))
            case StartMoveTask():
                return self._start_task(command)
            case CancelMoveTask():
                task = next(t for t in self._queue(command.queue_id).tasks if t.task_id == command.task_id)
                task.status = "CANCELLING"
                return MoveTasksOutcome([task])
            case ListMoveTasks(queue_id):
                return MoveTasksOutcome(list(reversed(self._queue(queue_id).tasks)))
            case SetGroupOffset():
                messages = self._queue(command.queue_id).messages
                for sequence in [number for number in messages if number < command.sequence]:
                    del messages[sequence]
                return Done()
            case StageMessages() | CommitTransaction() | AbortTransaction():
                return self._transact(command)
            case Claim() | ReadClaim() | Settle() | DescribeClaims() | ReleaseClaims():
                queue = self._queue(command.queue_id)
                return queue.claims.answer(command, queue.messages)
            case ResetGroup(queue_id):
                group = self._queue(queue_id)
                log = self._queue(group.definition.group_of)
                group.messages = {number: log.copy(number) for number in log.messages}
                return Done()

    def _queue(self, queue_id: int) -> FakeQueue:
        queue = self.queues.get(queue_id)
        if queue is None:
            raise QueueDoesNotExist
        return queue

    def _send(self, command: Send) -> SendOutcome:
        queue = self._queue(command.queue_id)
        results = []
        for new in command.messages:
            keys = [key for key in (new.dedup, new.retry if new.may_be_retry else None) if key is not None]
            known = next((queue.dedup[key] for key in keys if key in queue.dedup), None)
            if known is not None:
                results.append(SendResult(*known, duplicate=True))
                continue
            queue.last_sequence += 1
            sequence = queue.last_sequence
            message = FakeMessage(sequence, new, now_ms())
            message.visible_ms = now_ms() + max(0, new.delay_ms)
            queue.messages[sequence] = message
            for group in self.queues.values():
                if group.definition.group_of == command.queue_id:
                    group.messages[sequence] = queue.copy(sequence)
            for key in (new.dedup, new.retry):
                if key is not None:
                    queue.dedup[key] = (sequence, new.message_id)
            results.append(SendResult(sequence, new.message_id))
        return SendOutcome(results)

    def _send_stage(
        self,
        queue: FakeQueue,
        command: StageMessages,
        stage: list[NewMessage],
        *,
        is_done: bool,
    ) -> Outcome:
        if is_done:
            is_asked_for = command.batch == queue.committed[command.sink]
            return StagedOutcome(len(command.messages) if is_asked_for else 0, is_committed=True)
        self._send(Send(command.queue_id, 0, stage))
        queue.committed[command.sink] = command.batch
        return StagedOutcome(len(stage), was_sent=True)

    def _transact(self, command: StageMessages | CommitTransaction | AbortTransaction) -> Outcome:
        queue = self._queue(command.queue_id)
        key = command.sink, command.batch
        is_done = command.batch <= queue.committed.get(command.sink, -1)
        match command:
            case StageMessages():
                stage = queue.staged.setdefault(key, {}).setdefault(command.stage, [])
                if not is_done:
                    stage += command.messages[len(stage) - command.first_index :]
                if command.commit and not self.ignores_commits:
                    return self._send_stage(queue, command, stage, is_done=is_done)
                return StagedOutcome(0 if is_done else len(stage), is_done)
            case CommitTransaction():
                stages = queue.staged.pop(key, {})
                if is_done:
                    return CommittedOutcome(0, was_committed=True)
                for wanted in command.stages:
                    if len(stages.get(wanted.name, [])) != wanted.count:
                        raise StageNotFound(wanted.name, wanted.count, len(stages.get(wanted.name, [])))
                messages = [message for wanted in command.stages for message in stages.get(wanted.name, [])]
                self._send(Send(command.queue_id, 0, messages))
                queue.committed[command.sink] = command.batch
                return CommittedOutcome(len(messages))
        queue.staged.pop(key, None)
        return AbortedOutcome(not is_done)

    def _receive(self, command: Receive) -> ReceiveOutcome:
        queue = self._queue(command.queue_id)
        timeout_ms = command.visibility_timeout_ms
        if timeout_ms == QUEUE_DEFAULT:
            timeout_ms = queue.definition.visibility_timeout_ms
        deliveries: list[Delivery] = []
        for message in queue.messages.values():
            if len(deliveries) == command.count_max:
                break
            if message.visible_ms > now_ms():
                continue
            message.count += 1
            message.first_receive_ms = message.first_receive_ms or now_ms()
            message.visible_ms = now_ms() + timeout_ms
            deliveries.append(
                Delivery(
                    message.sequence,
                    message.count,
                    message.first_receive_ms,
                    message.sent_ms,
                    RecordType.SEND,
                    message.new.flags,
                    message.new.payload,
                )
            )
        return ReceiveOutcome(EPOCH, deliveries)

    def _delete(self, queue_id: int, receipt: Receipt) -> Exception | None:
        queue = self._queue(queue_id)
        message = queue.messages.get(receipt.sequence)
        if message is not None and queue.definition.is_fifo and message.visible_ms <= now_ms():
            return InvalidParameterValue.of(
                "ReceiptHandle", RECEIPT_HANDLE_PLACEHOLDER, "The receipt handle has expired."
            )
        queue.messages.pop(receipt.sequence, None)
        return None

    def _complete(self, command: Complete) -> CompleteOutcome:
        queue = self._queue(command.queue_id)
        keys = [f"{command.digest}/{receipt.sequence}".encode() for receipt in command.receipts]
        if all(key in queue.dedup for key in keys):
            return CompleteOutcome([None] * len(keys), was_done=True)
        gone = [receipt for receipt in command.receipts if receipt.sequence not in queue.messages]
        if gone:
            expired = InvalidParameterValue.of(
                "ReceiptHandle", RECEIPT_HANDLE_PLACEHOLDER, "The receipt handle has expired."
            )
            return CompleteOutcome([expired if receipt in gone else None for receipt in command.receipts])
        for receipt, key in zip(command.receipts, keys, strict=True):
            del queue.messages[receipt.sequence]
            queue.dedup[key] = receipt.sequence, b""
        for output in command.outputs:
            group, dedup, _ = split_prefix(output.flags, output.payload)
            message_id = message_id_of(output.payload[prefix_bytes(output.flags) :])
            new = NewMessage(message_id, output.payload, output.flags, output.delay_ms, group, dedup)
            self._send(Send(output.queue_id, output.partition, [new]))
        return CompleteOutcome([None] * len(keys))

    def _change(self, queue_id: int, receipt: Receipt, timeout_ms: int) -> Exception | None:
        message = self._queue(queue_id).messages.get(receipt.sequence)
        if message is None:
            return InvalidParameterValue.of(
                "ReceiptHandle",
                RECEIPT_HANDLE_PLACEHOLDER,
                "Message does not exist or is not available for visibility timeout change.",
            )
        message.visible_ms = now_ms() + timeout_ms
        return None

    def _counts(self, queue_id: int) -> QueueCounts:
        messages = self._queue(queue_id).messages.values()
        hidden = [message for message in messages if message.visible_ms > now_ms()]
        in_flight = sum(1 for message in hidden if message.count)
        oldest_ms = min((message.sent_ms for message in messages), default=0)
        return QueueCounts(len(messages) - len(hidden), in_flight, len(hidden) - in_flight, oldest_ms)

    def _peek(self, command: Peek) -> PeekOutcome:
        rows = [
            PeekedMessage(
                message.sequence,
                "in_flight" if message.visible_ms > now_ms() else "visible",
                message.count,
                message.first_receive_ms,
                message.sent_ms,
                RecordType.SEND,
                message.new.flags,
                message.new.payload,
            )
            for message in self._queue(command.queue_id).messages.values()
            if message.sequence >= command.from_sequence
        ]
        shown = rows[: command.count_max]
        more = rows[command.count_max :]
        return PeekOutcome(shown, more[0].sequence if more else 0)

    def _bounds(self, queue_id: int) -> tuple[int, int]:
        queue = self._queue(queue_id)
        end = queue.last_sequence + 1
        return min(queue.messages, default=end), end

    def _fetch(self, command: Fetch) -> FetchOutcome:
        earliest, end = self._bounds(command.queue_id)
        if not earliest <= command.from_sequence <= end:
            raise OffsetOutOfRange(command.from_sequence, earliest, end)
        stop = min(command.to_sequence, end, command.from_sequence + self.fetch_messages_max)
        sequences: list[int] = []
        sent_ms: list[int] = []
        messages: list[bytes] = []
        left = command.bytes_max
        for message in self._queue(command.queue_id).messages.values():
            if not command.from_sequence <= message.sequence < stop:
                continue
            stored = message.new.payload[prefix_bytes(message.new.flags) :]
            left -= len(stored)
            if left < 0 and messages:
                stop = message.sequence
                break
            sequences.append(message.sequence)
            sent_ms.append(message.sent_ms)
            if command.with_messages:
                messages.append(stored)
        return FetchOutcome(sequences, sent_ms, messages, stop, earliest, end)

    def _start_task(self, command: StartMoveTask) -> MoveTasksOutcome:
        queue = self._queue(command.queue_id)
        if any(task.status == "RUNNING" for task in queue.tasks):
            raise InvalidParameterValue(
                "There is already a task running. Only one active task is allowed for a source queue arn at a "
                "given time."
            )
        task = MoveTask(
            command.task_id,
            command.source_arn,
            command.target_arn,
            command.target_queue_id,
            command.rate_per_s,
            "RUNNING",
            now_ms(),
            to_move=len(queue.messages),
        )
        queue.tasks.append(task)
        return MoveTasksOutcome([task])

    def stored(self, queue_id: int) -> list[Any]:
        """Return the heads of all messages of a queue, as they lie in the broker."""
        return [
            decode_message(message.new.payload, prefix_bytes(message.new.flags))
            for message in self.queues[queue_id].messages.values()
        ]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Answer(NamedTuple):
    """One HTTP response; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def xml(self) -> ElementTree.Element:
        """The parsed body; tags are without their namespace."""
        root = ElementTree.fromstring(self.body)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    def value(self, path: str) -> str | None:
        """Return the text of the first element at `path` below the XML root."""
        return self.xml.findtext(path)


class Client:
    """Sends requests by hand, each on a connection of its own unless one is given."""

    def __init__(self, port: int, key_id: str | None, secret: str, *, region: str = REGION) -> None:
        self.port = port
        self.key_id = key_id
        self.secret = secret
        self.region = region

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, name: str, account: str = ACCOUNT) -> str:
        return f"{self.base}/{account}/{name}"

    async def json(
        self, action: str, given: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send an action as AWS JSON: one of Quaymaster's own as that, and what is not known as one of SQS."""
        known = ACTIONS.get(action)
        is_own = known is not None and known.service == "quaymaster"
        every = {
            "x-amz-target": f"{'Quaymaster' if is_own else 'AmazonSQS'}.{action}",
            "content-type": "application/x-amz-json-1.0",
            **(headers or {}),
        }
        return await self.request("POST", "/", every, json.dumps(given).encode())

    async def query(
        self, action: str, given: Mapping[str, str], path: str = "/", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send an action as AWS Query in a POST body."""
        every = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self.request("POST", path, every, urlencode({"Action": action, **given}).encode())

    async def sts(
        self, action: str, given: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send an action of STS in a POST body."""
        every = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
        body = urlencode({"Action": action, "Version": "2011-06-15", **given}).encode()
        return await self.request("POST", "/", every, body, service="sts")

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        service: str = "sqs",
    ) -> Answer:
        """Send any request, signed when there is a key."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.render(method, target, headers or {}, body, service=service))
            return await read_answer(reader, is_head=method == "HEAD")
        finally:
            writer.close()
            await writer.wait_closed()

    def render(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, *, service: str = "sqs"
    ) -> bytes:
        """Return the bytes of a request."""
        path, _, query = target.partition("?")
        every: Sequence[tuple[bytes, bytes]] = [
            (b"host", f"127.0.0.1:{self.port}".encode()),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()),
        ]
        if self.key_id is not None:
            every = sign(
                UnsignedRequest(method.encode(), path.encode(), query.encode(), every, body),
                Signer(self.key_id, self.secret, self.region, service=service),
                now_ms=now_ms(),
            )
        lines = [f"{method} {target} HTTP/1.1".encode()]
        lines += [name + b": " + value for name, value in every]
        lines += [b"content-length: %d" % len(body), b"", b""]
        return b"\r\n".join(lines) + body


async def read_answer(reader: asyncio.StreamReader, *, is_head: bool = False) -> Answer:
    """Read one response."""
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:]:
            if line:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        body = b""
        if not is_head:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, body)


class Service(NamedTuple):
    """A running front end and all that stands behind it: metadata is the real one, in memory."""

    server: HTTPServer
    front_end: FrontEnd
    calls: Calls
    broker: FakeBroker
    metadata: ServerMetadata
    metrics: Metrics
    settings: Settings
    client: Client
    blocks: BuiltBlocks | None = None
    opening: OpeningPool | None = None

    async def add_queue(self, name: str, account_id: str = ACCOUNT, **attributes: str) -> QueueDefinition:
        """Create a queue; the name's suffix says whether it is a FIFO queue."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        definition = await self.metadata.queues.change(CreateQueue(account_id, name, attributes))
        self.broker.commands.clear()
        return definition


@asynccontextmanager
async def embedded_metadata(settings: Settings, broker: FakeBroker) -> AsyncIterator[ServerMetadata]:
    """Start metadata as it is in one process, in memory."""
    keys = TemporaryDirectory()
    provider: KeyProvider = FileKeyProvider(Path(keys.name))
    if settings.master_key is not None:
        provider = EnvironmentKeyProvider(settings.master_key.get_secret_value())
    options = MetadataOptions(
        REGION,
        ACCOUNT,
        purge_interval_s=settings.purge_interval_s,
        queue_name_reuse_s=settings.queue_name_reuse_s,
        kms=settings.kms,
    )
    registry = QueueRegistry(MemoryCoordination(), options, now_ms=now_ms)
    metadata = ServerMetadata(registry, provider, options, now_ms=now_ms)
    await metadata.start()
    registry.attach_journal(BrokerQueueJournal(broker))
    try:
        yield metadata
    finally:
        await metadata.close()
        keys.cleanup()


@asynccontextmanager
async def serving(
    blocks_in: Any = None, enforced: Any = None, console: Any = None, **flags: object
) -> AsyncIterator[Service]:
    """Start a front end with these settings on a free port, and stop it.

    `blocks_in`: where blocks of logs are; `enforced`: what brokers of a cell say of the authorization floor;
    `console`: the way to a console.
    """
    async with serving_recorded(None, blocks_in, enforced, console, **flags) as service:
        yield service


@asynccontextmanager
async def serving_recorded(
    usage: UsageRecorder | None,
    blocks_in: Any = None,
    enforced: Any = None,
    console: Any = None,
    **flags: object,
) -> AsyncIterator[Service]:
    """Do the same, with a recorder that takes a record of every request."""
    settings = load_settings(flags={"slow_request_ms": 0, "log_workers_max": 0, **flags}, environment={})
    broker = FakeBroker()
    async with (
        embedded_metadata(settings, broker) as metadata,
        serving_with(
            *(settings, broker, metadata, usage), blocks_in=blocks_in, enforced=enforced, console=console
        ) as service,
    ):
        yield service


@asynccontextmanager
async def serving_with(
    settings: Settings,
    broker: FakeBroker,
    metadata: Any,
    usage: UsageRecorder | None = None,
    *,
    blocks_in: Path | None = None,
    enforced: Enforced | None = None,
    console: AsksConsole | None = None,
) -> AsyncIterator[Service]:
    """Start a front end that stands on this broker and this metadata; `usage` takes records of what it answers."""
    metrics = Metrics("0.0.0")
    blocks = None if blocks_in is None else BuiltBlocks(blocks_in, metadata.data_key)
    opening = make_opening_pool(settings)
    front_end = make_front_end(
        settings,
        broker=spread_over(broker, tables_of(metadata.queues), metadata.queues),
        metadata=metadata,
        metrics=metrics,
        now_ms=now_ms,
        connections_max=settings.http_connections_max,
        usage=usage,
        blocks=blocks,
        opening=opening if opening.workers_max else None,
        enforced=enforced,
        console=console,
        management=make_owner_api(
            settings, broker=broker, metadata=metadata, queue_metrics=None, enforced=enforced, now_ms=now_ms
        ),
    )
    limits = HTTPLimits(**settings.http_limits())
    server = HTTPServer(front_end.handle, limits, name="sqs", admit=front_end.admit)
    _, port = await server.start("127.0.0.1", 0)
    front_end.start()
    key = metadata.default_access_key
    assert key is not None
    client = Client(port, key.access_key_id, key.secret)
    if settings.authentication == "open":
        client = Client(port, None, "")
    try:
        yield Service(
            *(
                server,
                front_end,
                front_end.calls,
                broker,
                metadata,
                metrics,
                settings,
                client,
                blocks,
                opening,
            )
        )
    finally:
        await server.drain(1)
        await front_end.stop()
        await opening.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that only the other side of a connection can bring about."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("what was waited for did not happen")
