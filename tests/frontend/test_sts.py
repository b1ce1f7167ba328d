"""STS on the SQS endpoint: who asks, and temporary credentials; and what keeps the two services apart."""

from __future__ import annotations

import asyncio
import re
import time
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from frontend.support import ACCOUNT, Answer, Client, Service, now_ms, serving, serving_recorded
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, presign
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, decode_block, encode_block

NAMESPACE = "{https://sts.amazonaws.com/doc/2011-06-15/}"
ROLE = {"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/worker", "RoleSessionName": "one"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Told(NamedTuple):
    """An answer's status, its error code ("" where all went well), and its texts by element."""

    status: int
    code: str
    texts: dict[str, str]


def told(answer: Answer) -> Told:
    root = ElementTree.fromstring(answer.body.decode())
    assert root.tag.startswith(NAMESPACE), answer.body
    texts = {each.tag.removeprefix(NAMESPACE): each.text or "" for each in root.iter() if len(each) == 0}
    assert texts["RequestId"] == answer.headers["x-amzn-requestid"]
    return Told(answer.status, texts.get("Code", ""), texts)


class Temporary(Client):
    """A client with temporary credentials."""

    def __init__(self, client: Client, texts: dict[str, str]) -> None:
        super().__init__(client.port, texts["AccessKeyId"], texts["SecretAccessKey"])
        self.token = {"x-amz-security-token": texts["SessionToken"]}


async def temporary(service: Service, **given: str) -> Temporary:
    answer = told(await service.client.sts("GetSessionToken", given))
    assert answer.status == 200
    return Temporary(service.client, answer.texts)


def test_root_is_told_who_it_is() -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = told(await service.client.sts("GetCallerIdentity", {}))

            assert answer.status == 200
            assert answer.texts["Arn"] == f"arn:aws:iam::{ACCOUNT}:root"
            assert answer.texts["UserId"] == answer.texts["Account"] == ACCOUNT

    asyncio.run(scenario())


def test_temporary_credentials_do_what_their_key_may() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            before_ms = now_ms()
            client = await temporary(service, DurationSeconds="900")

            sent = await client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"}, client.token)
            asked = told(await client.sts("GetCallerIdentity", {}, client.token))

            assert sent.status == 200
            assert asked.texts["Arn"] == f"arn:aws:iam::{ACCOUNT}:root"
            content = service.metadata.sessions.find(client.key_id or "", *client.token.values()).content
            assert 0 <= content.issued_ms - before_ms < 60_000
            assert content.expires_ms - content.issued_ms == 900_000

    asyncio.run(scenario())


def test_temporary_credentials_of_root_last_an_hour_at_most() -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = told(await service.client.sts("GetSessionToken", {"DurationSeconds": "129600"}))

            end = time.strptime(answer.texts["Expiration"], "%Y-%m-%dT%H:%M:%SZ")
            left_s = time.mktime(end) - time.timezone - time.time()
            assert 3_500 < left_s <= 3_600

    asyncio.run(scenario())


def test_temporary_credentials_make_no_others() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = await temporary(service)

            again = told(await client.sts("GetSessionToken", {}, client.token))

            assert (again.status, again.code) == (403, "AccessDenied")

    asyncio.run(scenario())


def test_temporary_credentials_end_with_their_key() -> None:
    async def scenario() -> None:
        async with serving() as service:
            assert service.client.key_id is not None
            client = await temporary(service)
            await service.metadata.accounts.rotate_secret(service.client.key_id)

            refused = told(await client.sts("GetCallerIdentity", {}, client.token))

            assert (refused.status, refused.code) == (403, "InvalidClientTokenId")
            assert (await client.json("ListQueues", {}, client.token)).status == 403

    asyncio.run(scenario())


def test_root_assumes_no_role() -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = told(await service.client.sts("AssumeRole", ROLE))

            assert (answer.status, answer.code) == (403, "AccessDenied")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given", "code"),
    [
        ("GetSessionToken", {"DurationSeconds": "1"}, "ValidationError"),
        ("GetSessionToken", {"TokenCode": "123456"}, "ValidationError"),
        ("AssumeRole", {**ROLE, "Tags.member.1.Key": "a"}, "ValidationError"),
        ("AssumeRole", {**ROLE, "Policy": "{}"}, "MalformedPolicyDocument"),
        ("SendMessage", {"QueueUrl": "jobs", "MessageBody": "a"}, "InvalidAction"),
        ("GetFederationToken", {}, "InvalidAction"),
    ],
)
def test_what_sts_does_not_take_is_refused_as_sts_does(action: str, given: dict[str, str], code: str) -> None:
    async def scenario() -> None:
        async with serving() as service:
            answer = told(await service.client.sts(action, given))

            assert (answer.status, answer.code) == (400, code)
            assert answer.texts["Type"] == "Sender"

    asyncio.run(scenario())


def test_a_request_that_is_signed_for_one_service_asks_nothing_of_the_other() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            body = urlencode({"Action": "GetCallerIdentity", "Version": "2011-06-15"}).encode()
            without_version = urlencode({"Action": "GetCallerIdentity"}).encode()
            listing = urlencode({"Action": "ListQueues", "Version": "2012-11-05"}).encode()

            for_sqs = told(await client.request("POST", "/", FORM, body))
            as_sqs = await client.request("POST", "/", FORM, without_version)
            for_sts = told(await client.request("POST", "/", FORM, listing, service="sts"))
            in_json = await client.request(
                "POST", "/", {"x-amz-target": "AmazonSQS.ListQueues"}, b"{}", service="sts"
            )
            as_target = await client.request(
                "POST", "/", {"x-amz-target": "AWSSecurityTokenService.AssumeRole"}, b"{}"
            )

            assert for_sqs.code == "SignatureDoesNotMatch"
            assert "correct service: 'sts'" in for_sqs.texts["Message"]
            assert b"<Code>InvalidAction</Code>" in as_sqs.body
            assert for_sts.code == "InvalidAction"
            assert in_json.json["__type"].endswith("#InvalidSignatureException")
            assert "correct service: 'sqs'" in in_json.json["message"]
            assert as_target.json["__type"].endswith("#UnknownOperationException")

    asyncio.run(scenario())


def test_messages_that_look_like_requests_to_sts_are_messages() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("jobs")
            url = service.client.url("jobs")
            for text in ("Action=AssumeRole&Version=2011-06-15", "Version=2011-06-15"):
                encoded = urlencode({"Action": "SendMessage", "QueueUrl": url, "MessageBody": text}).encode()
                plain = f"Action=SendMessage&QueueUrl={url}&MessageBody=a{text.rpartition('&')[2]}".encode()
                for body in (encoded, plain):
                    answer = await service.client.request("POST", "/", FORM, body)
                    assert b"<SendMessageResponse" in answer.body

    asyncio.run(scenario())


def test_sts_is_at_the_root_of_the_endpoint() -> None:
    async def scenario() -> None:
        async with serving() as service:
            body = urlencode({"Action": "GetCallerIdentity", "Version": "2011-06-15"}).encode()
            answer = await service.client.request("POST", f"/{ACCOUNT}/jobs", FORM, body, service="sts")
            assert answer.status == 404

    asyncio.run(scenario())


def test_sts_takes_us_east_1_besides_its_own_region() -> None:
    async def scenario() -> None:
        async with serving(region="eu-west-1") as service:
            port, key, secret = service.client.port, service.client.key_id, service.client.secret
            answers = {
                region: told(await Client(port, key, secret, region=region).sts("GetCallerIdentity", {}))
                for region in ("eu-west-1", "us-east-1", "us-west-2")
            }

            assert [answer.status for answer in answers.values()] == [200, 200, 403]
            assert answers["us-west-2"].code == "SignatureDoesNotMatch"

    asyncio.run(scenario())


def test_a_presigned_url_says_who_signed_it() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = service.client
            assert client.key_id is not None
            host = (b"host", f"127.0.0.1:{client.port}".encode())
            query = presign(
                UnsignedRequest(b"GET", b"/", b"Action=GetCallerIdentity&Version=2011-06-15", [host]),
                Signer(client.key_id, client.secret, client.region, service="sts"),
                now_ms=now_ms(),
                expires_s=60,
            )
            bare = Client(client.port, None, "")

            answer = told(await bare.request("GET", f"/?{query.decode()}"))
            changed = told(await bare.request("GET", f"/?{query.decode()}&DurationSeconds=900"))
            unsigned = told(await bare.request("GET", "/?Action=GetCallerIdentity&Version=2011-06-15"))

            assert (answer.status, answer.texts["Account"]) == (200, ACCOUNT)
            assert changed.code == "SignatureDoesNotMatch"
            assert unsigned.code == "MissingAuthenticationToken"

    asyncio.run(scenario())


def test_errors_before_the_body_is_read_have_the_form_of_sts() -> None:
    async def scenario() -> None:
        async with serving() as service:
            stranger = Client(service.client.port, "AKIA" + "A" * 16, "secret")

            answer = told(await stranger.sts("GetCallerIdentity", {}))
            bad_token = told(
                await service.client.sts("GetCallerIdentity", {}, {"x-amz-security-token": "guess"})
            )

            assert (answer.status, answer.code) == (403, "InvalidClientTokenId")
            assert (bad_token.status, bad_token.code) == (403, "InvalidClientTokenId")

    asyncio.run(scenario())


def test_open_authentication_tells_who_asks_and_makes_no_credentials() -> None:
    async def scenario() -> None:
        async with serving(authentication="open") as service:
            bare = Client(service.client.port, None, "")

            identity = told(await bare.sts("GetCallerIdentity", {}))
            refused = told(await bare.sts("GetSessionToken", {}))

            assert identity.texts["Arn"] == f"arn:aws:iam::{ACCOUNT}:root"
            assert (refused.status, refused.code) == (403, "AccessDenied")
            assert "authentication = open" in refused.texts["Message"]

    asyncio.run(scenario())


def test_calls_of_sts_leave_records_without_secrets() -> None:
    usage = UsageRecorder(now_us=lambda: time.time_ns() // 1_000)
    secret = "the-external-id-of-a-partner"

    async def scenario() -> dict[str, str]:
        async with serving_recorded(usage) as service:
            await service.client.sts("GetCallerIdentity", {})
            made = told(await service.client.sts("GetSessionToken", {"DurationSeconds": "900"}))
            await service.client.sts("AssumeRole", {**ROLE, "ExternalId": secret})
            return made.texts

    texts = asyncio.run(scenario())
    taken = usage.take()
    rows = taken.columns(0, taken.count)
    block = encode_block(BlockOrigin("fe", 1, "r"), BlockEnd(), rows, low_watermark_us=taken.watermark_us)
    identity, made, assumed = decode_block(block.data).records()

    assert [each.action for each in (identity, made, assumed)] == [
        "GetCallerIdentity",
        "GetSessionToken",
        "AssumeRole",
    ]
    assert {each.category for each in (identity, made, assumed)} == {"management"}
    assert made.request_params == '{"DurationSeconds":900}'
    assert texts["AccessKeyId"] in made.response_elements
    assert ROLE["RoleArn"] in assumed.request_params
    assert assumed.error_code == "AccessDenied"
    for record in (identity, made, assumed):
        for hidden in (texts["SecretAccessKey"], texts["SessionToken"], secret):
            assert hidden not in record.request_params + record.response_elements
    assert re.fullmatch(r"ASIA[A-Z2-7]{16}", texts["AccessKeyId"])
