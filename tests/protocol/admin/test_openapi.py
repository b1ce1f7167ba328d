"""The OpenAPI document says of each operation what the table does."""

from __future__ import annotations

from typing import Any

import pytest

from quaymaster.protocol.admin.openapi import make_document
from quaymaster.protocol.admin.operation import API, AdminOperation
from quaymaster.protocol.admin.operations import OPERATIONS

DOCUMENT = make_document(OPERATIONS.values(), version="1.2.3")


def described(operation: AdminOperation) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][API + operation.path][operation.method.lower()]
    return found


def references(value: Any) -> set[str]:
    """Return every schema that a part of the document refers to."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(each) for each in value.values()))
    return set().union(*(references(each) for each in value)) if isinstance(value, list) else set()


def test_the_document_has_each_operation_once() -> None:
    ids = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]

    assert sorted(ids) == sorted(OPERATIONS)
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", "1.2.3")


def test_all_that_it_refers_to_is_there() -> None:
    schemas = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}

    assert references(DOCUMENT) <= schemas


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_is_described_with_its_members_answers_and_errors(name: str) -> None:
    operation = OPERATIONS[name]
    found = described(operation)

    body = found.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    members = {each["name"] for each in found["parameters"]} | set(body.get("properties", ()))
    assert members == set(operation.request.__struct_encode_fields__)
    assert (body == {}) or operation.method == "POST"
    assert {"200", "400", "403", "500", "503"} <= set(found["responses"])
    assert found["summary"] == operation.says
    assert (f"`{operation.act}`" in found["description"]) == bool(operation.act)


def test_a_query_has_no_null_where_a_body_may() -> None:
    account = {each["name"]: each for each in described(OPERATIONS["ListUsers"])["parameters"]}["account_id"]
    body = described(OPERATIONS["CreateUser"])["requestBody"]["content"]["application/json"]["schema"]

    assert account["schema"]["type"] == "string"
    assert {"type": "null"} in body["properties"]["account_id"]["anyOf"]
    assert body["additionalProperties"] is False


def test_what_a_path_names_is_required() -> None:
    (name,) = [each for each in described(OPERATIONS["GetUser"])["parameters"] if each["in"] == "path"]

    assert (name["name"], name["required"]) == ("name", True)
