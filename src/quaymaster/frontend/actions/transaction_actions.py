"""Transactions: messages that are staged, a few hundred at a time, and sent by the commit, all or none."""

from __future__ import annotations

import asyncio
from typing import Final

from quaymaster.core.values.commands.messages import NewMessage
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StageCount,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.frontend.actions.message_actions import partition_of
from quaymaster.frontend.actions.message_preparation import MessagePreparation
from quaymaster.frontend.call import Call
from quaymaster.monitoring.metrics import Metrics
from quaymaster.protocol.actions import transaction_rules, transaction_shapes
from quaymaster.protocol.actions.table import STAGE_AND_COMMIT

PREPARED_AT_ONCE: Final = 64
"""So many messages are checked and encrypted before others get their turn: about a millisecond."""


class TransactionActions:
    """The handlers of the actions of transactions."""

    def __init__(self, preparation: MessagePreparation, metrics: Metrics) -> None:
        self._preparation = preparation
        self._metrics = metrics

    async def stage_messages(
        self, call: Call, given: transaction_shapes.StageMessagesRequest
    ) -> transaction_shapes.StageMessagesResult:
        """Bring messages to a transaction, and commit it with them where that is asked for."""
        definition = call.resolved
        transaction_rules.check_stage(given)
        is_commit = bool(given.Commit)
        if is_commit:
            call.action = STAGE_AND_COMMIT
        ready: list[NewMessage] = []
        size_bytes = 0
        for number, message in enumerate(given.Messages):
            if number % PREPARED_AT_ONCE == 0 and number:
                await asyncio.sleep(0)
            checked = transaction_rules.check_message(number, message, definition)
            size_bytes += checked.size_bytes
            transaction_rules.check_size(size_bytes)
            origin_id = transaction_rules.check_origin(number, message)
            ready.append(self._preparation.prepare_staged(call, definition, message, checked, origin_id))
        call.payload_bytes = size_bytes
        # Of a commit it is known when it is answered: until then nothing was sent.
        call.message_count = 0 if is_commit else len(ready)
        outcome = await call.calls.ask(
            StageMessages(
                definition.queue_id,
                partition_of(definition),
                given.SinkId,
                given.BatchId,
                given.Stage,
                given.FirstIndex,
                ready,
                is_commit,
                given.Deduplicate is not False,
            )
        )
        assert isinstance(outcome, StagedOutcome), "a StageMessages is answered by a StagedOutcome"
        if not is_commit:
            return transaction_shapes.StageMessagesResult(outcome.count, outcome.is_committed)
        if not (outcome.was_sent or outcome.is_committed):
            # An older broker staged the messages: what it does not know of the command it does not do.
            raise UnsupportedOperation(
                "StageMessages commits once all processes of this cell run this version."
            )
        self._count_committed(call, outcome.count, outcome.duplicates, was_committed=outcome.is_committed)
        return transaction_shapes.StageMessagesResult(outcome.count, outcome.is_committed, outcome.count)

    async def commit_transaction(
        self, call: Call, given: transaction_shapes.CommitTransactionRequest
    ) -> transaction_shapes.CommitTransactionResult:
        """Send what was staged; what the stages were is checked against what is there."""
        definition = call.resolved
        transaction_rules.check_committed(given)
        stages = [StageCount(stage.Stage, stage.Count) for stage in given.Stages]
        outcome = await call.calls.ask(
            CommitTransaction(
                definition.queue_id, partition_of(definition), given.SinkId, given.BatchId, stages
            )
        )
        assert isinstance(outcome, CommittedOutcome), "a CommitTransaction is answered by a CommittedOutcome"
        self._count_committed(call, outcome.messages, outcome.duplicates, was_committed=outcome.was_committed)
        return transaction_shapes.CommitTransactionResult(outcome.messages, outcome.was_committed)

    def _count_committed(self, call: Call, messages: int, duplicates: int, *, was_committed: bool) -> None:
        call.message_count, call.duplicate_count = messages, messages if was_committed else duplicates
        if not was_committed:
            self._metrics.messages_sent += messages - duplicates
            self._metrics.messages_duplicate += duplicates

    async def abort_transaction(
        self, call: Call, given: transaction_shapes.AbortTransactionRequest
    ) -> transaction_shapes.AbortTransactionResult:
        """Drop what was staged."""
        definition = call.resolved
        transaction_rules.check_transaction(given)
        outcome = await call.calls.ask(
            AbortTransaction(definition.queue_id, partition_of(definition), given.SinkId, given.BatchId)
        )
        assert isinstance(outcome, AbortedOutcome), "an AbortTransaction is answered by an AbortedOutcome"
        return transaction_shapes.AbortTransactionResult(outcome.is_aborted)
