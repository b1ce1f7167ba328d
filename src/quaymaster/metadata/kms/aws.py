"""Keys in AWS KMS, or in what speaks its API: JSON 1.1, signed with SigV4.

    master key      key `kms_key_id`: Encrypt, Decrypt
    keys of queues  GenerateDataKey, Decrypt, DescribeKey

Credentials are in a file of the AWS CLI's format, and read again when it changes: something else may renew them.

Source: AWS KMS API Reference.
"""

from __future__ import annotations

import asyncio
import configparser
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

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
from quaymaster.metadata.kms.external_keys import (
    ExternalKeyProvider,
    base64_text,
    bytes_of_base64,
    parsed_answer,
)
from quaymaster.metadata.kms.key_service import GeneratedKey
from quaymaster.net.outbound.failures import OutboundError
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

if TYPE_CHECKING:
    from quaymaster.net.outbound.client import OutboundClient

ANSWER_BYTES_MAX: Final = 64 * 1024
CREDENTIALS_BYTES_MAX: Final = 64 * 1024
PURPOSE: Final = "quaymaster:purpose"
"""The encryption context of what the master key wraps."""
_SERVICE: Final = "kms"

_ERRORS: Final[Mapping[str, type[CallerError]]] = {
    "NotFoundException": KmsNotFound,
    "InvalidArnException": KmsNotFound,
    "ValidationException": KmsNotFound,
    "DisabledException": KmsDisabled,
    "KMSInvalidStateException": KmsInvalidState,
    "AccessDeniedException": KmsAccessDenied,
    "ThrottlingException": KmsThrottled,
    "LimitExceededException": KmsThrottled,
    "InvalidKeyUsageException": KmsInvalidKeyUsage,
    "OptInRequired": KmsOptInRequired,
    "SubscriptionRequiredException": KmsOptInRequired,
}


@dataclass(frozen=True, slots=True)
class AWSSettings:
    """Where KMS is, and by what it knows us."""

    url: str
    region: str
    credentials_file: Path
    profile: str
    timeout_s: float


class AWSKMS:
    """A client of the KMS API. Raises as `KeyService`."""

    def __init__(self, settings: AWSSettings, client: OutboundClient, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._client = client
        self._now_ms = now_ms

    def __repr__(self) -> str:
        return f"AWSKMS({self._settings.url!r})"

    async def call(self, operation: str, **given: Any) -> Mapping[str, Any]:
        """Return the output of an operation."""
        settings = self._settings
        signer = await asyncio.to_thread(self._signer)
        body = json.dumps(given).encode()
        parts = urlsplit(settings.url)
        headers = [
            (b"host", parts.netloc.encode()),
            (b"content-type", b"application/x-amz-json-1.1"),
            (b"x-amz-target", f"TrentService.{operation}".encode()),
        ]
        signed = sign(UnsignedRequest(b"POST", b"/", b"", headers, body), signer, now_ms=self._now_ms())
        try:
            answer = await self._client.call(
                "POST",
                f"{parts.scheme}://{parts.netloc}/",
                headers={name.decode(): value.decode("latin-1") for name, value in signed},
                body=body,
                timeout_s=settings.timeout_s,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except OutboundError as error:
            raise Unreachable(f"The key service cannot be asked: {error}.") from None
        content = parsed_answer(answer.body)
        if answer.status == 200:
            return content
        raise _error_of(answer.status, content)

    async def close(self) -> None:
        await self._client.close()

    def _signer(self) -> Signer:
        path, profile = self._settings.credentials_file, self._settings.profile
        parser = configparser.ConfigParser(interpolation=None)
        try:
            with path.open(encoding="utf-8") as file:
                parser.read_string(file.read(CREDENTIALS_BYTES_MAX))
            section = parser[profile]
            return Signer(
                section["aws_access_key_id"],
                section["aws_secret_access_key"],
                self._settings.region,
                section.get("aws_session_token"),
                _SERVICE,
            )
        except (OSError, UnicodeDecodeError, configparser.Error, KeyError):
            # The cause would show lines of the file.
            raise Unreachable(f"{path} has no credentials of the profile {profile}.") from None


class AWSKeyProvider(ExternalKeyProvider[AWSKMS]):
    """The master key is a symmetric key of KMS."""

    service = "KMS"
    prefix = "kms/"

    async def _encrypt(self, key: str, purpose: str, secret: bytes) -> bytes:
        output = await self._client.call(
            "Encrypt", KeyId=key, Plaintext=base64_text(secret), EncryptionContext={PURPOSE: purpose}
        )
        return _bytes_of(output, "CiphertextBlob")

    async def _decrypt(self, key: str, purpose: str, wrapped: bytes) -> bytes:
        output = await self._client.call(
            "Decrypt", KeyId=key, CiphertextBlob=base64_text(wrapped), EncryptionContext={PURPOSE: purpose}
        )
        return _bytes_of(output, "Plaintext")


class AWSKeys:
    """Keys of queues: a `KeyService`. Who may use which key is decided in KMS, for the server's own identity."""

    def __init__(self, kms: AWSKMS) -> None:
        self._kms = kms

    async def generate(self, name: str, account_id: str, context: Mapping[str, str]) -> GeneratedKey:
        output = await self._kms.call(
            "GenerateDataKey", KeyId=name, KeySpec="AES_256", EncryptionContext=dict(context)
        )
        key = output.get("KeyId")
        return GeneratedKey(
            key if isinstance(key, str) else name,
            _bytes_of(output, "Plaintext"),
            _bytes_of(output, "CiphertextBlob"),
        )

    async def decrypt(self, key: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        output = await self._kms.call(
            "Decrypt", KeyId=key, CiphertextBlob=base64_text(wrapped), EncryptionContext=dict(context)
        )
        return _bytes_of(output, "Plaintext")

    async def describe(self, name: str, account_id: str) -> None:
        found = (await self._kms.call("DescribeKey", KeyId=name)).get("KeyMetadata")
        metadata: Mapping[str, Any] = found if isinstance(found, dict) else {}
        arn, state = metadata.get("Arn", name), metadata.get("KeyState")
        if state == "Disabled":
            raise KmsDisabled(f"{arn} is disabled.")
        if state != "Enabled":
            raise KmsInvalidState(f"{arn} is in the state {state}.")
        if metadata.get("KeyUsage") != "ENCRYPT_DECRYPT":
            raise KmsInvalidKeyUsage(f"{arn} is not a key for encryption.")

    async def close(self) -> None:
        await self._kms.close()


def _bytes_of(output: Mapping[str, Any], name: str) -> bytes:
    data = bytes_of_base64(output.get(name))
    if data is None:
        raise Unreachable(f"The answer of the key service has no {name}.")
    return data


def _error_of(status: int, content: Mapping[str, Any]) -> CallerError | NotNow:
    """Return what an error of KMS is to the callers of SQS; what only operators can repair is "not now"."""
    code = str(content.get("__type", "")).rpartition("#")[2]
    error = _ERRORS.get(code)
    if error is None:
        return Unreachable(f"The key service answers with HTTP status {status} {code}.")
    return error(str(content.get("message") or content.get("Message") or "The key cannot be used."))
