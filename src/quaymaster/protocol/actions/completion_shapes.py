"""The input and output of CompleteMessages, which SQS does not have."""

from __future__ import annotations

from quaymaster.protocol.sqs.shapes import MessageAttributeValue, Shape


class CompleteMessagesRequestEntry(Shape, frozen=True):
    """A message as in a SendMessage, and the queue that it is for."""

    QueueUrl: str
    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None
    MessageSystemAttributes: dict[str, MessageAttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class CompleteMessagesRequest(Shape, frozen=True):
    """`QueueUrl` is the queue that the messages with these receipt handles were received from."""

    QueueUrl: str
    ReceiptHandles: list[str]
    Messages: list[CompleteMessagesRequestEntry]


class CompleteMessagesResultEntry(Shape, frozen=True):
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None


class CompleteMessagesResult(Shape, frozen=True):
    """What became of the messages sent, in their order."""

    Messages: list[CompleteMessagesResultEntry]
