"""What queues ask of a key service, and what they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class GeneratedKey(NamedTuple):
    """A new data key. `key` is by what `decrypt` finds the key that wraps it, also when its alias has moved."""

    key: str
    plaintext: bytes
    wrapped: bytes

    def __repr__(self) -> str:
        return f"GeneratedKey({self.key!r})"


class KeyService(Protocol):
    """Keys that wrap data keys of queues, and never leave the service.

    All methods raise CallerError (one of Kms*) where the key cannot be used, and NotNow where the service does not
    answer or answers with something else.
    """

    async def generate(self, name: str, account_id: str, context: Mapping[str, str]) -> GeneratedKey:
        """Return a new data key, wrapped with the key that an account's queue names, and bound to a context."""
        ...

    async def decrypt(self, key: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return the plaintext of a data key."""
        ...

    async def describe(self, name: str, account_id: str) -> None:
        """Return when the key that an account's queue names can be used."""
        ...

    async def close(self) -> None: ...
