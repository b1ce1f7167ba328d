"""Queues of another service, as they are to be here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quaymaster.core.importing.definitions import (
    Difference,
    FoundQueue,
    Home,
    PlannedQueue,
    dead_letter_queue_of,
    plan_queues,
)

THERE = "111122223333"
HOME = Home("us-east-1", "000000000000")


def arn(name: str, *, here: bool = False) -> str:
    return (
        f"arn:aws:sqs:{HOME.region}:{HOME.account_id}:{name}"
        if here
        else f"arn:aws:sqs:eu-west-1:{THERE}:{name}"
    )


def found(name: str, tags: dict[str, str] | None = None, **attributes: str) -> FoundQueue:
    computed = {"QueueArn": arn(name), "CreatedTimestamp": "1", "ApproximateNumberOfMessages": "3"}
    return FoundQueue(name, {**computed, **attributes}, tags or {})


def redrive(target: str, *, here: bool = False) -> str:
    return json.dumps({"deadLetterTargetArn": arn(target, here=here), "maxReceiveCount": 3})


def plan(*queues: FoundQueue, present: dict[str, FoundQueue] | None = None) -> list[PlannedQueue]:
    return plan_queues(queues, present or {}, HOME)


def plan_one(queue: FoundQueue, present: FoundQueue | None = None) -> PlannedQueue:
    (planned,) = plan(queue, present={queue.name: present} if present is not None else None)
    return planned


def of_kind(planned: PlannedQueue, kind: str) -> list[tuple[str, str]]:
    return [(each.what, each.reason) for each in planned.differences if each.kind == kind]


def test_attributes_and_tags_are_taken_over_and_what_is_computed_is_not() -> None:
    planned = plan_one(found("a", {"team": "x"}, VisibilityTimeout="77", Policy=""))

    assert planned == PlannedQueue(
        "a",
        {"VisibilityTimeout": "77"},
        {},
        {"team": "x"},
        is_there=False,
        differences=[Difference("a", "missing", "queue")],
    )


def test_dead_letter_queues_come_before_those_that_name_them() -> None:
    planned = plan(
        found("a", RedrivePolicy=redrive("b")),
        found("c", RedrivePolicy=redrive("b")),
        found("b", RedrivePolicy=redrive("d")),
        found("d"),
    )

    assert [queue.name for queue in planned] == ["d", "b", "a", "c"]
    assert all(not queue.later for queue in planned)
    assert [queue.dead_letter_queue for queue in planned] == [None, "d", "b", "b"]
    assert json.loads(planned[2].attributes["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn("b", here=True),
        "maxReceiveCount": 3,
    }


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_in_a_circle_of_dead_letter_queues_the_first_gets_its_policy_later(names: str) -> None:
    planned = plan(
        *(
            found(name, RedrivePolicy=redrive(following))
            for name, following in zip(names, names[1:] + names[0], strict=True)
        )
    )

    assert sorted(queue.name for queue in planned) == list(names)
    assert ["RedrivePolicy" in queue.later for queue in planned] == [True, *[False] * (len(names) - 1)]
    assert ["RedrivePolicy" in queue.attributes for queue in planned] == [False, *[True] * (len(names) - 1)]


def test_a_dead_letter_queue_that_is_nowhere_is_for_people_to_decide() -> None:
    planned = plan_one(found("a", RedrivePolicy=redrive("gone")))

    assert planned.attributes == {}
    assert of_kind(planned, "refused") == [
        ("RedrivePolicy", "Its dead-letter queue gone is neither imported nor here.")
    ]


def test_a_dead_letter_queue_that_is_here_already_will_do() -> None:
    (planned,) = plan(found("a", RedrivePolicy=redrive("b")), present={"b": found("b")})

    assert arn("b", here=True) in planned.attributes["RedrivePolicy"]


def test_what_is_no_redrive_policy_names_no_queue() -> None:
    broken = found("a", RedrivePolicy="{}")

    assert dead_letter_queue_of(broken) is None
    assert dead_letter_queue_of(found("a")) is None
    assert dead_letter_queue_of(found("a", RedrivePolicy=redrive("b"))) == "b"
    ((what, reason),) = of_kind(plan_one(broken), "left out")
    assert what == "RedrivePolicy"
    assert "mandatory" in reason


def policy_of(statement: dict[str, Any]) -> str:
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sqs:*", **statement}]}
    )


def test_arns_and_principals_of_a_policy_are_those_of_here() -> None:
    text = policy_of(
        {
            "Principal": {"AWS": [THERE, f"arn:aws:iam::{THERE}:root", "444455556666"]},
            "Resource": arn("a"),
            "Condition": {
                "ArnLike": {
                    "aws:SourceArn": [f"arn:aws:sns:eu-west-1:{THERE}:topic", arn("*"), "arn:aws:sqs:*:*:x"]
                },
                "Bool": {"aws:SecureTransport": True},
                "StringEquals": {"aws:PrincipalAccount": THERE},
            },
        }
    )

    planned = plan_one(found("a", Policy=text))

    (statement,) = json.loads(planned.attributes["Policy"])["Statement"]
    assert statement["Principal"]["AWS"] == [
        HOME.account_id,
        f"arn:aws:iam::{HOME.account_id}:root",
        "444455556666",
    ]
    assert statement["Resource"] == arn("a", here=True)
    assert statement["Condition"]["ArnLike"]["aws:SourceArn"] == [
        f"arn:aws:sns:eu-west-1:{THERE}:topic",
        arn("*", here=True),
        "arn:aws:sqs:*:*:x",
    ]
    assert statement["Condition"]["StringEquals"]["aws:PrincipalAccount"] == THERE


def test_sources_of_a_redrive_allow_policy_are_those_of_here() -> None:
    text = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn("a")]})

    planned = plan_one(found("dead", RedriveAllowPolicy=text))

    assert json.loads(planned.attributes["RedriveAllowPolicy"])["sourceQueueArns"] == [arn("a", here=True)]


@pytest.mark.parametrize("text", ["no JSON", policy_of({"Principal": {"Nobody": "x"}, "Resource": arn("a")})])
def test_a_policy_that_cannot_be_here_is_refused_and_not_dropped_in_silence(text: str) -> None:
    planned = plan_one(found("a", Policy=text))

    assert "Policy" not in planned.attributes
    assert [what for what, _ in of_kind(planned, "refused")] == ["Policy"]


def test_what_is_not_known_here_is_left_out_and_told() -> None:
    endpoint = "https://example.com/orders?token=secret"
    planned = plan_one(
        found("a", Colour="red", PushEndpoint=endpoint, PushFormat="Lambda", VisibilityTimeout="x")
    )

    assert planned.attributes == {}
    assert dict(of_kind(planned, "left out")) == {
        "Colour": "It is not known here.",
        "PushEndpoint": "Set it here when nothing is pushed there any more.",
        "PushFormat": "Set it here when nothing is pushed there any more.",
        "VisibilityTimeout": "Invalid value for the parameter VisibilityTimeout.",
    }
    assert "secret" not in str(planned.differences)


def test_a_longer_window_of_a_fifo_queue_is_for_after_the_import() -> None:
    longer = plan_one(found("a.fifo", FifoQueue="true", DeduplicationWindowSeconds="3600"))
    usual = plan_one(found("a.fifo", FifoQueue="true", DeduplicationWindowSeconds="300"))

    assert longer.attributes == {"FifoQueue": "true"}
    assert [what for what, _ in of_kind(longer, "left out")] == ["DeduplicationWindowSeconds"]
    assert usual.attributes == {"FifoQueue": "true", "DeduplicationWindowSeconds": "300"}


def test_a_key_of_the_other_service_is_noted() -> None:
    planned = plan_one(found("a", KmsMasterKeyId="alias/aws/sqs", SqsManagedSseEnabled="false"))

    assert planned.attributes["KmsMasterKeyId"] == "alias/aws/sqs"
    assert [what for what, _ in of_kind(planned, "note")] == ["KmsMasterKeyId"]
    assert of_kind(planned, "refused") == []


def test_attributes_that_do_not_go_together_here_are_refused() -> None:
    planned = plan_one(found("a.fifo", FifoQueue="true", FifoThroughputLimit="perMessageGroupId"))

    ((what, reason),) = of_kind(planned, "refused")
    assert what == "attributes"
    assert "perMessageGroupId" in reason


def test_a_queue_that_is_here_is_compared() -> None:
    there = found(
        "a", {"team": "x", "same": "1"}, VisibilityTimeout="77", DelaySeconds="0", MaximumMessageSize="2048"
    )
    here = found("a", {"same": "1", "more": "2"}, VisibilityTimeout="30", MaximumMessageSize="2048")

    planned = plan_one(there, here)

    assert planned.is_there
    assert planned.differences == [
        Difference("a", "differs", "VisibilityTimeout", "77", "30"),
        Difference("a", "differs", "tag team", "x", ""),
    ]
    assert planned.changes() == {"VisibilityTimeout": "77"}


def test_policies_are_compared_by_what_they_say() -> None:
    here = found("a", RedrivePolicy=redrive("b", here=True) + " ")
    present = {"a": here, "b": found("b")}

    (same,) = plan(found("a", RedrivePolicy=redrive("b")), present=present)
    (other,) = plan(found("a", RedrivePolicy=redrive("b")), present={**present, "a": found("a")})

    assert same.differences == []
    assert [each.what for each in other.differences] == ["RedrivePolicy"]
    assert list(other.changes()) == ["RedrivePolicy"]


def test_what_cannot_be_changed_is_told_and_left() -> None:
    planned = plan_one(found("a", RetentionMode="Log"), found("a"))

    assert [each.what for each in planned.differences] == ["RetentionMode"]
    assert planned.changes() == {}


def test_a_service_without_arns_is_taken_as_it_is() -> None:
    text = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn("a")]})
    planned = plan_one(FoundQueue("a", {"RedriveAllowPolicy": text}, {}))

    assert json.loads(planned.attributes["RedriveAllowPolicy"])["sourceQueueArns"] == [arn("a")]
