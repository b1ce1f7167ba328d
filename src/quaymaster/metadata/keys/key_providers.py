"""Where master keys are kept, and how they wrap wrapping keys.

A master key wraps wrapping keys and nothing else (in stores of older programs, everything that `master_keys` wraps). So
it may be in a service that never gives it away: that is asked once at each start.

    held here       files, environment: `key` gives its bytes
    held elsewhere  Vault, AWS KMS: `wrap` and `unwrap` ask for it
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quaymaster.coordination.directories import fsync_directory

MASTER_KEY_BYTES: Final = 32
MASTER_KEY_VARIABLE: Final = "QUAYMASTER_MASTER_KEY"
PREVIOUS_KEY_VARIABLE: Final = "QUAYMASTER_MASTER_KEY_PREVIOUS"
NONCE_BYTES: Final = 12
_ENVIRONMENT_PREFIX = "env-"
_FILE_FORMAT = "quaymaster-master-key-1"
_KEY_FILE = re.compile(r"(mk-[0-9a-f]{16})\.key")


class KeysUnusable(Exception):
    """A master key is missing, damaged, or readable by others. The message says which and what to do."""


class MasterKeyMissing(KeysUnusable):
    """The master key `key_id` is not in the directory of keys."""

    def __init__(self, key_id: str, directory: Path | str) -> None:
        super().__init__(
            f"Master key {key_id} is needed, and {key_id}.key is not in {directory}. Look for that file in the "
            "copies of keys/ kept apart from the data, or made before the master key was rotated."
        )
        self.key_id = key_id


class KeyProvider(ABC):
    """Where master keys are kept. Its methods may block on files; no repr or error shows a key."""

    @abstractmethod
    def key_ids(self) -> Sequence[str]:
        """Return the ids of all keys there are."""

    @abstractmethod
    def key(self, key_id: str) -> bytes:
        """Return the 32 bytes of a key; KeysUnusable when it is not there."""

    @abstractmethod
    def create(self) -> str:
        """Make a new key, durable when this returns, and return its id."""

    @abstractmethod
    def retire(self, key_id: str) -> None:
        """Remove a key that wraps nothing any more. No error when it is gone."""

    def wanted_key_id(self) -> str | None:
        """Return the key that must be current, where the provider decides that; None: the store decides."""
        return None

    @abstractmethod
    def owns(self, key_id: str) -> bool:
        """Tell whether a key is of this provider, by its id."""

    def demands_rotation(self, current: str) -> bool:
        """Tell whether the store's master key must be replaced at the start."""
        wanted = self.wanted_key_id()
        return not self.owns(current) if wanted is None else wanted != current

    def holds(self, key_id: str) -> bool:
        """Tell whether `key` gives this key; it may still turn out to be missing."""
        return True

    async def wrap(self, key_id: str, purpose: str, secret: bytes) -> bytes:
        """Return a wrapping key encrypted with a master key and bound to its purpose; KeysUnusable, NotNow."""
        key = await asyncio.to_thread(self.key, key_id)
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(key).encrypt(nonce, secret, purpose.encode())

    async def unwrap(self, key_id: str, purpose: str, wrapped: bytes) -> bytes:
        """Return the wrapping key again; KeysUnusable, NotNow."""
        return unwrap_with(await asyncio.to_thread(self.key, key_id), key_id, purpose, wrapped)

    async def close(self) -> None:  # noqa: B027 -- most have nothing open
        """Close what is open."""


def unwrap_with(key: bytes, key_id: str, purpose: str, wrapped: bytes) -> bytes:
    """Return the wrapping key that a master key held here has wrapped; KeysUnusable where it is damaged."""
    try:
        return AESGCM(key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], purpose.encode())
    except (InvalidTag, ValueError):
        raise KeysUnusable(f"{purpose} does not decrypt with master key {key_id}: it is damaged.") from None


class CombinedKeyProvider(KeyProvider):
    """A provider that new master keys come from, and others that may have the store's present one.

    So a store moves from one to another: the next start rotates to a key of `primary`.
    """

    def __init__(self, primary: KeyProvider, others: Sequence[KeyProvider]) -> None:
        self._primary = primary
        self._all = (primary, *others)

    def __repr__(self) -> str:
        return f"CombinedKeyProvider({', '.join(map(repr, self._all))})"

    def key_ids(self) -> Sequence[str]:
        return [key_id for provider in self._all for key_id in provider.key_ids()]

    def key(self, key_id: str) -> bytes:
        return self._owner(key_id).key(key_id)

    def create(self) -> str:
        return self._primary.create()

    def retire(self, key_id: str) -> None:
        self._owner(key_id).retire(key_id)

    def owns(self, key_id: str) -> bool:
        return self._primary.owns(key_id)

    def wanted_key_id(self) -> str | None:
        return self._primary.wanted_key_id()

    def holds(self, key_id: str) -> bool:
        return self._owner(key_id).holds(key_id)

    async def wrap(self, key_id: str, purpose: str, secret: bytes) -> bytes:
        return await self._owner(key_id).wrap(key_id, purpose, secret)

    async def unwrap(self, key_id: str, purpose: str, wrapped: bytes) -> bytes:
        return await self._owner(key_id).unwrap(key_id, purpose, wrapped)

    async def close(self) -> None:
        for provider in self._all:
            await provider.close()

    def _owner(self, key_id: str) -> KeyProvider:
        return next((provider for provider in self._all if provider.owns(key_id)), self._primary)


class FileKeyProvider(KeyProvider):
    """One file per key in a directory only its owner may enter (0700, files 0600)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o077:
            directory.chmod(0o700)

    def __repr__(self) -> str:
        return f"FileKeyProvider({str(self._directory)!r})"

    def key_ids(self) -> Sequence[str]:
        matches = (_KEY_FILE.fullmatch(name) for name in sorted(os.listdir(self._directory)))
        return [match[1] for match in matches if match]

    def key(self, key_id: str) -> bytes:
        path = self._path(key_id)
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(1024)
        except FileNotFoundError:
            raise MasterKeyMissing(key_id, self._directory) from None
        if mode & 0o077:
            raise KeysUnusable(
                f"{path} can be read by others (mode {mode & 0o777:04o}). Make it 0600, and rotate the "
                "master key if anybody may have read it."
            )
        key = _parse_key_file(text, key_id)
        if key is None:
            raise KeysUnusable(f"{path} is not a whole master key file. Put it back from a copy of keys/.")
        return key

    def create(self) -> str:
        key_id = f"mk-{secrets.token_hex(8)}"
        key = base64.b64encode(secrets.token_bytes(MASTER_KEY_BYTES)).decode()
        path = self._path(key_id)
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:
            file.write(f"{_FILE_FORMAT} {key_id} {key}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        fsync_directory(self._directory)
        fsync_directory(self._directory.parent)
        return key_id

    def retire(self, key_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(key_id).unlink()
        fsync_directory(self._directory)

    def owns(self, key_id: str) -> bool:
        return _KEY_FILE.fullmatch(f"{key_id}.key") is not None

    def _path(self, key_id: str) -> Path:
        return self._directory / f"{key_id}.key"


class EnvironmentKeyProvider(KeyProvider):
    """The master key in QUAYMASTER_MASTER_KEY (base64 of 32 bytes), for secret stores that fill environments.

    To rotate: start with the new key there and the old one in QUAYMASTER_MASTER_KEY_PREVIOUS.
    """

    def __init__(self, master_key: str, previous: str | None = None) -> None:
        current = _decode_key(master_key, MASTER_KEY_VARIABLE)
        self._wanted = _fingerprint(current)
        self._keys = {self._wanted: current}
        if previous:
            older = _decode_key(previous, PREVIOUS_KEY_VARIABLE)
            self._keys[_fingerprint(older)] = older

    def __repr__(self) -> str:
        return f"EnvironmentKeyProvider({self._wanted!r})"

    def key_ids(self) -> Sequence[str]:
        return list(self._keys)

    def key(self, key_id: str) -> bytes:
        try:
            return self._keys[key_id]
        except KeyError:
            raise KeysUnusable(
                f"The store is encrypted with master key {key_id}, but {MASTER_KEY_VARIABLE} is another one "
                f"({self._wanted}). Give the old one in {PREVIOUS_KEY_VARIABLE}, and start again."
            ) from None

    def create(self) -> str:
        raise KeysUnusable(
            "The master key is in the environment. To rotate it, start with a new one in "
            f"{MASTER_KEY_VARIABLE} and the present one in {PREVIOUS_KEY_VARIABLE}."
        )

    def retire(self, key_id: str) -> None:
        """Nothing: who filled the environment empties it."""

    def owns(self, key_id: str) -> bool:
        return key_id.startswith(_ENVIRONMENT_PREFIX)

    def wanted_key_id(self) -> str | None:
        return self._wanted


def _parse_key_file(text: bytes, key_id: str) -> bytes | None:
    try:
        file_format, named, encoded = text.decode("ascii").split()
        key = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if (file_format, named, len(key)) == (_FILE_FORMAT, key_id, MASTER_KEY_BYTES) else None


def _decode_key(text: str, variable: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != MASTER_KEY_BYTES:
        raise KeysUnusable(f"{variable} is not base64 of {MASTER_KEY_BYTES} bytes.")
    return key


def _fingerprint(key: bytes) -> str:
    return _ENVIRONMENT_PREFIX + hashlib.blake2b(key, digest_size=8, person=b"qm-master-id").hexdigest()
