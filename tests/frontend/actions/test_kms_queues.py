"""Queues with KmsMasterKeyId over HTTP: refused sends store nothing, and refused receives take nothing."""

from __future__ import annotations

import asyncio
from typing import Any
from xml.etree import ElementTree

import pytest
from harness.waiting import PATIENCE_S
from metadata.kms.support import StandInKeys

from frontend.actions.test_log_actions import fetch
from frontend.support import ACCOUNT, Service, serving, until
from quaymaster.core.values.commands.messages import Receive
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

KEY = "alias/orders"


def url_of(service: Service, name: str = "orders") -> dict[str, Any]:
    return {"QueueUrl": service.client.url(name)}


async def with_key(service: Service, name: str = "orders", **attributes: str) -> tuple[QueueDefinition, str]:
    key = await service.metadata.local_keys.create(ACCOUNT, alias=KEY)
    return await service.add_queue(name, KmsMasterKeyId=KEY, **attributes), key.key_id


SENDS: list[tuple[str, dict[str, Any]]] = [
    ("SendMessage", {"MessageBody": "two"}),
    (
        "SendMessageBatch",
        {"Entries": [{"Id": "a", "MessageBody": "two"}, {"Id": "b", "MessageBody": "three"}]},
    ),
]
RECEIVES: list[tuple[str, dict[str, Any]]] = [
    ("ReceiveMessage", {}),
    ("ReceiveMessage", {"WaitTimeSeconds": 1}),
]


@pytest.mark.parametrize(("action", "given"), [*SENDS, *RECEIVES])
def test_disabled_key_is_refused_before_anything_changes(action: str, given: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            queue, key_id = await with_key(service)
            sent = await service.client.json("SendMessage", {**url_of(service), "MessageBody": "one"})
            assert sent.status == 200
            await service.metadata.local_keys.set_enabled(ACCOUNT, key_id, enabled=False)

            refused = await service.client.json(action, {**url_of(service), **given})

            assert refused.status == 400
            assert refused.json["__type"].endswith("#KmsDisabled")
            assert refused.json["message"] == f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{key_id} is disabled."
            assert refused.headers["x-amzn-query-error"] == "KMS.DisabledException;Sender"
            (message,) = service.broker.queues[queue.queue_id].messages.values()
            assert message.count == 0

            await service.metadata.local_keys.set_enabled(ACCOUNT, key_id, enabled=True)
            got = await service.client.json("ReceiveMessage", url_of(service))
            assert [message["Body"] for message in got.json["Messages"]] == ["one"]

    asyncio.run(scenario())


def test_query_requests_get_the_code_of_sqs() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            await service.add_queue("orders", KmsMasterKeyId="alias/none")

            answer = await service.client.query("SendMessage", {"MessageBody": "a"}, f"/{ACCOUNT}/orders")

            assert answer.status == 400
            codes = [
                node.text for node in ElementTree.fromstring(answer.body).iter() if node.tag.endswith("Code")
            ]
            assert codes == ["KMS.NotFoundException"]

    asyncio.run(scenario())


def test_silent_key_service_is_503_and_holds_up_no_other_queue() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            keys = StandInKeys(KEY)
            service.metadata.queue_keys._mode = "aws"
            service.metadata.queue_keys._services = {"aws": keys}
            await service.add_queue("orders", KmsMasterKeyId=KEY)
            await service.add_queue("plain")
            keys.held = asyncio.Event()
            held = asyncio.ensure_future(
                service.client.json("SendMessage", {**url_of(service), "MessageBody": "one"})
            )

            plain = await service.client.json("SendMessage", {**url_of(service, "plain"), "MessageBody": "a"})
            got = await service.client.json("ReceiveMessage", url_of(service, "plain"))
            keys.is_silent = True
            keys.held.set()

            assert plain.status == 200
            assert [message["Body"] for message in got.json["Messages"]] == ["a"]
            assert (await held).status == 503

    asyncio.run(scenario())


def test_messages_under_an_earlier_key_that_is_disabled_hold_up_no_others() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            _, key_id = await with_key(service)
            local = service.metadata.local_keys
            send = {**url_of(service), "MessageBody": "early"}
            await service.client.json("SendMessage", send)
            await local.set_alias(ACCOUNT, KEY, (await local.create(ACCOUNT)).key_id)
            await local.set_enabled(ACCOUNT, key_id, enabled=False)
            await service.client.json("SendMessage", {**send, "MessageBody": "late"})

            got = await service.client.json("ReceiveMessage", {**url_of(service), "MaxNumberOfMessages": 10})

            assert [message["Body"] for message in got.json["Messages"]] == ["late"]

    asyncio.run(scenario())


def test_error_is_told_when_nothing_that_was_received_could_be_opened() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            _, key_id = await with_key(service)
            local = service.metadata.local_keys
            await service.client.json("SendMessage", {**url_of(service), "MessageBody": "early"})
            await local.set_alias(ACCOUNT, KEY, (await local.create(ACCOUNT)).key_id)
            await local.set_enabled(ACCOUNT, key_id, enabled=False)

            refused = await service.client.json("ReceiveMessage", url_of(service))

            assert refused.json["__type"].endswith("#KmsDisabled")

    asyncio.run(scenario())


def test_fifo_queues_keep_their_deduplication_over_the_days_keys() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            await with_key(service, "orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
            given = {**url_of(service, "orders.fifo"), "MessageBody": "one", "MessageGroupId": "g"}
            first = await service.client.json("SendMessage", given)
            local = service.metadata.local_keys
            await local.set_alias(ACCOUNT, KEY, (await local.create(ACCOUNT)).key_id)

            second = await service.client.json("SendMessage", given)

            assert first.json["SequenceNumber"] == second.json["SequenceNumber"]

    asyncio.run(scenario())


def test_log_of_a_disabled_key_is_not_read_in_either_way() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            _, key_id = await with_key(service, "log", RetentionMode="Log")
            where = url_of(service, "log")
            await service.client.json("SendMessage", {**where, "MessageBody": "one"})
            assert (await fetch(service, 1)).status == 200
            await service.metadata.local_keys.set_enabled(ACCOUNT, key_id, enabled=False)

            fetched = await fetch(service, 1)
            received = await service.client.json("ReceiveMessage", where)

            for refused in (fetched, received):
                assert (refused.status, refused.json["__type"].rpartition("#")[2]) == (400, "KmsDisabled")

    asyncio.run(scenario())


def test_long_poll_ends_and_takes_nothing_when_its_key_is_disabled() -> None:
    async def scenario() -> None:
        async with serving(kms="local") as service:
            _, key_id = await with_key(service)
            poll = asyncio.create_task(
                service.client.json("ReceiveMessage", {**url_of(service), "WaitTimeSeconds": 20})
            )
            await until(lambda: any(isinstance(one, Receive) for one in service.broker.commands))

            await service.metadata.local_keys.set_enabled(ACCOUNT, key_id, enabled=False)
            async with asyncio.timeout(PATIENCE_S):
                answer = await poll

            assert answer.json["__type"].endswith("#KmsDisabled")
            assert all(submitted.is_cancelled for submitted, _ in service.broker.parked)

    asyncio.run(scenario())
