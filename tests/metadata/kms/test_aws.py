"""Keys in AWS KMS, against moto, which speaks its API; what moto does not refuse, a small server does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from harness.web_servers import WebServer, web_server
from moto.server import ThreadedMotoServer

from metadata.kms.support import CONTENT, front_end
from metadata.support import ACCOUNT, START_MS, World, run
from quaymaster.core.values.errors import (
    CallerError,
    KmsAccessDenied,
    KmsDisabled,
    KmsInvalidKeyUsage,
    KmsInvalidState,
    KmsNotFound,
    KmsOptInRequired,
    KmsThrottled,
    NotNow,
    Unreachable,
)
from quaymaster.metadata.keys.key_providers import KeysUnusable
from quaymaster.metadata.kms.aws import AWSKMS, AWSKeyProvider, AWSKeys, AWSSettings
from quaymaster.net.outbound.client import OutboundClient
from quaymaster.protocol.rpc.metadata_messages import CreateQueue

CONTEXT = {"aws:sqs:arn": "arn:aws:sqs:us-east-1:000000000000:orders"}
CREDENTIALS = "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret%key\n"


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def kms(moto_url: str) -> Any:
    """An operator's client of the same service."""
    return boto3.client(
        "kms",
        endpoint_url=moto_url,
        region_name="us-east-1",
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
    )


def settings_of(url: str, directory: Path, credentials: str = CREDENTIALS, profile: str = "default") -> Any:
    file = directory / "aws-credentials"
    file.write_text(credentials)
    return AWSSettings(url, "us-east-1", file, profile, 20.0)


def aws_of(url: str, directory: Path, **changes: Any) -> AWSKMS:
    return AWSKMS(settings_of(url, directory, **changes), OutboundClient(rules=None), lambda: START_MS)


def with_keys(scenario: Callable[[World, AWSKeys], Awaitable[None]], url: str, tmp_path: Path) -> None:
    async def in_world(world: World) -> None:
        keys = AWSKeys(aws_of(url, tmp_path))
        try:
            await scenario(world, keys)
        finally:
            await keys.close()

    run(in_world, tmp_path / "keys")


def test_store_depends_on_a_key_that_kms_keeps(moto_url: str, kms: Any, tmp_path: Path) -> None:
    key_id = kms.create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"]

    async def scenario(world: World) -> None:
        before = b""
        for _ in range(3):
            world.provider = AWSKeyProvider(aws_of(moto_url, tmp_path), key_id)
            async with world.service() as service:
                queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
                data_key = service.data_key(queue.data_key_id)
                assert before in (b"", data_key)
                before = data_key
                await service.rotate_master_key()
                assert service.master_key_id == f"kms/{key_id}"
        kms.disable_key(KeyId=key_id)
        world.provider = AWSKeyProvider(aws_of(moto_url, tmp_path), "alias/none")
        with pytest.raises(KeysUnusable, match="KMS does not"):
            async with world.service():
                raise AssertionError("started")

    run(scenario, tmp_path / "keys")


def test_wrapped_key_opens_for_its_purpose_only(moto_url: str, kms: Any, tmp_path: Path) -> None:
    key_id = kms.create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"]

    async def scenario(world: World, keys: AWSKeys) -> None:
        provider = AWSKeyProvider(aws_of(moto_url, tmp_path), key_id)
        (name,) = provider.key_ids()
        wrapped = await provider.wrap(name, "wrapping-key/wk-1", b"k" * 32)

        assert await provider.unwrap(name, "wrapping-key/wk-1", wrapped) == b"k" * 32
        with pytest.raises(NotNow, match="InvalidCiphertext"):
            await provider.unwrap(name, "wrapping-key/wk-2", wrapped)
        with pytest.raises(KeysUnusable, match="does not give"):
            provider.key(name)
        await provider.close()

    with_keys(scenario, moto_url, tmp_path)


def test_queue_is_served_with_a_key_of_kms_by_id_alias_and_arn(
    moto_url: str, kms: Any, tmp_path: Path
) -> None:
    metadata = kms.create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]
    kms.create_alias(AliasName="alias/served", TargetKeyId=metadata["KeyId"])

    async def scenario(world: World) -> None:
        world.key_services = {"aws": AWSKeys(aws_of(moto_url, tmp_path))}
        async with front_end(world) as one:
            for number, name in enumerate((metadata["KeyId"], metadata["Arn"], "alias/served")):
                queue = await one.queue(f"q{number}", name)
                await one.receive(queue)
                message = await one.send(queue)
                one.clock.s += 301
                assert await one.receive(queue, message) == [CONTENT]
            missing = await one.queue("missing", "alias/missing")
            for refused in (one.receive(missing), one.send(missing)):
                with pytest.raises(KmsNotFound):
                    await refused

    run(scenario, tmp_path / "keys")


def test_data_keys_are_bound_to_their_queue(moto_url: str, kms: Any, tmp_path: Path) -> None:
    key_id = kms.create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"]

    async def scenario(world: World, keys: AWSKeys) -> None:
        made = await keys.generate(key_id, ACCOUNT, CONTEXT)

        assert made.key.endswith(f":key/{key_id}")
        assert len(made.plaintext) == 32
        assert await keys.decrypt(made.key, made.wrapped, CONTEXT) == made.plaintext
        with pytest.raises(NotNow):
            await keys.decrypt(made.key, made.wrapped, {"aws:sqs:arn": "arn:another"})

    with_keys(scenario, moto_url, tmp_path)


def test_state_of_a_key_is_that_of_sqs(moto_url: str, kms: Any, tmp_path: Path) -> None:
    disabled, pending = (kms.create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"] for _ in range(2))
    signing = kms.create_key(KeyUsage="SIGN_VERIFY", KeySpec="RSA_2048")["KeyMetadata"]["KeyId"]
    kms.disable_key(KeyId=disabled)
    kms.schedule_key_deletion(KeyId=pending, PendingWindowInDays=7)

    async def scenario(world: World, keys: AWSKeys) -> None:
        for name, error in (
            (disabled, KmsDisabled),
            (pending, KmsInvalidState),
            (signing, KmsInvalidKeyUsage),
            ("alias/missing", KmsNotFound),
        ):
            with pytest.raises(error):
                await keys.describe(name, ACCOUNT)

    with_keys(scenario, moto_url, tmp_path)


@asynccontextmanager
async def refusing(status: int, content: bytes) -> AsyncIterator[WebServer]:
    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=content)

    async with web_server(answer) as server:
        yield server


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("NotFoundException", KmsNotFound),
        ("DisabledException", KmsDisabled),
        ("KMSInvalidStateException", KmsInvalidState),
        ("AccessDeniedException", KmsAccessDenied),
        ("ThrottlingException", KmsThrottled),
        ("InvalidKeyUsageException", KmsInvalidKeyUsage),
        ("OptInRequired", KmsOptInRequired),
        ("com.amazonaws.kms#DisabledException", KmsDisabled),
        ("KeyUnavailableException", Unreachable),
        ("KMSInternalException", Unreachable),
        ("DependencyTimeoutException", Unreachable),
        ("UnrecognizedClientException", Unreachable),
        ("InvalidSignatureException", Unreachable),
        ("", Unreachable),
    ],
)
def test_errors_of_kms_are_those_of_sqs(tmp_path: Path, code: str, error: type[CallerError | NotNow]) -> None:
    async def scenario(world: World) -> None:
        async with refusing(400, json.dumps({"__type": code, "message": "As KMS says."}).encode()) as server:
            keys = AWSKeys(aws_of(server.url, tmp_path))
            with pytest.raises(error) as refused:
                await keys.generate("k", ACCOUNT, CONTEXT)
            assert isinstance(refused.value, NotNow) or str(refused.value) == "As KMS says."
            await keys.close()

    run(scenario, tmp_path / "keys")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"Plaintext": 1}', b'{"Plaintext": "!"}', b"\xff"])
def test_answers_that_make_no_sense_are_not_now(tmp_path: Path, content: bytes) -> None:
    async def scenario(world: World) -> None:
        async with refusing(200, content) as server:
            keys = AWSKeys(aws_of(server.url, tmp_path))
            for asked in (keys.generate("k", ACCOUNT, CONTEXT), keys.decrypt("k", b"", CONTEXT)):
                with pytest.raises(Unreachable):
                    await asked
            await keys.close()

    run(scenario, tmp_path / "keys")


def test_requests_are_signed_as_aws_clients_sign_them(tmp_path: Path) -> None:
    token = "a session's token"
    credentials = CREDENTIALS.replace("default", "kms") + f"aws_session_token = {token}\n"

    async def scenario(world: World) -> None:
        got: list[tuple[web.BaseRequest, bytes]] = []

        async def noted(request: web.BaseRequest) -> web.StreamResponse:
            got.append((request, await request.read()))
            return web.Response(status=500)

        async with web_server(noted) as server:
            kms = aws_of(server.url, tmp_path, credentials=credentials, profile="kms")
            with pytest.raises(Unreachable):
                await kms.call("Encrypt", KeyId="k", Plaintext="AA==")
            await kms.close()
            ((request, body),) = got
            signed = ("host", "content-type", "x-amz-target", "x-amz-date", "x-amz-security-token")
            again = AWSRequest("POST", f"{server.url}/", {n: request.headers[n] for n in signed[:3]}, body)
            again.context["timestamp"] = request.headers["x-amz-date"]
            signer = SigV4Auth(Credentials("AKIDEXAMPLE", "secret%key", token), "kms", "us-east-1")
            again.headers["X-Amz-Date"] = request.headers["x-amz-date"]
            again.headers["X-Amz-Security-Token"] = token
            string = signer.string_to_sign(again, signer.canonical_request(again))

            authorization = request.headers["Authorization"]
            assert authorization.endswith(f"Signature={signer.signature(string, again)}")
            assert f"SignedHeaders={';'.join(sorted(signed))}" in authorization
            assert request.headers["X-Amz-Target"] == "TrentService.Encrypt"

    run(scenario, tmp_path / "keys")


@pytest.mark.parametrize(
    "credentials", ["", "[other]\n", "[default]\naws_access_key_id = A\n", "no file of that kind", "[default"]
)
def test_credentials_that_cannot_be_read_are_not_now_and_not_shown(tmp_path: Path, credentials: str) -> None:
    async def scenario(world: World) -> None:
        kms = aws_of("http://127.0.0.1:9", tmp_path, credentials=credentials)
        with pytest.raises(Unreachable, match="has no credentials of the profile default"):
            await kms.call("Encrypt")
        (tmp_path / "aws-credentials").unlink()
        with pytest.raises(Unreachable, match="has no credentials"):
            await kms.call("Encrypt")

    run(scenario, tmp_path / "keys")
