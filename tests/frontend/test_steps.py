"""What a request costs a front end does not depend on what others have: 100 or 100,000 queues, keys and accounts.

Nor does what it does again and again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from harness.steps import FEW, MANIES, MANY, calls_of, forbid_walks, uncollected

from frontend.support import ACCOUNT, Answer, Service, serving
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, encode_queue_definition
from quaymaster.metadata.keys.issuers import ISSUERS_MAX
from quaymaster.metadata.store.mirror import MirrorTable
from quaymaster.metadata.store.rows import (
    AccessKeyRow,
    AccountRow,
    IssuerRow,
    KmsKeyRow,
    LimitRow,
    QueueKeyRow,
    RoleRow,
    UserRow,
    encode_row,
    id_text,
)
from quaymaster.protocol.actions.table import ACTIONS

THEIRS = "111111111111"
OTHERS_FROM = 1_000_000

URL = {"QueueUrl": "jobs"}
LOG = {"QueueUrl": "log"}
ROLE = {"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/worker", "RoleSessionName": "one"}
CLAIM = {"Partition": 0, "Consumer": "c", "ClaimId": 1}
SINK = {"SinkId": "sink", "BatchId": 1}

# In this order each finds what it needs, and has some work to do.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("CreateQueue", {"QueueName": "new"}),
    ("GetQueueUrl", {"QueueName": "jobs"}),
    ("ListQueues", {"MaxResults": 10}),
    ("ListQueues", {"QueueNamePrefix": "j"}),
    ("GetQueueAttributes", {**URL, "AttributeNames": ["All"]}),
    ("SetQueueAttributes", {**URL, "Attributes": {"VisibilityTimeout": "31"}}),
    ("TagQueue", {**URL, "Tags": {"team": "a"}}),
    ("ListQueueTags", URL),
    ("UntagQueue", {**URL, "TagKeys": ["team"]}),
    ("AddPermission", {**URL, "Label": "l", "AWSAccountIds": [ACCOUNT], "Actions": ["SendMessage"]}),
    ("RemovePermission", {**URL, "Label": "l"}),
    ("SendMessage", {**URL, "MessageBody": "one"}),
    ("SendMessageBatch", {**URL, "Entries": [{"Id": "a", "MessageBody": "two"}]}),
    ("ReceiveMessage", {**URL, "MaxNumberOfMessages": 10}),
    ("ChangeMessageVisibility", {**URL, "ReceiptHandle": "wrong", "VisibilityTimeout": 10}),
    (
        "ChangeMessageVisibilityBatch",
        {**URL, "Entries": [{"Id": "a", "ReceiptHandle": "wrong", "VisibilityTimeout": 10}]},
    ),
    ("DeleteMessage", {**URL, "ReceiptHandle": "wrong"}),
    ("DeleteMessageBatch", {**URL, "Entries": [{"Id": "a", "ReceiptHandle": "wrong"}]}),
    ("ListDeadLetterSourceQueues", {"QueueUrl": "dead"}),
    ("StartMessageMoveTask", {"SourceArn": "dead"}),
    ("ListMessageMoveTasks", {"SourceArn": "dead"}),
    ("CancelMessageMoveTask", {"TaskHandle": "wrong"}),
    ("PurgeQueue", URL),
    ("StageMessages", {**URL, **SINK, "Stage": "0", "FirstIndex": 0, "Messages": [{"MessageBody": "a"}]}),
    ("CommitTransaction", {**URL, **SINK, "Stages": [{"Stage": "0", "Count": 1}]}),
    ("AbortTransaction", {**URL, **SINK}),
    ("ClaimMessages", {**URL, **CLAIM, "Owner": "a", "MaxNumberOfMessages": 1}),
    ("ReadClaim", {**URL, **CLAIM, "From": 0, "To": 0}),
    ("SettleClaims", {**URL, **CLAIM, "Owner": "a"}),
    ("DescribeClaims", URL),
    ("ReleaseClaims", {**URL, "Consumer": "c"}),
    (
        "CompleteMessages",
        {**URL, "ReceiptHandles": ["wrong"], "Messages": [{"QueueUrl": "jobs", "MessageBody": "x"}]},
    ),
    ("DescribeLog", LOG),
    ("FindOffsets", {**LOG, "Timestamp": 0}),
    ("FetchMessages", {**LOG, "Partition": 0, "FromOffset": 1, "ToOffset": 1}),
    ("CommitOffsets", {"QueueUrl": "log", "Offsets": []}),
    ("DeleteQueue", {"QueueUrl": "new"}),
    ("GetCallerIdentity", {}),
    ("GetSessionToken", {"DurationSeconds": "900"}),
    ("AssumeRole", ROLE),
    ("AssumeRoleWithWebIdentity", {**ROLE, "WebIdentityToken": "wrong"}),
]


TICKS = ("late requests", "answers", "connections", "parked polls", "known", "strangers")
"""What a front end does again and again, in the order in which it is counted."""
WATCHED = {"MirrorTable", "LimitTable", "Limits", "KnownAccounts"}
"""Whose large sets and tables are not to be walked, among others."""


@uncollected()
def add_others(service: Service, pattern: QueueDefinition, count: int) -> None:
    """Have so many queues and keys of other accounts, and so many accounts."""
    metadata = service.metadata
    for number in range(count):
        name = f"theirs-{number:06}"
        definition = msgspec.structs.replace(
            pattern, queue_id=OTHERS_FROM + number, name=name, account_id=THEIRS
        )
        metadata.registry.queues.rows.apply(
            f"{THEIRS}/{name}", encode_queue_definition(definition), number + 1
        )
        key_id, account_id = f"AKIATHEIRS{number:010}", f"{200_000_000_000 + number}"
        key = AccessKeyRow(key_id, account_id, "p", "key", b"", True, 0, 0)
        metadata.accounts._rows.apply(key_id, encode_row(key), number + 1)
        account = AccountRow(account_id, name, 0)
        metadata.accounts._accounts.apply(account_id, encode_row(account), number + 1)
        identities = metadata.identities.known
        user = UserRow(THEIRS, name, f"AIDA{number:017}", 0)
        identities.users.rows.apply(f"{THEIRS}/{name}", encode_row(user), number + 1)
        role = RoleRow(THEIRS, name, f"AROA{number:017}", 0, "{}")
        identities.roles.rows.apply(f"{THEIRS}/{name}", encode_row(role), number + 1)
        kms_key = KmsKeyRow(f"{number:08}-0000-4000-8000-000000000000", THEIRS, "", b"", 0)
        metadata.local_keys._keys.apply(f"{THEIRS}/{kms_key.key_id}", encode_row(kms_key), number + 1)
        queue_key = QueueKeyRow(1, "local", kms_key.key_id, 0)
        metadata.queue_keys._rows.apply(id_text(OTHERS_FROM + number), encode_row(queue_key), number + 1)
        if number < (ISSUERS_MAX - 1) * min(count, MANY) // MANY:  # one may be added by a test
            issuer = IssuerRow(f"https://{name}.example.com", ("sts.amazonaws.com",), "", 0)
            metadata.issuers._rows.apply(f"{name}.example.com", encode_row(issuer), number + 1)
        limit = LimitRow(1_000, None)
        metadata.limits._rows.apply(f"{account_id}//SendMessage", encode_row(limit), number + 1)


async def ask(service: Service, action: str, given: dict[str, Any]) -> Answer:
    fields = dict(given)
    if "QueueUrl" in fields:
        fields["QueueUrl"] = service.client.url(fields["QueueUrl"])
    if action == "CompleteMessages":
        (message,) = fields["Messages"]
        fields["Messages"] = [{**message, "QueueUrl": service.client.url(message["QueueUrl"])}]
    if "SourceArn" in fields:
        fields["SourceArn"] = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{fields['SourceArn']}"
    if ACTIONS[action].service == "sts":
        return await service.client.sts(action, fields)
    return await service.client.json(action, fields)


async def calls_of_requests(count: int) -> tuple[list[int], list[int]]:
    """Return the status of each request, and how many functions were called for it, with so many of others."""
    statuses: list[int] = []
    calls: list[int] = []
    seen = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    async with serving() as service:
        jobs = await service.add_queue("jobs")
        await service.add_queue("dead")
        await service.add_queue("log", RetentionMode="Log")
        add_others(service, jobs, count)
        metadata = service.metadata
        identities = metadata.identities.known
        owners = (
            *(metadata.registry.queues, metadata.accounts, metadata.accounts.known),
            *(identities, identities.users, identities.roles),
            *(metadata.limits, metadata.limits.table, service.front_end._limits),
            *(metadata.local_keys, metadata.queue_keys, metadata.issuers),
        )
        tables = [
            table for owner in owners for table in vars(owner).values() if isinstance(table, MirrorTable)
        ]
        watched = forbid_walks(*owners, *{id(table): table for table in tables}.values(), entries_min=MANY)
        assert count < MANY or {name.partition(".")[0] for name in watched} >= WATCHED
        for action, given in REQUESTS:
            seen = 0
            sys.setprofile(note)
            try:
                answer = await ask(service, action, given)
            finally:
                sys.setprofile(None)
            statuses.append(answer.status)
            calls.append(seen)
        for tick in (
            lambda: service.calls.expire(0.0),
            service.calls.answer_replied,
            service.server._sweep_some,
            service.front_end.polls.look_again,
            service.server.known.forgive,
            service.server.strangers.forgive,
        ):
            statuses.append(0)
            calls.append(calls_of(tick))
    return statuses, calls


@pytest.fixture(scope="module", params=MANIES)
def measured(request: pytest.FixtureRequest) -> dict[int, tuple[list[int], list[int]]]:
    """What requests are answered with, and the steps they take, with few of others and with many."""
    asyncio.run(calls_of_requests(FEW))  # to warm up what is made once
    counts = {FEW: FEW, MANY: request.param}
    return {which: asyncio.run(calls_of_requests(count)) for which, count in counts.items()}


def test_each_action_is_counted() -> None:
    # What a console answers is passed on by one RPC; the console's steps do not depend on this front end.
    passed_on = {name for name, action in ACTIONS.items() if action.plane == "monitoring"}
    assert {action for action, _ in REQUESTS} == ACTIONS.keys() - passed_on


@pytest.mark.parametrize(
    "at",
    range(len(REQUESTS) + len(TICKS)),
    ids=[f"{at}-{name}" for at, name in enumerate([*(name for name, _ in REQUESTS), *TICKS])],
)
def test_a_request_takes_as_many_steps_with_100_queues_keys_and_accounts_as_with_many(
    measured: dict[int, tuple[list[int], list[int]]], at: int
) -> None:
    (few_status, few), (many_status, many) = ([each[at] for each in measured[count]] for count in (FEW, MANY))

    assert few_status == many_status < 500
    # Some steps are the event loop's: how often it turns is a matter of chance.
    assert many <= few * 1.5 + 300


class Holder:
    """Something that has very many entries."""

    def __init__(self) -> None:
        self.found = dict.fromkeys(range(MANY))
        self.names = set(range(MANY))
        self.line = list(range(MANY))
        self.few = [1]


def test_a_walk_is_noticed() -> None:
    holder = Holder()

    assert forbid_walks(holder, entries_min=MANY) == ["Holder.found", "Holder.names", "Holder.line"]

    found, names, line = holder.found, holder.names, holder.line
    walks: list[Callable[[], object]] = [
        *(partial(list, one) for one in (found, names, line, found.keys(), found.values(), found.items())),
        *(found.copy, names.copy, line.copy, line.sort),
        *(partial(sorted, one) for one in (found, names, line)),
        *(lambda: found | {}, lambda: names - {1}, lambda: {1} | names, lambda: line[1:], lambda: [*line, 1]),
        lambda: dict(found),
    ]
    for walk in walks:
        with pytest.raises(AssertionError):
            walk()
    assert (found.get(1, 2), next(iter(found)), 5 in names, line[5:7]) == (None, 0, True, [5, 6])
