"""What a broker is asked, and what comes of it: the commands and outcomes of one partition.

Commands are requests; the journal's records (`core/values/records`) are the decisions made on them. A command goes to
the leader of the partition's journal, over the in-memory or the framed transport, and is answered once: by its
outcome, by a `CallerError`, or by a `NotNow` error when nothing can be promised.

Those with a `tag` go over the network as they are (`protocol/rpc/command_codec`), and so do the structs inside them:
how to change them is said there.
"""

from __future__ import annotations

import msgspec

from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_marks import QueueIdentity, QueueMarks

RECEIPT_HANDLE_PLACEHOLDER = "{receipt_handle}"
"""Partitions know receipts, not handles: where an error quotes the handle, it has this in its place."""

QUEUE_DEFAULT = -1
"""Stands for "what the queue says" in `delay_ms` and `visibility_timeout_ms`."""

ALL_PARTITIONS = -1
"""Stands for every partition of the queue that the asked journal has."""

ANY_TABLE = -1
"""Stands for "I do not go by a partition table": a caller that says so is never told of another one."""


class NewMessage(msgspec.Struct, gc=False, array_like=True):
    """A message to store: `payload` is the bytes of the SEND record, prefix included (`core/values/messages`).

    `flags` are the record's flags and say which parts the prefix has. `group` is the 64-bit hash of the message
    group id (0: none). `dedup` and `retry` are 16-byte hashes: the deduplication id in its scope (FIFO), and the
    SDK invocation with the content it carried. `may_be_retry` is false when the SDK said that this is its first
    attempt: then the retry hash is remembered, but looked up only where a repeat may have come before it.
    """

    message_id: bytes
    payload: bytes
    flags: int = 0
    delay_ms: int = QUEUE_DEFAULT
    group: int = 0
    dedup: bytes | None = None
    retry: bytes | None = None
    may_be_retry: bool = True
    size_bytes: int = 0
    """Of body and attributes, as its sender counts them; 0: not told."""


class Send(msgspec.Struct, gc=False, array_like=True, tag=1):
    """Store 1-10 messages; each gets its own sequence number, or is found to be a duplicate of a stored one.

    A partition that is sealed finds duplicates, and answers for the others with `Elsewhere`.

    `fails_fast` is for who carries it: it does not wait for a leader, and is not repeated when its outcome is unknown.
    """

    queue_id: int
    partition: int
    messages: list[NewMessage]
    fails_fast: bool = False


class SendResult(msgspec.Struct, gc=False, array_like=True):
    """Where a message stands: its own ids, or those of the message it duplicates."""

    sequence: int
    message_id: bytes
    duplicate: bool = False


class SendOutcome(msgspec.Struct, gc=False, array_like=True, tag=1):
    """One result for each message of the Send, in order.

    `errors`, if there are any: for each message None, or why it was not stored. Brokers store all of a Send or none.
    """

    results: list[SendResult]
    errors: list[Exception | None] = []


class Receive(msgspec.Struct, gc=False, array_like=True, tag=2):
    """Hand out up to `count_max` visible messages, each hidden for `visibility_timeout_ms` (-1: the queue's).

    With `wait_ms` above 0 an empty receive is parked for that long, or until a message is visible.
    `attempt` is the 16-byte hash of a ReceiveRequestAttemptId (FIFO), or None; with `only_attempt` nothing but what the
    attempt was handed before is handed out.

    `table_version`: the caller's partition table. Where the journal has a newer one, and the partition nothing to hand
    out, the answer is `Elsewhere`, at once: a front end that only receives learns of new partitions so.

    `fails_fast` as in Send.

    `is_part`: one of several by which a request looks into several partitions: that it finds nothing is not counted.
    `empty_before`: so many such requests have ended without messages since the front end last said so.

    `takes_for_good`: the queue is AtMostOnce. Who carries it does not ask again when the outcome is unknown, for what
    the first attempt took is gone.
    """

    queue_id: int
    partition: int
    count_max: int
    visibility_timeout_ms: int = QUEUE_DEFAULT
    wait_ms: int = 0
    attempt: bytes | None = None
    table_version: int = ANY_TABLE
    only_attempt: bool = False
    fails_fast: bool = False
    is_part: bool = False
    empty_before: int = 0
    takes_for_good: bool = False


class Delivery(msgspec.Struct, gc=False, array_like=True):
    """One handing of a message to one consumer. `record_type` and `flags` say how `payload` is laid out."""

    sequence: int
    delivery_count: int
    first_receive_ms: int
    sent_ms: int
    record_type: int
    flags: int
    payload: bytes


class ReceiveOutcome(msgspec.Struct, gc=False, array_like=True, tag=2):
    """The deliveries (an empty list is normal), and the epoch and partition that go into their receipt handles.

    `partition` -1: the one that was asked.
    """

    epoch: int
    deliveries: list[Delivery]
    partition: int = -1


class Watch(msgspec.Struct, gc=False, array_like=True, tag=32):
    """Wait for up to `wait_ms` until a Receive would find something, and take nothing.

    `table_version` and `empty_before` as in Receive.
    """

    queue_id: int
    partition: int
    wait_ms: int
    table_version: int = ANY_TABLE
    empty_before: int = 0


class WatchOutcome(msgspec.Struct, gc=False, array_like=True, tag=32):
    """Whether a Receive would find something now."""

    has_messages: bool


class Elsewhere(msgspec.Struct, gc=False, array_like=True, tag=33):
    """The journal has this definition, whose partition table says where to go on.

    Of a Send to a sealed partition `results` has an entry for each message: where the one is that it duplicates, or
    None: it is not stored here and never will be. The answer waits for commit, for a seal may be discarded until then.
    """

    definition: QueueDefinition
    results: list[SendResult | None] = []


class Receipt(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """The part of a receipt handle that a partition judges: which delivery of which message."""

    sequence: int
    epoch: int
    delivery_count: int


class Delete(msgspec.Struct, gc=False, array_like=True, tag=3):
    """Delete 1-10 messages by their receipts."""

    queue_id: int
    partition: int
    receipts: list[Receipt]


class ChangeVisibility(msgspec.Struct, gc=False, array_like=True, tag=4):
    """Hide 1-10 messages for a new timeout, counted from now; 0 makes one visible at once."""

    queue_id: int
    partition: int
    receipts: list[Receipt]
    visibility_timeouts_ms: list[int]


class EntriesOutcome(msgspec.Struct, gc=False, array_like=True, tag=3):
    """For each entry of a Delete or ChangeVisibility: None when done, else the caller's error.

    `gone`: of the entries of a Delete that are done, how many named a message that was gone already.
    """

    errors: list[Exception | None]
    gone: int = 0


class Purge(msgspec.Struct, gc=False, array_like=True, tag=5):
    """Delete every message that was sent before this, keep the queue."""

    queue_id: int
    partition: int = ALL_PARTITIONS


class SetQueue(msgspec.Struct, gc=False, array_like=True, tag=6):
    """Make a journal know a queue, or a newer revision of it; idempotent by revision and version of the table.

    QueueIdTaken: it has another queue under this id. QueueRevisionTaken: it has a later revision, or other
    attributes of this one. `Elsewhere`: it has a later table, or other partitions of this one, and changes nothing.

    `journal_id` None: that of the first partition.
    """

    definition: QueueDefinition
    journal_id: int | None = None


class ForgetQueue(msgspec.Struct, gc=False, array_like=True, tag=7):
    """Forget a queue and every message in it; idempotent.

    `identity`: QueueIdTaken if the journal has another queue under this id; None: whichever it has. `journal_id` None:
    that of the first partition.
    """

    queue_id: int
    identity: QueueIdentity | None = None
    journal_id: int | None = None


class AskPartition(msgspec.Struct, gc=False, array_like=True, tag=34):
    """Ask how far a partition is on its way to be drained; the answer waits for commit."""

    queue_id: int
    partition: int


class PartitionOutcome(msgspec.Struct, gc=False, array_like=True, tag=34):
    """The state of a partition, all of it committed. Times are the journal's own.

    `sealed_for_ms`: how long ago it was sealed; None: it is not. `is_empty`: it has no message, none on its way to
    another journal, no running task and no open transaction; sealed, it stays so. `outputs`: how many messages that
    completions have sent from it, or from consumer groups of it, have not arrived.
    """

    sealed_for_ms: int | None
    is_empty: bool
    messages: int
    sends: int
    deletions: int
    table_version: int
    outputs: int = 0


class AskGroups(msgspec.Struct, gc=False, array_like=True, tag=35):
    """Ask a sealed partition of a FIFO queue which of these groups it has no message of any more.

    `groups`: 64-bit hashes, packed little-endian. Asked by the leader of a younger partition; the answer waits for
    commit. With `wait_ms` above 0 it waits for that long until there is one.
    """

    queue_id: int
    partition: int
    groups: bytes
    wait_ms: int = 0


class GroupsOutcome(msgspec.Struct, gc=False, array_like=True, tag=35):
    """Those it has no message of, and never will. `is_sealed` false: nothing can be said yet."""

    gone: bytes
    is_sealed: bool = True


class AskIds(msgspec.Struct, gc=False, array_like=True, tag=36):
    """Ask a sealed partition which deduplication ids it may know; the answer waits for commit."""

    queue_id: int
    partition: int


class IdsOutcome(msgspec.Struct, gc=False, array_like=True, tag=36):
    """The first bits of each id that a sealed partition knows, or will ever know (`core/structures/recent_ids`).

    `tops`: a roaring bitmap in its portable form. `is_known` false: nothing can be said yet.
    """

    tops: bytes
    is_known: bool = True


class AskMarks(msgspec.Struct, gc=False, array_like=True, tag=31):
    """Ask a journal which ids it ever saw. Only who leads it now can answer: the answer waits for a commit."""

    journal_id: int
    queue_id: int = 0
    """Of no queue: it is asked of the journal itself."""


class MarksOutcome(msgspec.Struct, gc=False, array_like=True, tag=31):
    """The highest ones: none that is given from now on may be lower."""

    marks: QueueMarks


class ResetGroup(msgspec.Struct, gc=False, array_like=True, tag=17):
    """Let a consumer group begin anew at `start` (`core/partition/consumer_groups`); what is in flight is forgotten."""

    queue_id: int
    start: str
    partition: int = ALL_PARTITIONS


class SetGroupOffset(msgspec.Struct, gc=False, array_like=True, tag=18):
    """All messages of a consumer group below a sequence number are consumed; it goes no way back."""

    queue_id: int
    partition: int
    sequence: int


class Done(msgspec.Struct, gc=False, array_like=True, tag=4):
    """It is so, and durable."""


class CountMessages(msgspec.Struct, gc=False, array_like=True, tag=8):
    """Ask for the queue's counts; promises nothing and never waits."""

    queue_id: int
    partition: int = ALL_PARTITIONS


class QueueCounts(msgspec.Struct, gc=False, array_like=True, tag=5):
    """How many messages are in which state; exact at rest. `noisy_groups`: tenants held back for fairness.

    `oldest_sent_ms` is 0 when the queue is empty. `sends` and `deletions` are messages that producers stored and
    consumers deleted since there is the queue; where `counted_from` is not 0, from that offset of the journal on.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_sent_ms: int = 0
    noisy_groups: int = 0
    sends: int = 0
    deletions: int = 0
    counted_from: int = 0


class Peek(msgspec.Struct, gc=False, array_like=True, tag=9):
    """Show up to `count_max` messages from `from_sequence` on, whatever their state, and change nothing."""

    queue_id: int
    partition: int
    from_sequence: int
    count_max: int


class PeekedMessage(msgspec.Struct, gc=False, array_like=True):
    """A message as it lies in the queue; `state` is visible, in_flight or delayed."""

    sequence: int
    state: str
    delivery_count: int
    first_receive_ms: int
    sent_ms: int
    record_type: int
    flags: int
    payload: bytes


class PeekOutcome(msgspec.Struct, gc=False, array_like=True, tag=6):
    """The messages found, and the sequence number to go on from (0: none left)."""

    messages: list[PeekedMessage]
    next_sequence: int


class Fetch(msgspec.Struct, gc=False, array_like=True, tag=20):
    """Read the messages of [from_sequence, to_sequence) in order, whatever their state, and change nothing.

    As many as fit into `bytes_max`, but one if there is one. It is asked again from `next_sequence` on. Without
    `with_messages` only sequence numbers and times come back, and no body is read.
    """

    queue_id: int
    partition: int
    from_sequence: int
    to_sequence: int
    bytes_max: int
    with_messages: bool = True


class FetchOutcome(msgspec.Struct, gc=False, array_like=True, tag=20):
    """The messages, column by column, and where to go on; `earliest` and `end` are those of `LogBoundsOutcome`.

    A message is as `core/values/messages` has it, in its move wrapper if it was moved, without the record's prefix.
    """

    sequences: list[int]
    sent_ms: list[int]
    messages: list[bytes]
    next_sequence: int
    earliest: int
    end: int


class LogBounds(msgspec.Struct, gc=False, array_like=True, tag=21):
    """Ask what can be read of a partition."""

    queue_id: int
    partition: int


class LogBoundsOutcome(msgspec.Struct, gc=False, array_like=True, tag=21):
    """The first sequence number that is kept, and the one behind the last committed message."""

    earliest: int
    end: int


class FindOffset(msgspec.Struct, gc=False, array_like=True, tag=22):
    """Ask for the first message that was sent at `time_ms` or later."""

    queue_id: int
    partition: int
    time_ms: int


class FoundOffset(msgspec.Struct, gc=False, array_like=True, tag=22):
    """Its sequence number, or the end of what is committed."""

    sequence: int


class ListDataKeys(msgspec.Struct, gc=False, array_like=True, tag=29):
    """Ask which data keys a journal's segments name, in order, from the first behind `after` on."""

    journal_id: int
    after: int = 0


class DataKeysOutcome(msgspec.Struct, gc=False, array_like=True, tag=29):
    """Data keys, in order. `next_after` 0: these are the last; else where to go on.

    `is_whole` false: not all segments could be looked at in time; ask again, and what was done need not be done twice.
    """

    key_ids: list[int]
    next_after: int = 0
    is_whole: bool = True


class StageMessages(msgspec.Struct, gc=False, array_like=True, tag=26):
    """Bring messages to a transaction; nobody sees them before it commits. Idempotent by `first_index`.

    A transaction is (sink, batch). `stage` is one writer's part of it, and `first_index` which of the stage's messages
    the first one is: those that are there already are not stored again. The messages have no retry hashes.

    `commit`: the stage ends with these messages, and is sent at once as the whole transaction. `deduplicate` false:
    their deduplication ids are noted by the commit, and not looked for.
    """

    queue_id: int
    partition: int
    sink: str
    batch: int
    stage: str
    first_index: int
    messages: list[NewMessage]
    commit: bool = False
    deduplicate: bool = True


class StagedOutcome(msgspec.Struct, gc=False, array_like=True, tag=26):
    """How many messages the stage has. `is_committed`: this batch or a later one was, and nothing was stored.

    With StageMessages.commit the count is that of the committed batch, 0 where it is a later one's. `was_sent`: this
    command committed it, and so many of its messages were duplicates. Programs that do not know `commit` leave it
    false.
    """

    count: int
    is_committed: bool = False
    was_sent: bool = False
    duplicates: int = 0


class StageCount(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """A stage, and how many messages it must have."""

    name: str
    count: int


class CommitTransaction(msgspec.Struct, gc=False, array_like=True, tag=27):
    """Send what was staged in these stages, in this order and all at once; the rest is dropped."""

    queue_id: int
    partition: int
    sink: str
    batch: int
    stages: list[StageCount]


class CommittedOutcome(msgspec.Struct, gc=False, array_like=True, tag=27):
    """How many messages the transaction has brought; so many of them were duplicates, and got no number.

    `was_committed`: it was so before this was asked, or asked again. Of a batch before the sink's last one it is not
    known how many messages there were: 0.
    """

    messages: int
    was_committed: bool = False
    duplicates: int = 0


class AbortTransaction(msgspec.Struct, gc=False, array_like=True, tag=28):
    """Drop what was staged for a transaction."""

    queue_id: int
    partition: int
    sink: str
    batch: int


class AbortedOutcome(msgspec.Struct, gc=False, array_like=True, tag=28):
    """Whether nothing of the transaction is sent, nor ever will be: false when it was committed."""

    is_aborted: bool


class Claim(msgspec.Struct, gc=False, array_like=True, tag=50):
    """Have a consumer claim up to `count_max` visible messages, or hold what it has claimed (`core/structures/claims`).

    With `count_max` above 0 the claim begins, or has more messages, as long as it has `known` of them, the number that
    the caller knows of: so one that is asked again takes no messages for which the caller has no room. With 0 it is
    held until `held_ms` from now, and grows no more.

    `owner`: who asks for the consumer. With `takes` it owns the consumer from now on; others are refused then.
    """

    queue_id: int
    partition: int
    consumer: str
    owner: str
    claim_id: int
    count_max: int
    known: int
    held_ms: int
    takes: bool = False


class ClaimOutcome(msgspec.Struct, gc=False, array_like=True, tag=50):
    """A claim as it is now: `state` is none, growing, held or broken; `taken`: how many messages this added.

    `unfinished`: asking again at once may find more.
    """

    state: str
    count: int
    taken: int = 0
    unfinished: bool = False


class ReadClaim(msgspec.Struct, gc=False, array_like=True, tag=51):
    """Read the messages [start, stop) of a claim, by their places in it; a claim that was read grows no more.

    As many as fit into `bytes_max`, but one if there is one. The answer is a `FetchOutcome`: `next_sequence` is the
    place from which to go on, `end` how many messages the claim has. If some of those asked for are gone, or others
    received them, the claim is broken, and the answer is a `ClaimOutcome`.
    """

    queue_id: int
    partition: int
    consumer: str
    claim_id: int
    start: int
    stop: int
    bytes_max: int
    with_messages: bool = True


class Settle(msgspec.Struct, gc=False, array_like=True, tag=52):
    """Be done with a consumer's claims up to one: delete what they have, unless they are broken. Idempotent.

    `owner` and `takes` as in Claim.
    """

    queue_id: int
    partition: int
    consumer: str
    owner: str
    claim_id: int
    takes: bool = False


class SettledOutcome(msgspec.Struct, gc=False, array_like=True, tag=52):
    """The claims up to this one are settled; so many messages were deleted by this command."""

    settled: int
    deleted: int


class DescribeClaims(msgspec.Struct, gc=False, array_like=True, tag=53):
    """Ask for the claims of a partition; the answer waits for commit."""

    queue_id: int
    partition: int


class ClaimView(msgspec.Struct, gc=False, array_like=True):
    """An open claim. `state` is growing, held, lapsed or broken; `left_ms`: until it lapses."""

    claim_id: int
    state: str
    count: int
    left_ms: int


class ClaimConsumerView(msgspec.Struct, gc=False, array_like=True):
    """A consumer: who owns it, the last claim that is settled, and those that are open."""

    consumer: str
    owner: str
    settled: int
    claims: list[ClaimView]


class ClaimsOutcome(msgspec.Struct, gc=False, array_like=True, tag=53):
    """The consumers that claim, by name, and how many messages are visible."""

    consumers: list[ClaimConsumerView]
    visible: int


class ReleaseClaims(msgspec.Struct, gc=False, array_like=True, tag=54):
    """Break all open claims of a consumer, so that others receive what they have; idempotent.

    With `forgets`, a consumer whose claims are all settled or broken is not known any more.
    """

    queue_id: int
    partition: int
    consumer: str
    forgets: bool = False


class ReleasedOutcome(msgspec.Struct, gc=False, array_like=True, tag=54):
    """How many messages the claims had that are broken now."""

    messages: int


class StartMoveTask(msgspec.Struct, gc=False, array_like=True, tag=10):
    """Start moving the visible messages of a dead-letter queue to `target_queue_id`, or (None) whence they came.

    `rate_per_s` bounds messages per second; None: as fast as it goes.
    """

    queue_id: int
    task_id: bytes
    source_arn: str
    target_arn: str | None
    target_queue_id: int | None
    rate_per_s: int | None
    partition: int = ALL_PARTITIONS


class CancelMoveTask(msgspec.Struct, gc=False, array_like=True, tag=11):
    """Stop a running move task; what was moved stays moved."""

    queue_id: int
    task_id: bytes
    partition: int = ALL_PARTITIONS


class ListMoveTasks(msgspec.Struct, gc=False, array_like=True, tag=12):
    """Ask for the move tasks of a source queue, newest first."""

    queue_id: int
    partition: int = ALL_PARTITIONS


class MoveTask(msgspec.Struct, gc=False, array_like=True):
    """A message move task: RUNNING, CANCELLING, CANCELLED, COMPLETED or FAILED.

    It moves messages below the sequence number `stop` only: what was there when it started. 0: it was started by a
    program that set none.
    """

    task_id: bytes
    source_arn: str
    target_arn: str | None
    target_queue_id: int | None
    rate_per_s: int | None
    status: str
    started_ms: int
    moved: int = 0
    to_move: int = 0
    failure: str | None = None
    stop: int = 0


class MoveTasksOutcome(msgspec.Struct, gc=False, array_like=True, tag=7):
    """The tasks asked for."""

    tasks: list[MoveTask]


class ExpireMessages(msgspec.Struct, gc=False):
    """Delete what is older than the queue keeps messages. The broker asks this of itself."""

    queue_id: int
    partition: int


class MoveMessage(msgspec.Struct, gc=False):
    """Put a message that was taken for it into another queue. The broker asks this of itself.

    `payload` is the source record's, with its `record_type` and `flags`. `new_message_id` None: it keeps its own
    (a dead letter); else it starts afresh, with this id and the present time (a redrive). With `payload` None
    the message could not be read: it goes back to where it was.

    It goes to the partition that takes messages of its group or, in a standard queue, of its own key: by `target` or by
    what the journal knows of the queue, whichever is newer. Into another journal it begins to leave, with a number of
    its own. `target` None: only the journal's definition counts.
    """

    queue_id: int
    partition: int
    sequence: int
    target_queue_id: int
    record_type: int
    flags: int
    payload: bytes | None
    source_arn: str | None
    new_message_id: bytes | None = None
    task_id: bytes | None = None
    target: QueueDefinition | None = None


class Output(msgspec.Struct, gc=False, array_like=True):
    """A message that a completion sends: `payload` and `flags` are those of a SEND record (`core/values/messages`).

    It is for a partition of a queue in some journal, by the table of who asks. `key` is what chose the partition there:
    where the table has changed meanwhile, it chooses again. `delay_ms` as in NewMessage.
    """

    queue_id: int
    partition: int
    journal_id: int
    key: int
    arn: str
    payload: bytes
    flags: int = 0
    delay_ms: int = QUEUE_DEFAULT


class Complete(msgspec.Struct, gc=False, array_like=True, tag=45):
    """Delete 1-10 messages by their receipts and send 1-100 others, as one act: both, or nothing.

    `digest` is a 64-bit hash, not 0, of the receipts and of all that is sent. The same receipts and digest again within
    5 minutes are answered as the first time.
    """

    queue_id: int
    partition: int
    receipts: list[Receipt]
    outputs: list[Output]
    digest: int


class CompleteOutcome(msgspec.Struct, gc=False, array_like=True, tag=45):
    """For each receipt None, or why it is not good: then nothing was done. `was_done`: it was done before."""

    errors: list[Exception | None]
    was_done: bool = False


class CompletionDecided(msgspec.Struct, gc=False):
    """What a Complete decided, and the outputs that may be sent once that is committed, for each target."""

    outcome: CompleteOutcome
    begun: list[MoveBegun] = []


class MoveBegun(msgspec.Struct, gc=False):
    """The message is leaving, as this number among those that leave for its target. Once committed, it may be sent."""

    target_key: int
    number: int


class MovedMessage(msgspec.Struct, gc=False, array_like=True):
    """A message that comes from another journal, by its number. `payload` is a MOVE record's, without the head.

    `payload` None: it is withdrawn. `is_redrive`: it starts afresh, at the present time. `is_output`: it arrives as a
    Send, with the delay of one; the other times and counts mean nothing.
    """

    number: int
    payload: bytes | None = None
    flags: int = 0
    sent_ms: int = 0
    delivery_count: int = 0
    first_receive_ms: int = 0
    is_redrive: bool = False
    is_output: bool = False
    delay_ms: int = QUEUE_DEFAULT


class MoveIn(msgspec.Struct, gc=False, array_like=True, tag=13):
    """Take 1 or more messages that leave a partition, in the order of their numbers; idempotent.

    All numbers below the first are settled. The broker that leads the source asks this, with the target's queue.
    """

    queue_id: int
    partition: int
    source_queue_id: int
    source_partition: int
    messages: list[MovedMessage]


class MoveInOutcome(msgspec.Struct, gc=False, array_like=True, tag=8):
    """All were taken, now or before, but for those `withdrawn`, which never will be; none when the queue `is_gone`.

    `is_sealed`: those withdrawn now are so because the partition takes no messages any more; by the table of
    `definition` they go to another one.

    `duplicates`: outputs that were found to be stored before, by their deduplication ids. They count as taken.
    """

    withdrawn: list[int]
    is_gone: bool = False
    is_sealed: bool = False
    definition: QueueDefinition | None = None
    duplicates: list[int] = []


class EndMoves(msgspec.Struct, gc=False):
    """The target has decided on these numbers. The broker asks this of itself.

    With `elsewhere` the target is sealed: all other moves to it go on to partitions that this table names.
    """

    queue_id: int
    partition: int
    target_key: int
    taken: list[int]
    withdrawn: list[int]
    elsewhere: QueueDefinition | None = None


class MovesGoOn(msgspec.Struct, gc=False):
    """Moves that have other targets, and new numbers, now."""

    begun: list[MoveBegun]


class WriteBarrier(msgspec.Struct, gc=False):
    """Write a record that changes nothing: once it is committed, nobody had led the journal since it was asked for."""


class TakeForMove(msgspec.Struct, gc=False):
    """Take up to `count_max` visible messages for a move task; with 0, only see whether it is over.

    The broker asks this of itself.
    """

    queue_id: int
    task_id: bytes
    count_max: int
    partition: int = 0


class FinishMoveTask(msgspec.Struct, gc=False):
    """A move task has ended by itself, or (with `failure`) could not go on."""

    queue_id: int
    task_id: bytes
    failure: str | None = None
    partition: int = 0


class Taken(msgspec.Struct, gc=False):
    """A message taken from the order: what its delivery says, and the offset of the record that has its body."""

    sequence: int
    delivery_count: int
    first_receive_ms: int
    sent_ms: int
    offset: int


class DeadLetter(msgspec.Struct, gc=False):
    """A message on its way to another queue: its body is to be read and a MoveMessage proposed.

    `target_queue_id` is 0 when nobody knows yet where that queue is.
    """

    queue_id: int
    partition: int
    sequence: int
    offset: int
    target_queue_id: int


class TakenOutcome(msgspec.Struct, gc=False):
    """What a Receive or TakeForMove took, before bodies are read.

    `unfinished`: the scan stopped at its bound, and asking again at once may find more. `is_to_consume`: the messages
    are set aside, and are delivered only once they are gone (`Consume`).
    """

    epoch: int
    taken: list[Taken]
    dead_letters: list[DeadLetter]
    unfinished: bool
    is_to_consume: bool = False


class Consume(msgspec.Struct, gc=False):
    """Delete messages that a receive took, whose bodies are read (AtMostOnce). The broker asks this of itself."""

    queue_id: int
    partition: int
    sequences: list[int]


class Consumed(msgspec.Struct, gc=False):
    """The messages that were there still, and are gone now: only they are delivered."""

    sequences: list[int]


class TakenForTask(msgspec.Struct, gc=False):
    """What a TakeForMove took. `unfinished` as in TakenOutcome; `is_over`: the task takes nothing more.

    `is_held`: it took nothing, and messages of the task wait for older partitions of the queue.
    """

    taken: list[Taken]
    unfinished: bool = False
    is_over: bool = False
    is_held: bool = False


class Duplicate(msgspec.Struct, gc=False):
    """A message that was stored before; its ids are in the record at `offset`, of the partition with this key.

    Which number a message has that was staged, its partition knows (`core/partition/staged_messages`).
    """

    offset: int
    partition_key: int


class SentOutcome(msgspec.Struct, gc=False):
    """What a Send decided, before the ids of duplicates are read."""

    results: list[SendResult | Duplicate]


class SentElsewhere(msgspec.Struct, gc=False):
    """What a Send to a sealed partition decided, before the ids of duplicates are read; None: not stored here."""

    definition: QueueDefinition
    results: list[SendResult | Duplicate | None]


class ClaimedOutcome(msgspec.Struct, gc=False):
    """What a Claim decided, and the dead letters that it met."""

    outcome: ClaimOutcome
    dead_letters: list[DeadLetter]


class PeekedOffsets(msgspec.Struct, gc=False):
    """What a Peek found, before bodies are read: messages, their states, and where to go on (0: none left)."""

    messages: list[Taken]
    states: list[str]
    next_sequence: int


class FetchedOffsets(msgspec.Struct, gc=False):
    """What a Fetch found, before bodies are read: one entry of each list per message."""

    sequences: list[int]
    sent_ms: list[int]
    offsets: list[int]
    next_sequence: int
    earliest: int
    end: int
    bytes_max: int
    places_from: int | None = None
    """Of a claim: the place of the first in it; None: a partition is read, by sequence numbers."""


Command = (
    Send
    | Receive
    | Delete
    | ChangeVisibility
    | Purge
    | SetQueue
    | ForgetQueue
    | CountMessages
    | Peek
    | StartMoveTask
    | CancelMoveTask
    | ListMoveTasks
    | ResetGroup
    | SetGroupOffset
    | Fetch
    | LogBounds
    | FindOffset
    | StageMessages
    | CommitTransaction
    | AbortTransaction
    | ListDataKeys
    | AskMarks
    | Watch
    | AskPartition
    | AskIds
    | Claim
    | ReadClaim
    | Settle
    | DescribeClaims
    | ReleaseClaims
    | Complete
)
"""What a front end or a metadata node may ask."""

InternalCommand = (
    ExpireMessages
    | MoveMessage
    | TakeForMove
    | FinishMoveTask
    | MoveIn
    | EndMoves
    | WriteBarrier
    | AskGroups
    | Consume
)
Outcome = (
    SendOutcome
    | ReceiveOutcome
    | EntriesOutcome
    | Done
    | QueueCounts
    | PeekOutcome
    | MoveTasksOutcome
    | FetchOutcome
    | LogBoundsOutcome
    | FoundOffset
    | StagedOutcome
    | CommittedOutcome
    | AbortedOutcome
    | DataKeysOutcome
    | MarksOutcome
    | WatchOutcome
    | Elsewhere
    | PartitionOutcome
    | IdsOutcome
    | ClaimOutcome
    | SettledOutcome
    | ClaimsOutcome
    | ReleasedOutcome
    | CompleteOutcome
)
"""What it is answered."""

Decided = (
    SentOutcome
    | TakenOutcome
    | TakenForTask
    | Consumed
    | EntriesOutcome
    | Done
    | QueueCounts
    | PeekedOffsets
    | FetchedOffsets
    | FetchOutcome
    | LogBoundsOutcome
    | FoundOffset
    | MoveTasksOutcome
    | MoveBegun
    | MovesGoOn
    | MoveInOutcome
    | StagedOutcome
    | CommittedOutcome
    | AbortedOutcome
    | MarksOutcome
    | WatchOutcome
    | Elsewhere
    | SentElsewhere
    | PartitionOutcome
    | IdsOutcome
    | GroupsOutcome
    | ClaimedOutcome
    | ClaimOutcome
    | SettledOutcome
    | ClaimsOutcome
    | ReleasedOutcome
    | CompletionDecided
)
"""What the core decides; the broker reads the bodies that an `Outcome` has besides."""
