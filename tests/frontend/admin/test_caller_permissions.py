"""What callers are told of their own permissions is what the API then does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from frontend.admin.test_admin import administered
from frontend.admin.test_owner_api import SHOP, Owner, allow, owning
from frontend.support import ACCOUNT, Answer, Client
from quaymaster.protocol.admin.operation import API

EVERY = (
    ("sqs:ListQueues", SHOP, ""),
    ("sqs:GetQueueAttributes", SHOP, "orders"),
    ("quaymaster:ListQueues", SHOP, ""),
    ("cloudwatch:DescribeAlarms", SHOP, "alarm:*"),
)


async def asked(owner: Owner, client: Client | None, *named: tuple[str, str, str]) -> Answer:
    permissions = [{"action": action, "account_id": account, "name": name} for action, account, name in named]
    return await owner.call("POST", "me/permissions", {"permissions": permissions}, client)


def told(answer: Answer) -> str:
    """Return what a refusal of any of the APIs says."""
    body: dict[str, Any] = json.loads(answer.body)
    return str(body.get("error", body).get("message") or body.get("Message"))


def test_a_caller_is_told_what_refusals_of_the_api_would_say() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            await owner.service.add_queue("orders", SHOP)
            eve = await owner.user("eve")

            answer = await asked(owner, eve, *EVERY)

            assert answer.json["is_root"] is False
            assert answer.json["refusals"][:3] == [
                told(await eve.json("ListQueues", {})),
                told(await eve.json("GetQueueAttributes", {"QueueUrl": f"/{SHOP}/orders"})),
                told(await owner.call("GET", "queues", client=eve)),
            ]
            assert "cloudwatch:describealarms" in answer.json["refusals"][3]

    asyncio.run(scenario())


def test_a_caller_has_what_its_policies_allow_and_a_root_key_all_of_its_account() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            await owner.service.add_queue("orders", SHOP)
            ada = await owner.user("ada", allow("sqs:*", "cloudwatch:Describe*"))

            of_user = (await asked(owner, ada, *EVERY)).json["refusals"]
            of_root = (await asked(owner, None, *EVERY)).json

            assert [each is None for each in of_user] == [True, True, False, True]
            assert of_root == {"is_root": True, "refusals": [None] * len(EVERY)}

    asyncio.run(scenario())


def test_a_queues_own_policy_denies_and_allows() -> None:
    denies = '{"Statement":{"Effect":"Deny","Principal":"*","Action":"sqs:GetQueueAttributes"}}'
    allows = f'{{"Statement":{{"Effect":"Allow","Principal":{{"AWS":"{SHOP}"}},"Action":"sqs:GetQueueAttributes"}}}}'

    async def scenario() -> None:
        async with owning() as owner:
            await owner.service.add_queue("closed", SHOP, Policy=denies)
            await owner.service.add_queue("shared", ACCOUNT, Policy=allows)
            ada = await owner.user("ada", allow("sqs:*"))

            answer = await asked(
                *(owner, ada),
                ("sqs:GetQueueAttributes", SHOP, "closed"),
                ("sqs:GetQueueAttributes", ACCOUNT, "shared"),
                ("sqs:GetQueueAttributes", ACCOUNT, "none"),
                ("sqs:GetQueueAttributes", SHOP, "none"),
            )

            assert [each is None for each in answer.json["refusals"]] == [False, True, False, True]
            assert "explicit deny in a resource-based policy" in answer.json["refusals"][0]

    asyncio.run(scenario())


def test_an_owner_has_no_permission_of_operators_or_in_other_accounts() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            answer = await asked(
                *(owner, None),
                ("quaymaster:GetCell", SHOP, ""),
                ("quaymaster:ListQueues", ACCOUNT, ""),
                ("cloudwatch:DescribeAlarms", ACCOUNT, "alarm:*"),
                ("sqs:ListQueues", ACCOUNT, ""),
                ("sqs:FlyQueue", SHOP, ""),
            )

            assert None not in answer.json["refusals"]
            assert answer.json["refusals"][4] == "There is no action sqs:FlyQueue."

    asyncio.run(scenario())


def test_operators_are_told_what_they_may_do_with_all_accounts() -> None:
    limited = (
        '{"Statement":[{"Effect":"Allow","Action":["quaymaster:*","cloudwatch:*"],"Resource":"*"},'
        '{"Effect":"Deny","Action":"*","Resource":"arn:aws:quaymaster:*:111122223333:*"}]}'
    )

    async def scenario() -> None:
        async with administered() as port:
            metadata = port.service.metadata
            await metadata.identities.create_user(ACCOUNT, "ada")
            await metadata.identities.put_policy("user", ACCOUNT, "ada", "p", limited)
            key = await metadata.accounts.create_access_key(ACCOUNT, user="ada")
            ada = Client(port.client.port, key.access_key_id, key.secret)
            named = [
                {"action": "quaymaster:GetCell", "account_id": ACCOUNT},
                {"action": "quaymaster:ListQueues", "account_id": "222233334444"},
                {"action": "quaymaster:ListQueues", "account_id": SHOP},
                {"action": "cloudwatch:DescribeAlarms", "account_id": SHOP},
            ]
            body = json.dumps({"permissions": named}).encode()
            by_user = await ada.request("POST", f"{API}me/permissions", {}, body)
            by_root = await port.client.request("POST", f"{API}me/permissions", {}, body)

            assert [each is None for each in by_user.json["refusals"]] == [True, True, False, True]
            assert by_root.json == {"is_root": True, "refusals": [None] * 4}

    asyncio.run(scenario())
