"""AddPermission and RemovePermission, and the policy they write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.sqs import Endpoint

from .support import attributes_of, refused

OTHER = "668614515564"


def policy_of(sqs: Any, url: str) -> Any:
    return json.loads(attributes_of(sqs, url, "Policy")["Policy"])


def test_permission_becomes_a_statement_of_the_policy(server: Endpoint, sqs: Any, queue: str) -> None:
    arn = attributes_of(sqs, queue, "QueueArn")["QueueArn"]

    sqs.add_permission(
        QueueUrl=queue,
        Label="mine",
        AWSAccountIds=[server.account_id, OTHER],
        Actions=["ReceiveMessage", "SendMessage"],
    )

    policy = policy_of(sqs, queue)
    (statement,) = policy.pop("Statement")
    assert policy == {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
    principals = statement.pop("Principal")["AWS"]
    assert sorted(principals) == sorted(
        f"arn:aws:iam::{account}:root" for account in (server.account_id, OTHER)
    )
    assert sorted(statement.pop("Action")) == ["SQS:ReceiveMessage", "SQS:SendMessage"]
    assert statement == {"Sid": "mine", "Effect": "Allow", "Resource": arn}


def test_single_principal_and_action_are_no_lists(sqs: Any, queue: str) -> None:
    sqs.add_permission(QueueUrl=queue, Label="mine", AWSAccountIds=[OTHER], Actions=["ReceiveMessage"])

    (statement,) = policy_of(sqs, queue)["Statement"]

    assert statement["Principal"] == {"AWS": f"arn:aws:iam::{OTHER}:root"}
    assert statement["Action"] == "SQS:ReceiveMessage"


def test_permission_for_all_actions_is_a_star(sqs: Any, queue: str) -> None:
    sqs.add_permission(QueueUrl=queue, Label="mine", AWSAccountIds=[OTHER], Actions=["*"])

    (statement,) = policy_of(sqs, queue)["Statement"]

    assert statement["Action"] == "SQS:*"


def test_permissions_are_removed_by_label(sqs: Any, queue: str) -> None:
    for label in ("one", "two"):
        sqs.add_permission(QueueUrl=queue, Label=label, AWSAccountIds=[OTHER], Actions=["ReceiveMessage"])

    sqs.remove_permission(QueueUrl=queue, Label="one")
    assert [statement["Sid"] for statement in policy_of(sqs, queue)["Statement"]] == ["two"]

    sqs.remove_permission(QueueUrl=queue, Label="two")
    assert attributes_of(sqs, queue, "Policy") == {}


def test_label_is_used_once(sqs: Any, queue: str) -> None:
    permission = {"QueueUrl": queue, "Label": "mine", "AWSAccountIds": [OTHER], "Actions": ["ReceiveMessage"]}
    sqs.add_permission(**permission)

    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="Value mine for parameter Label is invalid. Reason: Already exists.",
    ):
        sqs.add_permission(**permission)


def test_missing_label_cannot_be_removed(sqs: Any, queue: str) -> None:
    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="Value missing for parameter Label is invalid. Reason: can't find label.",
    ):
        sqs.remove_permission(QueueUrl=queue, Label="missing")


def test_statement_of_a_policy_set_by_hand_stays(sqs: Any, queue: str) -> None:
    statement = {
        "Sid": "hand",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:PurgeQueue",
        "Resource": "*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})

    sqs.add_permission(QueueUrl=queue, Label="mine", AWSAccountIds=[OTHER], Actions=["SendMessage"])
    sqs.remove_permission(QueueUrl=queue, Label="mine")

    assert policy_of(sqs, queue)["Statement"] == [statement]


def test_permission_has_at_most_7_actions(sqs: Any, queue: str) -> None:
    actions = [
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    ]
    sqs.add_permission(QueueUrl=queue, Label="seven", AWSAccountIds=[OTHER], Actions=actions[:7])

    with refused("OverLimit", status=403):
        sqs.add_permission(QueueUrl=queue, Label="eight", AWSAccountIds=[OTHER], Actions=actions)


def test_policy_has_at_most_20_statements(sqs: Any, queue: str) -> None:
    for number in range(20):
        sqs.add_permission(
            QueueUrl=queue, Label=f"label{number}", AWSAccountIds=[OTHER], Actions=["SendMessage"]
        )

    with refused("OverLimit", status=403):
        sqs.add_permission(QueueUrl=queue, Label="one-more", AWSAccountIds=[OTHER], Actions=["SendMessage"])


@pytest.mark.parametrize("label", ["x" * 81, "a b", "a/b", ""])
def test_label_is_1_to_80_letters_digits_hyphens_and_underscores(
    loose_sqs: Any, queue: str, label: str
) -> None:
    # An empty parameter may count as a missing one.
    with refused(("InvalidParameterValue", "MissingParameter")):
        loose_sqs.add_permission(QueueUrl=queue, Label=label, AWSAccountIds=[OTHER], Actions=["SendMessage"])


def test_unknown_action_is_refused(sqs: Any, queue: str) -> None:
    with refused("InvalidParameterValue", containing="Fly"):
        sqs.add_permission(QueueUrl=queue, Label="mine", AWSAccountIds=[OTHER], Actions=["Fly"])


def test_account_that_is_no_account_number_is_refused(sqs: Any, queue: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.add_permission(QueueUrl=queue, Label="mine", AWSAccountIds=["me"], Actions=["SendMessage"])
