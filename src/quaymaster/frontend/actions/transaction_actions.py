"""Transactions: messages that are staged, a few hundred at a time, and sent by the commit, all or none."""

from __future__ import annotations

import asyncio
from typing import Final

from quaymaster.core.values.commands import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    NewMessage,
    StageCount,
    StagedOutcome,
    StageMessages,
)
from quaymaster.frontend.actions.message_actions import partition_of
from quaymaster.frontend.actions.message_preparation import MessagePreparation
from quaymaster.frontend.call import Call
from quaymaster.monitoring.metrics import Metrics
from quaymaster.protocol.actions import transaction_rules, transaction_shapes

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
        """Bring messages to a transaction."""
        definition = call.resolved
        transaction_rules.check_stage(given)
        ready: list[NewMessage] = []
        size_bytes = 0
        for number, message in enumerate(given.Messages):
            if number % PREPARED_AT_ONCE == 0 and number:
                await asyncio.sleep(0)
            checked = transaction_rules.check_message(number, message, definition)
            size_bytes += checked.size_bytes
            transaction_rules.check_size(size_bytes)
            ready.append(self._preparation.prepare_staged(call, definition, message, checked))
        call.message_count, call.payload_bytes = len(ready), size_bytes
        outcome = await call.calls.ask(
            StageMessages(
                definition.queue_id,
                partition_of(definition),
                given.SinkId,
                given.BatchId,
                given.Stage,
                given.FirstIndex,
                ready,
            )
        )
        assert isinstance(outcome, StagedOutcome), "a StageMessages is answered by a StagedOutcome"
        return transaction_shapes.StageMessagesResult(outcome.count, outcome.is_committed)

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
        if not outcome.was_committed:
            call.message_count, call.duplicate_count = outcome.messages, outcome.duplicates
            self._metrics.messages_sent += outcome.messages - outcome.duplicates
            self._metrics.messages_duplicate += outcome.duplicates
        else:
            call.message_count = call.duplicate_count = outcome.messages
        return transaction_shapes.CommitTransactionResult(outcome.messages, outcome.was_committed)

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
