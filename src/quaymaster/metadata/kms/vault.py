"""Keys in Vault's transit engine, over its HTTP API.

    master key      key `vault_key`: `encrypt`, `decrypt`
    keys of queues  key ACCOUNT-NAME: `encrypt`, `decrypt` with the context as associated data; `keys/NAME`

The token is read from its file for each call, so that an agent can renew it. Data keys are random bytes made here,
because `datakey` binds them to no context.

Source: Vault's HTTP API, "Transit secrets engine".
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from quaymaster.core.values.errors import (
    CallerError,
    KmsAccessDenied,
    KmsInvalidState,
    KmsNotFound,
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
from quaymaster.metadata.kms.key_names import not_found, parse_key_name
from quaymaster.metadata.kms.key_service import GeneratedKey
from quaymaster.net.outbound.failures import OutboundError

if TYPE_CHECKING:
    from quaymaster.net.outbound.client import OutboundClient

DATA_KEY_BYTES: Final = 32
ANSWER_BYTES_MAX: Final = 64 * 1024
TOKEN_BYTES_MAX: Final = 4_096
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """Where Vault is, and by what it knows us."""

    url: str
    token_file: Path
    namespace: str | None
    mount: str
    timeout_s: float


class Vault:
    """A client of one transit engine. Raises as `KeyService`."""

    def __init__(self, settings: VaultSettings, client: OutboundClient) -> None:
        self._settings = settings
        self._client = client

    def __repr__(self) -> str:
        return f"Vault({self._settings.url!r}, mount={self._settings.mount!r})"

    async def encrypt(self, key: str, plaintext: bytes, bound_to: bytes) -> bytes:
        """Return what only `decrypt` of the same key and binding opens."""
        data = await self._call(
            "POST", "encrypt", key, {"plaintext": base64_text(plaintext), **_bound(bound_to)}
        )
        ciphertext = data.get("ciphertext")
        if not isinstance(ciphertext, str):
            raise Unreachable("Vault's answer has no ciphertext.")
        return ciphertext.encode()

    async def decrypt(self, key: str, wrapped: bytes, bound_to: bytes) -> bytes:
        """Return what was encrypted."""
        given = {"ciphertext": wrapped.decode("ascii", "replace"), **_bound(bound_to)}
        plaintext = bytes_of_base64((await self._call("POST", "decrypt", key, given)).get("plaintext"))
        if plaintext is None:
            raise Unreachable("Vault's answer has no plaintext.")
        return plaintext

    async def describe(self, key: str) -> None:
        """Return when there is such a key, and it encrypts."""
        data = await self._call("GET", "keys", key, None)
        if data.get("supports_encryption") is False:
            raise KmsInvalidState(f"Key '{key}' does not encrypt.")

    async def close(self) -> None:
        await self._client.close()

    async def _call(
        self, method: Literal["GET", "POST"], operation: str, key: str, given: Mapping[str, str] | None
    ) -> Mapping[str, Any]:
        settings = self._settings
        headers = {
            "X-Vault-Token": await asyncio.to_thread(self._token),
            "X-Vault-Request": "true",
            "Content-Type": "application/json",
        }
        if settings.namespace is not None:
            headers["X-Vault-Namespace"] = settings.namespace
        try:
            answer = await self._client.call(
                method,
                f"{settings.url.rstrip('/')}/v1/{quote(settings.mount)}/{operation}/{quote(key, safe='')}",
                headers=headers,
                body=b"" if given is None else json.dumps(given).encode(),
                timeout_s=settings.timeout_s,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except OutboundError as error:
            raise Unreachable(f"Vault cannot be asked: {error}.") from None
        content = parsed_answer(answer.body)
        if answer.status == 200 and isinstance(content.get("data"), dict):
            data: Mapping[str, Any] = content["data"]
            return data
        raise _error_of(answer.status, content, key)

    def _token(self) -> str:
        path = self._settings.token_file
        try:
            with path.open("rb") as file:
                token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise Unreachable(f"The token of Vault in {path} cannot be read.") from None
        if not token.isprintable() or not token:
            raise Unreachable(f"{path} holds no token of Vault.")
        return token


class VaultKeyProvider(ExternalKeyProvider[Vault]):
    """The master key is a key of the transit engine. Its newest version wraps; a rotation makes a new wrapping key."""

    service = "Vault"
    prefix = "vault/"

    async def _encrypt(self, key: str, purpose: str, secret: bytes) -> bytes:
        return await self._client.encrypt(key, secret, purpose.encode())

    async def _decrypt(self, key: str, purpose: str, wrapped: bytes) -> bytes:
        return await self._client.decrypt(key, wrapped, purpose.encode())


class VaultKeys:
    """Keys of queues: a `KeyService`. Those of an account begin with its id, so that none reaches another's."""

    def __init__(self, vault: Vault, region: str) -> None:
        self._vault = vault
        self._region = region

    async def generate(self, name: str, account_id: str, context: Mapping[str, str]) -> GeneratedKey:
        key = self._key(name, account_id)
        # Vault makes a key that it is asked to encrypt with, if the token allows that; SQS makes none.
        await self._vault.describe(key)
        plaintext = os.urandom(DATA_KEY_BYTES)
        return GeneratedKey(key, plaintext, await self._vault.encrypt(key, plaintext, _context(context)))

    async def decrypt(self, key: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        return await self._vault.decrypt(key, wrapped, _context(context))

    async def describe(self, name: str, account_id: str) -> None:
        await self._vault.describe(self._key(name, account_id))

    async def close(self) -> None:
        await self._vault.close()

    def _key(self, name: str, account_id: str) -> str:
        parsed = parse_key_name(name, account_id=account_id, region=self._region)
        if parsed.account_id != account_id:
            raise KmsAccessDenied(f"Key '{name}' is of another account.")
        if _KEY_NAME.fullmatch(parsed.name) is None:
            raise not_found(name)
        return f"{account_id}-{parsed.name}"


def _context(context: Mapping[str, str]) -> bytes:
    return json.dumps(dict(sorted(context.items())), separators=(",", ":")).encode()


def _bound(bound_to: bytes) -> Mapping[str, str]:
    return {"associated_data": base64_text(bound_to)}


def _error_of(status: int, content: Mapping[str, Any], key: str) -> CallerError | NotNow:
    """Return what an answer without data means."""
    errors = content.get("errors")
    said = " ".join(map(str, errors)) if isinstance(errors, list) else ""
    if status == 404 or (status == 400 and "not found" in said):
        return KmsNotFound(f"Key '{key}' does not exist.")
    if status == 403:
        return KmsAccessDenied(f"Vault does not allow the use of key '{key}'.")
    if status == 429:
        return KmsThrottled("Vault asks for fewer requests.")
    if status == 400 and "disallowed by policy" in said:  # below min_decryption_version
        return KmsInvalidState(f"Key '{key}' does not decrypt versions as old as this one.")
    return Unreachable(f"Vault answers with HTTP status {status}.")
