"""The input and output of the actions that read logs, which SQS does not have: AWS JSON 1.0, `Quaymaster.<Action>`.

An offset is a message's sequence number in its partition.
"""

from __future__ import annotations

from quaymaster.protocol.sqs.shapes import Shape


class DescribeLogRequest(Shape, frozen=True):
    QueueUrl: str


class LogPartition(Shape, frozen=True):
    """What can be read of a partition: [EarliestOffset, NextOffset). `Committed`: below it all is consumed.

    `State`: closing, closed or drained, of one that takes no messages any more; absent of one that is open.
    """

    Partition: int
    EarliestOffset: int
    NextOffset: int
    Committed: int | None = None
    State: str | None = None


class DescribeLogResult(Shape, frozen=True):
    QueueId: str
    QueueName: str
    Partitions: list[LogPartition]


class FindOffsetsRequest(Shape, frozen=True):
    """`Timestamp` is in milliseconds since 1970."""

    QueueUrl: str
    Timestamp: int


class PartitionOffset(Shape, frozen=True):
    Partition: int
    Offset: int


class FindOffsetsResult(Shape, frozen=True):
    Offsets: list[PartitionOffset]


class FetchMessagesRequest(Shape, frozen=True):
    """The messages [FromOffset, ToOffset) of a partition. Its output is no JSON, but what `Format` names."""

    QueueUrl: str
    Partition: int
    FromOffset: int
    ToOffset: int
    MaxBytes: int | None = None
    Columns: list[str] | None = None
    Format: str | None = None


class CommitOffsetsRequest(Shape, frozen=True):
    """`Reader` names who commits; with `Take` the group is theirs from then on, and refuses who had it before."""

    QueueUrl: str
    Offsets: list[PartitionOffset]
    Reader: str | None = None
    Take: bool | None = None
