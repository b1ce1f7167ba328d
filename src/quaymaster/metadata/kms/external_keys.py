"""What the services have in common that keep keys outside this server: their master key, their JSON, their base64."""

from __future__ import annotations

import base64
import binascii
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from quaymaster.core.values.errors import CallerError
from quaymaster.metadata.keys.key_providers import KeyProvider, KeysUnusable


class _Closable(Protocol):
    async def close(self) -> None: ...


Client = TypeVar("Client", bound=_Closable)


class ExternalKeyProvider(KeyProvider, Generic[Client]):
    """The master key is one that its service never gives away. Operators make and remove it there."""

    service: ClassVar[str]
    """As errors name it."""
    prefix: ClassVar[str]
    """Of its keys' ids."""

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r}, {self._key!r})"

    def key_ids(self) -> Sequence[str]:
        return [self.prefix + self._key]

    def key(self, key_id: str) -> bytes:
        raise KeysUnusable(f"{self.service} does not give its key {key_id} away.")

    def create(self) -> str:
        return self.prefix + self._key

    def retire(self, key_id: str) -> None:
        """Nothing: the keys of the service are its operator's."""

    def owns(self, key_id: str) -> bool:
        return key_id.startswith(self.prefix)

    def wanted_key_id(self) -> str | None:
        return self.prefix + self._key

    def holds(self, key_id: str) -> bool:
        return False

    async def wrap(self, key_id: str, purpose: str, secret: bytes) -> bytes:
        try:
            return await self._encrypt(key_id.removeprefix(self.prefix), purpose, secret)
        except CallerError as error:
            raise KeysUnusable(f"{self.service} does not wrap with the master key: {error.message}") from None

    async def unwrap(self, key_id: str, purpose: str, wrapped: bytes) -> bytes:
        try:
            return await self._decrypt(key_id.removeprefix(self.prefix), purpose, wrapped)
        except CallerError as error:
            raise KeysUnusable(
                f"{self.service} does not unwrap with the master key: {error.message}"
            ) from None

    async def close(self) -> None:
        await self._client.close()

    @abstractmethod
    async def _encrypt(self, key: str, purpose: str, secret: bytes) -> bytes:
        """Ask for a wrapping key encrypted and bound to its purpose; CallerError, NotNow."""

    @abstractmethod
    async def _decrypt(self, key: str, purpose: str, wrapped: bytes) -> bytes:
        """Ask for the wrapping key again; CallerError, NotNow."""


def base64_text(data: bytes) -> str:
    """Return bytes as JSON carries them."""
    return base64.b64encode(data).decode()


def bytes_of_base64(text: object) -> bytes | None:
    """Return the bytes of a field of an answer; None where it holds none."""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (ValueError, binascii.Error):
        return None


def parsed_answer(body: bytes) -> Mapping[str, Any]:
    """Return the object of an answer; an empty one where it is none."""
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
