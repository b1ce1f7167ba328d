"""Requests and answers of the admin API about queues: counts, policies, messages, partitions, consumer groups."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from quaymaster.core.access.operations import Operation
from quaymaster.core.access.permissions import Permission
from quaymaster.protocol.admin.members import (
    AdminAnswer,
    Change,
    Limit,
    NextToken,
    Number,
    OfAccount,
    QueueName,
)
from quaymaster.protocol.admin.operation import NO_QUEUE, NOT_THERE, row

PARTITIONS_MAX: Final = 256
Traffic = Annotated[
    int,
    Meta(description="Messages ever, or from the offset `counted_from` of the journal on, if that is not 0."),
]
PartitionNumber = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="Number of a partition.")]
Start = Annotated[
    str,
    Meta(max_length=64, description="`earliest`, `latest`, `offset:NUMBER` or `timestamp:MILLISECONDS`."),
]


class QueueRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName


class ListQueuesAdminRequest(OfAccount, frozen=True, kw_only=True):
    prefix: Annotated[str, Meta(max_length=1_024)] = ""
    limit: Limit = 100
    next_token: NextToken = ""


class QueueView(AdminAnswer, frozen=True, kw_only=True):
    """A queue with its counts."""

    name: str
    account_id: str
    queue_id: int
    created_ms: int
    visible: int
    in_flight: int
    delayed: int
    oldest_sent_ms: int | None
    noisy_groups: int | None
    is_log: bool
    sends: Traffic
    deletions: Traffic
    counted_from: int
    is_durable: Annotated[bool, Meta(description="What was acknowledged cannot be lost.")]


class QueueList(AdminAnswer, frozen=True, kw_only=True):
    queues: list[QueueView]
    next_token: str | None


class DeletedQueue(Change, frozen=True, kw_only=True):
    name: str
    deleted: Literal[True] = True


class ListQueuePoliciesRequest(OfAccount, frozen=True, kw_only=True):
    limit: Limit = 100
    next_token: NextToken = ""


class QueuePolicy(Change, frozen=True, kw_only=True):
    """The policy of a queue."""

    name: str
    policy: Annotated[str | None, Meta(description="As text; null where there is none.")]
    problem: Annotated[str | None, Meta(description="Why the server cannot evaluate it.")]
    stale: (
        Annotated[list[str], Meta(description="Names in it that others have now than when it was set.")]
        | UnsetType
    ) = UNSET


class QueuePolicyList(AdminAnswer, frozen=True, kw_only=True):
    """Policies of an account's queues. A page may be empty though there are more."""

    policies: list[QueuePolicy]
    next_token: str | None


class TryAccessRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    action: Annotated[str, Meta(pattern=f"^(?:{'|'.join(Permission)})$", description="An action of SQS.")]
    user: Annotated[
        str, Meta(max_length=64, description="A user of the queue's account; empty: the caller.")
    ] = ""


class TriedAccess(AdminAnswer, frozen=True, kw_only=True):
    """What front ends would decide of such a request from the caller's address, at this moment."""

    name: str
    action: str
    principal: Annotated[str, Meta(description="ARN of who was tried.")]
    allowed: bool
    reason: Annotated[str | None, Meta(description="What the refusal would say.")]
    policies_evaluated: Annotated[bool, Meta(description="`policy_evaluation` is `full`.")]


# Messages


class PeekRequest(OfAccount, frozen=True, kw_only=True, rename={"from_": "from"}):
    name: QueueName
    count: Limit = 10
    partition: PartitionNumber | None = None
    from_: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="Sequence number to begin with.")] = 0


class PeekedAttribute(AdminAnswer, frozen=True, kw_only=True):
    type: str
    value: Annotated[str, Meta(description="Of binary types in base64.")]


class PeekedView(AdminAnswer, frozen=True, kw_only=True):
    """A message as it lies in its queue."""

    message_id: str | None
    sequence: int
    state: str
    delivery_count: int
    first_receive_ms: int | None
    sent_ms: int
    body: str | None
    damage: Annotated[str, Meta(description="Why it cannot be opened.")] | UnsetType = UNSET
    attributes: dict[str, PeekedAttribute] | UnsetType = UNSET
    sender_id: str | UnsetType = UNSET
    group_id: str | UnsetType | None = UNSET
    dedup_id: str | UnsetType | None = UNSET
    trace_header: str | UnsetType | None = UNSET
    dead_letter_source_arn: str | UnsetType | None = UNSET


class PeekAnswer(AdminAnswer, frozen=True, kw_only=True):
    """Messages as they lie there, in any state, at most 8 MiB of them; the oldest partition first."""

    name: str
    messages: list[PeekedView]
    next_sequence: Annotated[int, Meta(description="Where to go on; 0: that was all.")]
    next_partition: int | UnsetType = UNSET


# Partitions


class PartitionView(AdminAnswer, frozen=True, kw_only=True):
    """A partition; null is what its journal does not answer."""

    number: int
    state: Literal["new", "open", "closing", "closed", "drained"]
    journal: int
    first_key: str
    last_key: str
    sealed_for_ms: int | None
    messages: int | None
    sends: int | None


class PartitionList(AdminAnswer, frozen=True, kw_only=True):
    name: str
    table_version: int
    given_up: Annotated[str | None, Meta(description="Why the last change was given up; null: it was not.")]
    partitions: list[PartitionView]


class SplitRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    into: Number
    partition: PartitionNumber | None = None


class MergeRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    partitions: (
        Annotated[
            list[PartitionNumber],
            Meta(max_length=PARTITIONS_MAX, description="Empty or absent: all open ones."),
        ]
        | None
    ) = None


class MoveRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    partition: PartitionNumber | None = None
    journal: Number | None = None


class GiveUpRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    partition: PartitionNumber


class BegunChange(Change, frozen=True, kw_only=True):
    """A change of partitions that has begun."""

    name: str
    table_version: int
    parents: list[int]
    children: list[int]


# Consumer groups


class GroupPartition(AdminAnswer, frozen=True, kw_only=True):
    partition: int
    start: Annotated[int, Meta(description="Where the log starts.")]
    end: Annotated[int, Meta(description="Where it ends.")]
    offset: Annotated[int, Meta(description="Below it all is consumed.")]


class GroupView(Change, frozen=True, kw_only=True):
    """A consumer group of a log-retained queue."""

    group: str
    queue: str
    queue_id: int
    created_ms: int
    partitions: list[GroupPartition]
    in_flight: int
    lag: Annotated[int, Meta(description="What is not consumed.")]
    sends: Traffic
    deletions: Traffic
    counted_from: int
    is_durable: bool


class GroupList(AdminAnswer, frozen=True, kw_only=True):
    name: str
    groups: list[GroupView]


class CreateGroupRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    group: str
    start: Start = ""


class ResetGroupRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    start: Start


class SetGroupOffsetRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    offset: Number
    partition: PartitionNumber = 0


TIME_MS_MAX: Final = 253_402_300_799_000
"""The end of the year 9999."""
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]


class QueueHistoryRequest(OfAccount, frozen=True, kw_only=True):
    name: QueueName
    metric: Annotated[
        str, Meta(max_length=255, description="As CloudWatch names it: `NumberOfMessagesSent`.")
    ]
    statistic: Annotated[str, Meta(max_length=20, description="`Sum`, `Average`, `Maximum`, `p99`, ...")] = (
        "Sum"
    )
    start_ms: TimeMs
    end_ms: TimeMs
    period_s: Annotated[int, Meta(ge=60, le=86_400, multiple_of=60)] = 60


class QueueHistory(AdminAnswer, frozen=True, kw_only=True):
    """A metric of a queue, the oldest value first, at most 10,000 of them: those of the end."""

    account_id: str
    name: str
    metric: str
    statistic: str
    unit: str
    period_s: int
    times_ms: Annotated[list[int], Meta(description="When the periods began.")]
    values: Annotated[list[float | None], Meta(description="Null: nothing is known of the period.")]


QUEUES_OPERATIONS: Final = (
    row(
        "GET",
        "queues/{name}/history",
        Operation.GET_QUEUE_HISTORY,
        QueueHistoryRequest,
        QueueHistory,
        "Shows a metric of a queue over time. One that was deleted is found by the name that it had.",
        who="owner",
        answered_by="console",
    ),
    row(
        "GET",
        "queues",
        Operation.LIST_QUEUES,
        ListQueuesAdminRequest,
        QueueList,
        "Lists queues with their counts.",
        who="owner",
    ),
    row(
        "DELETE",
        "queues/{name}",
        Operation.DELETE_QUEUE,
        QueueRequest,
        DeletedQueue,
        "Deletes a queue, also where `delete_queue` is `cli-only`.",
        errors=NO_QUEUE,
    ),
    row(
        "GET",
        "policies",
        Operation.GET_QUEUE_POLICY,
        ListQueuePoliciesRequest,
        QueuePolicyList,
        "Lists the policies of an account's queues; a page looks at `limit` queues.",
        name="ListQueuePolicies",
        who="owner",
    ),
    row(
        "GET",
        "queues/{name}/policy",
        Operation.GET_QUEUE_POLICY,
        QueueRequest,
        QueuePolicy,
        "Shows a queue's policy.",
        errors=NO_QUEUE,
        who="owner",
    ),
    row(
        "GET",
        "queues/{name}/access",
        Operation.GET_QUEUE_POLICY,
        TryAccessRequest,
        TriedAccess,
        "Tries whether the caller, or a user of the account, may do something with a queue. Nothing is done.",
        name="TryAccess",
        errors=(*NO_QUEUE, *NOT_THERE),
        who="owner",
    ),
    row(
        "DELETE",
        "queues/{name}/policy",
        Operation.REMOVE_QUEUE_POLICY,
        QueueRequest,
        QueuePolicy,
        "Removes a queue's policy, also where that denies the owner to change it.",
        errors=NO_QUEUE,
    ),
    row(
        "GET",
        "queues/{name}/messages",
        Operation.PEEK_MESSAGES,
        PeekRequest,
        PeekAnswer,
        "Looks at messages, and changes nothing.",
        errors=NO_QUEUE,
        who="owner",
        is_recorded=True,
    ),
    row(
        "GET",
        "queues/{name}/partitions",
        Operation.LIST_PARTITIONS,
        QueueRequest,
        PartitionList,
        "Lists a queue's partitions.",
        errors=NO_QUEUE,
        who="owner",
    ),
    row(
        "POST",
        "queues/{name}/split",
        Operation.SPLIT_QUEUE,
        SplitRequest,
        BegunChange,
        "[Splits](../guides/scale-a-queue.md) an open partition, else that with most keys. "
        "The new ones take messages soon.",
        errors=NO_QUEUE,
    ),
    row(
        "POST",
        "queues/{name}/merge",
        Operation.MERGE_QUEUE,
        MergeRequest,
        BegunChange,
        "Merges partitions.",
        errors=NO_QUEUE,
    ),
    row(
        "POST",
        "queues/{name}/move",
        Operation.MOVE_QUEUE,
        MoveRequest,
        BegunChange,
        "Moves an open partition, else the only one, to a journal, else to one with few partitions.",
        errors=NO_QUEUE,
    ),
    row(
        "POST",
        "queues/{name}/give-up",
        Operation.GIVE_UP_PARTITION,
        GiveUpRequest,
        BegunChange,
        "Gives up a partition whose journal is lost for good, with all its messages: a sealed one is drained at once; "
        "for an open one there is a new one first. Refused while its journal answers.",
        errors=NO_QUEUE,
    ),
    row(
        "POST",
        "queues/{name}/cancel-change",
        Operation.CANCEL_QUEUE_CHANGE,
        QueueRequest,
        BegunChange,
        "Gives up a split, merge or move, as long as its new partitions take no messages.",
        errors=NO_QUEUE,
    ),
    row(
        "GET",
        "queues/{name}/groups",
        Operation.LIST_CONSUMER_GROUPS,
        QueueRequest,
        GroupList,
        "Lists the consumer groups of a log-retained queue.",
        errors=NO_QUEUE,
        who="owner",
    ),
    row(
        "POST",
        "queues/{name}/groups",
        Operation.CREATE_CONSUMER_GROUP,
        CreateGroupRequest,
        GroupView,
        "Makes a consumer group, if there is none.",
        errors=NO_QUEUE,
        who="owner",
    ),
    row(
        "POST",
        "queues/{name}/reset",
        Operation.RESET_CONSUMER_GROUP,
        ResetGroupRequest,
        GroupView,
        "Lets a consumer group start again there.",
        errors=NO_QUEUE,
        who="owner",
    ),
    row(
        "POST",
        "queues/{name}/offset",
        Operation.SET_CONSUMER_GROUP_OFFSET,
        SetGroupOffsetRequest,
        GroupView,
        "Counts all below an offset as consumed; it goes no way back.",
        errors=NO_QUEUE,
        who="owner",
    ),
)
