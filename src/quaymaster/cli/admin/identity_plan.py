"""What a file of users and roles asks for, and which requests make it so.

    [users.ada]
    path = "/staff/"
    policies.send = "policies/send.json"          a file next to this one, or the JSON itself

    [roles.reader]
    trust_policy = "trust.json"
    session_max_s = 7200
    policies.read = '{"Statement": ...}'

Policies that a user or role has and the file does not name are removed; users and roles that the file does not name
stay, unless they are to go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Literal, NamedTuple

from quaymaster.cli.shared.failures import WrongUsage

Kind = Literal["users", "roles"]
KINDS: Final[tuple[Kind, ...]] = ("users", "roles")
_NOUNS: Final = {"users": "user", "roles": "role"}
_FIELDS: Final = {
    "users": frozenset({"path", "policies"}),
    "roles": frozenset({"path", "policies", "trust_policy", "session_max_s"}),
}
_SESSION_MAX_S: Final = 3_600
POLICIES_MAX: Final = 10
"""So many a user or role may have."""


class Wanted(NamedTuple):
    """A user or role as the file has it; `trust_policy` is None for users."""

    path: str
    policies: Mapping[str, str]
    trust_policy: str | None
    session_max_s: int


class Step(NamedTuple):
    """One operation of the admin API, and what is said of it."""

    text: str
    operation: str
    members: Mapping[str, Any]


Identities = Mapping[Kind, Mapping[str, Wanted]]


def parse_identities(document: Mapping[str, Any], read_file: Callable[[str], str]) -> Identities:
    """Return the users and roles of a TOML document. `read_file` returns a policy's text by its file's name.

    Raises:
        WrongUsage: something in it is unknown, missing or of the wrong type.
    """
    for name in document:
        if name not in KINDS:
            raise WrongUsage(f"The file has {name!r}; it may have [users.NAME] and [roles.NAME].")
    return {kind: _parse_kind(kind, document.get(kind, {}), read_file) for kind in KINDS}


def plan_changes(
    wanted: Identities, current: Mapping[Kind, Mapping[str, Mapping[str, Any]]], *, prune: bool
) -> list[Step]:
    """Return the requests that make an account's users and roles what a file says.

    `current` has them as the admin API shows them, by name in lower case. `prune`: those that the file does not name
    are deleted. WrongUsage where a path would have to change.
    """
    steps: list[Step] = []
    new = [
        text
        for kind in KINDS
        for name, one in wanted[kind].items()
        if name.lower() not in current[kind]
        for text in _names_in_policies(kind, name, one)
    ]
    for kind in KINDS:
        ordered = _trusted_first(wanted[kind]) if kind == "roles" else wanted[kind].items()
        for name, one in ordered:
            steps += _plan_one(kind, name, one, current[kind].get(name.lower()), new)
    if prune:
        for kind in reversed(KINDS):
            named = {name.lower() for name in wanted[kind]}
            steps += [
                Step(
                    f"delete {_NOUNS[kind]} {one['name']}",
                    "DeleteRole" if kind == "roles" else "DeleteUser",
                    {"name": one["name"]},
                )
                for name, one in current[kind].items()
                if name not in named
            ]
    return steps


def _parse_kind(kind: Kind, given: Any, read_file: Callable[[str], str]) -> dict[str, Wanted]:
    if not isinstance(given, dict):
        raise WrongUsage(f"{kind} must be tables: [{kind}.NAME].")
    spelled: dict[str, str] = {}
    for name in given:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise WrongUsage(f"{kind} has {other} and {name}; names are compared without case.")
    return {name: _parse_one(kind, name, fields, read_file) for name, fields in given.items()}


def _parse_one(kind: Kind, name: str, fields: Any, read_file: Callable[[str], str]) -> Wanted:
    where = f"{kind}.{name}"
    if not isinstance(fields, dict):
        raise WrongUsage(f"{where} must be a table.")
    for field in fields:
        if field not in _FIELDS[kind]:
            raise WrongUsage(f"{where} has {field!r}; it may have {', '.join(sorted(_FIELDS[kind]))}.")
    policies = fields.get("policies", {})
    if not isinstance(policies, dict):
        raise WrongUsage(f"{where}.policies must be a table of policies.")
    trust: str | None = None
    if kind == "roles":
        if "trust_policy" not in fields:
            raise WrongUsage(f"{where} needs a trust_policy.")
        trust = _policy(f"{where}.trust_policy", fields["trust_policy"], read_file)
    session_max_s = fields.get("session_max_s", _SESSION_MAX_S)
    if not isinstance(session_max_s, int) or isinstance(session_max_s, bool):
        raise WrongUsage(f"{where}.session_max_s must be a number of seconds.")
    path = fields.get("path", "/")
    if not isinstance(path, str):
        raise WrongUsage(f"{where}.path must be a text.")
    return Wanted(
        path,
        {policy: _policy(f"{where}.policies.{policy}", text, read_file) for policy, text in policies.items()},
        trust,
        session_max_s,
    )


def _policy(where: str, given: Any, read_file: Callable[[str], str]) -> str:
    if not isinstance(given, str):
        raise WrongUsage(f"{where} must be a policy as JSON in a text, or the name of a file.")
    return given.strip() if given.lstrip().startswith("{") else read_file(given)


def _names_in_policies(kind: Kind, name: str, wanted: Wanted) -> tuple[str, ...]:
    """Return how ARNs in trust policies end, or go on, that mean a user or role."""
    own = f':{_NOUNS[kind]}{wanted.path}{name}"'
    return (own,) if kind == "users" else (own, f":assumed-role/{name}/")


def _plan_one(
    kind: Kind, name: str, wanted: Wanted, current: Mapping[str, Any] | None, new: Sequence[str]
) -> list[Step]:
    """Return what makes one as it is wanted. `new`: what names those that the file creates."""
    noun = _NOUNS[kind]
    steps: list[Step] = []
    role_fields = {"trust_policy": wanted.trust_policy, "session_max_s": wanted.session_max_s}
    if current is None:
        fields: dict[str, Any] = {"name": name, "path": wanted.path}
        fields |= role_fields if kind == "roles" else {"key": False}
        steps.append(Step(f"create {noun} {name}", "CreateRole" if kind == "roles" else "CreateUser", fields))
        policies: Mapping[str, str] = {}
    else:
        if current["path"] != wanted.path:
            raise WrongUsage(
                f"The path of the {noun} {name} is {current['path']}, and cannot be changed to {wanted.path}: "
                "delete it first."
            )
        policies = current["policies"]
        if kind == "roles":
            changed = {
                field: value
                for field, value in role_fields.items()
                if not _says_the_same(current[field], value)
            }
            trust = wanted.trust_policy or ""
            if current.get("stale") or any(text in trust for text in new):
                # Written again, it means those who have the names now.
                changed["trust_policy"] = wanted.trust_policy
            if changed:
                text = f"change {' and '.join(changed)} of role {name}"
                steps.append(Step(text, "UpdateRole", {"name": name, **changed}))
    put, delete = (
        ("PutRolePolicy", "DeleteRolePolicy") if kind == "roles" else ("PutUserPolicy", "DeleteUserPolicy")
    )
    puts = [
        Step(
            f"put policy {policy} of {noun} {name}",
            put,
            {"name": name, "policy_name": policy, "policy": text},
        )
        for policy, text in wanted.policies.items()
        if policy not in policies or not _says_the_same(policies[policy], text)
    ]
    deletes = [
        Step(f"delete policy {policy} of {noun} {name}", delete, {"name": name, "policy_name": policy})
        for policy in policies
        if policy not in wanted.policies
    ]
    # What goes may deny something, so it goes last; but what comes must have room.
    too_many = max(0, len(policies.keys() | wanted.policies.keys()) - POLICIES_MAX)
    return [*steps, *deletes[:too_many], *puts, *deletes[too_many:]]


def _trusted_first(wanted: Mapping[str, Wanted]) -> list[tuple[str, Wanted]]:
    """Return roles in the file's order, but each behind those that its trust policy names.

    A name that is not there yet is refused. Roles that trust each other stay as they are.
    """
    names = {name: _names_in_policies("roles", name, one) for name, one in wanted.items()}
    trusts = {
        name: [
            other
            for other, texts in names.items()
            if other != name and any(text in (one.trust_policy or "") for text in texts)
        ]
        for name, one in wanted.items()
    }
    try:
        return [(name, wanted[name]) for name in TopologicalSorter(trusts).static_order()]
    except CycleError:
        return list(wanted.items())


def _says_the_same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal; policies by what their JSON says."""
    if one == other:
        return True
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    try:
        same: bool = json.loads(one) == json.loads(other)
    except ValueError:
        return False
    return same
