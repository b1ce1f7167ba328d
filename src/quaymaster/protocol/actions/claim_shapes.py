"""The input and output of the actions on claims, which SQS does not have: AWS JSON 1.0, `Quaymaster.<Action>`.

A claim is what a consumer holds of one partition, under an id that grows by one (`core/structures/orders/claims`).
"""

from __future__ import annotations

from quaymaster.protocol.sqs.shapes import Shape


class ClaimMessagesRequest(Shape, frozen=True):
    """Claims more messages, or with no MaxNumberOfMessages holds those that are claimed.

    `Known`: how many the claim has, as the caller knows; it has no more then. With `Take`, `Owner` owns the consumer
    from now on.
    """

    QueueUrl: str
    Partition: int
    Consumer: str
    Owner: str
    ClaimId: int
    MaxNumberOfMessages: int | None = None
    Known: int | None = None
    VisibilityTimeout: int | None = None
    Take: bool | None = None


class ClaimMessagesResult(Shape, frozen=True):
    """`State`: none, growing, held or broken; `Count` messages in all, `Claimed` by this request.

    `Unfinished`: there may be more at once.
    """

    State: str
    Count: int
    Claimed: int
    Unfinished: bool


class ReadClaimRequest(Shape, frozen=True):
    """The messages [From, To) of a claim, by their places in it. The output is as FetchMessages has it."""

    QueueUrl: str
    Partition: int
    Consumer: str
    ClaimId: int
    From: int
    To: int
    MaxBytes: int | None = None
    Columns: list[str] | None = None
    Format: str | None = None


class SettleClaimsRequest(Shape, frozen=True):
    """Deletes what the consumer's claims up to this one have, unless they are broken."""

    QueueUrl: str
    Partition: int
    Consumer: str
    Owner: str
    ClaimId: int
    Take: bool | None = None


class SettleClaimsResult(Shape, frozen=True):
    """`Settled`: the last claim that is; `Deleted` messages, by this request."""

    Settled: int
    Deleted: int


class DescribeClaimsRequest(Shape, frozen=True):
    QueueUrl: str


class OpenClaimEntry(Shape, frozen=True):
    """`State`: growing, held, lapsed or broken; `MillisecondsLeft`: until it lapses."""

    ClaimId: int
    State: str
    Count: int
    MillisecondsLeft: int


class ClaimConsumerEntry(Shape, frozen=True):
    Consumer: str
    Owner: str
    Settled: int
    Claims: list[OpenClaimEntry]


class ClaimPartition(Shape, frozen=True):
    Partition: int
    Visible: int
    Consumers: list[ClaimConsumerEntry]


class DescribeClaimsResult(Shape, frozen=True):
    QueueId: str
    QueueName: str
    Partitions: list[ClaimPartition]


class ReleaseClaimsRequest(Shape, frozen=True):
    """Breaks the consumer's open claims in all partitions; with `Forget`, the consumer is not known any more."""

    QueueUrl: str
    Consumer: str
    Forget: bool | None = None


class ReleaseClaimsResult(Shape, frozen=True):
    """`Released`: how many messages the claims had."""

    Released: int
