"""`quaymaster policy check`: files and stored policies, judged without changing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import PlayedServer, Refusal, Run


def policy(**elements: Any) -> str:
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", **elements}
    return json.dumps({"Version": "2012-10-17", "Statement": statement})


def test_a_file_with_a_policy_can_be_evaluated(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(policy())

    result = run("policy", "check", file)

    assert (result.code, result.out) == (0, f"{file}: can be evaluated\n")


def test_what_is_hardly_meant_is_a_warning(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(policy(Action="sqs:SendMessageBatch"))

    result = run("policy", "check", file)

    assert result.code == 0
    assert f"{file}: warning: Statement 1: sqs:sendmessagebatch matches nothing" in result.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (policy(Action="sqs:Fly"), 'Action is "sqs:Fly": there is no such action.'),
        (policy(Sid="x" * 8_192), "bytes; the limit is 8192."),
    ],
)
def test_a_file_with_a_policy_that_a_queue_cannot_have_is_refused(
    run: Run, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)

    result = run("policy", "check", file)

    assert result.code == 1
    assert words in result.out
    assert "1 of 1 policies cannot be evaluated." in result.err


def test_stored_policies_are_those_of_all_queues_or_of_one(
    run: Run, data: Path, server: PlayedServer
) -> None:
    urls = [server.queue_url(name) for name in ("a", "b", "c")]
    server.answers["ListQueues"] = {"QueueUrls": urls}
    server.answers["GetQueueUrl"] = {"QueueUrl": urls[0]}
    stored = [{"Attributes": {"Policy": policy(Effect="Perhaps")}}, {}, {"Attributes": {"Policy": policy()}}]
    server.answers["GetQueueAttributes"] = [*stored, stored[2]]

    of_all = run("policy", "check", "--all", "--json", "--data", data)
    of_one = run("policy", "check", "--queue", "a", "--data", data)

    assert of_all.code == 1
    assert of_all.json == {
        "policies": [
            {"place": urls[0], "problem": 'Effect is "Perhaps": it must be Allow or Deny.', "advice": []},
            {"place": urls[2], "problem": None, "advice": []},
        ]
    }
    assert (of_one.code, of_one.out) == (0, f"{urls[0]}: can be evaluated\n")


def test_a_policy_that_may_not_be_read_is_named_and_the_others_are_checked(
    run: Run, data: Path, server: PlayedServer
) -> None:
    urls = [server.queue_url(name) for name in ("a", "b")]
    refusal = Refusal(403, "AccessDenied", "User: arn:aws:iam::000000000000:root is not authorized.")
    server.answers["ListQueues"] = {"QueueUrls": urls}
    server.answers["GetQueueUrl"] = {"QueueUrl": urls[0]}
    server.answers["GetQueueAttributes"] = [refusal, {"Attributes": {"Policy": policy()}}, refusal]

    of_all = run("policy", "check", "--all", "--data", data)
    of_one = run("policy", "check", "--queue", "a", "--data", data)

    assert of_all.code == 1
    assert of_all.out == f"{urls[0]}: cannot be read: {refusal.message}\n{urls[1]}: can be evaluated\n"
    assert (of_one.code, of_one.out) == (1, "")


def test_an_operator_checks_the_queues_of_all_accounts(run: Run, data: Path, server: PlayedServer) -> None:
    accounts = [{"account_id": account_id} for account_id in ("000000000000", "111111111111")]
    wrong, right = policy(Effect="Perhaps"), policy()
    server.answers["GET /admin/v1/accounts"] = {"accounts": accounts}
    server.answers["GET /admin/v1/policies?account_id=000000000000"] = {"policies": [], "next_token": "jobs"}
    server.answers["GET /admin/v1/policies?account_id=000000000000&next_token=jobs"] = {
        "policies": [{"name": "jobs", "policy": right}]
    }
    server.answers["GET /admin/v1/policies?account_id=111111111111"] = {
        "policies": [{"name": "orders", "policy": wrong}]
    }

    result = run("policy", "check", "--all", "--accounts", "--data", data)

    assert result.code == 1
    assert result.out == (
        "000000000000/jobs: can be evaluated\n"
        '111111111111/orders: Effect is "Perhaps": it must be Allow or Deny.\n'
    )


def test_one_thing_is_checked(run: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")

    for arguments in (
        (),
        ("x", "--all"),
        ("--all", "--queue", "a"),
        ("--queue", "a", "--accounts"),
        (tmp_path / "none",),
        (tmp_path / "binary",),
    ):
        assert run("policy", "check", *arguments, "--data", data).code == 2


@pytest.mark.parametrize(
    ("kind", "text", "code", "words"),
    [
        (
            "identity",
            '{"Statement":{"Effect":"Allow","Action":"sqs:*","Resource":"*"}}',
            0,
            "can be evaluated",
        ),
        ("identity", policy(Resource="*"), 1, 'has no element "Principal"'),
        ("identity", " " * 10 + '{"Id":"' + "x" * 6_144 + '"}', 1, "bytes; the limit is 6144."),
        ("trust", policy(Action="sts:AssumeRole"), 0, "can be evaluated"),
        ("trust", policy(), 1, "it must be * or an action of sts"),
        ("trust", '{"Id":"' + "x" * 2_048 + '"}', 1, "bytes; the limit is 2048."),
    ],
)
def test_policies_of_users_and_roles_are_checked_by_their_kind(
    run: Run, tmp_path: Path, kind: str, text: str, code: int, words: str
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)

    result = run("policy", "check", file, "--kind", kind)

    assert result.code == code
    assert words in result.out


def test_other_kinds_of_policies_are_refused(run: Run, tmp_path: Path) -> None:
    for options in ((tmp_path / "x", "--kind", "bucket"), ("--all", "--kind", "trust")):
        result = run("policy", "check", *options)

        assert result.code == 2
        assert "--kind is queue, identity or trust" in result.err
