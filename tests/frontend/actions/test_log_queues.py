"""Log-retained queues and their consumer groups over HTTP: which URL means what, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from frontend.admin.test_admin import administered
from frontend.support import ACCOUNT, REGION, Answer, Service, serving
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.frontend.actions import consumer_groups

LOG = {"RetentionMode": "Log"}


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.headers["x-amzn-query-error"].partition(";")[0]


async def send(service: Service, name: str, body: str) -> Answer:
    return await service.client.json(
        "SendMessage", {"QueueUrl": service.client.url(name), "MessageBody": body}
    )


async def receive(service: Service, name: str) -> list[dict[str, Any]]:
    answer = await service.client.json(
        "ReceiveMessage", {"QueueUrl": service.client.url(name), "MaxNumberOfMessages": 10}
    )
    assert answer.status == 200, answer.body
    messages: list[dict[str, Any]] = answer.json.get("Messages", [])
    return messages


async def counts(service: Service, name: str) -> str:
    answer = await service.client.json(
        "GetQueueAttributes",
        {"QueueUrl": service.client.url(name), "AttributeNames": ["ApproximateNumberOfMessages"]},
    )
    number: str = answer.json["Attributes"]["ApproximateNumberOfMessages"]
    return number


def test_each_group_gets_all_and_the_plain_url_is_that_of_the_default_group() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", **LOG)
            await send(service, "log", "a")
            assert await counts(service, "log") == "1"

            (got,) = await receive(service, "log")
            assert await receive(service, "log@default") == []
            (other,) = await receive(service, "log@audit")
            handle = {"QueueUrl": service.client.url("log"), "ReceiptHandle": got["ReceiptHandle"]}
            hidden = await service.client.json("ChangeMessageVisibility", {**handle, "VisibilityTimeout": 9})
            deleted = await service.client.json("DeleteMessage", handle)
            elsewhere = await service.client.json(
                "DeleteMessage", {**handle, "QueueUrl": service.client.url("log@audit")}
            )

            assert got["Body"] == other["Body"] == "a"
            assert (hidden.status, deleted.status) == (200, 200)
            assert error_of(elsewhere)[1] == "ReceiptHandleIsInvalid"
            assert await counts(service, "log") == "0"

    asyncio.run(scenario())


def test_receives_that_come_together_make_a_group_once() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", **LOG)

            await asyncio.gather(*(receive(service, "log@a") for _ in range(5)))

            made = [command for command in service.broker.commands if isinstance(command, SetQueue)]
            assert [command.definition.name for command in made] == ["log@a"]

    asyncio.run(scenario())


def test_groups_are_made_so_many_at_once() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", **LOG)
            consumer_groups.CREATED_AT_ONCE_MAX, before = 0, consumer_groups.CREATED_AT_ONCE_MAX  # type: ignore[misc]
            try:
                answer = await service.client.json("ReceiveMessage", {"QueueUrl": service.client.url("log")})
            finally:
                consumer_groups.CREATED_AT_ONCE_MAX = before  # type: ignore[misc]

            assert answer.status == 503

    asyncio.run(scenario())


def test_why_a_group_cannot_be_made_is_told_to_who_receives() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("log", **LOG)
            for number in range(100):
                await receive(service, f"log@{number}")

            answer = await service.client.json(
                "ReceiveMessage", {"QueueUrl": service.client.url("log@one-more")}
            )

            assert error_of(answer) == (403, "OverLimit")
            assert "100 consumer groups" in answer.json["message"]

    asyncio.run(scenario())


def test_a_group_has_the_attributes_of_its_queue_which_are_set_there() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            await service.add_queue("log", **LOG)
            await receive(service, "log@a")
            url, group = client.url("log"), client.url("log@a")

            changed = await client.json(
                "SetQueueAttributes", {"QueueUrl": url, "Attributes": {"VisibilityTimeout": "77"}}
            )
            shown = await client.json("GetQueueAttributes", {"QueueUrl": group, "AttributeNames": ["All"]})
            fixed = await client.json(
                "SetQueueAttributes", {"QueueUrl": url, "Attributes": {"RetentionMode": "Delete"}}
            )
            refused = [
                await client.json(
                    "SetQueueAttributes", {"QueueUrl": group, "Attributes": {"VisibilityTimeout": "7"}}
                ),
                await client.json("TagQueue", {"QueueUrl": group, "Tags": {"a": "b"}}),
                await client.json("SendMessage", {"QueueUrl": group, "MessageBody": "x"}),
            ]

            assert changed.status == 200
            assert shown.json["Attributes"]["VisibilityTimeout"] == "77"
            assert shown.json["Attributes"]["RetentionMode"] == "Log"
            assert shown.json["Attributes"]["QueueArn"] == f"arn:aws:sqs:{REGION}:{ACCOUNT}:log@a"
            assert error_of(fixed) == (400, "InvalidAttributeValue")
            assert {error_of(answer) for answer in refused} == {
                (400, "AWS.SimpleQueueService.UnsupportedOperation")
            }

    asyncio.run(scenario())


def test_groups_are_not_listed_can_be_purged_and_deleted_and_go_with_their_queue() -> None:
    async def scenario() -> None:
        async with serving(queue_name_reuse_s=0) as service:
            client = service.client
            await service.add_queue("log", **LOG)
            await send(service, "log", "a")
            await receive(service, "log@a")
            listed = await client.json("ListQueues", {})

            purged = await client.json("PurgeQueue", {"QueueUrl": client.url("log@a")})
            assert await counts(service, "log@a") == "0"
            await client.json("DeleteQueue", {"QueueUrl": client.url("log@a")})
            (again,) = await receive(service, "log@a")
            await client.json("DeleteQueue", {"QueueUrl": client.url("log")})
            gone = await client.json("ReceiveMessage", {"QueueUrl": client.url("log@a")})
            await service.add_queue("log", **LOG)

            assert listed.json == {"QueueUrls": [client.url("log")]}
            assert purged.status == 200
            assert again["Body"] == "a"
            assert error_of(gone) == (400, "AWS.SimpleQueueService.NonExistentQueue")
            assert await receive(service, "log@a") == []

    asyncio.run(scenario())


def test_a_queue_that_is_no_log_has_no_groups_and_a_group_that_is_none_no_messages() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            await service.add_queue("plain")
            await service.add_queue("log", **LOG, GroupStart="latest")
            await send(service, "log", "a")

            of_plain = await client.json("ReceiveMessage", {"QueueUrl": client.url("plain@a")})
            unknown = await client.json(
                "DeleteMessage", {"QueueUrl": client.url("log@a"), "ReceiptHandle": "x"}
            )

            for answer in (of_plain, unknown):
                assert error_of(answer) == (400, "AWS.SimpleQueueService.NonExistentQueue")
            assert await counts(service, "log") == "0"

    asyncio.run(scenario())


def test_a_group_that_none_can_be_called_is_refused_with_what_it_can_be() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            await service.add_queue("log", **LOG)

            for name in ("log@", "log@bad name!", "log@" + "a" * 200, "none@"):
                received = await client.json("ReceiveMessage", {"QueueUrl": client.url(name)})
                shown = await client.json("GetQueueAttributes", {"QueueUrl": client.url(name)})
                asked = await client.query("ReceiveMessage", {}, path=f"/{ACCOUNT}/{quote(name)}")

                for answer in (received, shown):
                    assert error_of(answer) == (400, "InvalidParameterValue")
                    assert "1 to 80 in length" in answer.json["message"]
                assert asked.status == 400
                assert b"<Code>InvalidParameterValue</Code>" in asked.body

    asyncio.run(scenario())


def test_a_log_is_neither_a_dead_letter_queue_nor_a_target_of_a_redrive() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            await service.add_queue("log", **LOG)
            await service.add_queue("dead")
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}"
            policy = f'{{"deadLetterTargetArn": "{arn}:log", "maxReceiveCount": 1}}'

            dead = await client.json(
                "CreateQueue", {"QueueName": "jobs", "Attributes": {"RedrivePolicy": policy}}
            )
            moved = await client.json(
                "StartMessageMoveTask", {"SourceArn": f"{arn}:dead", "DestinationArn": f"{arn}:log"}
            )

            assert "cannot be a dead-letter queue" in dead.json["message"]
            assert error_of(moved) == (400, "AWS.SimpleQueueService.UnsupportedOperation")

    asyncio.run(scenario())


def test_dead_letters_of_consumer_groups_alone_are_not_sent_back_and_the_caller_is_told_at_once() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}"
            policy, to_both = (
                f'{{"deadLetterTargetArn": "{arn}:{name}", "maxReceiveCount": 1}}'
                for name in ("dead", "both")
            )
            for name in ("dead", "both", "other"):
                await service.add_queue(name)
            await service.add_queue("log", RedrivePolicy=policy, **LOG)
            await service.add_queue("another-log", RedrivePolicy=to_both, **LOG)
            await service.add_queue("jobs", RedrivePolicy=to_both)

            back = await client.json("StartMessageMoveTask", {"SourceArn": f"{arn}:dead"})
            elsewhere = await client.json(
                "StartMessageMoveTask", {"SourceArn": f"{arn}:dead", "DestinationArn": f"{arn}:other"}
            )
            of_both = await client.json("StartMessageMoveTask", {"SourceArn": f"{arn}:both"})

            assert error_of(back) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
            assert "consumer groups of the log-retained queue log" in back.json["message"]
            assert "name a DestinationArn" in back.json["message"]
            assert (elsewhere.status, of_both.status) == (200, 200)

    asyncio.run(scenario())


def test_operators_list_create_reset_and_move_groups() -> None:
    async def scenario() -> None:
        async with administered() as port:
            service = port.service
            await service.add_queue("log", **LOG)
            await service.add_queue("plain")
            for body in ("a", "b", "c"):
                await send(service, "log", body)

            made = await port.call("POST", "queues/log/groups", {"group": "x", "start": "earliest"})
            ahead = await port.call("POST", "queues/log%40x/offset", {"offset": 3})
            listed = await port.call("GET", "queues/log/groups")
            reset = await port.call("POST", "queues/log%40x/reset", {"start": "earliest"})
            deleted = await port.call("DELETE", "queues/log%40x")
            gone = await port.call("POST", "queues/log%40x/reset", {"start": "earliest"})
            of_plain = await port.call("GET", "queues/plain/groups")
            of_none = await port.call("GET", "queues/none/groups")
            no_number = await port.call("POST", "queues/log%40x/offset", {"offset": -1})
            no_offset = await port.call("POST", "queues/log%40x/offset", {})

            assert made.json["lag"] == reset.json["lag"] == 3
            assert ahead.json["lag"] == 1
            assert [row["group"] for row in listed.json["groups"]] == ["x"]
            assert listed.json["groups"][0] == ahead.json
            assert deleted.json == {"name": "log@x", "deleted": True}
            assert [gone.status, of_plain.status, of_none.status] == [400, 400, 400]
            assert "RetentionMode is not Log" in of_plain.json["error"]["message"]
            assert "Must be a whole number >= 0" in no_number.json["error"]["message"]
            assert no_offset.status == 400

    asyncio.run(scenario())
