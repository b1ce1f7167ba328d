"""Keys for queues over the admin API, and what operators see of messages that depend on one."""

from __future__ import annotations

import asyncio

import pytest

from frontend.admin.test_admin import administered, error_of
from frontend.support import ACCOUNT
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.node.edge.front_end_role import without_keys

OTHER = "111111111111"


def test_key_is_created_changed_and_listed_for_its_account() -> None:
    async def scenario() -> None:
        async with administered() as port:
            asked = {"account_id": OTHER, "alias": "alias/orders"}
            assert error_of(await port.call("POST", "kms-keys", asked)) == (404, "ResourceNotFoundException")
            await port.call("POST", "accounts", {"name": "other", "account_id": OTHER})
            made = await port.call("POST", "kms-keys", asked)
            key_id = made.json["key_id"]
            path = f"kms-keys/{key_id}"

            assert made.json["arn"] == f"arn:aws:kms:us-east-1:{OTHER}:key/{key_id}"
            assert (await port.call("GET", "kms-keys")).json == {"keys": []}
            assert (await port.call("GET", f"kms-keys?account_id={OTHER}")).json == {"keys": [made.json]}
            assert error_of(await port.call("GET", path)) == (404, "ResourceNotFoundException")
            for verb, state in (
                ("disable", "disabled"),
                ("enable", "enabled"),
                ("schedule-deletion", "pending deletion"),
                ("cancel-deletion", "disabled"),
            ):
                changed = await port.call("POST", f"{path}/{verb}", {"account_id": OTHER})
                assert changed.json["state"] == state
            shown = (await port.call("GET", f"{path}?account_id={OTHER}")).json
            assert (shown["state"], shown["deletion_ms"]) == ("disabled", None)
            gone = await port.call("DELETE", f"kms-aliases?account_id={OTHER}&alias=alias/orders")
            assert gone.json == {"alias": "alias/orders", "deleted": True}
            assert (await port.call("GET", f"{path}?account_id={OTHER}")).json["aliases"] == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "fields", "code"),
    [
        ("kms-keys", {"alias": "alias/aws/sqs"}, "InvalidParameterValue"),
        ("kms-keys", {"description": "x" * 257}, "InvalidParameterValue"),
        ("kms-keys/MINE/schedule-deletion", {"days": 6}, "InvalidParameterValue"),
        ("kms-keys/MINE/schedule-deletion", {"days": "7"}, "InvalidParameterValue"),
        ("kms-keys/MINE/cancel-deletion", {}, "AWS.SimpleQueueService.UnsupportedOperation"),
        ("kms-keys/MINE/alias", {}, "MissingParameter"),
        ("kms-keys/none/enable", {}, "ResourceNotFoundException"),
    ],
)
def test_what_cannot_be_done_is_refused(path: str, fields: dict[str, object], code: str) -> None:
    async def scenario() -> None:
        async with administered() as port:
            mine = await port.service.metadata.local_keys.create(ACCOUNT)

            answer = await port.call("POST", path.replace("MINE", mine.key_id), fields)

            assert error_of(answer) == (404 if code == "ResourceNotFoundException" else 400, code)

    asyncio.run(scenario())


def test_messages_of_a_disabled_key_are_listed_without_their_bodies() -> None:
    async def scenario() -> None:
        async with administered(kms="local") as port:
            local, client = port.service.metadata.local_keys, port.service.client
            key = await local.create(ACCOUNT, alias="alias/orders")
            await port.service.add_queue("orders", KmsMasterKeyId="alias/orders")
            url = {"QueueUrl": client.url("orders"), "MessageBody": "secret"}
            assert (await client.json("SendMessage", url)).status == 200
            (open_row,) = (await port.call("GET", "queues/orders/messages")).json["messages"]
            await local.set_enabled(ACCOUNT, key.key_id, enabled=False)

            (row,) = (await port.call("GET", "queues/orders/messages")).json["messages"]

            assert open_row["body"] == "secret"
            assert (row["sequence"], row["body"]) == (open_row["sequence"], None)
            assert row["damage"].endswith("is disabled.")

    asyncio.run(scenario())


def test_no_blocks_are_built_of_logs_whose_messages_a_key_service_protects() -> None:
    plain, keyed = (
        QueueDefinition(1, ACCOUNT, "log", "active", 1, 0, 0, attributes, {}, 7, one_partition())
        for attributes in (
            {"RetentionMode": "Log"},
            {"RetentionMode": "Log", "KmsMasterKeyId": "alias/orders"},
        )
    )

    assert without_keys([plain, keyed], "local") == [plain]
    assert without_keys([plain, keyed], "ignore") == [plain, keyed]
