"""The keys that wrap every other secret in the store, and their rotation.

    master key (at its provider) ──wraps──▶ wrapping key (a row) ──wraps──▶ data keys, receipt keys, access keys, ...

A wrapped secret is

    version u8 (1) · key id length u8 · key id · nonce 12 bytes · AES-256-GCM ciphertext and 16-byte tag

bound to what it is (`data-key/…`, `access-key/…`), so one cannot be put in another's place. Random nonces are
safe here: a wrapping key wraps thousands of secrets, not 2^32. Stores of older programs have no wrapping key: there the
key id is a master key's, which wraps directly, until the first rotation.

Rotation, which may stop dead between any two steps and is taken up again at the next start:

    1  new master key at the provider           (a crash here: the next rotation uses it)
    2  store has a new wrapping key, and says: wrap with it; one transaction
                                                all who wrap compare this row: none uses the old one after
    3  every secret rewrapped                   readers have both keys
    4  the store is read again: none is left under the old one
    5  old master key removed from the provider
    6  store says: rotation over; the old wrapping key goes in the same transaction
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quaymaster.coordination.interface import ABSENT, Compare, Put, RevisionMismatch
from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.metadata.keys.key_providers import NONCE_BYTES, KeyProvider, KeysUnusable, unwrap_with
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import (
    MASTER_KEY,
    WRAPPING_KEYS,
    MasterKeyRow,
    WrappingKeyRow,
    encode_row,
    row_decoder,
)
from quaymaster.net.routing.metadata_client import unknown_until

log = logging.getLogger(__name__)

WRAP_VERSION: Final = 1
WRAPPING_KEY_BYTES: Final = 32
_WRAPPING_KEY_PREFIX: Final = "wk-"


class MasterKeys:
    """Wraps and unwraps with the current wrapping key of the store, which a master key wraps.

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
        cell_format: CellFormat | None = None,
    ) -> None:
        self._provider = provider
        self._cell_format = cell_format or CellFormat()
        self._mirror = mirror
        self._check_new = check_new
        self._retires_with_others = retires_with_others
        self._retiring: set[asyncio.Task[None]] = set()
        self._table: MirrorTable[MasterKeyRow] = mirror.table(
            MASTER_KEY, row_decoder(MasterKeyRow), self._on_row
        )
        self._wrapping: MirrorTable[WrappingKeyRow] = mirror.table(
            WRAPPING_KEYS, row_decoder(WrappingKeyRow), self._on_wrapping_key
        )
        self._masters: dict[str, str] = {}
        """Which master key wraps each wrapping key that there is or was just now."""
        self._ciphers: dict[str, AESGCM] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"MasterKeys({self._provider!r})"

    @property
    def row(self) -> MasterKeyRow:
        """What the store says of master keys."""
        row = self._table.get("")
        assert row is not None, "the master key is set at the first start"
        return row

    @property
    def master_key_id(self) -> str:
        """The master key that everything depends on now."""
        return self._master_of(self.row.current_key_id)

    async def start(self, *, store_is_empty: bool) -> None:
        """Choose the first master key, or make sure that the current one is there. KeysUnusable, NotNow."""
        while self._table.get("") is None:
            if store_is_empty:
                await self._set_current(await self._first_key_id(), ())
                continue
            # Rows are listed one kind after the other: another process may have begun the store between two of them.
            await self._mirror.refresh(MASTER_KEY)
            if self._table.get("") is None:
                raise KeysUnusable("The metadata store does not say which master key it is encrypted with.")
        # A retiring key may be gone already (step 5). Were it still needed, unwrapping would say so.
        await self._fetch(self.row.current_key_id)
        await self.ready()
        if self._provider.demands_rotation(self.master_key_id):
            await self.begin_rotation()

    async def _first_key_id(self) -> str:
        wanted = self._provider.wanted_key_id()
        if wanted is not None:
            return wanted
        key_ids = await self._own_key_ids()
        return key_ids[0] if key_ids else await asyncio.to_thread(self._provider.create)

    async def _own_key_ids(self) -> list[str]:
        """Return the master keys of the provider that new ones come from."""
        key_ids = await asyncio.to_thread(self._provider.key_ids)
        return [key_id for key_id in key_ids if self._provider.owns(key_id)]

    def compare(self) -> Compare:
        """Return the condition every transaction that stores a wrapped secret must hold."""
        return self._table.compare("")

    async def ready(self) -> None:
        """Return when `wrap` and `unwrap` need not ask. KeysUnusable, NotNow."""
        row = self.row
        if row.current_key_id not in self._ciphers:
            await self._fetch(row.current_key_id)
        for key_id in row.retiring_key_ids:
            if key_id not in self._ciphers:
                with suppress(KeysUnusable):  # it may be gone already: then nothing is wrapped with it
                    await self._fetch(key_id)

    def soon(self, work: Callable[[], None]) -> None:
        """Do what unwraps: now, or when the key is here that it needs. Where that cannot be had, upkeep tries again."""

        def again(error: CallerError | NotNow | None) -> None:
            if error is None:
                self.soon(work)

        try:
            work()
        except NotYetKnown as unknown:
            unknown.when_known(again)

    def wrap(self, purpose: str, secret: bytes) -> bytes:
        """Return a secret encrypted with the current wrapping key and bound to its purpose.

        NotYetKnown: the wrapping key is not unwrapped here yet, and is being asked for.
        """
        key_id = self.row.current_key_id
        nonce = os.urandom(NONCE_BYTES)
        head = bytes([WRAP_VERSION, len(key_id)]) + key_id.encode()
        return head + nonce + self._cipher(key_id).encrypt(nonce, secret, _bound_to(head, purpose))

    def unwrap(self, purpose: str, wrapped: bytes) -> bytes:
        """Return the secret; KeysUnusable when its key is missing or the bytes are damaged; NotYetKnown as `wrap`."""
        key_id = wrapping_key_id(wrapped)
        head_bytes = 2 + len(key_id)
        nonce_end = head_bytes + NONCE_BYTES
        try:
            return self._cipher(key_id).decrypt(
                wrapped[head_bytes:nonce_end], wrapped[nonce_end:], _bound_to(wrapped[:head_bytes], purpose)
            )
        except InvalidTag:
            raise KeysUnusable(f"{purpose} does not decrypt with key {key_id}: it is damaged.") from None

    def is_current(self, wrapped: bytes) -> bool:
        """Tell whether the current key wraps this."""
        return wrapping_key_id(wrapped) == self.row.current_key_id

    async def begin_rotation(self) -> None:
        """Steps 1 and 2: a new current key, the old one retiring."""
        row = self.row
        in_use = {self._master_of(key_id) for key_id in (row.current_key_id, *row.retiring_key_ids)}
        master_key_id = await self._new_master_key_id(in_use)
        if self._check_new is not None:
            self._check_new(master_key_id)
        retiring = tuple(key_id for key_id in row.retiring_key_ids if key_id != master_key_id)
        await self._set_current(master_key_id, (*retiring, row.current_key_id))

    async def _new_master_key_id(self, in_use: set[str]) -> str:
        wanted = self._provider.wanted_key_id()
        if wanted is not None and wanted != self.master_key_id:
            return wanted
        unused = [key_id for key_id in await self._own_key_ids() if key_id not in in_use]
        if unused and wanted is None:
            return unused[0]  # an earlier rotation stopped after step 1
        return await asyncio.to_thread(self._provider.create)

    async def _set_current(self, master_key_id: str, retiring: tuple[str, ...]) -> None:
        """Have everything wrapped with a new wrapping key; in cells of an older format, with the master key."""
        if not self._cell_format.version_of(FRONT_DOOR):
            if not self._provider.holds(master_key_id):
                raise KeysUnusable(
                    f"The cell is of a format without wrapping keys, which {master_key_id} needs. Upgrade it with the "
                    "master key where it is now: `quaymaster cell upgrade`."
                )
            await asyncio.to_thread(self._cipher, master_key_id)
            await self._set_row(MasterKeyRow(master_key_id, retiring))
            return
        key = os.urandom(WRAPPING_KEY_BYTES)
        key_id = f"{_WRAPPING_KEY_PREFIX}{secrets.token_hex(8)}"
        wrapped = await self._provider.wrap(master_key_id, _wrapping_key_purpose(key_id), key)
        put = Put(WRAPPING_KEYS + key_id, encode_row(WrappingKeyRow(key_id, master_key_id, wrapped)))
        await self._set_row(MasterKeyRow(key_id, retiring), [put])
        # What wraps everything from now on must be what comes back from the store and the provider.
        await self._fetch(self.row.current_key_id)

    async def end_rotation(self) -> None:
        """Steps 5 and 6: the retiring keys go. Only when nothing is wrapped with them any more."""
        row = self.row
        for key_id in row.retiring_key_ids:
            if self._master_of(key_id) != self.master_key_id:
                await asyncio.to_thread(self._provider.retire, self._master_of(key_id))
        gone = [WRAPPING_KEYS + key_id for key_id in row.retiring_key_ids if _is_wrapping_key(key_id)]
        await self._set_row(MasterKeyRow(row.current_key_id), deletes=gone)
        for key_id in row.retiring_key_ids:
            self._forget(key_id)

    def _on_row(self, suffix: str, old: MasterKeyRow | None, new: MasterKeyRow | None) -> None:
        """Retire here what another process has retired: nothing is wrapped with it any more, wherever it is read."""
        if self._retires_with_others and old is not None and new is not None and not new.retiring_key_ids:
            for key_id in old.retiring_key_ids:
                task = asyncio.get_running_loop().create_task(self._retire(key_id, new.current_key_id))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)

    async def _retire(self, key_id: str, current_key_id: str) -> None:
        master_key_id = self._master_of(key_id)
        try:
            if master_key_id != self._master_of(current_key_id):
                await asyncio.to_thread(self._provider.retire, master_key_id)
        except OSError as error:
            log.warning("old master key not removed key=%s error=%s", master_key_id, error)
        self._forget(key_id)

    def _forget(self, key_id: str) -> None:
        self._ciphers.pop(key_id, None)
        self._masters.pop(key_id, None)

    def _on_wrapping_key(self, key_id: str, old: WrappingKeyRow | None, new: WrappingKeyRow | None) -> None:
        if new is not None:  # of one that is gone it is still asked, until its master key is retired
            self._masters[key_id] = new.master_key_id

    def _master_of(self, key_id: str) -> str:
        """Return the master key behind a key that wraps: itself in stores of older programs."""
        return self._masters.get(key_id, key_id)

    async def _set_row(
        self, row: MasterKeyRow, puts: list[Put] | None = None, deletes: list[str] | None = None
    ) -> None:
        put = Put(MASTER_KEY, encode_row(row))
        try:
            await self._mirror.transact([self._table.compare("")], [*(puts or ()), put], deletes or ())
        except RevisionMismatch:
            # Somebody else chose or rotated at the same time; theirs holds.
            if self._table.revision("") == ABSENT:
                raise

    def _cipher(self, key_id: str) -> AESGCM:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            cipher = self._ciphers[key_id] = AESGCM(self._key(key_id))
        return cipher

    def _key(self, key_id: str) -> bytes:
        if not _is_wrapping_key(key_id):
            return self._provider.key(key_id)
        row = self._wrapping.get(key_id)
        if row is None or not self._provider.holds(row.master_key_id):
            task = self._fetching.get(key_id)
            if task is None:
                task = self._fetching[key_id] = asyncio.get_running_loop().create_task(self._fetch(key_id))
                task.add_done_callback(lambda _: self._fetching.pop(key_id, None))
            raise unknown_until(task)
        key = self._provider.key(row.master_key_id)
        return unwrap_with(key, row.master_key_id, _wrapping_key_purpose(key_id), row.wrapped)

    async def _fetch(self, key_id: str) -> None:
        """Unwrap a key that the provider may have to be asked for. KeysUnusable, NotNow."""
        if not _is_wrapping_key(key_id):
            await asyncio.to_thread(self._cipher, key_id)
            return
        row = self._wrapping.get(key_id)
        if row is None:
            await self._mirror.refresh(WRAPPING_KEYS + key_id)
            row = self._wrapping.get(key_id)
        if row is None:
            raise KeysUnusable(f"The metadata store does not have its wrapping key {key_id}.")
        key = await self._provider.unwrap(row.master_key_id, _wrapping_key_purpose(key_id), row.wrapped)
        self._ciphers[key_id] = AESGCM(key)

    async def close(self) -> None:
        """Ask providers for no more keys."""
        for task in (*self._fetching.values(), *self._retiring):
            task.cancel()
        await asyncio.gather(*self._fetching.values(), *self._retiring, return_exceptions=True)


def wrapping_key_id(wrapped: bytes) -> str:
    """Return the id of the key that wraps a secret."""
    if len(wrapped) < 2 or wrapped[0] != WRAP_VERSION:
        raise KeysUnusable("A secret in the metadata store has a format this program does not know.")
    return wrapped[2 : 2 + wrapped[1]].decode("ascii", "replace")


def _bound_to(head: bytes, purpose: str) -> bytes:
    return head + purpose.encode()


def _is_wrapping_key(key_id: str) -> bool:
    return key_id.startswith(_WRAPPING_KEY_PREFIX)


def _wrapping_key_purpose(key_id: str) -> str:
    return f"wrapping-key/{key_id}"
