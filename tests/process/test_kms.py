"""Keys for queues, and a master key elsewhere, with the real process and boto3."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from harness.forked_programs import run_program
from harness.process import QuaymasterProcess
from harness.vault import TOKEN, StandInVault
from harness.waiting import PATIENCE_S
from moto.server import ThreadedMotoServer

from .support import refused_start, running


def sqs_of(process: QuaymasterProcess) -> Any:
    environment = process.env()
    return boto3.client(
        "sqs",
        endpoint_url=environment.endpoint_url,
        region_name=environment.region,
        aws_access_key_id=environment.access_key_id,
        aws_secret_access_key=environment.secret_access_key,
        config=Config(retries={"max_attempts": 1}),
    )


def cli(process: QuaymasterProcess, *words: str) -> Any:
    done = run_program([*words, "--data", str(process.data), "--json"])
    done.check_returncode()
    return json.loads(done.stdout)


def bodies(client: Any, url: str) -> list[str]:
    got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    return [message["Body"] for message in got.get("Messages", [])]


def test_queue_of_a_disabled_key_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    with running(QuaymasterProcess(tmp_path / "data", settings={"kms": "local"})) as process:
        client = sqs_of(process)
        key = cli(process, "kms", "create", "--alias", "alias/orders")
        url = client.create_queue(QueueName="orders", Attributes={"KmsMasterKeyId": "alias/orders"})[
            "QueueUrl"
        ]
        client.send_message(QueueUrl=url, MessageBody="one")

        cli(process, "kms", "disable", "alias/orders")
        with pytest.raises(client.exceptions.KmsDisabled) as refused:
            client.send_message(QueueUrl=url, MessageBody="two")
        assert refused.value.response["Error"]["Code"] == "KMS.DisabledException"
        with pytest.raises(client.exceptions.KmsDisabled):
            client.receive_message(QueueUrl=url)
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        assert [counts[name] for name in names] == ["1", "0"]

        cli(process, "kms", "enable", key["key_id"])
        cli(process, "master-key", "rotate")
        client.send_message(QueueUrl=url, MessageBody="two")
        assert bodies(client, url) == ["one", "two"]
        process.stop()
        process.start()
        assert bodies(client, url) == ["one", "two"]
        cli(process, "kms", "schedule-deletion", "alias/orders")
        with pytest.raises(client.exceptions.KmsInvalidState):
            client.receive_message(QueueUrl=url)


@pytest.fixture
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_master_key_and_keys_of_queues_are_in_kms(tmp_path: Path, moto_url: str) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = B\n")
    where = {"endpoint_url": moto_url, "region_name": "us-east-1"}
    kms = boto3.client("kms", aws_access_key_id="A", aws_secret_access_key="B", **where)
    for name in ("master", "orders"):
        key = kms.create_key(KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["KeyId"]
        kms.create_alias(AliasName=f"alias/{name}", TargetKeyId=key)
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = sqs_of(process)
        plain = client.create_queue(QueueName="plain")["QueueUrl"]
        client.send_message(QueueUrl=plain, MessageBody="before")
        process.stop()
        process.settings |= {
            "master_key_source": "kms",
            "kms": "aws",
            "kms_url": moto_url,
            "kms_key_id": "alias/master",
            "kms_credentials_file": str(credentials),
        }
        process.start()

        attributes = {"KmsMasterKeyId": "alias/orders", "KmsDataKeyReusePeriodSeconds": "60"}
        url = client.create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"]
        missing = client.create_queue(QueueName="missing", Attributes={"KmsMasterKeyId": "alias/none"})
        client.send_message(QueueUrl=url, MessageBody="one")
        with pytest.raises(client.exceptions.KmsNotFound):
            client.send_message(QueueUrl=missing["QueueUrl"], MessageBody="one")
        assert bodies(client, plain) == ["before"]
        assert not list((tmp_path / "data" / "keys").glob("*.key"))

        process.stop()
        process.start()
        assert bodies(client, url) == ["one"]
        assert bodies(client, plain) == ["before"]
        kms.disable_key(KeyId=kms.describe_key(KeyId="alias/orders")["KeyMetadata"]["KeyId"])
        assert bodies(client, plain) == ["before"]


@contextmanager
def vault_in_thread(*keys: str) -> Iterator[StandInVault]:
    """Run a stand-in for Vault beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running_vault = StandInVault(*keys).running()
    try:
        yield asyncio.run_coroutine_threadsafe(running_vault.__aenter__(), loop).result(PATIENCE_S)
        asyncio.run_coroutine_threadsafe(running_vault.__aexit__(None, None, None), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_server_needs_vault_when_it_starts_and_for_queues_that_name_its_keys(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with vault_in_thread("quaymaster", "000000000000-orders") as vault:
        settings = {
            "master_key_source": "vault",
            "kms": "vault",
            "vault_url": vault.url,
            "vault_token_file": str(token),
        }
        with running(QuaymasterProcess(tmp_path / "data", settings=settings)) as process:
            client = sqs_of(process)
            plain = client.create_queue(QueueName="plain")["QueueUrl"]
            attributes = {"KmsMasterKeyId": "alias/orders"}
            url = client.create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"]
            other = client.create_queue(QueueName="other", Attributes=attributes)["QueueUrl"]
            client.send_message(QueueUrl=url, MessageBody="one")
            assert not list((tmp_path / "data" / "keys").glob("*.key"))

            vault.says = (503, ["Vault is sealed"])
            client.send_message(QueueUrl=plain, MessageBody="two")
            assert bodies(client, plain) == ["two"]
            assert bodies(client, url) == ["one"]
            with pytest.raises(ClientError) as refused:
                client.send_message(QueueUrl=other, MessageBody="three")
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
            process.stop()
            assert "Vault answers with HTTP status 503" in refused_start(process)

            vault.says = None
            process.start()
            assert bodies(client, url) == ["one"]
            client.send_message(QueueUrl=other, MessageBody="three")
