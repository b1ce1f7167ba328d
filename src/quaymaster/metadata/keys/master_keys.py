"""Master keys: where they are kept, and how they wrap every other secret in the store.

A wrapped secret is

    version u8 (1) · key id length u8 · key id · nonce 12 bytes · AES-256-GCM ciphertext and 16-byte tag

bound to what it is (`data-key/…`, `access-key/…`), so one cannot be put in another's place. Random nonces are
safe here: a master key wraps thousands of secrets, not 2^32.

Rotation, which may stop dead between any two steps and is taken up again at the next start:

    1  new master key on disk, fsynced          (a crash here: the next rotation uses it)
    2  store says: wrap with the new key        all who wrap compare this row: none uses the old one after
    3  every secret rewrapped                   readers have both keys
    4  the store is read anew: none is left under the old one
    5  old key removed from the provider
    6  store says: rotation over
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import logging
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quaymaster.coordination.interface import ABSENT, Compare, Put, RevisionMismatch
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import MASTER_KEY, MasterKeyRow, encode_row, row_decoder

log = logging.getLogger(__name__)

WRAP_VERSION: Final = 1
MASTER_KEY_BYTES: Final = 32
MASTER_KEY_VARIABLE: Final = "QUAYMASTER_MASTER_KEY"
PREVIOUS_KEY_VARIABLE: Final = "QUAYMASTER_MASTER_KEY_PREVIOUS"
_NONCE_BYTES = 12
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
        _fsync_directory(self._directory)
        _fsync_directory(self._directory.parent)
        return key_id

    def retire(self, key_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(key_id).unlink()
        _fsync_directory(self._directory)

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

    def wanted_key_id(self) -> str | None:
        return self._wanted


class MasterKeys:
    """Wraps and unwraps with the current master key of the store.

    Where several processes have the keys, `check_new` is asked before one begins to wrap with a new key, and raises
    KeysUnusable when the others do not have it; and `retires_with_others` says that the old one is retired here when
    another process has ended a rotation.
    """

    def __init__(
        self,
        provider: KeyProvider,
        mirror: Mirror,
        *,
        check_new: Callable[[str], None] | None = None,
        retires_with_others: bool = False,
    ) -> None:
        self._provider = provider
        self._mirror = mirror
        self._check_new = check_new
        self._retires_with_others = retires_with_others
        self._retiring: set[asyncio.Task[None]] = set()
        self._table: MirrorTable[MasterKeyRow] = mirror.table(
            MASTER_KEY, row_decoder(MasterKeyRow), self._on_row
        )
        self._ciphers: dict[str, AESGCM] = {}

    def __repr__(self) -> str:
        return f"MasterKeys({self._provider!r})"

    @property
    def row(self) -> MasterKeyRow:
        """What the store says of master keys."""
        row = self._table.get("")
        assert row is not None, "the master key is set at the first start"
        return row

    async def start(self, *, store_is_empty: bool) -> None:
        """Choose the first master key, or make sure that the current one is there."""
        while self._table.get("") is None:
            if store_is_empty:
                await self._set_row(MasterKeyRow(await self._first_key_id()))
                continue
            # Rows are listed one kind after the other: another process may have begun the store between two of them.
            await self._mirror.refresh(MASTER_KEY)
            if self._table.get("") is None:
                raise KeysUnusable("The metadata store does not say which master key it is encrypted with.")
        # A retiring key may be gone already (step 5). Were it still needed, unwrapping would say so.
        await asyncio.to_thread(self._cipher, self.row.current_key_id)
        demanded = self._provider.wanted_key_id()
        if demanded is not None and demanded != self.row.current_key_id:
            await self.begin_rotation()

    async def _first_key_id(self) -> str:
        wanted = self._provider.wanted_key_id()
        if wanted is not None:
            return wanted
        key_ids = await asyncio.to_thread(self._provider.key_ids)
        return key_ids[0] if key_ids else await asyncio.to_thread(self._provider.create)

    def compare(self) -> Compare:
        """Return the condition every transaction that stores a wrapped secret must hold."""
        return self._table.compare("")

    def wrap(self, purpose: str, secret: bytes) -> bytes:
        """Return a secret encrypted with the current master key and bound to its purpose."""
        key_id = self.row.current_key_id
        nonce = os.urandom(_NONCE_BYTES)
        head = bytes([WRAP_VERSION, len(key_id)]) + key_id.encode()
        return head + nonce + self._cipher(key_id).encrypt(nonce, secret, _bound_to(head, purpose))

    def unwrap(self, purpose: str, wrapped: bytes) -> bytes:
        """Return the secret; KeysUnusable when its master key is missing or the bytes are damaged."""
        key_id = wrapping_key_id(wrapped)
        head_bytes = 2 + len(key_id)
        nonce_end = head_bytes + _NONCE_BYTES
        try:
            return self._cipher(key_id).decrypt(
                wrapped[head_bytes:nonce_end], wrapped[nonce_end:], _bound_to(wrapped[:head_bytes], purpose)
            )
        except InvalidTag:
            raise KeysUnusable(
                f"{purpose} does not decrypt with master key {key_id}: it is damaged."
            ) from None

    def is_current(self, wrapped: bytes) -> bool:
        """Tell whether the current master key wraps this."""
        return wrapping_key_id(wrapped) == self.row.current_key_id

    async def begin_rotation(self) -> MasterKeyRow:
        """Steps 1 and 2: a new current master key, the old one retiring."""
        row = self.row
        new_key_id = await self._new_key_id(row)
        await asyncio.to_thread(self._cipher, new_key_id)
        if self._check_new is not None:
            self._check_new(new_key_id)
        retiring = tuple(key_id for key_id in row.retiring_key_ids if key_id != new_key_id)
        await self._set_row(MasterKeyRow(new_key_id, (*retiring, row.current_key_id)))
        return self.row

    async def _new_key_id(self, row: MasterKeyRow) -> str:
        wanted = self._provider.wanted_key_id()
        if wanted is not None and wanted != row.current_key_id:
            return wanted
        known = await asyncio.to_thread(self._provider.key_ids)
        unused = [key_id for key_id in known if key_id not in (row.current_key_id, *row.retiring_key_ids)]
        if unused and wanted is None:
            return unused[0]  # an earlier rotation stopped after step 1
        return await asyncio.to_thread(self._provider.create)

    async def end_rotation(self) -> None:
        """Steps 5 and 6: the retiring keys go. Only when nothing is wrapped with them any more."""
        row = self.row
        for key_id in row.retiring_key_ids:
            await asyncio.to_thread(self._provider.retire, key_id)
        await self._set_row(MasterKeyRow(row.current_key_id))
        for key_id in row.retiring_key_ids:
            self._ciphers.pop(key_id, None)

    def _on_row(self, suffix: str, old: MasterKeyRow | None, new: MasterKeyRow | None) -> None:
        """Retire here what another process has retired: nothing is wrapped with it any more, wherever it is read."""
        if self._retires_with_others and old is not None and new is not None and not new.retiring_key_ids:
            for key_id in old.retiring_key_ids:
                task = asyncio.get_running_loop().create_task(self._retire(key_id))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)

    async def _retire(self, key_id: str) -> None:
        try:
            await asyncio.to_thread(self._provider.retire, key_id)
        except OSError as error:
            log.warning("old master key not removed key=%s error=%s", key_id, error)
        self._ciphers.pop(key_id, None)

    async def _set_row(self, row: MasterKeyRow) -> None:
        try:
            await self._mirror.transact([self._table.compare("")], [Put(MASTER_KEY, encode_row(row))])
        except RevisionMismatch:
            # Somebody else chose or rotated at the same time; theirs holds.
            if self._table.revision("") == ABSENT:
                raise

    def _cipher(self, key_id: str) -> AESGCM:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            cipher = self._ciphers[key_id] = AESGCM(self._provider.key(key_id))
        return cipher


def wrapping_key_id(wrapped: bytes) -> str:
    """Return the id of the master key that wraps a secret."""
    if len(wrapped) < 2 or wrapped[0] != WRAP_VERSION:
        raise KeysUnusable("A secret in the metadata store has a format this program does not know.")
    return wrapped[2 : 2 + wrapped[1]].decode("ascii", "replace")


def _bound_to(head: bytes, purpose: str) -> bytes:
    return head + purpose.encode()


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
    return "env-" + hashlib.blake2b(key, digest_size=8, person=b"qm-master-id").hexdigest()


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
