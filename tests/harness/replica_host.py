"""A host of one journal replica without files or a clock: the test says when time passes and what is durable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_snapshots import snapshot_pieces
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES, PREFIX_FLAGS
from quaymaster.core.replication.effects import PersistPromise
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.replication.log_tail import LOG_START, Position
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.structures.orders.index import ChunkKeeper, MemoryChunks
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import NewMessage, Receipt
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.messages import encode_message_head, join_payload, message_id_of, prefix_bytes
from quaymaster.core.values.partition_tables import entries_to_move, with_children, with_children_open
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from quaymaster.core.values.records import (
    Batch,
    RecordRow,
    RecordType,
    check_batch,
    decode_header,
    iterate_rows,
)

ACCOUNT = "000000000000"
RETRY_WINDOW_MS = 120_000


def queue(
    queue_id: int,
    name: str | None = None,
    *,
    revision: int = 1,
    attributes: Mapping[str, object] | None = None,
) -> QueueDefinition:
    """Return a definition; a FIFO queue by its name."""
    name = name or f"queue-{queue_id}"
    given = {key: str(value) for key, value in (attributes or {}).items()}
    if name.endswith(".fifo"):
        given["FifoQueue"] = "true"
    return QueueDefinition(
        queue_id=queue_id,
        account_id=ACCOUNT,
        name=name,
        state="active",
        revision=revision,
        created_ms=0,
        modified_ms=0,
        attributes=given,
        tags={},
        data_key_id=1,
        partitions=one_partition(0),
    )


def far_queue(queue_id: int, name: str, journal_id: int) -> QueueDefinition:
    """Return the definition of a queue that is in another journal."""
    return replace_definition(queue(queue_id, name), partitions=one_partition(journal_id))


def arn(name: str) -> str:
    """Return the ARN of a queue of the test account."""
    return f"arn:aws:sqs:local:{ACCOUNT}:{name}"


def identity(number: int) -> bytes:
    """Return 16 bytes that stand for a number."""
    return number.to_bytes(16, "big")


def snapshot_of(partition: Partition) -> bytes:
    """Return a partition's snapshot as of now, in one piece."""
    return b"".join(snapshot_pieces(partition))


def message(
    number: int,
    *,
    group: int = 0,
    dedup: bytes | None = None,
    retry: bytes | None = None,
    delay_ms: int = -1,
    may_be_retry: bool = True,
) -> NewMessage:
    """Return a message to send; its id is `identity(number)`."""
    body = encode_message_head(identity(number), 1, b"startid8", 1, number) + b"opaque-body-and-tag"
    flags, payload = join_payload(group, dedup, retry, body)
    return NewMessage(
        identity(number),
        payload,
        flags,
        delay_ms=delay_ms,
        group=group,
        dedup=dedup,
        retry=retry,
        may_be_retry=may_be_retry,
    )


def number_in(flags: int, payload: bytes | memoryview) -> int:
    """Return the number of a message by its payload, as it is sent and stored."""
    return int.from_bytes(message_id_of(payload[prefix_bytes(flags & PREFIX_FLAGS) :]), "big")


def moved(definition: QueueDefinition, journal_id: int = 0) -> QueueDefinition:
    """Return the table in which the open partition is closing, and a child in a journal open."""
    parents, ranges = entries_to_move(definition)
    return with_children_open(with_children(definition, parents, ranges, [journal_id]))


def receipts_of(outcome: Decided) -> list[Receipt]:
    """Return the receipts of what a Receive has taken."""
    assert isinstance(outcome, TakenOutcome)
    return [Receipt(taken.sequence, outcome.epoch, taken.delivery_count) for taken in outcome.taken]


def replay(
    batches: list[Batch],
    *,
    states: QueueStates | None = None,
    keeper: ChunkKeeper | None = None,
    start: int = 0,
) -> QueueStates:
    """Apply the records of encoded batches from an offset on, as a start of the broker does."""
    states = states or QueueStates(keeper or MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    for row, payload, epoch in records_of(batches):
        if row.offset >= start:
            states.apply(row, payload, epoch)
    states.unfinished.finish()
    return states


def records_of(batches: list[Batch]) -> Iterator[tuple[RecordRow, bytes, int]]:
    """Yield (row, payload, epoch) of every record, checked."""
    for batch in batches:
        header = decode_header(batch.data)
        check_batch(batch.data, header)
        for row in iterate_rows(batch.data, header):
            yield row, batch.data[row.position : row.position + row.length], header.epoch


class Host:
    """Leads a journal with one member. Batches become durable at once, or by `make_durable` with `is_slow`."""

    def __init__(
        self,
        *,
        batches: list[Batch] | None = None,
        states: QueueStates | None = None,
        epoch: int = 1,
        now_ms: int = 1_000_000,
        is_slow: bool = False,
    ) -> None:
        self.now_ms = now_ms
        self.is_slow = is_slow
        self.is_held_up = False
        """Set: a test does the slices of long work itself, by `do_slice`."""
        self.batches: list[Batch] = list(batches or [])
        self.replies: dict[int, Decided | Exception] = {}
        self.awake: list[Partition] = []
        self.rests_on: dict[int, int] = {}
        self._next_token = 0
        log = LogReplica(
            "a",
            promised_epoch=epoch - 1,
            start=LOG_START,
            positions=[Position(batch.next_offset, batch.epoch, batch.chain) for batch in self.batches],
            now_ms=0,
        )
        states = states or QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
        self.replica = JournalReplica(log, states, last_time_ms=0)
        self.replica.on_configuration(JournalConfiguration(epoch, "a", ("a",), (), False), 0)
        assert self.replica.take().operations == [PersistPromise(epoch)]
        self.replica.on_promise_durable(epoch)
        self._carry_out()
        self.make_durable()
        assert self.replica.is_leading

    @property
    def states(self) -> QueueStates:
        """The leader's queues."""
        return self.replica.queues

    def partition(self, queue_id: int) -> Partition:
        """Return the queue's only partition."""
        return self.states.partition(queue_id, 0)

    def propose(self, command: Command | InternalCommand) -> int:
        """Propose a command; return the token its reply is found by in `replies`."""
        self._next_token += 1
        token = self._next_token
        self.replica.propose(command, token, self.now_ms)
        self._carry_out(token)
        return token

    def ask(self, command: Command | InternalCommand, *, after_ms: int = 0) -> Decided:
        """Let time pass, propose a command, make everything durable, return the outcome or raise the error."""
        self.now_ms += after_ms
        token = self.propose(command)
        self.make_durable()
        answer = self.replies.pop(token)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def do_slice(self) -> bool:
        """Do a slice of long work; return whether there is more."""
        has_more = self.replica.do_slice(self.now_ms)
        self._carry_out()
        return has_more

    def make_durable(self, count: int | None = None) -> None:
        """Fsync the next `count` batches (None: all), and what they bring about."""
        behind = [batch for batch in self.batches if batch.next_offset > self.replica.durable_end]
        for batch in behind if count is None else behind[:count]:
            self.replica.on_durable(batch.next_offset)
            self._carry_out()

    def durable_batches(self) -> list[Batch]:
        """Return what a power cut would leave."""
        return [batch for batch in self.batches if batch.next_offset <= self.replica.durable_end]

    def payload(self, offset: int) -> tuple[RecordRow, bytes]:
        """Read a record back."""
        for batch in reversed(self.batches):
            if batch.base_offset <= offset:
                for row, payload, _ in records_of([batch]):
                    if row.offset == offset:
                        return row, payload
        raise AssertionError(f"there is no record at offset {offset}")

    def number_at(self, offset: int) -> int:
        """Return the number of the message that a record holds."""
        row, payload = self.payload(offset)
        return number_in(row.flags, payload[MOVE_HEAD_BYTES:] if row.type == RecordType.MOVE else payload)

    def replayed(self) -> QueueStates:
        """Return the state that a replay of every batch gives."""
        return replay(self.batches)

    def _carry_out(self, token: int | None = None) -> None:
        while True:
            todo = self.replica.take(self.now_ms)
            self.batches += todo.batches
            if token is not None:
                self.rests_on[token] = self.replica.end_offset
                token = None
            if todo.batches and not self.is_slow:
                self.replica.on_durable(todo.batches[-1].next_offset)
            if todo.activate is not None:
                self.replica.on_activated(todo.activate)
            for answered, answer in todo.replies:
                assert isinstance(answered, int)
                assert answered not in self.replies, "a command is answered once"
                self.replies[answered] = answer
            self.awake += todo.awake
            for command, waiting in todo.again:
                self.replica.propose(command, waiting, self.now_ms)
            has_more = self.replica.has_more and not self.is_held_up
            if has_more:
                self.replica.do_slice(self.now_ms)
            elif not todo.batches and todo.activate is None and not todo.replies and not todo.again:
                return
