"""The input and output of every SQS action, one struct each, with the service's own member names.

The structs decode from and encode to AWS JSON directly; the Query form is built from the same fields by
`sqs_query`. An absent member is None in an input and is left out of an output; an empty list or map in an
output is left out too, as the service does. Strings, numbers and bytes are as they came: nothing is
validated.

A test keeps them equal to the public service model. `protocol/actions/table` says which action has which.

Source: the public SQS service model, 2012-11-05.
"""

# Member names are the service's, not ours.
# ruff: noqa: N815

from __future__ import annotations

from typing import Any, get_origin

import msgspec
from msgspec import field
from msgspec.structs import FieldInfo

from quaymaster.core.values.errors import InvalidParameterValue, MissingParameter, QueueDoesNotExist


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A structure of the service model."""


# Shared by several actions


class MessageAttributeValue(Shape, frozen=True):
    """One message (or message system) attribute. Exactly one value member is set, the kind `DataType` says.

    The model requires `DataType`; it defaults to empty here because the service answers its absence with an
    error that names the attribute.
    """

    DataType: str = ""
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


class BatchResultErrorEntry(Shape, frozen=True):
    """Why one entry of a batch failed. `SenderFault` is False when trying again may help."""

    Id: str
    SenderFault: bool
    Code: str
    Message: str | None = None


# Queues


class CreateQueueRequest(Shape, frozen=True):
    QueueName: str
    Attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class CreateQueueResult(Shape, frozen=True):
    QueueUrl: str | None = None


class DeleteQueueRequest(Shape, frozen=True):
    QueueUrl: str


class GetQueueUrlRequest(Shape, frozen=True):
    QueueName: str
    QueueOwnerAWSAccountId: str | None = None


class GetQueueUrlResult(Shape, frozen=True):
    QueueUrl: str | None = None


class ListQueuesRequest(Shape, frozen=True):
    QueueNamePrefix: str | None = None
    NextToken: str | None = None
    MaxResults: int | None = None


class ListQueuesResult(Shape, frozen=True):
    QueueUrls: list[str] = field(default_factory=list)
    NextToken: str | None = None


class ListDeadLetterSourceQueuesRequest(Shape, frozen=True):
    QueueUrl: str
    NextToken: str | None = None
    MaxResults: int | None = None


class ListDeadLetterSourceQueuesResult(Shape, frozen=True):
    queueUrls: list[str]
    NextToken: str | None = None


class GetQueueAttributesRequest(Shape, frozen=True):
    QueueUrl: str
    AttributeNames: list[str] | None = None


class GetQueueAttributesResult(Shape, frozen=True):
    Attributes: dict[str, str] = field(default_factory=dict)


class SetQueueAttributesRequest(Shape, frozen=True):
    QueueUrl: str
    Attributes: dict[str, str]


class PurgeQueueRequest(Shape, frozen=True):
    QueueUrl: str


# Tags and permissions


class TagQueueRequest(Shape, frozen=True):
    QueueUrl: str
    Tags: dict[str, str]


class UntagQueueRequest(Shape, frozen=True):
    QueueUrl: str
    TagKeys: list[str]


class ListQueueTagsRequest(Shape, frozen=True):
    QueueUrl: str


class ListQueueTagsResult(Shape, frozen=True):
    Tags: dict[str, str] = field(default_factory=dict)


class AddPermissionRequest(Shape, frozen=True):
    QueueUrl: str
    Label: str
    AWSAccountIds: list[str]
    Actions: list[str]


class RemovePermissionRequest(Shape, frozen=True):
    QueueUrl: str
    Label: str


# Sending


class SendMessageRequest(Shape, frozen=True):
    QueueUrl: str
    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None
    MessageSystemAttributes: dict[str, MessageAttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageResult(Shape, frozen=True):
    MD5OfMessageBody: str | None = None
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    MessageId: str | None = None
    SequenceNumber: str | None = None


class SendMessageBatchRequestEntry(Shape, frozen=True):
    Id: str
    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None
    MessageSystemAttributes: dict[str, MessageAttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageBatchRequest(Shape, frozen=True):
    QueueUrl: str
    Entries: list[SendMessageBatchRequestEntry]


class SendMessageBatchResultEntry(Shape, frozen=True):
    Id: str
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class SendMessageBatchResult(Shape, frozen=True):
    Successful: list[SendMessageBatchResultEntry] = field(default_factory=list)
    Failed: list[BatchResultErrorEntry] = field(default_factory=list)


# Receiving


class ReceiveMessageRequest(Shape, frozen=True):
    QueueUrl: str
    AttributeNames: list[str] | None = None
    MessageSystemAttributeNames: list[str] | None = None
    MessageAttributeNames: list[str] | None = None
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None
    ReceiveRequestAttemptId: str | None = None


class Message(Shape, frozen=True):
    """One delivery, as it is handed out."""

    MessageId: str | None = None
    ReceiptHandle: str | None = None
    MD5OfBody: str | None = None
    Body: str | None = None
    Attributes: dict[str, str] | None = None
    MD5OfMessageAttributes: str | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None


class ReceiveMessageResult(Shape, frozen=True):
    Messages: list[Message] = field(default_factory=list)


# Deleting, changing visibility


class DeleteMessageRequest(Shape, frozen=True):
    QueueUrl: str
    ReceiptHandle: str


class DeleteMessageBatchRequestEntry(Shape, frozen=True):
    Id: str
    ReceiptHandle: str


class DeleteMessageBatchRequest(Shape, frozen=True):
    QueueUrl: str
    Entries: list[DeleteMessageBatchRequestEntry]


class DeleteMessageBatchResultEntry(Shape, frozen=True):
    Id: str


class DeleteMessageBatchResult(Shape, frozen=True):
    Successful: list[DeleteMessageBatchResultEntry] = field(default_factory=list)
    Failed: list[BatchResultErrorEntry] = field(default_factory=list)


class ChangeMessageVisibilityRequest(Shape, frozen=True):
    QueueUrl: str
    ReceiptHandle: str
    VisibilityTimeout: int


class ChangeMessageVisibilityBatchRequestEntry(Shape, frozen=True):
    Id: str
    ReceiptHandle: str
    VisibilityTimeout: int | None = None


class ChangeMessageVisibilityBatchRequest(Shape, frozen=True):
    QueueUrl: str
    Entries: list[ChangeMessageVisibilityBatchRequestEntry]


class ChangeMessageVisibilityBatchResultEntry(Shape, frozen=True):
    Id: str


class ChangeMessageVisibilityBatchResult(Shape, frozen=True):
    Successful: list[ChangeMessageVisibilityBatchResultEntry] = field(default_factory=list)
    Failed: list[BatchResultErrorEntry] = field(default_factory=list)


# Moving messages


class StartMessageMoveTaskRequest(Shape, frozen=True):
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None


class StartMessageMoveTaskResult(Shape, frozen=True):
    TaskHandle: str | None = None


class CancelMessageMoveTaskRequest(Shape, frozen=True):
    TaskHandle: str


class CancelMessageMoveTaskResult(Shape, frozen=True):
    ApproximateNumberOfMessagesMoved: int | None = None


class ListMessageMoveTasksRequest(Shape, frozen=True):
    SourceArn: str
    MaxResults: int | None = None


class ListMessageMoveTasksResultEntry(Shape, frozen=True):
    TaskHandle: str | None = None
    Status: str | None = None
    SourceArn: str | None = None
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None
    ApproximateNumberOfMessagesMoved: int | None = None
    ApproximateNumberOfMessagesToMove: int | None = None
    FailureReason: str | None = None
    StartedTimestamp: int | None = None


class ListMessageMoveTasksResult(Shape, frozen=True):
    Results: list[ListMessageMoveTasksResultEntry] = field(default_factory=list)


def missing_member(member: FieldInfo, path: str) -> Any:
    """Return what an absent required member means: an empty list or map, else the error the service gives.

    `path` names the structure the member is missing from ("" for the input itself). An empty list or map goes
    on to validation, which has the service's word for each (EmptyBatchRequest, for one).
    """
    if get_origin(member.type) in (list, dict):
        return member.type()
    if path:
        raise MissingParameter(f"{path}.{member.name}")
    if member.name == "QueueUrl":
        raise QueueDoesNotExist
    if member.name == "QueueName":
        raise InvalidParameterValue(
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name."
        )
    raise MissingParameter(member.name)
