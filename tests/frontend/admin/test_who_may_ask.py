"""Each operation is asked for as an operator, as the owner, by another account, and by a client that signs nothing."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from frontend.admin.test_admin import administered, error_of
from frontend.support import ACCOUNT, Answer, Client
from quaymaster.protocol.admin.openapi import make_document
from quaymaster.protocol.admin.operation import API, AdminOperation
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.admin.requests import prepare

SHOP = "111122223333"
DOCUMENT = make_document(OPERATIONS.values(), version="")


def example(schema: dict[str, Any]) -> Any:
    """Return a value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if "pattern" in schema:
        return next(
            text for text in (SHOP, "2026-01-01", "SendMessage", "jobs") if re.search(schema["pattern"], text)
        )
    match schema.get("type"):
        case "integer":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "array":
            return []
        case _:
            return "x" * max(1, schema.get("minLength", 1))


def members_of(operation: AdminOperation) -> dict[str, Any]:
    """Return values for the members that a request must have."""
    found = DOCUMENT["paths"][API + operation.path][operation.method.lower()]
    members = {each["name"]: each["schema"] for each in found["parameters"] if each["required"]}
    body = found.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    members |= {name: body["properties"][name] for name in body.get("required", ())}
    return {name: example(schema) for name, schema in members.items()}


async def ask(client: Client, operation: AdminOperation, **more: Any) -> Answer:
    prepared = prepare(operation, {**members_of(operation), **more})
    return await client.request(prepared.method, prepared.target, dict(prepared.headers), prepared.body)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_is_for_those_that_the_table_says(name: str) -> None:
    operation = OPERATIONS[name]

    async def scenario() -> None:
        async with administered() as port:
            port.operations.go_on.set()
            accounts = port.service.metadata.accounts
            await accounts.create_account("shop", SHOP)
            key = await accounts.create_access_key(SHOP)
            foreign = port.client.key_id
            sqs_port = port.service.client.port
            operator = port.client
            owner = Client(sqs_port, key.access_key_id, key.secret)
            of_account = operation.is_of_account

            by_operator = await ask(operator, operation)
            by_owner = await ask(owner, operation)
            unsigned = [await ask(Client(each, None, ""), operation) for each in (operator.port, sqs_port)]
            elsewhere = await ask(Client(operator.port, key.access_key_id, key.secret), operation)
            named: dict[str, str | None] = {"account_id": ACCOUNT} if of_account else {}
            if operation.subject == "access_key_id":
                named = {"access_key_id": foreign}
            if operation.subject == "account_id":
                named = {"account_id": ACCOUNT}
            of_others = await ask(owner, operation, **named)

            # It is asked for; what comes of it depends on what is there. There is no console.
            done = (200, 400, 404) if operation.answered_by == "front end" else (503,)
            assert by_operator.status in done, by_operator.body
            assert error_of(elsewhere) == (403, "AccessDenied")
            if operation.is_unsigned:
                assert {answer.status for answer in unsigned} == {400}
            else:
                assert {error_of(answer) for answer in unsigned} == {(403, "MissingAuthenticationToken")}
            if operation.who == "operator":
                assert error_of(by_owner)[0] == error_of(of_others)[0] == 404
                assert b"There is no" in by_owner.body
            else:
                assert by_owner.status in done, by_owner.body
                assert b"There is no" not in by_owner.body
                assert not named or error_of(of_others) == (403, "AccessDenied")

    asyncio.run(scenario())


def test_members_of_requests_can_be_made_from_the_document() -> None:
    assert members_of(OPERATIONS["PutUserPolicy"]) == {"name": "x", "policy_name": "x", "policy": "x"}
