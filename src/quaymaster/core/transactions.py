"""What the leader of a journal decides about transactions: what is staged, committed, dropped (`core/staged_messages`).

A transaction concerns one partition, which is a whole queue, and so is decided in one journal, by one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import iter_unpack

from quaymaster.core.applied_queues import OWN_DELAY
from quaymaster.core.commands import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    NewMessage,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.errors import InvalidParameterValue, OverLimit, StageNotFound, UnsupportedOperation
from quaymaster.core.formats import CellFormat
from quaymaster.core.partition import Partition
from quaymaster.core.partition_transactions import (
    ONE_DELAY,
    Committed,
    apply_commit,
    apply_stage_begin,
    follow_commit,
    join_commit,
    join_transaction,
    opened_staged,
)
from quaymaster.core.proposals import Proposal
from quaymaster.core.records import Record, RecordType
from quaymaster.core.staged_messages import (
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

EXPIRED_PER_STEP_MAX = 100
"""So many transactions are given up in one step."""


def check_has_transactions(partition: Partition, cell_format: CellFormat) -> None:
    """Raise UnsupportedOperation where messages cannot be staged."""
    if partition.log is not None:
        raise UnsupportedOperation("Messages are sent to the queue, not to one of its consumer groups.")
    if not cell_format.version_of(STAGED_MESSAGES):
        raise UnsupportedOperation(
            "Transactions work once all processes of the cell run this version: `quaymaster cell upgrade`."
        )


def stage_messages(
    partition: Partition, command: StageMessages, now_ms: int, proposal: Proposal
) -> StagedOutcome:
    """Store what is new of the messages; raises InvalidParameterValue for a gap, OverLimit."""
    sink, batch = command.sink, command.batch
    staged = partition.staged
    if staged is not None and staged.committed(sink, batch) is not None:
        return StagedOutcome(0, is_committed=True)
    transaction = staged.find(sink, batch) if staged is not None else None
    stage = transaction.stages.get(command.stage) if transaction is not None else None
    count = stage.count if stage is not None else 0
    if command.first_index > count:
        raise InvalidParameterValue.of(
            "FirstIndex", command.first_index, f"Stage {command.stage} has {count} messages."
        )
    messages = command.messages[count - command.first_index :]
    if not messages:
        return StagedOutcome(count)
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


def commit_transaction(
    partition: Partition, command: CommitTransaction, now_ms: int, proposal: Proposal
) -> CommittedOutcome:
    """Send what the stages have, all or nothing; raises StageNotFound.

    A message whose deduplication id was sent within the window, in this transaction or before, is one that was sent
    already: it gets no number of its own.
    """
    staged = partition.staged
    done = staged.committed(command.sink, command.batch) if staged is not None else None
    if done is not None:
        return CommittedOutcome(done.messages if done.batch == command.batch else 0, was_committed=True)
    if staged is not None and command.sink not in staged.sinks:
        _check_sinks(staged)
    stages = _named_stages(staged, command)
    duplicates = _find_duplicates(partition, stages, now_ms)
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
    apply_commit(partition, committed, first, delay_ms, now_ms)
    count = committed.messages - len(duplicates)
    if count:
        proposal.note_sent(partition, first)
    for group in partition.groups.values():
        follow_commit(group, partition, first, count, delay_ms, now_ms, one_delay=one_delay)
        proposal.note_sent(group, first)
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


def _find_duplicates(partition: Partition, stages: list[Stage], now_ms: int) -> list[int]:
    """Return the places of messages that were sent already, or are here twice."""
    places: list[int] = []
    seen: set[bytes] = set()
    for stage in stages:
        if stage.has_all_dedups:
            dedups = bytes(stage.dedups)
            hashes = {dedup for (dedup,) in iter_unpack("16s", dedups)}
            is_known = partition.dedup is not None and partition.dedup.has_any(dedups, now_ms)
            if len(hashes) == stage.count and hashes.isdisjoint(seen) and not is_known:
                seen |= hashes
                continue
        for place, _, dedup in stage.deduplicated():
            if dedup in seen or partition.find_duplicate(dedup, None, now_ms) is not None:
                places.append(place)
            seen.add(dedup)
    return places


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


def expire_transactions(partition: Partition, now_ms: int, proposal: Proposal) -> None:
    """Drop what was staged long ago, as much as one step may."""
    staged = partition.staged
    if staged is None:
        return
    for transaction in staged.expired(now_ms)[:EXPIRED_PER_STEP_MAX]:
        _abort(partition, staged, transaction.sink, transaction.batch, now_ms, proposal)


def _abort(
    partition: Partition, staged: StagedMessages, sink: str, batch: int, now_ms: int, proposal: Proposal
) -> None:
    payload = join_transaction(sink, batch)
    proposal.add(RecordType.TRANSACTION_ABORT, partition, now_ms, payload=payload)
    opened_staged(partition).drop(sink, batch)
