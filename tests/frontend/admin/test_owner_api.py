"""The admin API on the SQS port: owners ask for what is of their own account, and for nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from frontend.admin.test_admin import error_of
from frontend.support import ACCOUNT, Answer, Client, Service, serving, serving_recorded
from frontend.usage.test_usage import recorder, records_of
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.protocol.admin.operation import API
from quaymaster.protocol.admin.operations import OPERATIONS

SHOP = "111122223333"


class Owner(NamedTuple):
    """The SQS port, and the root key of a customer."""

    service: Service
    client: Client

    async def call(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Any] | None = None,
        client: Client | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        body = b"" if fields is None else json.dumps(fields).encode()
        return await (client or self.client).request(method, API + path, dict(headers or {}), body)

    async def user(self, name: str, *statements: Mapping[str, Any]) -> Client:
        """Return a client of a new user, whose policy has these statements."""
        metadata = self.service.metadata
        await metadata.identities.create_user(SHOP, name)
        if statements:
            policy = json.dumps({"Statement": list(statements)})
            await metadata.identities.put_policy("user", SHOP, name, "p", policy)
        key = await metadata.accounts.create_access_key(SHOP, user=name)
        return Client(self.client.port, key.access_key_id, key.secret)


@asynccontextmanager
async def owning(usage: UsageRecorder | None = None, **flags: object) -> AsyncIterator[Owner]:
    async with serving_recorded(usage, **flags) as service:
        await service.metadata.accounts.create_account("shop", SHOP)
        key = await service.metadata.accounts.create_access_key(SHOP, "root")
        yield Owner(service, Client(service.client.port, key.access_key_id, key.secret))


def allow(*actions: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": "*"}


@pytest.mark.parametrize("authentication", ["signed", "open"])
def test_owners_manage_their_account_on_the_sqs_port(authentication: str) -> None:
    async def scenario() -> None:
        async with owning(authentication=authentication) as owner:
            await owner.service.add_queue("orders", SHOP)

            made = await owner.call("POST", "users", {"name": "ada"})
            users = await owner.call("GET", "users")
            queues = await owner.call("GET", "queues")
            of_default = await owner.service.metadata.accounts.create_access_key(ACCOUNT)
            default = Client(owner.client.port, of_default.access_key_id, of_default.secret)
            others = await owner.call("GET", "users", client=default)

            assert made.status == 200
            assert [user["name"] for user in users.json["users"]] == ["ada"]
            assert [queue["name"] for queue in queues.json["queues"]] == ["orders"]
            assert others.json["users"] == []

    asyncio.run(scenario())


def test_what_is_of_another_account_is_refused() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            foreign = owner.service.client.key_id
            for method, path, fields in (
                ("GET", f"users?account_id={ACCOUNT}", None),
                ("GET", f"limits/{ACCOUNT}", None),
                ("POST", "users", {"name": "eve", "account_id": ACCOUNT}),
                ("POST", "keys", {"account_id": ACCOUNT}),
                ("POST", f"keys/{foreign}/disable", None),
                ("POST", f"keys/{foreign}/rotate", None),
                ("POST", f"keys/{foreign}/session", None),
                ("DELETE", f"keys/{foreign}", None),
            ):
                answer = await owner.call(method, path, fields)
                assert error_of(answer) == (403, "AccessDenied"), path
            assert (await owner.service.client.json("ListQueues", {})).status == 200

    asyncio.run(scenario())


def test_what_is_for_operators_is_not_there() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            for operation in OPERATIONS.values():
                if operation.who == "operator":
                    path = operation.path.replace("{", "").replace("}", "")
                    answer = await owner.call(operation.method, path)
                    assert error_of(answer) == (404, "AWS.SimpleQueueService.UnsupportedOperation"), path
            assert (await owner.call("GET", "nothing")).status == 404

    asyncio.run(scenario())


def test_requests_that_nobody_signed_as_they_must_be_are_refused_in_json() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            stranger = Client(owner.client.port, None, "")
            unsigned = await owner.call("GET", "users", client=stranger)
            unsigned_post = await owner.call("POST", "users", {"name": "x"}, client=stranger)
            forged = await owner.call(
                "GET", "users", client=Client(owner.client.port, owner.client.key_id, "x")
            )

            assert error_of(unsigned) == (403, "MissingAuthenticationToken")
            assert error_of(unsigned_post) == (403, "MissingAuthenticationToken")
            assert error_of(forged) == (403, "SignatureDoesNotMatch")

    asyncio.run(scenario())


def test_users_need_the_permission_of_an_operation() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            ada = await owner.user("ada", allow("quaymaster:ListUsers", "sqs:*"))

            assert (await owner.call("GET", "users", client=ada)).status == 200
            refused = await owner.call("GET", "roles", client=ada)
            assert error_of(refused) == (403, "AccessDenied")
            assert "quaymaster:listroles" in refused.json["error"]["message"]

    asyncio.run(scenario())


def test_a_user_gets_no_root_key_of_its_account_by_any_permission() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            ada = await owner.user("ada", allow("quaymaster:*"))
            root = owner.client.key_id
            for path, fields in (
                ("keys", {}),
                (f"keys/{root}/rotate", None),
                (f"keys/{root}/session", None),
            ):
                answer = await owner.call("POST", path, fields, client=ada)
                assert error_of(answer) == (403, "AccessDenied"), path
                assert "Only a root key" in answer.json["error"]["message"]
            assert (await owner.call("POST", "keys", {"user": "ada"}, client=ada)).status == 200
            assert (await owner.call("POST", "keys")).status == 200

    asyncio.run(scenario())


def test_callers_learn_who_they_are_and_what_the_api_is() -> None:
    async def scenario() -> None:
        async with owning() as owner:
            ada = await owner.user("ada")
            root, user = await owner.call("GET", "me"), await owner.call("GET", "me", client=ada)
            operator = await owner.call("GET", "me", client=owner.service.client)
            document = await owner.call("GET", "openapi.json", client=ada)

            assert root.json == {
                "account_id": SHOP,
                "arn": f"arn:aws:iam::{SHOP}:root",
                "name": "root",
                "access_key_id": owner.client.key_id,
                "is_root": True,
                "is_operator": False,
                "is_read_only": False,
            }
            assert (user.json["name"], user.json["is_root"]) == ("ada", False)
            assert operator.json["is_operator"] is True
            assert document.json["openapi"] == "3.1.0"

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["root", "user"])
def test_signing_out_everywhere_ends_all_sessions_and_no_key(who: str) -> None:
    async def scenario() -> None:
        async with owning() as owner:
            sessions = owner.service.metadata.sessions
            client = owner.client if who == "root" else await owner.user("ada", allow("sqs:*"))
            assert client.key_id is not None
            made = sessions.create(client.key_id, 900_000)
            operators = owner.service.metadata.default_access_key
            assert operators is not None
            other = sessions.create(operators.access_key_id, 900_000)
            named = [
                {"access_key_id": one.content.access_key_id, "session_token": one.token}
                for one in (made, other)
            ]
            named.append({"access_key_id": made.content.access_key_id, "session_token": "made up"})
            session = Client(client.port, made.content.access_key_id, made.content.secret)
            token = {"x-amz-security-token": made.token}
            before = await owner.call("POST", "sessions/revoked", {"sessions": named})

            done = await owner.call("POST", "me/revoke-sessions", client=session, headers=token)

            after = await owner.call("POST", "sessions/revoked", {"sessions": named})
            assert (before.json["revoked"], done.status) == ([made.content.access_key_id], 200)
            assert after.json["revoked"] == [made.content.access_key_id] * 2
            assert (await owner.call("GET", "me", client=session, headers=token)).status == 403
            assert (await client.json("ListQueues", {})).status == 200
            again = sessions.create(client.key_id, 900_000)
            assert sessions.find(again.content.access_key_id, again.token).account_id == SHOP

    asyncio.run(scenario())


def test_acts_of_owners_leave_events_of_their_account() -> None:
    async def scenario() -> None:
        usage = recorder()
        async with owning(usage) as owner:
            await owner.call("POST", "users", {"name": "ada"})

            (record,) = records_of(usage)
            assert (record.action, record.account_id, record.http_status) == ("CreateUser", SHOP, 200)
            assert json.loads(record.request_params) == {"name": "ada"}

    asyncio.run(scenario())


def test_a_path_like_a_queues_url_still_is_one() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("v1")
            answer = await service.client.request("GET", f"/{ACCOUNT}/v1?Action=GetQueueAttributes", {})
            assert answer.status == 200

    asyncio.run(scenario())
