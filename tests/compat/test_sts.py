"""STS through the AWS SDK's own credential chains, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from harness.operators import operate
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint, endpoint_of

from .support import LOOPBACK_ONLY, receive_one, refused, send, unique

ISSUER = "https://oidc.example.com/cluster"
NAME = ISSUER.removeprefix("https://")
KEY = rsa.generate_private_key(65_537, 2_048)
KEYS = json.dumps({"keys": [json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k"}]})
SUBJECT = "system:serviceaccount:shop:worker"
SENDER = """
import boto3
sts, sqs = boto3.client("sts"), boto3.client("sqs")
print(sts.get_caller_identity()["Arn"])
url = sqs.get_queue_url(QueueName="{queue}")["QueueUrl"]
sqs.send_message(QueueUrl=url, MessageBody="from the chain")
"""


class Site(NamedTuple):
    """A server with a user that may assume a role, and a role that a service account assumes."""

    process: QuaymasterProcess
    root: Endpoint
    user_key: str
    user_secret: str
    role_arn: str
    role_id: str

    def client(self, service: str, key: str = "", secret: str = "", token: str | None = None) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.root.url,
            region_name=self.root.region,
            aws_access_key_id=key or self.root.access_key_id,
            aws_secret_access_key=secret or self.root.secret_access_key,
            aws_session_token=token,
        )

    def of(self, service: str, credentials: dict[str, Any]) -> Any:
        """Return a client with temporary credentials."""
        return self.client(
            service,
            credentials["AccessKeyId"],
            credentials["SecretAccessKey"],
            credentials["SessionToken"],
        )

    def run(self, queue: str, **environment: str) -> str:
        """Run a program of the SDK that has only these settings, and return the ARN that it is told."""
        cleaned = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment = {"AWS_DEFAULT_REGION": self.root.region, **LOOPBACK_ONLY, **environment}
        done = subprocess.run(
            [sys.executable, "-c", SENDER.format(queue=queue)],
            env=cleaned | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def statement(**elements: Any) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": {"Effect": "Allow", **elements}})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    process = QuaymasterProcess(tmp_path_factory.mktemp("sts") / "data", settings={"oidc_issuers": "true"})
    process.start()
    try:
        env = process.env()
        root = endpoint_of(process)
        trusts = json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"AWS": env.account_id},
                        "Action": "sts:AssumeRole",
                        "Condition": {"StringEquals": {"sts:ExternalId": "shop-42"}},
                    },
                    {
                        "Effect": "Allow",
                        "Principal": {"Federated": f"arn:aws:iam::{env.account_id}:oidc-provider/{NAME}"},
                        "Action": "sts:AssumeRoleWithWebIdentity",
                        "Condition": {"StringEquals": {f"{NAME}:sub": SUBJECT}},
                    },
                ],
            }
        )
        user = operate(process, "POST", "users", {"name": "ann"})
        role = operate(process, "POST", "roles", {"name": "worker", "trust_policy": trusts})
        may_assume = statement(Action="sts:AssumeRole", Resource=role["arn"])
        operate(process, "POST", "users/ann/policy", {"policy_name": "assumes", "policy": may_assume})
        sends = statement(Action=["sqs:SendMessage", "sqs:GetQueueUrl"], Resource="*")
        operate(process, "POST", "roles/worker/policy", {"policy_name": "sends", "policy": sends})
        operate(process, "POST", "oidc", {"issuer": ISSUER, "audiences": ["sts.amazonaws.com"], "keys": KEYS})
        yield Site(process, root, user["access_key_id"], user["secret_access_key"], role["arn"], role["id"])
    finally:
        process.stop()


def test_the_sdk_is_told_who_it_is(site: Site) -> None:
    identity = site.client("sts").get_caller_identity()

    assert identity["Arn"] == f"arn:aws:iam::{site.root.account_id}:root"
    assert identity["UserId"] == identity["Account"] == site.root.account_id


def test_temporary_credentials_of_root_use_queues(site: Site) -> None:
    credentials = site.client("sts").get_session_token(DurationSeconds=900)["Credentials"]
    sqs = site.of("sqs", credentials)

    url = sqs.create_queue(QueueName=unique())["QueueUrl"]
    send(sqs, url, "hello")

    assert receive_one(sqs, url)["Body"] == "hello"
    assert credentials["Expiration"].timestamp() - time.time() <= 900


def test_an_assumed_role_sends_under_its_own_name(site: Site) -> None:
    url = site.root.client().create_queue(QueueName=unique())["QueueUrl"]
    sts = site.client("sts", site.user_key, site.user_secret)

    with refused("AccessDenied", status=403):
        sts.assume_role(RoleArn=site.role_arn, RoleSessionName="job")
    answer = sts.assume_role(RoleArn=site.role_arn, RoleSessionName="job", ExternalId="shop-42")
    worker = site.of("sqs", answer["Credentials"])
    send(worker, url, "work")
    with refused(
        "AccessDenied", status=403, containing="no identity-based policy allows the sqs:receivemessage"
    ):
        worker.receive_message(QueueUrl=url)

    message = receive_one(site.root.client(), url, AttributeNames=["SenderId"])
    assert message["Attributes"]["SenderId"] == answer["AssumedRoleUser"]["AssumedRoleId"]
    assert answer["AssumedRoleUser"]["AssumedRoleId"] == f"{site.role_id}:job"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"Tags": [{"Key": "a", "Value": "b"}]}, "ValidationError"),
        ({"PolicyArns": [{"arn": "arn:aws:iam::aws:policy/ReadOnlyAccess"}]}, "ValidationError"),
        ({"Policy": "{}"}, "MalformedPolicyDocument"),
        ({"RoleSessionName": "no spaces"}, "ValidationError"),
    ],
)
def test_what_is_not_supported_is_an_error_of_sts(site: Site, given: dict[str, Any], code: str) -> None:
    sts = site.client("sts", site.user_key, site.user_secret)
    with refused(code):
        sts.assume_role(
            **{"RoleArn": site.role_arn, "RoleSessionName": "job", "ExternalId": "shop-42", **given}
        )


def test_the_sdks_chain_assumes_the_role_of_a_profile(site: Site, tmp_path: Path) -> None:
    queue = unique()
    url = site.root.client().create_queue(QueueName=queue)["QueueUrl"]
    config = tmp_path / "config"
    config.write_text(
        f"[profile ann]\naws_access_key_id = {site.user_key}\naws_secret_access_key = {site.user_secret}\n\n"
        f"[profile worker]\nrole_arn = {site.role_arn}\nsource_profile = ann\nexternal_id = shop-42\n"
        f"role_session_name = from-a-profile\nservices = here\n\n"
        f"[services here]\nsts =\n  endpoint_url = {site.root.url}\nsqs =\n  endpoint_url = {site.root.url}\n"
    )

    arn = site.run(
        queue, AWS_CONFIG_FILE=str(config), AWS_PROFILE="worker", AWS_ENDPOINT_URL_STS=site.root.url
    )

    assert arn == f"arn:aws:sts::{site.root.account_id}:assumed-role/worker/from-a-profile"
    assert receive_one(site.root.client(), url)["Body"] == "from the chain"


def test_the_sdks_chain_assumes_a_role_with_the_token_file_of_a_pod(site: Site, tmp_path: Path) -> None:
    queue = unique()
    url = site.root.client().create_queue(QueueName=queue)["QueueUrl"]
    claims = {"iss": ISSUER, "sub": SUBJECT, "aud": ["sts.amazonaws.com"], "exp": int(time.time()) + 600}
    file = tmp_path / "token"
    file.write_text(jwt.encode(claims, KEY, "RS256", headers={"kid": "k"}))

    arn = site.run(
        queue,
        AWS_WEB_IDENTITY_TOKEN_FILE=str(file),
        AWS_ROLE_ARN=site.role_arn,
        AWS_ROLE_SESSION_NAME="a-pod",
        AWS_ENDPOINT_URL_STS=site.root.url,
        AWS_ENDPOINT_URL_SQS=site.root.url,
        AWS_CONFIG_FILE=str(tmp_path / "none"),
    )

    assert arn == f"arn:aws:sts::{site.root.account_id}:assumed-role/worker/a-pod"
    assert receive_one(site.root.client(), url)["Body"] == "from the chain"


def test_a_web_identity_that_nobody_trusts_is_refused(site: Site) -> None:
    claims = {"iss": ISSUER, "sub": "system:serviceaccount:other:x", "aud": "sts.amazonaws.com"}
    sts = site.client("sts")
    for more, code in (
        ({"exp": int(time.time()) + 600}, "AccessDenied"),
        ({"exp": 1}, "ExpiredTokenException"),
    ):
        token = jwt.encode(claims | more, KEY, "RS256", headers={"kid": "k"})
        with refused(code, status=None):
            sts.assume_role_with_web_identity(
                RoleArn=site.role_arn, RoleSessionName="pod", WebIdentityToken=token
            )


def test_temporary_credentials_are_good_after_a_restart_and_end_with_their_key(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    process.start()
    try:
        key = operate(process, "POST", "keys", {"name": "ci"})
        made = operate(process, "POST", f"keys/{key['access_key_id']}/session", {"duration_s": 900})
        process.stop()
        process.start()

        def identity() -> str:
            client = boto3.client(
                "sts",
                endpoint_url=process.endpoint_url,
                region_name=process.env().region,
                aws_access_key_id=made["access_key_id"],
                aws_secret_access_key=made["secret_access_key"],
                aws_session_token=made["session_token"],
            )
            arn: str = client.get_caller_identity()["Arn"]
            return arn

        assert identity().endswith(":root")
        operate(process, "POST", f"keys/{key['access_key_id']}/disable", {})
        with refused("InvalidClientTokenId", status=403):
            identity()
    finally:
        process.stop()
