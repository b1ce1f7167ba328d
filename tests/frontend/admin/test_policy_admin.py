"""What operators see of a queue's policy."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from frontend.admin.test_admin import administered, call_of
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.admin.accounts.policy_admin import PolicyAdmin
from quaymaster.protocol.admin.queues import QueuePolicy, QueueRequest

ACCOUNT = "111111111111"


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({}, None),
        ({"Policy": '{"Statement":{"Effect":"Deny","Principal":"*","Action":"*"}}'}, None),
        ({"Policy": '{"Statement":{"Effect":"Perhaps"}}'}, 'Effect is "Perhaps": it must be Allow or Deny.'),
    ],
)
def test_a_stored_policy_is_shown_with_why_it_cannot_be_evaluated(
    attributes: dict[str, str], problem: str | None
) -> None:
    queue = QueueDefinition(*(1, ACCOUNT, "jobs", "active", 1, 0, 0, attributes, {}, 1, one_partition()))
    queues: Any = None
    show = PolicyAdmin(queues, lambda account_id, name: queue, lambda policy, bound: []).routes()[
        "GetQueuePolicy"
    ]

    async def ask() -> QueuePolicy:
        answer = await show.handler(call_of(ACCOUNT), QueueRequest(name="jobs"))
        assert isinstance(answer, QueuePolicy)
        return answer

    assert msgspec.to_builtins(asyncio.run(ask())) == {
        "name": "jobs",
        "policy": attributes.get("Policy"),
        "problem": problem,
        "stale": [],
    }


def test_access_is_tried_for_the_caller_and_for_users_of_the_account() -> None:
    deny = '{"Statement":{"Effect":"Deny","Principal":"*","Action":"sqs:PurgeQueue"}}'
    allow = (
        '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"sqs:SendMessage","Resource":"*"}}'
    )

    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs", Policy=deny)
            await port.call("POST", "users", {"name": "ada"})
            await port.call("POST", "users/ada/policy", {"policy_name": "send", "policy": allow})

            async def try_access(action: str, user: str = "") -> Any:
                return (await port.call("GET", f"queues/jobs/access?action={action}&user={user}")).json

            root = await try_access("SendMessage")
            assert (root["allowed"], root["reason"], root["policies_evaluated"]) == (True, None, True)
            assert root["principal"].endswith(":root")
            denied = await try_access("PurgeQueue")
            assert not denied["allowed"]
            assert "with an explicit deny in a resource-based policy" in denied["reason"]
            assert (await try_access("SendMessage", "ada"))["allowed"]
            receive = await try_access("ReceiveMessage", "ada")
            assert not receive["allowed"]
            assert receive["principal"].endswith(":user/ada")
            assert (await port.call("GET", "queues/none/access?action=SendMessage")).status == 400
            assert (await port.call("GET", "queues/jobs/access?action=Nonsense")).status == 400
            assert (await port.call("GET", "queues/jobs/access?action=SendMessage&user=bob")).status == 404

    asyncio.run(scenario())


def test_policies_of_an_account_come_in_pages_of_so_many_queues() -> None:
    async def scenario() -> None:
        async with administered() as port:
            policy = '{"Statement":{"Effect":"Deny","Principal":"*","Action":"*"}}'
            for name in ("a", "c", "e"):
                await port.service.add_queue(name, Policy=policy)
            for name in ("b", "d"):
                await port.service.add_queue(name)
            pages: list[list[str]] = []
            token = ""
            while True:
                page = (await port.call("GET", f"policies?limit=2&next_token={token}")).json
                pages.append([row["name"] for row in page["policies"]])
                assert all(row["policy"] == policy and row["problem"] is None for row in page["policies"])
                token = page["next_token"]
                if not token:
                    break
            other = await port.call("GET", "policies?account_id=111111111112")
            refused = await port.call("GET", "policies?limit=1001")

            assert pages == [["a"], ["c"], ["e"]]
            assert other.json == {"policies": [], "next_token": None}
            assert refused.status == 400

    asyncio.run(scenario())
