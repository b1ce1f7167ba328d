"""Queue policies between two accounts of a real server: what they allow, what they deny, and in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from harness.operators import operate
from harness.process import QuaymasterProcess
from harness.sqs import endpoint_of

from .support import attributes_of, bodies, receive_one, refused, send, unique


class TwoAccounts(NamedTuple):
    """Clients of the same server for the keys of two accounts."""

    process: QuaymasterProcess
    owner: Any
    owner_id: str
    other: Any
    other_id: str

    def queue(self, policy: Any = None, **attributes: str) -> str:
        """Create a queue of the owner, and return its full URL."""
        if policy is not None:
            attributes["Policy"] = policy if isinstance(policy, str) else json.dumps({"Statement": policy})
        url: str = self.owner.create_queue(QueueName=unique(), Attributes=attributes)["QueueUrl"]
        return url

    def allow(self, *actions: str, **elements: Any) -> dict[str, Any]:
        """Return a statement that allows the other account these actions."""
        named = [f"sqs:{action}" for action in actions]
        return {"Effect": "Allow", "Principal": {"AWS": self.other_id}, "Action": named, **elements}


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoAccounts]:
    process = QuaymasterProcess(tmp_path_factory.mktemp("policies") / "data")
    process.start()
    try:
        first = endpoint_of(process)
        made = operate(process, "POST", "accounts", {"name": "other"})
        second = first._replace(
            account_id=made["account_id"],
            access_key_id=made["access_key_id"],
            secret_access_key=made["secret_access_key"],
        )
        yield TwoAccounts(process, first.client(), first.account_id, second.client(), made["account_id"])
    finally:
        process.stop()


def test_a_queue_without_a_policy_is_its_owners_alone(accounts: TwoAccounts) -> None:
    url = accounts.queue()
    arn = attributes_of(accounts.owner, url, "QueueArn")["QueueArn"]

    with refused(
        "AccessDenied",
        status=403,
        message=f"User: arn:aws:iam::{accounts.other_id}:root is not authorized to perform: sqs:sendmessage on "
        f"resource: {arn} because no resource-based policy allows the sqs:sendmessage action",
    ):
        accounts.other.send_message(QueueUrl=url, MessageBody="m")


def test_another_account_may_do_what_a_policy_allows_and_no_more(accounts: TwoAccounts) -> None:
    url = accounts.queue([accounts.allow("SendMessage", "GetQueueUrl")])

    found = accounts.other.get_queue_url(
        QueueName=url.rpartition("/")[2], QueueOwnerAWSAccountId=accounts.owner_id
    )["QueueUrl"]
    send(accounts.other, found, "hello")
    accounts.other.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "batch"}])
    with refused("AccessDenied", status=403, containing="sqs:receivemessage"):
        accounts.other.receive_message(QueueUrl=url)

    assert found == url
    received = accounts.owner.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["SenderId"]
    )
    assert set(bodies(received)) <= {"hello", "batch"}


def test_another_account_consumes_messages(accounts: TwoAccounts) -> None:
    url = accounts.queue(
        [accounts.allow("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")]
    )
    send(accounts.owner, url, "work")

    message = receive_one(accounts.other, url)
    accounts.other.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=30
    )
    accounts.other.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    assert message["Body"] == "work"
    assert attributes_of(accounts.other, url, "ApproximateNumberOfMessages") == {
        "ApproximateNumberOfMessages": "0"
    }


def test_a_permission_that_is_added_holds_and_one_that_is_removed_does_not(accounts: TwoAccounts) -> None:
    url = accounts.queue()
    accounts.owner.add_permission(
        QueueUrl=url, Label="send", AWSAccountIds=[accounts.other_id], Actions=["SendMessage"]
    )

    send(accounts.other, url, "hello")
    accounts.owner.remove_permission(QueueUrl=url, Label="send")

    with refused("AccessDenied", status=403):
        accounts.other.send_message(QueueUrl=url, MessageBody="m")


@pytest.mark.parametrize("action", ["delete_queue", "list_queue_tags", "set_queue_attributes", "tag_queue"])
def test_some_actions_are_never_allowed_to_another_account(accounts: TwoAccounts, action: str) -> None:
    url = accounts.queue([accounts.allow("*"), {**accounts.allow("*"), "Principal": "*"}])
    more: dict[str, Any] = {"set_queue_attributes": {"Attributes": {}}, "tag_queue": {"Tags": {"a": "b"}}}

    with refused("AccessDenied", status=403, containing="no resource-based policy"):
        getattr(accounts.other, action)(QueueUrl=url, **more.get(action, {}))


def test_a_deny_wins_and_binds_the_owner_too(accounts: TwoAccounts) -> None:
    deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}
    url = accounts.queue([accounts.allow("SendMessage"), deny])

    for client in (accounts.owner, accounts.other):
        with refused(
            "AccessDenied", status=403, containing="with an explicit deny in a resource-based policy"
        ):
            client.send_message(QueueUrl=url, MessageBody="m")
    accounts.owner.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    send(accounts.owner, url, "m")


def test_an_operator_removes_a_policy_that_locks_its_owner_out(accounts: TwoAccounts) -> None:
    url = accounts.queue([{"Effect": "Deny", "Principal": "*", "Action": "*"}])
    with refused("AccessDenied", status=403):
        accounts.owner.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})

    operate(accounts.process, "DELETE", f"queues/{url.rpartition('/')[2]}/policy")

    send(accounts.owner, url, "m")


def test_dead_letters_go_back_only_to_queues_that_allow_sending(accounts: TwoAccounts) -> None:
    dead = accounts.queue()
    arn = attributes_of(accounts.owner, dead, "QueueArn")["QueueArn"]
    deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    source = accounts.queue([deny], RedrivePolicy=redrive)

    with refused(
        "AccessDenied", status=403, containing=f"sqs:sendmessage on resource: {arn.rpartition(':')[0]}"
    ):
        accounts.owner.start_message_move_task(SourceArn=arn)
    accounts.owner.set_queue_attributes(QueueUrl=source, Attributes={"Policy": ""})
    accounts.owner.start_message_move_task(SourceArn=arn)


def test_conditions_look_at_the_request(accounts: TwoAccounts) -> None:
    def allowed(operator: str, key: str, value: Any) -> bool:
        url = accounts.queue([accounts.allow("SendMessage", Condition={operator: {key: value}})])
        try:
            accounts.other.send_message(QueueUrl=url, MessageBody="m")
        except accounts.other.exceptions.ClientError as error:
            code: str = error.response["Error"]["Code"]
        else:
            code = "OK"
        assert code in ("OK", "AccessDenied")
        return code == "OK"

    assert allowed("IpAddress", "aws:SourceIp", "127.0.0.0/8")
    assert not allowed("NotIpAddress", "aws:SourceIp", "127.0.0.0/8")
    assert allowed("StringLike", "aws:UserAgent", "Boto3/*")
    assert allowed("StringEquals", "aws:PrincipalAccount", accounts.other_id)
    assert allowed("DateGreaterThan", "aws:CurrentTime", "2026-01-01")
    assert allowed("Bool", "aws:SecureTransport", "false")
    assert not allowed("ArnEquals", "aws:SourceArn", "arn:aws:sns:us-east-1:1:topic")
    assert allowed("ArnEqualsIfExists", "aws:SourceArn", "arn:aws:sns:us-east-1:1:topic")


@pytest.mark.parametrize(
    "statement",
    [
        {"Action": "sqs:Fly"},
        {"Action": "sns:Publish"},
        {"Principal": {"AWS": "arn:aws:iam::111122223333:user/*"}},
        {"Principal": {"CanonicalUser": "x"}},
        {"Condition": {"StringEqual": {"aws:SourceIp": "x"}}},
        {"Condition": {"StringEquals": {"s3:prefix": "x"}}},
        {"Extra": "x"},
    ],
)
def test_a_policy_that_cannot_be_evaluated_is_refused(accounts: TwoAccounts, statement: Any) -> None:
    url = accounts.queue()
    policy = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", **statement}})

    with refused("InvalidAttributeValue", containing="Invalid value for the parameter Policy. Reason: "):
        accounts.owner.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    assert attributes_of(accounts.owner, url, "Policy") == {}


def test_another_account_reads_a_log_that_allows_it(accounts: TwoAccounts) -> None:
    url = accounts.queue([accounts.allow("ReceiveMessage", "DeleteMessage")], RetentionMode="Log")
    send(accounts.owner, url, "event")

    message = receive_one(accounts.other, f"{url}@reader")

    assert message["Body"] == "event"
    accounts.other.delete_message(QueueUrl=f"{url}@reader", ReceiptHandle=message["ReceiptHandle"])
    with refused("AccessDenied", status=403):
        accounts.other.send_message(QueueUrl=url, MessageBody="m")


def test_with_owner_only_policies_are_not_evaluated(start_process: Any) -> None:
    process = start_process(policy_evaluation="owner-only")
    client = endpoint_of(process).client()
    deny = json.dumps({"Statement": {"Effect": "Deny", "Principal": "*", "Action": "*"}})
    url = client.create_queue(QueueName="jobs", Attributes={"Policy": deny})["QueueUrl"]

    send(client, url, "m")

    assert receive_one(client, url)["Body"] == "m"
