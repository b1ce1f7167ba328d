"""The commands about users and roles: which requests they make, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run

ACCOUNT = "111111111111"
POLICY = '{"Statement":[]}'
USER = {
    "account_id": ACCOUNT,
    "name": "ada",
    "path": "/",
    "id": "AIDA1",
    "arn": f"arn:aws:iam::{ACCOUNT}:user/ada",
    "created_ms": 1_700_000_000_000,
    "policies": {"send": POLICY, "old": "{"},
    "problems": {"old": "It is not a JSON object."},
    "keys": [
        {"access_key_id": "AK1", "enabled": True, "last_used_ms": 1_700_000_000_000},
        {"access_key_id": "AK2", "enabled": False, "last_used_ms": None},
        {"access_key_id": "AK3", "enabled": True},
    ],
}
ROLE = {
    **{name: value for name, value in USER.items() if name != "keys"},
    "name": "reader",
    "id": "AROA1",
    "arn": f"arn:aws:iam::{ACCOUNT}:role/reader",
    "trust_policy": POLICY,
    "session_max_s": 3600,
    "policies": {},
    "problems": {},
    "stale": [f"arn:aws:iam::{ACCOUNT}:user/ada"],
}
KEY = {"access_key_id": "AK1", "secret_access_key": "SK1"}


@pytest.mark.parametrize(("kind", "one"), [("user", USER), ("role", ROLE)])
def test_identities_are_listed_page_by_page(
    run: Run, data: Path, server: PlayedServer, kind: str, one: dict[str, object]
) -> None:
    first = f"GET /admin/v1/{kind}s?account_id={ACCOUNT}"
    server.answers[first] = {f"{kind}s": [one], "next_token": "x"}
    server.answers[f"{first}&next_token=x"] = {f"{kind}s": [one], "next_token": None}

    line = f"{one['name']}\t{one['id']}\t2023-11-14 22:13:20Z\t{one['arn']}\n"
    assert run(kind, "list", "--account", ACCOUNT, "--data", data).out == line * 2
    assert run(kind, "list", "--account", ACCOUNT, "--data", data, "--json").json == {f"{kind}s": [one, one]}


def test_a_user_is_created_with_a_key_unless_none_is_wanted(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["POST /admin/v1/users"] = {**USER, **KEY}

    made = run("user", "create", "ada", "--account", ACCOUNT, "--data", data, "--json").json
    shown = run("user", "create", "ada", "--account", ACCOUNT, "--path", "/a/", "--no-key", "--data", data)

    assert (made["account_id"], made["access_key_id"], made["secret_access_key"]) == (ACCOUNT, "AK1", "SK1")
    assert "secret_access_key\tSK1\n" in shown.out
    assert [call.fields for call in server.calls] == [
        {"account_id": ACCOUNT, "name": "ada", "path": "/", "key": True},
        {"account_id": ACCOUNT, "name": "ada", "path": "/a/", "key": False},
    ]


def test_a_user_is_shown_with_policies_and_what_is_wrong_with_them(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers[f"GET /admin/v1/users/ada?account_id={ACCOUNT}"] = USER

    shown = run("user", "show", "ada", "--account", ACCOUNT, "--data", data).out

    assert "key\tAK1, last used: 2023-11-14 22:13:20Z\n" in shown
    assert "key\tAK2 (disabled), last used: never\n" in shown
    assert "key\tAK3, last used: unknown\n" in shown  # the store did not say
    assert 'send:\n{\n  "Statement": []\n}\n' in shown
    assert "old: cannot be evaluated, and denies: It is not a JSON object.\n{\n" in shown


def test_a_role_is_created_changed_and_shown(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    server.answers["POST /admin/v1/roles"] = server.answers["POST /admin/v1/roles/reader"] = ROLE
    server.answers[f"GET /admin/v1/roles/reader?account_id={ACCOUNT}"] = ROLE
    trust = tmp_path / "trust.json"
    trust.write_text(POLICY + "\n")
    of = ("--account", ACCOUNT, "--data", data)

    assert run("role", "create", "reader", "--trust", trust, *of).out == f"{ROLE['arn']}\n"
    assert run("role", "update", "reader", "--session-seconds", "7200", *of).code == 0
    assert run("role", "update", "reader", "--trust", trust, *of).code == 0
    nothing = run("role", "update", "reader", *of)
    shown = run("role", "show", "reader", *of).out

    assert nothing.code == 2
    assert "Give --trust or --session-seconds" in nothing.err
    assert "sessions\tup to 3600 s\n" in shown
    assert f"means nobody\tarn:aws:iam::{ACCOUNT}:user/ada\n" in shown
    assert 'trust policy:\n{\n  "Statement": []\n}\n' in shown
    assert [call.fields for call in server.calls if call.fields] == [
        {"account_id": ACCOUNT, "name": "reader", "path": "/", "trust_policy": POLICY, "session_max_s": 3600},
        {"account_id": ACCOUNT, "session_max_s": 7200},
        {"account_id": ACCOUNT, "trust_policy": POLICY},
    ]


@pytest.mark.parametrize(("kind", "one"), [("user", USER), ("role", ROLE)])
def test_policies_are_put_and_deleted_and_sessions_revoked(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path, kind: str, one: dict[str, object]
) -> None:
    at = f"/admin/v1/{kind}s/x"
    server.answers[f"POST {at}/policy"] = server.answers[f"POST {at}/revoke-sessions"] = one
    server.answers[f"DELETE {at}/policy?account_id={ACCOUNT}&policy_name=send"] = one
    server.answers[f"DELETE {at}?account_id={ACCOUNT}"] = {"name": "x", "deleted": True}
    file = tmp_path / "policy.json"
    file.write_text(POLICY)
    of = ("--account", ACCOUNT, "--data", data)

    assert "has the policy send." in run(kind, "put-policy", "x", "send", file, *of).out
    assert "not have the policy send" in run(kind, "delete-policy", "x", "send", *of).out
    assert "are refused" in run(kind, "revoke-sessions", "x", *of).out
    assert run(kind, "delete", "x", *of).out == f"Deleted the {kind} x.\n"
    assert run(kind, "delete", "x", *of, "--json").json == {"name": "x", "deleted": True}
    missing = run(kind, "put-policy", "x", "send", tmp_path / "none.json", *of)

    assert missing.code == 2
    assert "none.json cannot be read" in missing.err
    assert server.calls[0].fields == {"account_id": ACCOUNT, "policy_name": "send", "policy": POLICY}


def test_a_key_is_created_for_a_user(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/keys"] = {**KEY, "account_id": ACCOUNT, "user": "ada"}

    made = run("key", "create", "--user", "ada", "--account", ACCOUNT, "--data", data, "--json").json

    assert (made["account_id"], made["access_key_id"], made["secret_access_key"]) == (ACCOUNT, "AK1", "SK1")
    assert server.calls[0].fields == {"name": "", "account_id": ACCOUNT, "user": "ada"}


def test_a_file_is_applied_and_a_dry_run_changes_nothing(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    server.answers[f"GET /admin/v1/users?account_id={ACCOUNT}"] = {"users": [USER], "next_token": None}
    server.answers[f"GET /admin/v1/roles?account_id={ACCOUNT}"] = {"roles": [], "next_token": None}
    server.answers[f"GET /admin/v1/users/ada?account_id={ACCOUNT}"] = USER
    server.answers[f"DELETE /admin/v1/users/ada/policy?account_id={ACCOUNT}&policy_name=old"] = USER
    server.answers["POST /admin/v1/users"] = USER
    (tmp_path / "send.json").write_text('{"Statement": []}')
    file = tmp_path / "identities.toml"
    file.write_text('[users.Ada]\npolicies.send = "send.json"\n[users.bob]\n')
    apply = ("identity", "apply", file, "--account", ACCOUNT, "--data", data)
    changes = ["delete policy old of user Ada", "create user bob"]

    planned = run(*apply, "--dry-run", "--json").json
    looked = len(server.calls)
    done = run(*apply)

    assert planned == {"changes": changes, "dry_run": True}
    assert looked == 3
    assert done.out.splitlines() == changes
    assert [call.what.split()[0] for call in server.calls[looked + 3 :]] == ["DELETE", "POST"]


def test_a_file_that_is_no_toml_is_refused(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    file = tmp_path / "identities.toml"
    file.write_text("[users")

    assert "is no TOML" in run("identity", "apply", file, "--data", data).err
    assert "cannot be read" in run("identity", "apply", tmp_path / "none.toml", "--data", data).err
    assert server.calls == []
