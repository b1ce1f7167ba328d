"""The input and output of every SQS action, one struct each, with the service's own member names.

The structs decode from and encode to AWS JSON directly; the Query form is built from the same fields by
`sqs_query`. An absent member is None in an input and is left out of an output; an empty list or map in an
output is left out too, as the service does.

`ACTIONS` is the list of everything a request can name. A test keeps it equal to the public service model.

Source: the public SQS service model, 2012-11-05.
"""

# Member names are the service's, not ours.
# ruff: noqa: N815

from __future__ import annotations

import msgspec
from msgspec import field


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A structure of the service model."""


# Shared by several actions


class MessageAttributeValue(Shape):
    """One message (or message system) attribute. Exactly one value member is set, the kind `DataType` says.

    The model requires `DataType`; it defaults to empty here because the service answers its absence with an
    error that names the attribute.
    """

    DataType: str = ""
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


class BatchResultErrorEntry(Shape):
    """Why one entry of a batch failed. `SenderFault` is False when trying again may help."""

    Id: str
    SenderFault: bool
    Code: str
    Message: str | None = None


# Queues


class CreateQueueRequest(Shape):
    QueueName: str
    Attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class CreateQueueResult(Shape):
    QueueUrl: str | None = None


class DeleteQueueRequest(Shape):
    QueueUrl: str


class GetQueueUrlRequest(Shape):
    QueueName: str
    QueueOwnerAWSAccountId: str | None = None


class GetQueueUrlResult(Shape):
    QueueUrl: str | None = None


class ListQueuesRequest(Shape):
    QueueNamePrefix: str | None = None
    NextToken: str | None = None
    MaxResults: int | None = None


class ListQueuesResult(Shape):
    QueueUrls: list[str] = field(default_factory=list)
    NextToken: str | None = None


class ListDeadLetterSourceQueuesRequest(Shape):
    QueueUrl: str
    NextToken: str | None = None
    MaxResults: int | None = None


class ListDeadLetterSourceQueuesResult(Shape):
    queueUrls: list[str] = field(default_factory=list)
    NextToken: str | None = None


class GetQueueAttributesRequest(Shape):
    QueueUrl: str
    AttributeNames: list[str] | None = None


class GetQueueAttributesResult(Shape):
    Attributes: dict[str, str] = field(default_factory=dict)


class SetQueueAttributesRequest(Shape):
    QueueUrl: str
    Attributes: dict[str, str]


class PurgeQueueRequest(Shape):
    QueueUrl: str


# Tags and permissions


class TagQueueRequest(Shape):
    QueueUrl: str
    Tags: dict[str, str]


class UntagQueueRequest(Shape):
    QueueUrl: str
    TagKeys: list[str]


class ListQueueTagsRequest(Shape):
    QueueUrl: str


class ListQueueTagsResult(Shape):
    Tags: dict[str, str] = field(default_factory=dict)


class AddPermissionRequest(Shape):
    QueueUrl: str
    Label: str
    AWSAccountIds: list[str]
    Actions: list[str]


class RemovePermissionRequest(Shape):
    QueueUrl: str
    Label: str


# Sending


class SendMessageRequest(Shape):
    QueueUrl: str
    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None
    MessageSystemAttributes: dict[str, MessageAttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageResult(Shape):
    MD5OfMessageBody: str | None = None
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    MessageId: str | None = None
    SequenceNumber: str | None = None


class SendMessageBatchRequestEntry(Shape):
    Id: str
    MessageBody: str
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None
    MessageSystemAttributes: dict[str, MessageAttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageBatchRequest(Shape):
    QueueUrl: str
    Entries: list[SendMessageBatchRequestEntry]


class SendMessageBatchResultEntry(Shape):
    Id: str
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class SendMessageBatchResult(Shape):
    Successful: list[SendMessageBatchResultEntry] = field(default_factory=list)
    Failed: list[BatchResultErrorEntry] = field(default_factory=list)


# Receiving


class ReceiveMessageRequest(Shape):
    QueueUrl: str
    AttributeNames: list[str] | None = None
    MessageSystemAttributeNames: list[str] | None = None
    MessageAttributeNames: list[str] | None = None
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None
    ReceiveRequestAttemptId: str | None = None


class Message(Shape):
    """One delivery, as it is handed out."""

    MessageId: str | None = None
    ReceiptHandle: str | None = None
    MD5OfBody: str | None = None
    Body: str | None = None
    Attributes: dict[str, str] | None = None
    MD5OfMessageAttributes: str | None = None
    MessageAttributes: dict[str, MessageAttributeValue] | None = None


class ReceiveMessageResult(Shape):
    Messages: list[Message] = field(default_factory=list)


# Deleting, changing visibility


class DeleteMessageRequest(Shape):
    QueueUrl: str
    ReceiptHandle: str


class DeleteMessageBatchRequestEntry(Shape):
    Id: str
    ReceiptHandle: str


class DeleteMessageBatchRequest(Shape):
    QueueUrl: str
    Entries: list[DeleteMessageBatchRequestEntry]


class DeleteMessageBatchResultEntry(Shape):
    Id: str


class DeleteMessageBatchResult(Shape):
    Successful: list[DeleteMessageBatchResultEntry] = field(default_factory=list)
    Failed: list[BatchResultErrorEntry] = field(default_factory=list)


class ChangeMessageVisibilityRequest(Shape):
    QueueUrl: str
    ReceiptHandle: str
    VisibilityTimeout: int


class ChangeMessageVisibilityBatchRequestEntry(Shape):
    Id: str
    ReceiptHandle: str
    VisibilityTimeout: int | None = None


class ChangeMessageVisibilityBatchRequest(Shape):
    QueueUrl: str
    Entries: list[ChangeMessageVisibilityBatchRequestEntry]


class ChangeMessageVisibilityBatchResultEntry(Shape):
    Id: str


class ChangeMessageVisibilityBatchResult(Shape):
    Successful: list[ChangeMessageVisibilityBatchResultEntry] = field(default_factory=list)
    Failed: list[BatchResultErrorEntry] = field(default_factory=list)


# Moving messages


class StartMessageMoveTaskRequest(Shape):
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None


class StartMessageMoveTaskResult(Shape):
    TaskHandle: str | None = None


class CancelMessageMoveTaskRequest(Shape):
    TaskHandle: str


class CancelMessageMoveTaskResult(Shape):
    ApproximateNumberOfMessagesMoved: int | None = None


class ListMessageMoveTasksRequest(Shape):
    SourceArn: str
    MaxResults: int | None = None


class ListMessageMoveTasksResultEntry(Shape):
    TaskHandle: str | None = None
    Status: str | None = None
    SourceArn: str | None = None
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None
    ApproximateNumberOfMessagesMoved: int | None = None
    ApproximateNumberOfMessagesToMove: int | None = None
    FailureReason: str | None = None
    StartedTimestamp: int | None = None


class ListMessageMoveTasksResult(Shape):
    Results: list[ListMessageMoveTasksResultEntry] = field(default_factory=list)


class Action(msgspec.Struct, frozen=True):
    """One thing a request can ask for.

    `output` is None where the service answers with nothing. `has_queue_url` tells the actions on one queue from
    those on the account (only these are valid at the root path of the Query protocol without a QueueUrl).
    """

    name: str
    input: type[Shape]
    output: type[Shape] | None
    has_queue_url: bool


def _action(name: str, input_shape: type[Shape], output_shape: type[Shape] | None = None) -> Action:
    return Action(name, input_shape, output_shape, "QueueUrl" in input_shape.__struct_fields__)


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        _action("AddPermission", AddPermissionRequest),
        _action("CancelMessageMoveTask", CancelMessageMoveTaskRequest, CancelMessageMoveTaskResult),
        _action("ChangeMessageVisibility", ChangeMessageVisibilityRequest),
        _action(
            "ChangeMessageVisibilityBatch",
            ChangeMessageVisibilityBatchRequest,
            ChangeMessageVisibilityBatchResult,
        ),
        _action("CreateQueue", CreateQueueRequest, CreateQueueResult),
        _action("DeleteMessage", DeleteMessageRequest),
        _action("DeleteMessageBatch", DeleteMessageBatchRequest, DeleteMessageBatchResult),
        _action("DeleteQueue", DeleteQueueRequest),
        _action("GetQueueAttributes", GetQueueAttributesRequest, GetQueueAttributesResult),
        _action("GetQueueUrl", GetQueueUrlRequest, GetQueueUrlResult),
        _action(
            "ListDeadLetterSourceQueues", ListDeadLetterSourceQueuesRequest, ListDeadLetterSourceQueuesResult
        ),
        _action("ListMessageMoveTasks", ListMessageMoveTasksRequest, ListMessageMoveTasksResult),
        _action("ListQueueTags", ListQueueTagsRequest, ListQueueTagsResult),
        _action("ListQueues", ListQueuesRequest, ListQueuesResult),
        _action("PurgeQueue", PurgeQueueRequest),
        _action("ReceiveMessage", ReceiveMessageRequest, ReceiveMessageResult),
        _action("RemovePermission", RemovePermissionRequest),
        _action("SendMessage", SendMessageRequest, SendMessageResult),
        _action("SendMessageBatch", SendMessageBatchRequest, SendMessageBatchResult),
        _action("SetQueueAttributes", SetQueueAttributesRequest),
        _action("StartMessageMoveTask", StartMessageMoveTaskRequest, StartMessageMoveTaskResult),
        _action("TagQueue", TagQueueRequest),
        _action("UntagQueue", UntagQueueRequest),
    )
}
