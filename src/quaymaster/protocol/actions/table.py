"""Every action of the SQS endpoint, declared once: its input and output, whom and what it concerns, what it costs.

Wire decoding, validation, authorization, usage, audit, billing, metrics and the reference page read this table; there
is no other list of names of actions. An action is added here, with its shapes and its handler, a method of its name in
`frontend/actions`.

Source: the public SQS, STS and CloudWatch service models, 2012-11-05, 2011-06-15 and 2010-08-01; Amazon SQS Developer
Guide, "Amazon SQS API permissions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from quaymaster.core.access.permissions import Permission
from quaymaster.protocol.actions import validation
from quaymaster.protocol.actions.claim_shapes import (
    ClaimMessagesRequest,
    ClaimMessagesResult,
    DescribeClaimsRequest,
    DescribeClaimsResult,
    ReadClaimRequest,
    ReleaseClaimsRequest,
    ReleaseClaimsResult,
    SettleClaimsRequest,
    SettleClaimsResult,
)
from quaymaster.protocol.actions.completion_shapes import CompleteMessagesRequest, CompleteMessagesResult
from quaymaster.protocol.actions.log_shapes import (
    CommitOffsetsRequest,
    DescribeLogRequest,
    DescribeLogResult,
    FetchMessagesRequest,
    FindOffsetsRequest,
    FindOffsetsResult,
)
from quaymaster.protocol.actions.transaction_shapes import (
    AbortTransactionRequest,
    AbortTransactionResult,
    CommitTransactionRequest,
    CommitTransactionResult,
    StageMessagesRequest,
    StageMessagesResult,
)
from quaymaster.protocol.cloudwatch.operations import OPERATIONS, SCRAPE, MonitoringInput, Operation
from quaymaster.protocol.sqs import shapes
from quaymaster.protocol.sqs.shapes import Shape
from quaymaster.protocol.sts import shapes as sts_shapes
from quaymaster.protocol.sts.validation import check_assume_role, check_session_token, check_web_identity
from quaymaster.protocol.usage.usage_records import Category

Service = Literal["sqs", "quaymaster", "sts", "monitoring"]
"""Whose action it is: `quaymaster` for those that SQS does not have, most of which come in JSON only; those of STS come
in its own Query form, those of CloudWatch (`monitoring`, as signatures name it) in three forms."""
Plane = Literal["message", "bulk", "control", "unsigned", "monitoring"]
"""How it is carried out: as a callback; as a task, many in each second; as a task, rarely; as a task of a
client that has signed nothing; as a task that asks a console."""
Scope = Literal["account", "resources", "name", "queue", "counted", "consumed", "source"]
"""What it is about: the account; resources of the account that are no queues; a queue by its name; a queue by its URL;
such a queue and how many messages it has, in a log those of its default group; the messages of such a queue, in a log
those of a group; the source of a message move task, by its ARN."""
QueueState = Literal["any", "no group", "log", "group of a log"]
"""What the queue must be: anything; no consumer group; a log or a group of one; a group of one."""
BillingRate = Literal["standard", "by queue", "push", "free"]
"""What each of its 64 KiB costs: always the standard rate; on a FIFO queue the FIFO rate; nothing."""
Completes = Literal["nothing", "by attribute", "by handle"]
"""What it deletes together with what it sends: nothing; messages whose handles are in an attribute of those sent, if
there is one; those whose handles it has, of its queue."""
UsageColumn = Literal["payload_bytes", "message_count", "duplicate_count"]
"""Columns of its usage record that are otherwise 0."""
QueueSum = Literal["sends", "deletions"]
"""Which of the sums that brokers keep of a queue its messages are part of."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a request can ask for.

    `output` is None where the service answers with nothing, or with what is no JSON. `usage_op` is its number in tables
    of usage: never changed, never given again. `permissions` are those it takes on its queue, under SQS's names.
    """

    name: str
    usage_op: int
    input: type[Shape]
    output: type[Shape] | None = None
    service: Service = "sqs"
    category: Category
    read_only: bool = False
    gives_credentials: bool = False
    """Whether its answer has a secret: it changes nothing that is stored, but what follows is done with that."""
    plane: Plane
    scope: Scope = "queue"
    queue_state: QueueState = "any"
    check: Callable[[Any], Any] | None = None
    """What must hold of its input before its queue is looked for; returns what the input means."""
    writes: bool = False
    """Whether it changes its queue or adds messages to it, which is not done to queues of the server itself."""
    is_fresh: bool = False
    """Whether it must see what another front end has just changed."""
    makes_group: bool = False
    """Whether the consumer group is made that it names, where there is none."""
    has_query_form: bool = False
    """Whether it comes in SQS's Query form though SQS does not have it."""
    completes: Completes = "nothing"
    permissions: tuple[Permission, ...]
    destination_permissions: tuple[Permission, ...] = ()
    """Those it takes on each queue to which it moves messages, or sends outputs of a completion."""
    tag_permissions: tuple[Permission, ...] = ()
    """Those it takes besides where it is asked for tags."""
    owner_only: bool = False
    """Whether no permission for it can be given to another account."""
    billing: BillingRate = "standard"
    usage: frozenset[UsageColumn] = frozenset()
    queue_sum: QueueSum | None = None
    operation: Operation | None = None
    """What else is said of it, if it is CloudWatch's: its members, and which resources it is about."""
    limit_class: str = ""
    """What limits call it: its first permission, so a batch is called as its single action; "" without one."""

    def __post_init__(self) -> None:
        if self.permissions:
            msgspec.structs.force_setattr(self, "limit_class", self.permissions[0].value)

    @property
    def is_change(self) -> bool:
        """Whether it changes a queue: its record says what was asked and answered."""
        return self.category == "management" and not self.read_only

    @property
    def is_owed(self) -> bool:
        """Whether its record is written before its answer, and it is refused while none can be written."""
        return self.is_change or self.gives_credentials

    @property
    def has_queue_url(self) -> bool:
        """Whether its input names a queue by URL: in a Query request the path does where the parameter is absent."""
        return "QueueUrl" in self.input.__struct_fields__


_MESSAGES: Final = frozenset[UsageColumn](("message_count",))
_BYTES: Final = frozenset[UsageColumn](("message_count", "payload_bytes"))
_DUPLICATES: Final = frozenset[UsageColumn](("message_count", "duplicate_count"))
_ALL: Final = _BYTES | _DUPLICATES
_OF_MOVES: Final = (
    Permission.RECEIVE_MESSAGE,
    Permission.DELETE_MESSAGE,
    Permission.GET_QUEUE_ATTRIBUTES,
)
"""What actions on message move tasks take besides their own permission."""
_OF_CLAIMS: Final = (Permission.RECEIVE_MESSAGE, Permission.DELETE_MESSAGE)
"""Who claims messages is to delete them, too."""


def _of_cloudwatch(operation: Operation) -> Action:
    return Action(
        name=operation.name,
        usage_op=operation.usage_op,
        input=MonitoringInput,
        service="monitoring",
        category="data" if operation is SCRAPE else "management",  # those would fill the audit log
        read_only=operation.read_only,
        plane="monitoring",
        scope="resources",
        permissions=(),
        owner_only=True,
        billing="free",
        operation=operation,
    )


ACTIONS: Final[dict[str, Action]] = {
    action.name: action
    for action in (
        Action(
            name="SendMessage",
            usage_op=1,
            input=shapes.SendMessageRequest,
            output=shapes.SendMessageResult,
            category="data",
            plane="message",
            queue_state="no group",
            writes=True,
            completes="by attribute",
            permissions=(Permission.SEND_MESSAGE,),
            billing="by queue",
            usage=_ALL,
            queue_sum="sends",
        ),
        Action(
            name="SendMessageBatch",
            usage_op=2,
            input=shapes.SendMessageBatchRequest,
            output=shapes.SendMessageBatchResult,
            category="data",
            plane="message",
            queue_state="no group",
            writes=True,
            completes="by attribute",
            permissions=(Permission.SEND_MESSAGE,),
            billing="by queue",
            usage=_ALL,
            queue_sum="sends",
        ),
        Action(
            name="ReceiveMessage",
            usage_op=3,
            input=shapes.ReceiveMessageRequest,
            output=shapes.ReceiveMessageResult,
            category="data",
            plane="message",
            scope="consumed",
            makes_group=True,
            permissions=(Permission.RECEIVE_MESSAGE,),
            billing="by queue",
            usage=_BYTES,
        ),
        Action(
            name="DeleteMessage",
            usage_op=4,
            input=shapes.DeleteMessageRequest,
            category="data",
            plane="message",
            scope="consumed",
            permissions=(Permission.DELETE_MESSAGE,),
            billing="by queue",
            usage=_DUPLICATES,
            queue_sum="deletions",
        ),
        Action(
            name="DeleteMessageBatch",
            usage_op=5,
            input=shapes.DeleteMessageBatchRequest,
            output=shapes.DeleteMessageBatchResult,
            category="data",
            plane="message",
            scope="consumed",
            permissions=(Permission.DELETE_MESSAGE,),
            billing="by queue",
            usage=_DUPLICATES,
            queue_sum="deletions",
        ),
        Action(
            name="ChangeMessageVisibility",
            usage_op=6,
            input=shapes.ChangeMessageVisibilityRequest,
            category="data",
            plane="message",
            scope="consumed",
            permissions=(Permission.CHANGE_MESSAGE_VISIBILITY,),
            billing="by queue",
            usage=_MESSAGES,
        ),
        Action(
            name="ChangeMessageVisibilityBatch",
            usage_op=7,
            input=shapes.ChangeMessageVisibilityBatchRequest,
            output=shapes.ChangeMessageVisibilityBatchResult,
            category="data",
            plane="message",
            scope="consumed",
            permissions=(Permission.CHANGE_MESSAGE_VISIBILITY,),
            billing="by queue",
            usage=_MESSAGES,
        ),
        Action(
            name="CreateQueue",
            usage_op=8,
            input=shapes.CreateQueueRequest,
            output=shapes.CreateQueueResult,
            category="management",
            plane="control",
            scope="account",
            writes=True,
            permissions=(Permission.CREATE_QUEUE,),
            tag_permissions=(Permission.TAG_QUEUE,),
            owner_only=True,
        ),
        Action(
            name="DeleteQueue",
            usage_op=9,
            input=shapes.DeleteQueueRequest,
            category="management",
            plane="control",
            writes=True,
            permissions=(Permission.DELETE_QUEUE,),
            owner_only=True,
        ),
        Action(
            name="GetQueueUrl",
            usage_op=10,
            input=shapes.GetQueueUrlRequest,
            output=shapes.GetQueueUrlResult,
            category="management",
            read_only=True,
            plane="control",
            scope="name",
            is_fresh=True,
            permissions=(Permission.GET_QUEUE_URL,),
        ),
        Action(
            name="GetQueueAttributes",
            usage_op=11,
            input=shapes.GetQueueAttributesRequest,
            output=shapes.GetQueueAttributesResult,
            category="management",
            read_only=True,
            plane="control",
            scope="counted",
            is_fresh=True,
            permissions=(Permission.GET_QUEUE_ATTRIBUTES,),
        ),
        Action(
            name="SetQueueAttributes",
            usage_op=12,
            input=shapes.SetQueueAttributesRequest,
            category="management",
            plane="control",
            queue_state="no group",
            writes=True,
            permissions=(Permission.SET_QUEUE_ATTRIBUTES,),
            owner_only=True,
        ),
        Action(
            name="ListQueues",
            usage_op=13,
            input=shapes.ListQueuesRequest,
            output=shapes.ListQueuesResult,
            category="management",
            read_only=True,
            plane="control",
            scope="account",
            permissions=(Permission.LIST_QUEUES,),
            owner_only=True,
        ),
        Action(
            name="PurgeQueue",
            usage_op=14,
            input=shapes.PurgeQueueRequest,
            category="management",
            plane="control",
            writes=True,
            permissions=(Permission.PURGE_QUEUE,),
        ),
        Action(
            name="AddPermission",
            usage_op=15,
            input=shapes.AddPermissionRequest,
            category="management",
            plane="control",
            queue_state="no group",
            writes=True,
            permissions=(Permission.ADD_PERMISSION,),
            owner_only=True,
        ),
        Action(
            name="RemovePermission",
            usage_op=16,
            input=shapes.RemovePermissionRequest,
            category="management",
            plane="control",
            queue_state="no group",
            writes=True,
            permissions=(Permission.REMOVE_PERMISSION,),
            owner_only=True,
        ),
        Action(
            name="TagQueue",
            usage_op=17,
            input=shapes.TagQueueRequest,
            category="management",
            plane="control",
            queue_state="no group",
            writes=True,
            permissions=(Permission.TAG_QUEUE,),
            owner_only=True,
        ),
        Action(
            name="UntagQueue",
            usage_op=18,
            input=shapes.UntagQueueRequest,
            category="management",
            plane="control",
            queue_state="no group",
            writes=True,
            permissions=(Permission.UNTAG_QUEUE,),
            owner_only=True,
        ),
        Action(
            name="ListQueueTags",
            usage_op=19,
            input=shapes.ListQueueTagsRequest,
            output=shapes.ListQueueTagsResult,
            category="management",
            read_only=True,
            plane="control",
            is_fresh=True,
            permissions=(Permission.LIST_QUEUE_TAGS,),
            owner_only=True,
        ),
        Action(
            name="ListDeadLetterSourceQueues",
            usage_op=20,
            input=shapes.ListDeadLetterSourceQueuesRequest,
            output=shapes.ListDeadLetterSourceQueuesResult,
            category="management",
            read_only=True,
            plane="control",
            permissions=(Permission.LIST_DEAD_LETTER_SOURCE_QUEUES,),
        ),
        Action(
            name="StartMessageMoveTask",
            usage_op=21,
            input=shapes.StartMessageMoveTaskRequest,
            output=shapes.StartMessageMoveTaskResult,
            category="management",
            plane="control",
            scope="source",
            check=validation.check_start_move,
            permissions=(Permission.START_MESSAGE_MOVE_TASK, *_OF_MOVES),
            destination_permissions=(Permission.SEND_MESSAGE,),
            owner_only=True,
        ),
        Action(
            name="CancelMessageMoveTask",
            usage_op=22,
            input=shapes.CancelMessageMoveTaskRequest,
            output=shapes.CancelMessageMoveTaskResult,
            category="management",
            plane="control",
            scope="source",
            check=validation.check_cancel_move,
            permissions=(Permission.CANCEL_MESSAGE_MOVE_TASK, *_OF_MOVES),
            owner_only=True,
        ),
        Action(
            name="ListMessageMoveTasks",
            usage_op=23,
            input=shapes.ListMessageMoveTasksRequest,
            output=shapes.ListMessageMoveTasksResult,
            category="management",
            read_only=True,
            plane="control",
            scope="source",
            check=validation.check_list_moves,
            permissions=(Permission.LIST_MESSAGE_MOVE_TASKS, *_OF_MOVES),
            owner_only=True,
        ),
        Action(
            name="DescribeLog",
            usage_op=24,
            input=DescribeLogRequest,
            output=DescribeLogResult,
            service="quaymaster",
            category="data",
            read_only=True,
            plane="bulk",
            queue_state="log",
            permissions=(Permission.RECEIVE_MESSAGE,),
        ),
        Action(
            name="FindOffsets",
            usage_op=25,
            input=FindOffsetsRequest,
            output=FindOffsetsResult,
            service="quaymaster",
            category="data",
            read_only=True,
            plane="bulk",
            queue_state="log",
            permissions=(Permission.RECEIVE_MESSAGE,),
        ),
        Action(
            name="FetchMessages",
            usage_op=26,
            input=FetchMessagesRequest,
            service="quaymaster",
            category="data",
            read_only=True,
            plane="bulk",
            queue_state="log",
            permissions=(Permission.RECEIVE_MESSAGE,),
            usage=_BYTES,
        ),
        Action(
            name="CommitOffsets",
            usage_op=27,
            input=CommitOffsetsRequest,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="group of a log",
            makes_group=True,
            check=validation.check_reader,
            permissions=(Permission.DELETE_MESSAGE,),
        ),
        Action(
            name="StageMessages",
            usage_op=28,
            input=StageMessagesRequest,
            output=StageMessagesResult,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="no group",
            writes=True,
            permissions=(Permission.SEND_MESSAGE,),
            billing="by queue",
            usage=_BYTES,
        ),
        Action(
            name="CommitTransaction",
            usage_op=29,
            input=CommitTransactionRequest,
            output=CommitTransactionResult,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="no group",
            writes=True,
            permissions=(Permission.SEND_MESSAGE,),
            usage=_DUPLICATES,
            queue_sum="sends",
        ),
        Action(
            name="AbortTransaction",
            usage_op=30,
            input=AbortTransactionRequest,
            output=AbortTransactionResult,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="no group",
            writes=True,
            permissions=(Permission.SEND_MESSAGE,),
        ),
        Action(
            name="ClaimMessages",
            usage_op=125,
            input=ClaimMessagesRequest,
            output=ClaimMessagesResult,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="no group",
            permissions=_OF_CLAIMS,
            billing="by queue",
            usage=_MESSAGES,
        ),
        Action(
            name="ReadClaim",
            usage_op=126,
            input=ReadClaimRequest,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="no group",
            permissions=_OF_CLAIMS,
            usage=_BYTES,
        ),
        Action(
            name="SettleClaims",
            usage_op=127,
            input=SettleClaimsRequest,
            output=SettleClaimsResult,
            service="quaymaster",
            category="data",
            plane="bulk",
            queue_state="no group",
            permissions=_OF_CLAIMS,
            usage=_MESSAGES,
        ),
        Action(
            name="DescribeClaims",
            usage_op=128,
            input=DescribeClaimsRequest,
            output=DescribeClaimsResult,
            service="quaymaster",
            category="data",
            read_only=True,
            plane="bulk",
            queue_state="no group",
            permissions=_OF_CLAIMS,
        ),
        Action(
            name="ReleaseClaims",
            usage_op=129,
            input=ReleaseClaimsRequest,
            output=ReleaseClaimsResult,
            service="quaymaster",
            category="management",
            plane="control",
            writes=True,
            queue_state="no group",
            permissions=_OF_CLAIMS,
        ),
        Action(
            name="CompleteMessages",
            usage_op=130,
            input=CompleteMessagesRequest,
            output=CompleteMessagesResult,
            service="quaymaster",
            category="data",
            plane="message",
            scope="consumed",
            has_query_form=True,
            completes="by handle",
            permissions=(Permission.DELETE_MESSAGE,),
            destination_permissions=(Permission.SEND_MESSAGE,),
            billing="by queue",
            usage=_ALL,
        ),
        Action(
            name="GetCallerIdentity",
            usage_op=73,
            input=sts_shapes.GetCallerIdentityRequest,
            output=sts_shapes.GetCallerIdentityResult,
            service="sts",
            category="management",
            read_only=True,
            plane="control",
            scope="account",
            permissions=(),
            billing="free",
        ),
        Action(
            name="GetSessionToken",
            usage_op=74,
            input=sts_shapes.GetSessionTokenRequest,
            output=sts_shapes.GetSessionTokenResult,
            service="sts",
            category="management",
            read_only=True,
            gives_credentials=True,
            plane="control",
            scope="account",
            check=check_session_token,
            permissions=(),
            billing="free",
        ),
        Action(
            name="AssumeRole",
            usage_op=75,
            input=sts_shapes.AssumeRoleRequest,
            output=sts_shapes.AssumeRoleResult,
            service="sts",
            category="management",
            read_only=True,
            gives_credentials=True,
            plane="control",
            scope="account",
            check=check_assume_role,
            permissions=(),
            billing="free",
        ),
        Action(
            name="AssumeRoleWithWebIdentity",
            usage_op=76,
            input=sts_shapes.AssumeRoleWithWebIdentityRequest,
            output=sts_shapes.AssumeRoleWithWebIdentityResult,
            service="sts",
            category="management",
            read_only=True,
            gives_credentials=True,
            plane="unsigned",
            scope="account",
            check=check_web_identity,
            permissions=(),
            billing="free",
        ),
        *map(_of_cloudwatch, (*OPERATIONS, SCRAPE)),
    )
}
COMPLETE_MESSAGES: Final = ACTIONS["CompleteMessages"]
"""As this a send is recorded all of whose messages complete others: no sum of sends has them."""
QUERY_ACTIONS: Final = {
    name: action for name, action in ACTIONS.items() if action.service == "sqs" or action.has_query_form
}
"""Those that come in SQS's Query form."""
SQS_ACTIONS: Final = {name: action for name, action in ACTIONS.items() if action.service == "sqs"}
STS_ACTIONS: Final = {name: action for name, action in ACTIONS.items() if action.service == "sts"}
MONITORING_ACTIONS: Final = {
    name: action for name, action in ACTIONS.items() if action.service == "monitoring"
}

UNKNOWN_ACTION: Final = Action(
    name="Unknown", usage_op=0, input=Shape, category="data", plane="control", scope="account", permissions=()
)
"""What a request asks for that was refused before that was read."""

STAGE_AND_COMMIT: Final = msgspec.structs.replace(
    ACTIONS["StageMessages"], name="StageAndCommit", usage_op=124, usage=_ALL, queue_sum="sends"
)
"""What usage calls a StageMessages with Commit: the messages of others are sent by another request."""

PUSH: Final = Action(
    name="Push",
    usage_op=134,
    input=Shape,
    service="quaymaster",
    category="data",
    plane="bulk",
    permissions=(),
    billing="push",
    usage=_ALL,
    queue_sum="deletions",
)
"""What usage calls a call to a queue's endpoint; its messages are those that were deleted because of the answer."""

RECORDED_ACTIONS: Final = (UNKNOWN_ACTION, *ACTIONS.values(), STAGE_AND_COMMIT, PUSH)
"""What usage records can name: no client asks for the first and the last two by their names."""

GRANTABLE: Final = frozenset(
    permission
    for action in SQS_ACTIONS.values()
    if not action.owner_only
    for permission in action.permissions
)
"""Permissions that can be given to other accounts."""
