"""The input and output of the actions of transactions, which SQS does not have: AWS JSON 1.0, `Quaymaster.<Action>`."""

from __future__ import annotations

from quaymaster.protocol.sqs.shapes import MessageAttributeValue, Shape


class StagedMessageEntry(Shape, frozen=True):
    """A message, as in a SendMessage. `OriginMessageId`: the id, a UUID, that it is to have under that name."""

    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None
    MessageSystemAttributes: dict[str, MessageAttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None
    OriginMessageId: str | None = None


class StageMessagesRequest(Shape, frozen=True):
    """`FirstIndex` is the index of the first of these messages within the stage.

    `Commit`: the stage ends with these messages, and is sent at once, as the whole transaction.
    """

    QueueUrl: str
    SinkId: str
    BatchId: int
    Stage: str
    FirstIndex: int
    Messages: list[StagedMessageEntry]
    Commit: bool | None = None
    Deduplicate: bool | None = None


class StageMessagesResult(Shape, frozen=True):
    """How many messages the stage has; with `AlreadyCommitted` nothing was stored.

    `Committed`, where it was asked for: how many messages the batch has sent, 0 where a later one was committed.
    """

    Staged: int
    AlreadyCommitted: bool
    Committed: int | None = None


class CommittedStage(Shape, frozen=True):
    Stage: str
    Count: int


class CommitTransactionRequest(Shape, frozen=True):
    QueueUrl: str
    SinkId: str
    BatchId: int
    Stages: list[CommittedStage]


class CommitTransactionResult(Shape, frozen=True):
    Committed: int
    AlreadyCommitted: bool


class AbortTransactionRequest(Shape, frozen=True):
    QueueUrl: str
    SinkId: str
    BatchId: int


class AbortTransactionResult(Shape, frozen=True):
    Aborted: bool
