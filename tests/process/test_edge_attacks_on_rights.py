"""Attacks by those who have a key, or a token, of their own: on the server itself, and through HAProxy."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode
from xml.etree import ElementTree

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from harness.doors import FORM, TYPE, Answer, Way, render
from harness.edge import EdgeProcess, edge_before
from harness.operators import operate
from harness.process import QuaymasterProcess
from harness.short_paths import short_directory

from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

ISSUER = "https://oidc.example.com/ci"
NAME = ISSUER.removeprefix("https://")
SUBJECT = "repo:quay/master"
KEY = rsa.generate_private_key(65_537, 2_048)
KEYS = json.dumps({"keys": [json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k"}]})
DEEP = 40
"""More than a policy may be nested."""


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


class Site(NamedTuple):
    """A server with two accounts: the default one, and one of a stranger, whose role it may assume by a secret."""

    server: QuaymasterProcess
    edge: EdgeProcess
    stranger: Signer
    stranger_id: str
    user: Signer
    role_arn: str
    own_role_arn: str


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with short_directory() as directory:
        server = QuaymasterProcess(directory / "data", settings={"oidc_issuers": "true"})
        server.start()
        try:
            with edge_before(server, directory) as edge:
                yield _with_accounts(server, edge)
        finally:
            server.stop()


def _with_accounts(server: QuaymasterProcess, edge: EdgeProcess) -> Site:
    region, own = server.env().region, server.env().account_id
    made = operate(server, "POST", "accounts", {"name": "stranger"})
    user = operate(server, "POST", "users", {"name": "deputy"})
    allowed = policy({"Effect": "Allow", "Action": ["sts:*", "sqs:*"], "Resource": "*"})
    operate(server, "POST", "users/deputy/policy", {"policy_name": "all", "policy": allowed})
    trust = policy(
        {
            "Effect": "Allow",
            "Principal": {"AWS": own},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"sts:ExternalId": "customer-42"}},
        }
    )
    account = made["account_id"]
    role = operate(server, "POST", "roles", {"name": "service", "trust_policy": trust, "account_id": account})
    federated = policy(
        {
            "Effect": "Allow",
            "Principal": {"Federated": f"arn:aws:iam::{own}:oidc-provider/{NAME}"},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {"StringEquals": {f"{NAME}:sub": SUBJECT}},
        }
    )
    own_role = operate(server, "POST", "roles", {"name": "job", "trust_policy": federated})
    operate(server, "POST", "oidc", {"issuer": ISSUER, "audiences": ["sts.amazonaws.com"], "keys": KEYS})
    return Site(
        server,
        edge,
        Signer(made["access_key_id"], made["secret_access_key"], region),
        account,
        Signer(user["access_key_id"], user["secret_access_key"], region),
        role["arn"],
        own_role["arn"],
    )


@pytest.fixture(scope="module", params=["direct", "edge"])
def way(request: pytest.FixtureRequest, site: Site) -> Way:
    return Way(site.server, site.edge if request.param == "edge" else None)


def queue_of(way: Way, signer: Signer | None = None, **attributes: str) -> str:
    """Make a queue and return its URL."""
    fields = {"QueueName": f"q-{uuid.uuid4().hex}", "Attributes": attributes}
    url: str = way.asks("CreateQueue", fields, signer)["QueueUrl"]
    return url


def tried(way: Way, action: str, fields: dict[str, Any], signer: Signer | None = None) -> tuple[int, str]:
    """Make a call; return the status and the name of the error."""
    headers = ((b"x-amz-target", f"AmazonSQS.{action}".encode()), TYPE)
    answer = way.ask(way.signed(headers, body=json.dumps(fields).encode(), signer=signer))
    kind = json.loads(answer.body or b"{}").get("__type", "")
    return answer.status, kind.rpartition("#")[2]


def count_of(way: Way, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = way.asks("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": names})["Attributes"]
    return sum(map(int, found.values()))


# Requests that were seen and are sent again.


@pytest.mark.parametrize("attempt", [b"attempt=1", b"attempt=2; max=3"])
@pytest.mark.parametrize("age_s", [0, 5, -600])
def test_a_send_that_is_replayed_is_stored_once(way: Way, attempt: bytes, age_s: int) -> None:
    url = queue_of(way)
    headers = (
        (b"x-amz-target", b"AmazonSQS.SendMessage"),
        TYPE,
        (b"amz-sdk-invocation-id", uuid.uuid4().hex.encode()),
        (b"amz-sdk-request", attempt),
    )
    body = json.dumps({"QueueUrl": url, "MessageBody": "once"}).encode()
    request = way.signed(headers, body=body, age_s=age_s)

    answers = [way.ask(request) for _ in range(3)]

    assert [answer.status for answer in answers] == [200] * 3
    assert len({json.loads(answer.body)["MessageId"] for answer in answers}) == 1
    assert count_of(way, url) == 1


def test_a_request_is_refused_once_its_signature_is_old(way: Way) -> None:
    url = queue_of(way)
    body = json.dumps({"QueueUrl": url, "MessageBody": "late"}).encode()
    headers = [way.host, (b"x-amz-target", b"AmazonSQS.SendMessage"), TYPE]
    now_ms = time.time_ns() // 1_000_000
    for age_s in (16 * 60, -16 * 60):
        signed = sign(
            UnsignedRequest(b"POST", b"/", b"", headers, body), way.signer, now_ms=now_ms - age_s * 1_000
        )

        assert way.ask(render(b"POST", b"/", signed, body)).status == 403

    assert count_of(way, url) == 0


# What belongs to others.


def sts(way: Way, signer: Signer | None, **fields: str) -> Answer:
    """Ask STS: signed, or by a token alone."""
    body = urlencode({"Version": "2011-06-15", **fields}).encode()
    if signer is None:
        return way.ask(render(b"POST", b"/", [way.host, FORM], body))
    return way.ask(way.signed([FORM], body=body, signer=signer._replace(service="sts")))


def code_of(answer: Answer) -> str:
    """Return the name of an error of STS; "" where there is none."""
    found = ElementTree.fromstring(answer.body).iter()
    return next((one.text or "" for one in found if one.tag.rpartition("}")[2] == "Code"), "")


@pytest.mark.parametrize("external_id", [None, "customer-43", "customer-4*", "CUSTOMER-42"])
def test_a_deputy_without_the_external_id_does_not_get_the_role(
    way: Way, site: Site, external_id: str | None
) -> None:
    fields = {"Action": "AssumeRole", "RoleArn": site.role_arn, "RoleSessionName": "deputy"}

    allowed = sts(way, site.user, **fields, ExternalId="customer-42")
    refused = sts(way, site.user, **fields, **({} if external_id is None else {"ExternalId": external_id}))

    assert allowed.status == 200, allowed
    assert refused.status in (400, 403)
    assert code_of(refused) in ("AccessDenied", "ValidationError")


def test_a_task_is_not_cancelled_by_its_handle_from_another_account(way: Way, site: Site) -> None:
    dead = queue_of(way)
    arn = way.asks("GetQueueAttributes", {"QueueUrl": dead, "AttributeNames": ["QueueArn"]})["Attributes"]
    redrive = json.dumps({"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": 1})
    source = queue_of(way, RedrivePolicy=redrive)
    for number in range(3):
        way.asks("SendMessage", {"QueueUrl": dead, "MessageBody": str(number)})
    started = {"SourceArn": arn["QueueArn"], "MaxNumberOfMessagesPerSecond": 1}
    handle = way.asks("StartMessageMoveTask", started)["TaskHandle"]

    status, code = tried(way, "CancelMessageMoveTask", {"TaskHandle": handle}, site.stranger)
    listed = way.asks("ListMessageMoveTasks", {"SourceArn": arn["QueueArn"]})["Results"]

    assert (status, code) == (404, "ResourceNotFoundException")  # as of a task that is not there
    assert [task["Status"] for task in listed] != ["CANCELLED"]
    way.asks("DeleteQueue", {"QueueUrl": source})


def test_a_receipt_handle_is_good_for_its_own_queue_alone(way: Way, site: Site) -> None:
    url, other = queue_of(way), queue_of(way)
    foreign = queue_of(way, site.stranger)
    way.asks("SendMessage", {"QueueUrl": url, "MessageBody": "mine"})
    (message,) = way.asks("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 5})["Messages"]
    handle = message["ReceiptHandle"]
    told = {"ReceiptHandle": handle, "VisibilityTimeout": 0}
    spoiled = handle[:-4] + ("AAAA" if handle[-4:] != "AAAA" else "BBBB")

    answers = [
        tried(way, "DeleteMessage", {"QueueUrl": other, "ReceiptHandle": handle}),
        tried(way, "DeleteMessage", {"QueueUrl": foreign, "ReceiptHandle": handle}, site.stranger),
        tried(way, "ChangeMessageVisibility", {"QueueUrl": foreign, **told}, site.stranger),
        tried(way, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": spoiled}),
    ]

    assert {code for _, code in answers} == {"ReceiptHandleIsInvalid"}
    assert count_of(way, url) == 1


# Policies that mean something else than they seem to.

ALLOW = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
DENY = {**ALLOW, "Effect": "Deny"}
MEANT: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "Deny, key absent": ([ALLOW, DENY | {"Condition": {"StringEquals": {"aws:SourceVpce": "v"}}}], True),
    "Deny, key absent, negated": (
        [ALLOW, DENY | {"Condition": {"StringNotEquals": {"aws:SourceVpce": "v"}}}],
        False,
    ),
    "Deny of a batch": ([ALLOW, DENY | {"Action": "sqs:SendMessageBatch"}], True),
    "Allow of a batch": ([ALLOW | {"Action": "sqs:SendMessageBatch"}], False),
    "ForAllValues, key absent": (
        [ALLOW | {"Condition": {"ForAllValues:StringEquals": {"aws:PrincipalOrgPaths": "a"}}}],
        True,
    ),
    "ForAnyValue, key absent": (
        [ALLOW | {"Condition": {"ForAnyValue:StringEquals": {"aws:PrincipalOrgPaths": "a"}}}],
        False,
    ),
}


@pytest.mark.parametrize(("statements", "is_allowed"), MEANT.values(), ids=MEANT.keys())
def test_policies_mean_to_strangers_what_they_mean_in_sqs(
    way: Way, site: Site, statements: list[dict[str, Any]], is_allowed: bool
) -> None:
    url = queue_of(way, Policy=policy(*statements))
    entries = [{"Id": "a", "MessageBody": "x"}]

    alone = tried(way, "SendMessage", {"QueueUrl": url, "MessageBody": "x"}, site.stranger)
    together = tried(way, "SendMessageBatch", {"QueueUrl": url, "Entries": entries}, site.stranger)

    assert alone[0] == together[0] == (200 if is_allowed else 403)


def test_patterns_of_many_stars_are_judged_and_do_not_match(way: Way, site: Site) -> None:
    pattern = "a*" * 1_000 + "b"
    condition = {"StringLike": {"aws:UserAgent": pattern}}
    url = queue_of(way, Policy=policy(ALLOW | {"Condition": condition}))
    headers = (
        (b"x-amz-target", b"AmazonSQS.SendMessage"),
        TYPE,
        (b"user-agent", b"a" * 4_000),
    )
    body = json.dumps({"QueueUrl": url, "MessageBody": "x"}).encode()

    # Where matching went back for each star, this would never end.
    assert way.ask(way.signed(headers, body=body, signer=site.stranger)).status == 403


@pytest.mark.parametrize("kind", ["policy", "body"])
def test_deep_json_is_refused_and_the_server_serves_on(way: Way, kind: str) -> None:
    url = queue_of(way)
    deep = "[" * DEEP + "]" * DEEP
    if kind == "policy":
        attributes = {"Policy": '{"Statement":' + deep + "}"}
        body = json.dumps({"QueueUrl": url, "Attributes": attributes}).encode()
        headers = ((b"x-amz-target", b"AmazonSQS.SetQueueAttributes"), TYPE)
    else:
        deepest = "[" * 100_000
        body = f'{{"QueueUrl":"{url}","MessageBody":{deepest}}}'.encode()
        headers = ((b"x-amz-target", b"AmazonSQS.SendMessage"), TYPE)

    assert way.ask(way.signed(headers, body=body)).status == 400
    assert count_of(way, url) == 0


@pytest.mark.parametrize("name", ["*", "dep*", "?eputy", "${aws:username}"])
def test_names_that_could_be_patterns_are_no_names(way: Way, site: Site, name: str) -> None:
    with pytest.raises(AssertionError, match="UserName is invalid"):
        operate(site.server, "POST", "users", {"name": name})
    session = {"RoleArn": site.role_arn, "RoleSessionName": name, "ExternalId": "customer-42"}
    assert code_of(sts(way, site.user, Action="AssumeRole", **session)) == "ValidationError"


# Tokens that others have signed.


def claims(**others: Any) -> dict[str, Any]:
    told = {"iss": ISSUER, "sub": SUBJECT, "aud": "sts.amazonaws.com", "exp": int(time.time()) + 600}
    return told | others


def signed_with_the_public_key() -> str:
    """Return a token whose secret is what everybody knows. PyJWT refuses to make one."""
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "k"}, claims()]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    mac = hmac.new(public, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def signed(key: rsa.RSAPrivateKey = KEY, headers: Mapping[str, str] | None = None, **others: Any) -> str:
    return jwt.encode(claims(**others), key, "RS256", headers={"kid": "k", **(headers or {})})


# Made by the test: those made when tests are collected would expire before a long run comes to them.
TOKENS: Mapping[str, Callable[[], str]] = {
    "alg none": lambda: jwt.encode(claims(), "", "none", headers={"kid": "k"}),
    "HS256 with the public key": signed_with_the_public_key,
    "other iss": lambda: signed(iss="https://oidc.example.org/ci"),
    "iss with a slash": lambda: signed(iss=ISSUER + "/"),
    "other aud": lambda: signed(aud="others"),
    "other key": lambda: signed(
        rsa.generate_private_key(65_537, 2_048), {"jku": "https://evil.example/keys"}
    ),
}


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_that_the_issuer_did_not_sign_for_us_give_no_session(way: Way, site: Site, token: str) -> None:
    fields = {"Action": "AssumeRoleWithWebIdentity", "RoleArn": site.own_role_arn, "RoleSessionName": "job"}

    refused = sts(way, None, **fields, WebIdentityToken=TOKENS[token]())

    assert (refused.status, code_of(refused)) == (400, "InvalidIdentityToken")
    assert b"AccessKeyId" not in refused.body
    assert sts(way, None, **fields, WebIdentityToken=signed()).status == 200
