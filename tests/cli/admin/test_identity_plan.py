"""Which requests make users and roles what a file says."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from quaymaster.cli.admin.identity_plan import Kind, Step, parse_identities, plan_changes
from quaymaster.cli.shared.failures import WrongUsage

POLICY = '{"Statement": {"Effect": "Allow"}}'
FILE = """
[users.ada]
path = "/staff/"
policies.send = "send.json"

[roles.Reader]
trust_policy = '{"Trust": 1}'
session_max_s = 7200
policies.read = ' {"Read": 1}'
"""
USERS_ADA = {"name": "ada", "path": "/staff/", "policies": {"send": POLICY}}
ROLES_READER = {
    "name": "Reader",
    "path": "/",
    "policies": {"read": '{"Read":1}'},
    "trust_policy": '{"Trust":1}',
    "session_max_s": 7200,
}


def plan(
    text: str = FILE,
    *,
    prune: bool = False,
    users: dict[str, Any] | None = None,
    roles: dict[str, Any] | None = None,
) -> list[Step]:
    wanted = parse_identities(tomllib.loads(text), {"send.json": POLICY}.__getitem__)
    there: dict[Kind, dict[str, dict[str, Any]]] = {
        "users": {one["name"].lower(): one for one in (users or {}).values()},
        "roles": {one["name"].lower(): one for one in (roles or {}).values()},
    }
    return plan_changes(wanted, there, prune=prune)


def test_what_is_not_there_is_created_with_its_policies() -> None:
    assert plan() == [
        Step("create user ada", "CreateUser", {"name": "ada", "path": "/staff/", "key": False}),
        Step(
            "put policy send of user ada",
            "PutUserPolicy",
            {"name": "ada", "policy_name": "send", "policy": POLICY},
        ),
        Step(
            "create role Reader",
            "CreateRole",
            {"name": "Reader", "path": "/", "trust_policy": '{"Trust": 1}', "session_max_s": 7200},
        ),
        Step(
            "put policy read of role Reader",
            "PutRolePolicy",
            {"name": "Reader", "policy_name": "read", "policy": '{"Read": 1}'},
        ),
    ]


def test_what_is_as_the_file_says_is_left_alone() -> None:
    assert plan(users={"ada": USERS_ADA}, roles={"reader": ROLES_READER}) == []


def test_only_what_differs_is_changed_and_policies_that_are_not_named_go() -> None:
    user = {**USERS_ADA, "policies": {"send": '{"Old": 1}', "more": POLICY}}
    role = {**ROLES_READER, "session_max_s": 3600, "policies": {"read": "no JSON"}}

    steps = plan(users={"ada": user}, roles={"reader": role})

    assert [(step.text, step.operation, dict(step.members)) for step in steps] == [
        (
            "put policy send of user ada",
            "PutUserPolicy",
            {"name": "ada", "policy_name": "send", "policy": POLICY},
        ),
        ("delete policy more of user ada", "DeleteUserPolicy", {"name": "ada", "policy_name": "more"}),
        ("change session_max_s of role Reader", "UpdateRole", {"name": "Reader", "session_max_s": 7200}),
        (
            "put policy read of role Reader",
            "PutRolePolicy",
            {"name": "Reader", "policy_name": "read", "policy": '{"Read": 1}'},
        ),
    ]


def test_others_are_deleted_only_when_that_is_asked_for() -> None:
    users, roles = {"bob": {"name": "Bob"}}, {"old": {"name": "old"}}

    assert plan("", users=users, roles=roles) == []
    assert [
        (step.text, step.operation, step.members) for step in plan("", prune=True, users=users, roles=roles)
    ] == [
        ("delete role old", "DeleteRole", {"name": "old"}),
        ("delete user Bob", "DeleteUser", {"name": "Bob"}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("users = 1", "users must be tables"),
        ("groups = 1", "The file has 'groups'"),
        ("[users]\nada = 1", "users.ada must be a table"),
        ("[users.ada]\nage = 1", "users.ada has 'age'; it may have path, policies"),
        ("[users.ada]\ntrust_policy = 'x'", "users.ada has 'trust_policy'"),
        ("[users.ada]\npolicies = 1", "must be a table of policies"),
        ("[users.ada]\npolicies.a = 1", "users.ada.policies.a must be a policy"),
        ("[users.ada]\npath = 1", "path must be a text"),
        ("[roles.a]", "roles.a needs a trust_policy"),
        ("[roles.a]\ntrust_policy = '{}'\nsession_max_s = true", "must be a number"),
        ("[users.ada]\npath = '/'", "The path of the user ada is /staff/, and cannot be changed to /"),
    ],
)
def test_a_file_that_cannot_be_applied_is_refused_before_anything_is_changed(text: str, words: str) -> None:
    with pytest.raises(WrongUsage, match=words):
        plan(text, users={"ada": USERS_ADA})


def test_a_role_is_created_after_those_that_its_trust_policy_names() -> None:
    def role(name: str, *trusted: str) -> str:
        arns = ", ".join(f'"arn:aws:iam::111111111111:role/{other}"' for other in trusted)
        return f'[roles.{name}]\ntrust_policy = \'{{"Principal": {{"AWS": [{arns}]}}}}\'\n'

    def created(text: str) -> list[str]:
        return [step.text.rpartition(" ")[2] for step in plan(text)]

    assert created(role("a", "b", "c") + role("b", "c") + role("c") + role("d")) == ["c", "d", "b", "a"]
    assert created(role("a", "ab") + role("ab")) == ["ab", "a"]
    assert created(role("a", "a") + role("b")) == ["a", "b"]
    assert created(role("a", "b") + role("b", "a")) == ["a", "b"]


@pytest.mark.parametrize("count", [1, 5, 10])
def test_a_full_set_of_policies_can_be_replaced(count: int) -> None:
    text = "[users.ada]\n" + "".join(f"policies.new{number} = 'send.json'\n" for number in range(count))
    there = {f"old{number}": POLICY for number in range(10)} | {"new0": POLICY}
    del there["old9"]
    steps = plan(text, users={"ada": {"name": "ada", "path": "/", "policies": there}})

    policies = set(there)
    for step in steps:
        if step.operation == "PutUserPolicy":
            policies.add(step.members["policy_name"])
        else:
            policies.remove(step.members["policy_name"])
        assert len(policies) <= 10
    assert policies == {f"new{number}" for number in range(count)}
    if count == 1:
        assert steps[-1].operation == "DeleteUserPolicy"


def test_names_that_differ_only_in_case_are_refused_before_anything_is_changed() -> None:
    with pytest.raises(WrongUsage, match=r"users has ada and Ada; names are compared without case"):
        plan("[users.ada]\n[users.Ada]\n")


def test_a_trust_policy_is_set_again_when_another_has_a_name_in_it_now() -> None:
    users = {"ada": USERS_ADA}
    roles = {"reader": {**ROLES_READER, "stale": ["arn:aws:iam::111111111111:user/ada"]}}

    assert plan(users=users, roles={"reader": {**ROLES_READER, "stale": []}}) == []
    assert plan(users=users, roles=roles) == [
        Step(
            "change trust_policy of role Reader",
            "UpdateRole",
            {"name": "Reader", "trust_policy": '{"Trust": 1}'},
        )
    ]

    trust = '{"Principal": {"AWS": "arn:aws:iam::111111111111:user/staff/ada"}}'
    text = f"[users.ada]\npath = '/staff/'\n[roles.Reader]\ntrust_policy = '{trust}'\n"
    there = {**ROLES_READER, "policies": {}, "trust_policy": trust, "session_max_s": 3600}
    assert [step.text for step in plan(text, roles={"reader": there})] == [
        "create user ada",
        "change trust_policy of role Reader",
    ]
