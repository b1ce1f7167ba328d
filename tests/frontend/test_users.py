"""What users of an account may do: what their policies and the queue's say, through the real front end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quaymaster.protocol.rpc.metadata_messages import SetAttributes

from .support import ACCOUNT, Answer, Client, Service, serving

QUEUE_ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:jobs"
DENIED = "because no identity-based policy allows the sqs:sendmessage action"


class User:
    """A user with one key, and how it asks."""

    def __init__(self, service: Service, client: Client) -> None:
        self.service = service
        self.client = client

    async def ask(self, action: str, **given: Any) -> Answer:
        if "QueueUrl" in given:
            given["QueueUrl"] = self.client.url(given["QueueUrl"])
        return await self.client.json(action, given)

    async def send(self) -> Answer:
        return await self.ask("SendMessage", QueueUrl="jobs", MessageBody="hello")

    async def may(self, *actions: str, resource: str = "*", effect: str = "Allow", **more: Any) -> None:
        statement = {"Effect": effect, "Action": list(actions), "Resource": resource, **more}
        text = json.dumps({"Version": "2012-10-17", "Statement": statement})
        await self.service.metadata.identities.put_policy(
            "user", ACCOUNT, "ada", f"{effect}-{actions[0][4:].replace('*', 'all')}", text
        )


async def new_user(service: Service, name: str = "ada") -> User:
    await service.metadata.identities.create_user(ACCOUNT, name)
    key = await service.metadata.accounts.create_access_key(ACCOUNT, user=name)
    return User(service, Client(service.client.port, key.access_key_id, key.secret))


def with_user(test: Callable[[Service, User], Awaitable[None]], **flags: object) -> None:
    async def scenario() -> None:
        async with serving(**flags) as service:
            await service.add_queue("jobs")
            await test(service, await new_user(service))

    asyncio.run(scenario())


def refused(answer: Answer) -> str:
    assert answer.status == 403, answer.body
    assert answer.json["__type"].endswith("AccessDeniedException"), answer.body
    message: str = answer.json["message"]
    return message


@pytest.mark.parametrize("evaluation", ["full", "owner-only"])
def test_a_user_may_do_what_its_policies_allow_from_the_moment_they_do(evaluation: str) -> None:
    async def test(service: Service, user: User) -> None:
        message = refused(await user.send())
        assert message == (
            f"User: arn:aws:iam::{ACCOUNT}:user/ada is not authorized to perform: sqs:sendmessage on resource: "
            f"{QUEUE_ARN} {DENIED}"
        )
        await user.may("sqs:SendMessage", resource=QUEUE_ARN)
        assert (await user.send()).status == 200
        refused(await user.ask("PurgeQueue", QueueUrl="jobs"))
        await user.may("sqs:SendMessage", effect="Deny")
        assert "with an explicit deny in an identity-based policy" in refused(await user.send())
        await service.metadata.identities.delete_policy("user", ACCOUNT, "ada", "Deny-SendMessage")
        assert (await user.send()).status == 200

    with_user(test, policy_evaluation=evaluation)


def test_a_queues_policy_lets_in_the_users_that_it_names() -> None:
    async def test(service: Service, user: User) -> None:
        async def policy(**principal: Any) -> None:
            statement = {"Effect": "Allow", "Action": "sqs:SendMessage", **principal}
            text = json.dumps({"Statement": statement})
            await service.metadata.queues.change(SetAttributes(ACCOUNT, "jobs", {"Policy": text}))

        await policy(Principal={"AWS": ACCOUNT})
        assert DENIED in refused(await user.send())
        await policy(Principal={"AWS": f"arn:aws:iam::{ACCOUNT}:user/ada"})
        assert (await user.send()).status == 200
        await service.metadata.identities.delete("user", ACCOUNT, "ada")
        again = await new_user(service)
        assert DENIED in refused(await again.send())
        await policy(Principal="*")
        assert (await again.send()).status == 200

    with_user(test)


def test_receivers_see_the_users_id() -> None:
    async def test(service: Service, user: User) -> None:
        await user.may("sqs:*")
        await user.send()
        received = await user.ask("ReceiveMessage", QueueUrl="jobs", AttributeNames=["SenderId"])
        known = service.metadata.user(ACCOUNT, "ada")
        assert known is not None
        (message,) = received.json["Messages"]
        assert message["Attributes"]["SenderId"] == known.unique_id

    with_user(test)


def test_a_user_that_is_deleted_or_whose_key_is_disabled_is_unknown_at_once() -> None:
    async def test(service: Service, user: User) -> None:
        await user.may("sqs:*")
        assert (await user.send()).status == 200
        await service.metadata.accounts.set_enabled(user.client.key_id or "", enabled=False)
        assert (await user.send()).status == 403
        await service.metadata.accounts.set_enabled(user.client.key_id or "", enabled=True)
        assert (await user.send()).status == 200
        await service.metadata.identities.delete("user", ACCOUNT, "ada")
        answer = await user.send()
        assert answer.status == 403
        assert "UnrecognizedClient" in answer.json["__type"], answer.body
        await new_user(service)
        assert (await user.send()).status == 403

    with_user(test)


def test_actions_on_the_account_need_permissions_too() -> None:
    async def test(service: Service, user: User) -> None:
        message = refused(await user.ask("ListQueues"))
        assert f"sqs:listqueues on resource: arn:aws:sqs:us-east-1:{ACCOUNT}: because" in message
        await user.may("sqs:ListQueues", resource=f"arn:aws:sqs:*:{ACCOUNT}:*")
        assert (await user.ask("ListQueues")).status == 200

        refused(await user.ask("CreateQueue", QueueName="new"))
        await user.may("sqs:CreateQueue", resource=f"arn:aws:sqs:*:{ACCOUNT}:n*")
        assert (await user.ask("CreateQueue", QueueName="new")).status == 200
        refused(await user.ask("CreateQueue", QueueName="old"))
        assert "sqs:tagqueue" in refused(await user.ask("CreateQueue", QueueName="next", tags={"a": "b"}))
        await user.may("sqs:TagQueue")
        assert (await user.ask("CreateQueue", QueueName="next", tags={"a": "b"})).status == 200

    with_user(test)


def test_conditions_see_who_asks() -> None:
    async def test(service: Service, user: User) -> None:
        known = service.metadata.user(ACCOUNT, "ada")
        assert known is not None
        conditions = {
            "aws:username": "ada",
            "aws:userid": known.unique_id,
            "aws:PrincipalType": "User",
            "aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:user/ada",
            "aws:PrincipalAccount": ACCOUNT,
        }
        await user.may("sqs:SendMessage", Condition={"StringEquals": conditions})
        assert (await user.send()).status == 200
        await user.may("sqs:SendMessage", Condition={"Null": {"aws:TokenIssueTime": "false"}})
        refused(await user.send())
        await user.may("sqs:SendMessage", resource="arn:aws:sqs:*:*:${aws:username}")
        refused(await user.send())
        await service.add_queue("ada")
        assert (await user.ask("SendMessage", QueueUrl="ada", MessageBody="x")).status == 200

    with_user(test)
