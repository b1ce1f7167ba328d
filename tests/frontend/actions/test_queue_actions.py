"""Queues, their attributes, tags, permissions and move tasks over HTTP, in both wire forms."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from frontend.support import ACCOUNT, REGION, Answer, Service, serving
from quaymaster.core.values.commands.messages import CountMessages
from quaymaster.core.values.errors import JournalStopped
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions import move_actions, queue_actions
from quaymaster.protocol.rpc.metadata_messages import AddPermission, CreateQueue, DeleteQueue, QueueChange
from quaymaster.protocol.sqs.task_handles import parse_task_handle
from quaymaster.protocol.webhooks.signing import public_key_text


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.headers["x-amzn-query-error"].partition(";")[0]


def test_a_queue_is_created_found_listed_and_deleted() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client

            created = await client.json("CreateQueue", {"QueueName": "jobs", "tags": {"team": "a"}})
            again = await client.json("CreateQueue", {"QueueName": "jobs"})
            found = await client.json("GetQueueUrl", {"QueueName": "jobs"})
            listed = await client.json("ListQueues", {})
            tags = await client.json("ListQueueTags", {"QueueUrl": "jobs"})
            deleted = await client.json("DeleteQueue", {"QueueUrl": client.url("jobs")})
            gone = await client.json("GetQueueUrl", {"QueueName": "jobs"})
            too_soon = await client.json("CreateQueue", {"QueueName": "jobs"})

            url = client.url("jobs")
            assert created.json == again.json == found.json == {"QueueUrl": url}
            assert listed.json == {"QueueUrls": [url]}
            assert tags.json == {"Tags": {"team": "a"}}
            assert (deleted.status, deleted.body) == (200, b"")
            assert error_of(gone) == (400, "AWS.SimpleQueueService.NonExistentQueue")
            assert error_of(too_soon) == (400, "AWS.SimpleQueueService.QueueDeletedRecently")
            assert service.broker.queues == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given", "numbered", "code", "message"),
    [
        (
            "AddPermission",
            {"Label": "l", "AWSAccountIds": [], "Actions": ["SendMessage"]},
            {"Label": "l", "ActionName.1": "SendMessage", "AWSAccountIds": ""},
            "InvalidParameterValue",
            "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (
            "AddPermission",
            {"Label": "l", "AWSAccountIds": [ACCOUNT], "Actions": []},
            {"Label": "l", "AWSAccountId.1": ACCOUNT, "Actions": ""},
            "MissingParameter",
            "The request must contain the parameter Actions.",
        ),
        (
            "UntagQueue",
            {"TagKeys": []},
            {"TagKeys": ""},
            "InvalidParameterValue",
            "Tag keys must be between 1 and 128 characters in length.",
        ),
    ],
)
def test_empty_lists_are_refused_in_the_words_of_sqs(
    action: str, given: dict[str, Any], numbered: dict[str, str], code: str, message: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            answer = await service.client.json(action, {"QueueUrl": "jobs", **given})
            queried = await service.client.query(action, numbered, f"/{ACCOUNT}/jobs")

            assert answer.status == queried.status == 400
            assert answer.json["message"] == queried.value("Error/Message") == message
            assert queried.value("Error/Code") == code

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "5"}}),
        ("AddPermission", {"Label": "two", "AWSAccountIds": [ACCOUNT], "Actions": ["SendMessage"]}),
        ("RemovePermission", {"Label": "one"}),
        ("TagQueue", {"Tags": {"team": "quay"}}),
        ("UntagQueue", {"TagKeys": ["kept"]}),
        ("PurgeQueue", {}),
        ("DeleteQueue", {}),
    ],
)
def test_a_queue_that_is_created_again_is_not_changed_by_a_request_that_was_allowed_for_the_one_before(
    action: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(queue_name_reuse_s=0) as service:
            queues = service.metadata.queues
            change = queues.change

            async def create() -> QueueDefinition:
                await change(CreateQueue(ACCOUNT, "jobs", {}, {"kept": "yes"}))
                return await change(AddPermission(ACCOUNT, "jobs", "one", [ACCOUNT], ["SendMessage"]))

            await create()

            async def change_then(request: QueueChange) -> QueueDefinition:
                """Make a change when the queue has just been deleted and created again."""
                monkeypatch.undo()
                await change(DeleteQueue(ACCOUNT, "jobs"))
                made.append(await create())
                return await change(request)

            made: list[QueueDefinition] = []
            monkeypatch.setattr(queues, "change", change_then)

            answer = await service.client.json(action, {"QueueUrl": "jobs", **given})

            assert error_of(answer) == (400, "AWS.SimpleQueueService.NonExistentQueue")
            assert service.metadata.find_queue(ACCOUNT, "jobs") == made[0]

    asyncio.run(scenario())


def test_every_queue_action_works_as_a_query() -> None:
    async def scenario() -> None:
        async with serving(queue_name_reuse_s=0) as service:
            client = service.client
            at_queue = f"/{ACCOUNT}/jobs"

            created = await client.query(
                "CreateQueue",
                {
                    "QueueName": "jobs",
                    "Attribute.1.Name": "DelaySeconds",
                    "Attribute.1.Value": "5",
                    "Tag.1.Key": "team",
                    "Tag.1.Value": "a",
                },
            )
            listed = await client.query("ListQueues", {"QueueNamePrefix": "jo"})
            changed = await client.query(
                "SetQueueAttributes", {"Attribute.Name": "DelaySeconds", "Attribute.Value": "6"}, at_queue
            )
            described = await client.query(
                "GetQueueAttributes", {"AttributeName.1": "DelaySeconds"}, at_queue
            )
            tagged = await client.query("TagQueue", {"Tag.1.Key": "k", "Tag.1.Value": "v"}, at_queue)
            untagged = await client.query("UntagQueue", {"TagKey.1": "team"}, at_queue)
            tags = await client.query("ListQueueTags", {}, at_queue)
            allowed = await client.query(
                "AddPermission",
                {"Label": "l", "AWSAccountId.1": "111111111111", "ActionName.1": "SendMessage"},
                at_queue,
            )
            forbidden = await client.query("RemovePermission", {"Label": "l"}, at_queue)
            sources = await client.query("ListDeadLetterSourceQueues", {}, at_queue)
            purged = await client.query("PurgeQueue", {}, at_queue)
            deleted = await client.query("DeleteQueue", {}, at_queue)

            url = client.url("jobs")
            assert created.value("CreateQueueResult/QueueUrl") == url
            assert listed.value("ListQueuesResult/QueueUrl") == url
            assert described.value("GetQueueAttributesResult/Attribute/Value") == "6"
            assert tags.value("ListQueueTagsResult/Tag/Key") == "k"
            assert b"<ListDeadLetterSourceQueuesResult/>" in sources.body
            for answer in (changed, tagged, untagged, allowed, forbidden, purged, deleted):
                assert answer.status == 200, answer.body
                assert answer.xml.tag.endswith("Response")

    asyncio.run(scenario())


def test_all_attributes_are_those_of_sqs_with_defaults_and_counts() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            for body in ("a", "b", "c"):
                await service.client.json(
                    "SendMessage",
                    {"QueueUrl": "jobs", "MessageBody": body, "DelaySeconds": 9 * (body == "c")},
                )
            await service.client.json("ReceiveMessage", {"QueueUrl": "jobs"})

            answer = await service.client.json(
                "GetQueueAttributes", {"QueueUrl": "jobs", "AttributeNames": ["All"]}
            )

            attributes = answer.json["Attributes"]
            created = attributes.pop("CreatedTimestamp")
            assert created == attributes.pop("LastModifiedTimestamp")
            assert len(created) == 10
            assert attributes == {
                "ApproximateNumberOfMessages": "1",
                "ApproximateNumberOfMessagesNotVisible": "1",
                "ApproximateNumberOfMessagesDelayed": "1",
                "QueueArn": arn("jobs"),
                "DelaySeconds": "0",
                "MaximumMessageSize": "1048576",
                "MessageRetentionPeriod": "345600",
                "ReceiveMessageWaitTimeSeconds": "0",
                "VisibilityTimeout": "30",
                "SqsManagedSseEnabled": "true",
            }

    asyncio.run(scenario())


def test_only_asked_attributes_are_given_and_counts_only_counted_when_asked_for() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", Durability="Async")

            some = await service.client.json(
                "GetQueueAttributes",
                {"QueueUrl": "jobs", "AttributeNames": ["DelaySeconds", "Policy", "ReplicationMode"]},
            )
            none = await service.client.json("GetQueueAttributes", {"QueueUrl": "jobs"})
            every = await service.client.json(
                "GetQueueAttributes", {"QueueUrl": "jobs", "AttributeNames": ["All"]}
            )
            unknown = await service.client.json(
                "GetQueueAttributes", {"QueueUrl": "jobs", "AttributeNames": ["Foobar"]}
            )

            assert some.json == {"Attributes": {"DelaySeconds": "0", "ReplicationMode": "Leader"}}
            assert none.json == {}
            assert every.json["Attributes"]["Durability"] == "Async"
            assert "ReplicationMode" not in every.json["Attributes"]
            assert error_of(unknown) == (400, "InvalidAttributeName")
            assert unknown.json["message"] == "Unknown Attribute Foobar."
            counts = [c for c in service.broker.commands if isinstance(c, CountMessages)]
            assert len(counts) == 1

    asyncio.run(scenario())


def test_changed_attributes_reach_the_journal() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("jobs")

            changed = await service.client.json(
                "SetQueueAttributes", {"QueueUrl": "jobs", "Attributes": {"VisibilityTimeout": "77"}}
            )
            wrong = await service.client.json(
                "SetQueueAttributes", {"QueueUrl": "jobs", "Attributes": {"VisibilityTimeout": "x"}}
            )
            nothing = await service.client.json("SetQueueAttributes", {"QueueUrl": "jobs", "Attributes": {}})

            assert changed.status == 200
            assert service.broker.queues[queue.queue_id].definition.visibility_timeout_ms == 77_000
            assert error_of(wrong) == (400, "InvalidAttributeValue")
            assert nothing.status == 400

    asyncio.run(scenario())


def test_a_queue_with_other_attributes_is_not_created_again() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs", DelaySeconds="5")

            answer = await service.client.json(
                "CreateQueue", {"QueueName": "jobs", "Attributes": {"DelaySeconds": "6"}}
            )

            assert error_of(answer) == (400, "QueueAlreadyExists")
            assert answer.json["message"].endswith("a different value for attribute DelaySeconds")

    asyncio.run(scenario())


def test_lists_go_on_where_the_last_page_ended() -> None:
    async def scenario() -> None:
        async with serving() as service:
            for name in ("a1", "a2", "a3", "b1"):
                await service.add_queue(name)
            client = service.client

            first = await client.json("ListQueues", {"QueueNamePrefix": "a", "MaxResults": 2})
            token = first.json["NextToken"]
            second = await client.json(
                "ListQueues", {"QueueNamePrefix": "a", "MaxResults": 2, "NextToken": token}
            )
            without = await client.json("ListQueues", {"NextToken": token})
            bad = await client.json("ListQueues", {"NextToken": "!", "MaxResults": 2})
            many = await client.json("ListQueues", {"MaxResults": 1001})

            assert first.json["QueueUrls"] == [client.url("a1"), client.url("a2")]
            assert second.json == {"QueueUrls": [client.url("a3")]}
            assert [answer.status for answer in (without, bad, many)] == [400, 400, 400]

    asyncio.run(scenario())


def test_queues_are_deleted_only_by_the_command_line_where_the_operator_says_so() -> None:
    async def scenario() -> None:
        async with serving(delete_queue="cli-only") as service:
            queue = await service.add_queue("jobs")

            answer = await service.client.json("DeleteQueue", {"QueueUrl": "jobs"})

            assert error_of(answer) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
            assert "delete_queue" in answer.json["message"]
            assert queue.queue_id in service.broker.queues

    asyncio.run(scenario())


def test_a_queue_is_purged_once_a_minute() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("jobs")
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})

            first = await service.client.json("PurgeQueue", {"QueueUrl": "jobs"})
            second = await service.client.json("PurgeQueue", {"QueueUrl": "jobs"})

            assert first.status == 200
            assert service.broker.queues[queue.queue_id].messages == {}
            assert error_of(second) == (403, "AWS.SimpleQueueService.PurgeQueueInProgress")

    asyncio.run(scenario())


def test_a_purge_the_journal_could_not_take_may_be_tried_again_at_once() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")

            service.broker.failure = JournalStopped()
            failed = await service.client.json("PurgeQueue", {"QueueUrl": "jobs"})
            service.broker.failure = None
            again = await service.client.json("PurgeQueue", {"QueueUrl": "jobs"})

            assert (failed.status, again.status) == (503, 200)

    asyncio.run(scenario())


def test_tags_are_added_listed_and_taken_away() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            client = service.client

            await client.json("TagQueue", {"QueueUrl": "jobs", "Tags": {"a": "1", "b": "2"}})
            await client.json("UntagQueue", {"QueueUrl": "jobs", "TagKeys": ["a", "absent"]})
            listed = await client.json("ListQueueTags", {"QueueUrl": "jobs"})
            reserved = await client.json("TagQueue", {"QueueUrl": "jobs", "Tags": {"aws:x": "1"}})

            assert listed.json == {"Tags": {"b": "2"}}
            assert error_of(reserved) == (400, "InvalidParameterValue")

    asyncio.run(scenario())


def test_permissions_are_statements_of_the_policy() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            client = service.client
            permission = {
                "QueueUrl": "jobs",
                "Label": "l",
                "AWSAccountIds": ["111111111111"],
                "Actions": ["ReceiveMessage"],
            }

            added = await client.json("AddPermission", permission)
            twice = await client.json("AddPermission", permission)
            described = await client.json(
                "GetQueueAttributes", {"QueueUrl": "jobs", "AttributeNames": ["Policy"]}
            )
            removed = await client.json("RemovePermission", {"QueueUrl": "jobs", "Label": "l"})
            absent = await client.json("RemovePermission", {"QueueUrl": "jobs", "Label": "l"})

            assert (added.status, removed.status) == (200, 200)
            assert error_of(twice) == error_of(absent) == (400, "InvalidParameterValue")
            policy = json.loads(described.json["Attributes"]["Policy"])
            assert policy["Statement"][0]["Sid"] == "l"

    asyncio.run(scenario())


# Dead letters and their way back


async def dead_letter_queue(service: Service) -> None:
    await service.add_queue("dead")
    policy = json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 3})
    await service.add_queue("jobs", RedrivePolicy=policy)


def test_the_sources_of_a_dead_letter_queue_are_listed() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await dead_letter_queue(service)

            answer = await service.client.json("ListDeadLetterSourceQueues", {"QueueUrl": "dead"})

            assert answer.json == {"queueUrls": [service.client.url("jobs")]}

    asyncio.run(scenario())


def test_a_move_task_is_started_listed_and_cancelled() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await dead_letter_queue(service)
            client = service.client

            started = await client.json(
                "StartMessageMoveTask",
                {"SourceArn": arn("dead"), "DestinationArn": arn("jobs"), "MaxNumberOfMessagesPerSecond": 5},
            )
            second = await client.json("StartMessageMoveTask", {"SourceArn": arn("dead")})
            running = await client.json("ListMessageMoveTasks", {"SourceArn": arn("dead")})
            handle = started.json["TaskHandle"]
            cancelled = await client.json("CancelMessageMoveTask", {"TaskHandle": handle})
            after = await client.json("ListMessageMoveTasks", {"SourceArn": arn("dead"), "MaxResults": 10})
            again = await client.json("CancelMessageMoveTask", {"TaskHandle": handle})

            assert json.loads(base64.b64decode(handle))["sourceArn"] == arn("dead")
            assert error_of(second) == (400, "InvalidParameterValue")
            (task,) = running.json["Results"]
            assert isinstance(task.pop("StartedTimestamp"), int)
            assert task == {
                "TaskHandle": handle,
                "Status": "RUNNING",
                "SourceArn": arn("dead"),
                "DestinationArn": arn("jobs"),
                "MaxNumberOfMessagesPerSecond": 5,
                "ApproximateNumberOfMessagesMoved": 0,
                "ApproximateNumberOfMessagesToMove": 0,
            }
            assert cancelled.json == {"ApproximateNumberOfMessagesMoved": 0}
            assert after.json["Results"][0]["Status"] == "CANCELLING"
            assert "TaskHandle" not in after.json["Results"][0]
            assert error_of(again) == (400, "AWS.SimpleQueueService.UnsupportedOperation")

    asyncio.run(scenario())


def may_not_be_sent_to() -> dict[str, str]:
    denial = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}
    return {"Policy": json.dumps({"Statement": denial})}


def test_a_move_without_a_destination_must_be_allowed_for_every_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_actions, "SOURCES_AT_A_TIME", 2)
    monkeypatch.setattr(move_actions, "SOURCES_MAX", 6)

    async def scenario() -> None:
        async with serving() as service:
            await dead_letter_queue(service)
            policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 3})}
            for number in range(4):
                await service.add_queue(f"more-{number}", **policy)
            await service.add_queue("more-last", **policy, **may_not_be_sent_to())

            async def start(**given: str) -> Answer:
                return await service.client.json("StartMessageMoveTask", {"SourceArn": arn("dead"), **given})

            denied = await start()
            await service.add_queue("more", **policy)
            too_many = await start()
            named = await start(DestinationArn=arn("jobs"))

            assert denied.status == 403
            assert ":more-last with an explicit deny" in denied.json["message"]
            assert error_of(too_many) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
            assert "More than 6 queues have dead as their dead-letter queue" in too_many.json["message"]
            assert named.status == 200

    asyncio.run(scenario())


def test_move_tasks_work_as_queries() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await dead_letter_queue(service)

            started = await service.client.query("StartMessageMoveTask", {"SourceArn": arn("dead")})
            listed = await service.client.query("ListMessageMoveTasks", {"SourceArn": arn("dead")})
            handle = started.value("StartMessageMoveTaskResult/TaskHandle") or ""
            cancelled = await service.client.query("CancelMessageMoveTask", {"TaskHandle": handle})

            task_id, source = parse_task_handle(handle)
            assert (len(task_id), source) == (16, arn("dead"))
            entry = "ListMessageMoveTasksResult/ListMessageMoveTasksResultEntry"
            assert listed.value(f"{entry}/TaskHandle") == handle
            assert listed.value(f"{entry}/DestinationArn") is None
            assert cancelled.value("CancelMessageMoveTaskResult/ApproximateNumberOfMessagesMoved") == "0"

    asyncio.run(scenario())


def test_a_move_that_cannot_be_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await dead_letter_queue(service)
            client = service.client
            unknown_task = base64.b64encode(
                json.dumps(
                    {"taskId": "00000000-0000-4000-8000-000000000000", "sourceArn": arn("dead")}
                ).encode()
            ).decode()

            no_dlq = await client.json("StartMessageMoveTask", {"SourceArn": arn("jobs")})
            absent = await client.json("StartMessageMoveTask", {"SourceArn": arn("none")})
            nowhere = await client.json(
                "StartMessageMoveTask", {"SourceArn": arn("dead"), "DestinationArn": arn("none")}
            )
            to_itself = await client.json(
                "StartMessageMoveTask", {"SourceArn": arn("dead"), "DestinationArn": arn("dead")}
            )
            garbage = await client.json("CancelMessageMoveTask", {"TaskHandle": "garbage"})
            unknown = await client.json("CancelMessageMoveTask", {"TaskHandle": unknown_task})

            assert no_dlq.json["message"] == "Source queue must be configured as a Dead Letter Queue."
            assert error_of(absent) == (404, "ResourceNotFoundException")
            assert "DestinationArn" in nowhere.json["message"]
            assert error_of(to_itself) == (400, "InvalidParameterValue")
            assert garbage.json["message"] == "Value for parameter TaskHandle is invalid."
            assert unknown.json["message"] == "Task does not exist."

    asyncio.run(scenario())


def test_push_attributes_are_shown_where_they_were_set_and_headers_never() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            url = {"QueueUrl": client.url("jobs")}
            given = {"PushEndpoint": "https://example.com/a?key=b", "PushHeaders": '{"X-Key":"s3cret"}'}

            await client.json("CreateQueue", {"QueueName": "plain"})
            by_key = {"PushEndpoint": "https://example.com/b", "PushSigning": "Ed25519"}
            await client.json("CreateQueue", {"QueueName": "by-key", "Attributes": by_key})
            await client.json("CreateQueue", {"QueueName": "jobs", "Attributes": given})
            queue = service.metadata.queue(ACCOUNT, "jobs")
            before = await client.json("GetQueueAttributes", {**url, "AttributeNames": ["PushState"]})
            await service.metadata.push_states.note(queue, "active")
            shown = await client.json("GetQueueAttributes", {**url, "AttributeNames": ["All"]})
            named = await client.json(
                "GetQueueAttributes", {**url, "AttributeNames": ["PushState", "PushFormat"]}
            )
            plain = await client.json(
                "GetQueueAttributes",
                {
                    "QueueUrl": client.url("plain"),
                    "AttributeNames": ["All", "PushState", "PushAllowedRate"],
                },
            )
            await service.metadata.push_states.note(queue, "active", 60)
            paced = await client.json("GetQueueAttributes", {**url, "AttributeNames": ["All"]})

            signed = await client.json(
                "GetQueueAttributes",
                {"QueueUrl": client.url("by-key"), "AttributeNames": ["All"]},
            )
            asymmetric = service.metadata.queue(ACCOUNT, "by-key")
            (secret,) = service.metadata.push_secrets.of(asymmetric).keys

            assert signed.json["Attributes"]["PushPublicKey"] == public_key_text(secret)
            pushed = {name: each for name, each in shown.json["Attributes"].items() if name[:4] == "Push"}
            assert pushed == {
                "PushEndpoint": "https://example.com/a?key=b",
                "PushHeaders": "***",
                "PushState": "active",
            }
            assert paced.json["Attributes"]["PushAllowedRate"] == "60"
            assert before.json["Attributes"] == {"PushState": "verifying"}
            assert named.json["Attributes"] == {"PushState": "active", "PushFormat": "CloudEvents"}
            assert not [name for name in plain.json["Attributes"] if name.startswith("Push")]

    asyncio.run(scenario())
