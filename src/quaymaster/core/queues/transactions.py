"""What a leader decides about transactions: what is staged, committed, dropped (`core/partition/staged_messages`).

A transaction concerns one partition, which is a whole queue, and so is decided in one journal, by one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import iter_unpack

from pyroaring import BitMap

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_totals import totals_of
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.partition.staged_messages import (
    OPEN_MESSAGES_MAX,
    OPEN_STAGES_MAX,
    RUNS_BYTES_MAX,
    SINKS_MAX,
    SLOW_TRANSACTION_MESSAGES_MAX,
    STAGED_MESSAGES,
    TRANSACTION_MESSAGES_MAX,
    Stage,
    StagedMessages,
    Transaction,
    place_of,
)
from quaymaster.core.partition.work import slices
from quaymaster.core.partition.work.partition_transactions import (
    ONE_DELAY,
    Committed,
    apply_commit,
    apply_stage_begin,
    follow_commit,
    join_commit,
    join_transaction,
    opened_staged,
)
from quaymaster.core.partition.work.slices import Slices, next_turn
from quaymaster.core.queues.record_payloads import OWN_DELAY
from quaymaster.core.structures.ids.recent_ids import ID_BYTES
from quaymaster.core.values.commands.messages import NewMessage
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    NotNow,
    OverLimit,
    StageNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import DELIVERY, CellFormat
from quaymaster.core.values.partition_tables import entry_of, has_all_keys
from quaymaster.core.values.records import Record, RecordType

SEEN_TOGETHER_MAX = 32_768
"""So many deduplication ids of one transaction are in one set."""

EXPIRED_PER_STEP_MAX = 100
"""So many transactions are given up in one step."""


def check_has_transactions(partition: Partition, cell_format: CellFormat) -> None:
    """Raise UnsupportedOperation where messages cannot be staged."""
    if partition.log is not None:
        raise UnsupportedOperation("Messages are sent to the queue, not to one of its consumer groups.")
    cell_format.require(STAGED_MESSAGES, "Transactions work")


def stage_messages(
    partition: Partition, command: StageMessages, now_ms: int, proposal: Proposal
) -> StagedOutcome:
    """Store what is new of the messages; raises InvalidParameterValue for a gap, OverLimit."""
    sink, batch = command.sink, command.batch
    staged = partition.staged
    done = staged.committed(sink, batch) if staged is not None else None
    if done is not None:
        is_asked_for = command.commit and done.batch == batch
        return StagedOutcome(done.messages if is_asked_for else 0, is_committed=True)
    transaction = staged.find(sink, batch) if staged is not None else None
    stage = transaction.stages.get(command.stage) if transaction is not None else None
    count = stage.count if stage is not None else 0
    if command.first_index > count:
        raise InvalidParameterValue.of(
            "FirstIndex", command.first_index, f"Stage {command.stage} has {count} messages."
        )
    if command.commit and count > (end := command.first_index + len(command.messages)):
        raise StageNotFound(command.stage, end, count)
    messages = command.messages[count - command.first_index :]
    if not messages:
        return StagedOutcome(count)
    if partition.ids.keeps_messages and any(message.dedup is not None for message in messages):
        raise UnsupportedOperation(
            "Messages with deduplication ids are staged for queues with DeduplicationWindowSeconds=300 only."
        )
    _check_size(partition, transaction, messages)
    if staged is not None:
        _check_room(staged, len(messages), is_new_stage=stage is None, is_new_sink=sink not in staged.sinks)
    staged = opened_staged(partition)
    if stage is None:
        number = staged.next_number
        payload = join_transaction(sink, batch, command.stage.encode())
        proposal.add(RecordType.STAGE_BEGIN, partition, now_ms, sequence=number, payload=payload)
        apply_stage_begin(partition, sink, batch, number, command.stage, now_ms)
        stage = staged.stage(number)
    _store(partition, staged, stage, messages, now_ms, proposal)
    return StagedOutcome(stage.count)


def check_sends_stages(command: StageMessages, cell_format: CellFormat) -> None:
    """Raise UnsupportedOperation where a StageMessages cannot commit: older programs would only stage its messages."""
    if command.commit:
        cell_format.require(DELIVERY, "StageMessages commits")


def check_begins_no_stage(partition: Partition, command: StageMessages, account_stages_max: int) -> None:
    """Raise OverLimit if a command would begin a stage: the account has as many as it may have."""
    staged = partition.staged
    transaction = staged.find(command.sink, command.batch) if staged is not None else None
    if transaction is None or command.stage not in transaction.stages:
        raise OverLimit(
            f"An account may have {account_stages_max} open stages in a journal (account_stages_max)."
        )


def _check_size(
    partition: Partition, transaction: Transaction | None, messages: Sequence[NewMessage]
) -> None:
    count = len(messages) + (transaction.count if transaction is not None else 0)
    if count > TRANSACTION_MESSAGES_MAX:
        raise OverLimit(f"A transaction may have {TRANSACTION_MESSAGES_MAX} messages.")
    if count > SLOW_TRANSACTION_MESSAGES_MAX:
        stages = transaction.stages.values() if transaction is not None else ()
        has_delays = any(message.delay_ms >= 0 for message in messages) or any(
            stage.delays for stage in stages
        )
        if partition.definition.is_fifo or has_delays:
            raise OverLimit(
                f"A transaction may have {SLOW_TRANSACTION_MESSAGES_MAX} messages on a FIFO queue, or where messages "
                "have delays of their own."
            )


def _check_room(staged: StagedMessages, messages: int, *, is_new_stage: bool, is_new_sink: bool) -> None:
    if staged.messages + messages > OPEN_MESSAGES_MAX:
        raise OverLimit(f"A queue may have {OPEN_MESSAGES_MAX} messages staged and not committed.")
    if is_new_stage and staged.open_stages >= OPEN_STAGES_MAX:
        raise OverLimit(f"A queue may have {OPEN_STAGES_MAX} open stages.")
    if staged.runs.size_bytes >= RUNS_BYTES_MAX:
        raise OverLimit(
            f"A queue may keep {RUNS_BYTES_MAX} bytes about committed stages whose messages are still there."
        )
    if is_new_sink:
        _check_sinks(staged)


def _check_sinks(staged: StagedMessages) -> None:
    if len(staged.sinks) >= SINKS_MAX:
        raise OverLimit(f"A queue may have {SINKS_MAX} sinks that committed within a week.")


def _store(
    partition: Partition,
    staged: StagedMessages,
    stage: Stage,
    messages: Sequence[NewMessage],
    now_ms: int,
    proposal: Proposal,
) -> None:
    definition = partition.definition
    queue_id, number, is_fifo = definition.queue_id, partition.number, definition.is_fifo
    for message in messages:
        place = place_of(stage.number, stage.count)
        flags, delay_ms = message.flags, message.delay_ms
        if delay_ms < 0 or is_fifo:
            delay_ms = -1
        else:
            flags |= OWN_DELAY
        offset, payload = proposal.next_offset, message.payload
        proposal.records.append(
            Record(RecordType.STAGE, flags, queue_id, number, place, now_ms, max(0, delay_ms), payload)
        )
        staged.add(
            place,
            offset,
            now_ms,
            group=message.group,
            dedup=message.dedup,
            delay_ms=delay_ms,
            payload_bytes=len(payload),
        )


def is_new_to(partition: Partition, sink: str, batch: int) -> bool:
    """Return whether a partition knows nothing of a transaction: neither that it is open nor that it is committed."""
    staged = partition.staged
    return staged is None or (staged.find(sink, batch) is None and staged.committed(sink, batch) is None)


def check_has_all_groups(partition: Partition) -> None:
    """Raise NotNow where a FIFO partition that has not all groups would begin a transaction.

    Front ends ask it while it is being merged with others. A batch has messages of any groups, and would be in front of
    some that its siblings have, or take yet.
    """
    definition = partition.definition
    entry = entry_of(definition, partition.number)
    if definition.is_fifo and entry is not None and not has_all_keys(entry):
        raise NotNow("The partitions of the queue are being merged. Try again.")


def committed_before(partition: Partition, command: CommitTransaction) -> CommittedOutcome | None:
    """Return what a commit is answered with that is not the first of its batch."""
    staged = partition.staged
    done = staged.committed(command.sink, command.batch) if staged is not None else None
    if done is None:
        return None
    return CommittedOutcome(done.messages if done.batch == command.batch else 0, was_committed=True)


def stages_to_commit(partition: Partition, command: CommitTransaction) -> list[Stage]:
    """Return the stages that a commit names, all there whole; raises StageNotFound, OverLimit."""
    staged = partition.staged
    if staged is not None and command.sink not in staged.sinks:
        _check_sinks(staged)
    return _named_stages(staged, command)


def stage_to_send(partition: Partition, command: StageMessages) -> list[Stage]:
    """Return the stage that a command with `commit` has just completed."""
    transaction = opened_staged(partition).find(command.sink, command.batch)
    assert transaction is not None, "a stage that has messages is of an open transaction"
    return [transaction.stages[command.stage]]


def send_stage(partition: Partition, command: StageMessages, stages: list[Stage]) -> Slices:
    """Send what was staged, as `commit_transaction` does; the outcome is that of the StageMessages."""
    outcome = yield from commit_transaction(partition, command, stages, deduplicate=command.deduplicate)
    assert type(outcome) is CommittedOutcome, "a commit ends with what it sent"
    return StagedOutcome(outcome.messages, was_sent=True, duplicates=outcome.duplicates)


def commit_transaction(
    partition: Partition,
    command: CommitTransaction | StageMessages,
    stages: list[Stage],
    *,
    deduplicate: bool = True,
) -> Slices:
    """Send what the stages have, all of it.

    A message whose deduplication id was sent within the window, in this transaction or before, is one that was sent
    already: it gets no number of its own. Unless `deduplicate` is false: then all get one.
    """
    now_ms, proposal = yield from next_turn()
    search = _DuplicateSearch(partition, now_ms)
    if deduplicate:
        for _ in search.look_through(stages):
            now_ms, proposal = yield from next_turn()
    duplicates = search.places
    totals_of(partition, proposal.epoch).duplicate += len(duplicates)
    committed = Committed(
        command.sink,
        command.batch,
        sum(stage.count for stage in stages),
        [stage.number for stage in stages],
        duplicates,
    )
    first, delay_ms = partition.next_sequence, partition.definition.delay_ms
    one_delay = not any(stage.delays for stage in stages)
    proposal.add(
        RecordType.TRANSACTION_COMMIT,
        partition,
        now_ms,
        sequence=first,
        due_after_ms=delay_ms,
        flags=ONE_DELAY if one_delay else 0,
        payload=join_commit(committed),
    )
    count = committed.messages - len(duplicates)
    if count:
        for each in (partition, *partition.groups.values()):
            proposal.note_sent(each, first, first + count)
    yield True
    for _ in apply_commit(partition, committed, first, delay_ms, now_ms):
        yield True
    for group in partition.groups.values():
        for _ in follow_commit(group, partition, first, count, delay_ms, now_ms, one_delay=one_delay):
            yield True
    return CommittedOutcome(committed.messages, duplicates=len(duplicates))


def _named_stages(staged: StagedMessages | None, command: CommitTransaction) -> list[Stage]:
    transaction = staged.find(command.sink, command.batch) if staged is not None else None
    known = transaction.stages if transaction is not None else {}
    stages: list[Stage] = []
    for wanted in command.stages:
        stage = known.get(wanted.name)
        found = stage.count if stage is not None else 0
        if found != wanted.count:
            raise StageNotFound(wanted.name, wanted.count, found)
        if stage is not None:
            stages.append(stage)
    return stages


class _DuplicateSearch:
    """Finds messages of a transaction that were sent already, or are in it twice: a slice with each step."""

    def __init__(self, partition: Partition, now_ms: int) -> None:
        self.places: list[int] = []
        self._partition = partition
        self._now_ms = now_ms
        self._seen: list[set[bytes]] = [set()]
        """Those of this transaction, in several sets: a large one takes long to grow."""
        self._known_tops = BitMap()

    def look_through(self, stages: list[Stage]) -> Iterator[None]:
        """Find them all."""
        if not any(stage.dedups for stage in stages):
            return
        dedup = self._partition.ids.dedup
        if dedup is not None:
            yield from dedup.digesting()
            self._known_tops = dedup.known_tops(self._now_ms)
        for stage in stages:
            for start in range(0, stage.count, slices.SLICE_MESSAGES):
                stop = min(stage.count, start + slices.SLICE_MESSAGES)
                dedups = stage.dedups_of(start, stop)
                if dedups is None or not self._are_all_new(dedups):
                    yield
                    yield from self._look_at_each(stage, start, stop)
                yield

    def _are_all_new(self, dedups: bytes) -> bool:
        hashes = {dedup for (dedup,) in iter_unpack("16s", dedups)}
        known = self._partition.ids.dedup
        if ID_BYTES * len(hashes) < len(dedups) or not all(map(hashes.isdisjoint, self._seen)):
            return False
        if self._partition.ids.kept is not None:
            return False  # each is sought there
        if known is not None and known.has_any(dedups, self._known_tops, self._now_ms):
            return False
        self._note(hashes)
        return True

    def _note(self, hashes: set[bytes]) -> None:
        if len(self._seen[-1]) >= SEEN_TOGETHER_MAX:
            self._seen.append(set())
        self._seen[-1] |= hashes

    def _look_at_each(self, stage: Stage, start: int, stop: int) -> Iterator[None]:
        for number, (index, dedup) in enumerate(stage.deduplicated(start, stop), 1):
            if not number % slices.SLICE_SINGLE_MESSAGES:
                yield
            if any(dedup in seen for seen in self._seen):
                self.places.append(place_of(stage.number, index))
                continue
            if self._partition.ids.find(dedup, None, self._now_ms) is not None:
                self.places.append(place_of(stage.number, index))
            self._note({dedup})


def abort_transaction(
    partition: Partition, command: AbortTransaction, now_ms: int, proposal: Proposal
) -> AbortedOutcome:
    """Drop what was staged for a transaction that was not committed."""
    staged = partition.staged
    if staged is None:
        return AbortedOutcome(is_aborted=True)
    if staged.committed(command.sink, command.batch) is not None:
        return AbortedOutcome(is_aborted=False)
    if staged.find(command.sink, command.batch) is not None:
        _abort(partition, staged, command.sink, command.batch, now_ms, proposal)
    return AbortedOutcome(is_aborted=True)


def expire_transactions(partition: Partition, now_ms: int, proposal: Proposal, *, since_ms: int = 0) -> None:
    """Drop what was staged long ago, as much as one step may. Time before `since_ms` does not count."""
    staged = partition.staged
    if staged is None:
        return
    for transaction in staged.expired(now_ms, since_ms)[:EXPIRED_PER_STEP_MAX]:
        _abort(partition, staged, transaction.sink, transaction.batch, now_ms, proposal)


def _abort(
    partition: Partition, staged: StagedMessages, sink: str, batch: int, now_ms: int, proposal: Proposal
) -> None:
    payload = join_transaction(sink, batch)
    proposal.add(RecordType.TRANSACTION_ABORT, partition, now_ms, payload=payload)
    opened_staged(partition).drop(sink, batch)
