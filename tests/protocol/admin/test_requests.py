"""Requests of the admin API: what a client prepares a server reads, and what it cannot take it names."""

from __future__ import annotations

import pytest

from quaymaster.protocol.admin.accounts import ListAccountsRequest
from quaymaster.protocol.admin.members import AdminRequest
from quaymaster.protocol.admin.operation import AdminOperation
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.admin.queues import MergeRequest, PeekRequest
from quaymaster.protocol.admin.requests import BadMember, members_of, prepare, read_members
from quaymaster.protocol.sqs.form_parameters import parse_parameters


def read_request(
    operation: AdminOperation, in_path: dict[str, str], query: dict[str, str], body: bytes
) -> AdminRequest:
    return read_members(operation, in_path, members_of(operation, query, body))


def test_members_are_in_the_path_and_the_query_of_a_look() -> None:
    peek = OPERATIONS["PeekMessages"]

    prepared = prepare(peek, {"name": "a@b/c", "from": 3, "count": None})

    assert prepared == ("GET", "/admin/v1/queues/a%40b%2Fc/messages?from=3", b"")
    assert prepared.headers == {}
    read = read_request(peek, {"name": "a@b"}, parse_parameters(b"from=3"), b"")
    assert read == PeekRequest(name="a@b", from_=3)


def test_members_are_in_the_path_and_the_body_of_a_change() -> None:
    merge = OPERATIONS["MergeQueue"]

    prepared = prepare(merge, {"name": "jobs", "partitions": [1, 2]})

    assert prepared == ("POST", "/admin/v1/queues/jobs/merge", b'{"partitions": [1, 2]}')
    assert prepared.headers == {"content-type": "application/json"}
    read = read_request(merge, {"name": "jobs"}, {}, prepared.body)
    assert read == MergeRequest(name="jobs", partitions=[1, 2])


def test_a_change_without_members_has_no_body() -> None:
    assert prepare(OPERATIONS["AcceptClock"], {}) == ("POST", "/admin/v1/clock/accept", b"")
    assert prepare(OPERATIONS["GetStatus"], {}) == ("GET", "/admin/v1/status", b"")


def test_true_and_false_are_words_in_a_query() -> None:
    listing = OPERATIONS["ListAccounts"]

    assert prepare(listing, {"deleted": True}).target.endswith("?deleted=true")
    assert prepare(listing, {"deleted": False}).target.endswith("?deleted=false")
    assert read_request(listing, {}, {"deleted": "true", "limit": "7"}, b"") == ListAccountsRequest(
        deleted=True, limit=7
    )


@pytest.mark.parametrize(
    ("name", "query", "body", "kind", "field", "message"),
    [
        (
            "ListAccounts",
            {"limit": "0"},
            b"",
            "InvalidParameterValue",
            "limit",
            "Must be a whole number >= 1.",
        ),
        ("ListAccounts", {"limit": "many"}, b"", "InvalidParameterValue", "limit", "got text."),
        ("ListAccounts", {"limit": "9" * 5_000}, b"", "InvalidParameterValue", "limit", "got text."),
        ("ListAccounts", {"limit": "-1"}, b"", "InvalidParameterValue", "limit", "got text."),
        ("ListAccounts", {"limit": "²"}, b"", "InvalidParameterValue", "limit", "got text."),
        ("ListAccounts", {"deleted": "perhaps"}, b"", "InvalidParameterValue", "deleted", "true or false"),
        ("ListAccounts", {"color": "red"}, b"", "InvalidParameterValue", "color", "no parameter color here."),
        ("SearchAudit", {"queue": "a\0b"}, b"", "InvalidParameterValue", "queue", "Must be text"),
        ("CreateAccount", {}, b"{}", "MissingParameter", "name", "must contain the parameter name."),
        ("CreateAccount", {}, b"", "MissingParameter", "name", "must contain the parameter name."),
        ("CreateAccount", {}, b'{"name": 1}', "InvalidParameterValue", "name", "Must be text"),
        (
            "CreateAccount",
            {},
            b'{"name": "a", "account_id": "12"}',
            "InvalidParameterValue",
            "account_id",
            "",
        ),
        ("CreateAccount", {}, b'{"name": "\xff"}', "MalformedInput", "", "not valid JSON."),
        ("CreateAccount", {}, b"[" * 100_000, "MalformedInput", "", "not valid JSON."),
        ("CreateAccount", {}, b"[]", "MalformedInput", "", "must be a JSON object."),
        ("CreateAccount", {"name": "a"}, b"", "InvalidParameterValue", "", "not in the query."),
        (
            "MergeQueue",
            {},
            b'{"partitions": [1, "b"]}',
            "InvalidParameterValue",
            "partitions[1]",
            "whole number",
        ),
        (
            "MergeQueue",
            {},
            b'{"name": "other"}',
            "InvalidParameterValue",
            "name",
            "The path says what name is.",
        ),
    ],
)
def test_what_a_request_cannot_have_is_named(
    name: str, query: dict[str, str], body: bytes, kind: str, field: str, message: str
) -> None:
    in_path = {"name": "jobs"} if name == "MergeQueue" else {}

    with pytest.raises(BadMember) as raised:
        read_request(OPERATIONS[name], in_path, query, body)

    assert (type(raised.value.error).__name__, raised.value.field) == (kind, field)
    assert message in raised.value.error.message


def test_a_refusal_does_not_repeat_what_may_be_secret() -> None:
    with pytest.raises(BadMember) as raised:
        read_request(OPERATIONS["CreateAccount"], {}, {}, b'{"name": ["hunter2"]}')

    assert "hunter2" not in raised.value.error.message
