"""The keys metadata keeps for others: data keys of queues, the keys of receipt handles, and their wrapping.

Data keys are objects of their own. Deleting a queue leaves its data key: dead letters and redriven messages of
that queue lie elsewhere and need it. A receipt key stays for RECEIPT_KEY_KEPT_MS of counted time
(`coordination/counted_time`) after its successor was made.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.coordination.number_rows import number_of
from quaymaster.core.values.errors import Overloaded
from quaymaster.messaging.lent_keys import KeyIsLent
from quaymaster.metadata.keys.key_ages import is_known_everywhere, is_older
from quaymaster.metadata.keys.master_keys import MasterKeys
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.ids import IdAllocator
from quaymaster.metadata.store.mirror import LOOKED_AT_AT_A_TIME, Mirror, MirrorTable
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    DATA_KEY_FLOOR,
    DATA_KEYS,
    KMS_KEYS,
    PUSH_SECRETS,
    RECEIPT_KEYS,
    SESSION_KEYS,
    AccessKeyRow,
    DataKeyRow,
    KmsKeyRow,
    PushSecretRow,
    ReceiptKeyRow,
    SessionKeyRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import NewDataKey
from quaymaster.protocol.sqs.receipts import ReceiptHandles

log = logging.getLogger(__name__)

KEY_BYTES: Final = 32
RECEIPT_KEY_KEPT_MS: Final = 13 * 3_600_000
"""A delivery lasts 12 h at most; the hour more is for clocks that disagree."""

IDS_TRIED_MAX: Final = 8
UNWRAPPED_KEYS_MAX: Final = 16_384
REWRAPPED_PER_TRANSACTION: Final = 60


class DataKeys:
    """Data keys and receipt keys. `receipt_handles` mints and parses with the keys of the moment."""

    def __init__(
        self,
        mirror: Mirror,
        master_keys: MasterKeys,
        now_ms: Callable[[], int],
        *,
        counted_time: CountedTime,
        capacity: int | None = None,
        receipt_key_lead_ms: int = 0,
        on_missing: Callable[[str], None] | None = None,
    ) -> None:
        self._mirror = mirror
        self._master_keys = master_keys
        self._now_ms = now_ms
        self._time = counted_time
        self._receipt_key_lead_ms = receipt_key_lead_ms
        """How old a receipt key must be to sign: so long it may take until everybody can verify it."""
        self._on_missing = on_missing
        self._ids = IdAllocator(mirror.store, "data_key")
        self._data_keys: MirrorTable[DataKeyRow] = mirror.table(
            DATA_KEYS, row_decoder(DataKeyRow), self._on_data_key, capacity=capacity
        )
        self._receipt_keys: MirrorTable[ReceiptKeyRow] = mirror.table(
            RECEIPT_KEYS, row_decoder(ReceiptKeyRow), self._on_receipt_keys
        )
        self._is_started = False
        self._handles: ReceiptHandles | None = None
        self._unwrapped: dict[int, bytes] = {}

    async def start(self) -> None:
        """Make the first receipt key if there is none, and get ready to mint handles."""
        if not len(self._receipt_keys):
            await self._add_receipt_key(1)
        self._is_started = True
        self.take_receipt_keys()

    @property
    def receipt_handles(self) -> ReceiptHandles:
        """Mints and parses receipt handles; the same object for the life of the service."""
        assert self._handles is not None, "the service is started"
        return self._handles

    def drop_ids(self) -> None:
        """Give no id to a new key that was set aside before."""
        self._ids.drop_block()

    async def new_data_key(self) -> NewDataKey:
        """Return a new data key, ready for the transaction that first uses it."""
        key_id = await self._ids.next_id()
        unchanged, wrapped = await self.wrapped_key(key_id)
        row = encode_row(DataKeyRow(key_id, wrapped, self._now_ms()))
        return NewDataKey(key_id, unchanged.revision, row)

    def row(self, key_id: int) -> DataKeyRow:
        """Return the row of a data key; KeyError when there is none of this id, NotYetKnown while it is asked for."""
        row = self._data_keys.get(id_text(key_id))
        if row is None:
            if self._on_missing is not None:
                self._on_missing(DATA_KEYS + id_text(key_id))
            raise KeyError(key_id)
        return row

    async def next_id(self) -> int:
        """Return the id of a new data key, which the store has not given before; Overloaded."""
        for _ in range(IDS_TRIED_MAX):
            floor = number_of(await self._mirror.store.get(DATA_KEY_FLOOR))
            key_id = await self._ids.next_id()
            if key_id > floor:
                return key_id
            self.drop_ids()  # the store that set them aside has gone back
        raise Overloaded

    async def ready(self) -> None:
        """Return when what the wrapping key wraps can be unwrapped without asking. KeysUnusable, NotNow."""
        await self._master_keys.ready()

    async def wrapped_key(self, key_id: int) -> tuple[Compare, bytes]:
        """Return a new key wrapped with the wrapping key, and the condition under which it may be stored."""
        await self._master_keys.ready()
        wrapped = self._master_keys.wrap(data_key_purpose(key_id), os.urandom(KEY_BYTES))
        return self._master_keys.compare(), wrapped

    def data_key(self, key_id: int) -> bytes:
        """Return the 32 bytes of a data key; KeyError when there is none of this id.

        KeyIsLent: a key service wraps it, and its bytes must not be kept.
        """
        known = self._unwrapped.get(key_id)
        if known is not None:
            return known
        row = self.row(key_id)
        if row.service:
            raise KeyIsLent
        key = self._master_keys.unwrap(data_key_purpose(key_id), row.wrapped)
        while len(self._unwrapped) >= UNWRAPPED_KEYS_MAX:
            self._unwrapped.pop(next(iter(self._unwrapped)), None)
        self._unwrapped[key_id] = key
        return key

    def _on_data_key(self, suffix: str, old: DataKeyRow | None, new: DataKeyRow | None) -> None:
        if new is None and old is not None:
            self._unwrapped.pop(old.key_id, None)

    # Receipt keys

    async def rotate_receipt_key(self) -> int:
        """Sign handles with a new key from now on and return its id; older handles stay good for 12 h."""
        while True:
            key_id = self._current_receipt_key_id() + 1
            try:
                await self._add_receipt_key(key_id)
            except RevisionMismatch:
                continue
            return key_id

    async def drop_old_receipt_keys(self) -> int:
        """Delete the receipt keys no handle can need any more; return how many."""
        now_ms = await self._time.read_ms()
        await self._time.begin_counting_all(self._receipt_keys, "since_counted_ms")
        rows = sorted((row for _, row in self._receipt_keys.items()), key=lambda row: row.key_id)
        dropped = [
            row for row, successor in pairwise(rows) if is_older(successor, RECEIPT_KEY_KEPT_MS, now_ms)
        ]
        for row in dropped:
            await self._mirror.transact([], deletes=[RECEIPT_KEYS + id_text(row.key_id)])
        return len(dropped)

    async def _add_receipt_key(self, key_id: int) -> None:
        while True:
            await self._master_keys.ready()
            since_ms = await self._time.begin_ms()
            wrapped = self._master_keys.wrap(receipt_key_purpose(key_id), os.urandom(KEY_BYTES))
            row = ReceiptKeyRow(key_id, wrapped, self._now_ms(), since_ms)
            try:
                await self._mirror.transact(
                    [self._master_keys.compare(), Compare(RECEIPT_KEYS + id_text(key_id), 0)],
                    [Put(RECEIPT_KEYS + id_text(key_id), encode_row(row))],
                )
            except RevisionMismatch:
                if self._receipt_keys.get(id_text(key_id)) is None:
                    continue  # the master key was rotated meanwhile
                if self._is_started:
                    raise
            return

    def _current_receipt_key_id(self) -> int:
        return max(row.key_id for _, row in self._receipt_keys.items())

    def _on_receipt_keys(self, suffix: str, old: ReceiptKeyRow | None, new: ReceiptKeyRow | None) -> None:
        # A rewrap changes the wrapping, not the key.
        if self._is_started and (old is None or new is None):
            self._master_keys.soon(self.take_receipt_keys)

    def take_receipt_keys(self) -> None:
        """Verify with every key there is, and sign with the newest that is old enough."""
        keys = {
            row.key_id: self._master_keys.unwrap(receipt_key_purpose(row.key_id), row.wrapped)
            for _, row in self._receipt_keys.items()
        }
        now_ms, lead_ms = self._time.known_ms, self._receipt_key_lead_ms
        ready = [
            row.key_id for _, row in self._receipt_keys.items() if is_known_everywhere(row, lead_ms, now_ms)
        ]
        if self._handles is None:
            self._handles = ReceiptHandles(keys, max(ready, default=min(keys)))
        elif keys:
            self._handles.set_keys(keys, max(ready, default=min(keys)))


def data_key_purpose(key_id: int) -> str:
    """Return what a wrapped data key is bound to."""
    return f"data-key/{key_id}"


def receipt_key_purpose(key_id: int) -> str:
    """Return what a wrapped receipt key is bound to."""
    return f"receipt-key/{key_id}"


def session_key_purpose(key_id: int) -> str:
    """Return what a wrapped key of session tokens is bound to."""
    return f"session-key/{key_id}"


def kms_key_purpose(key_id: str) -> str:
    """Return what a wrapped key for queues is bound to."""
    return f"kms-key/{key_id}"


def push_key_purpose(account_id: str, queue_name: str) -> str:
    """Return what a wrapped key is bound to that signs calls to a queue's endpoint."""
    return f"push-key/{account_id}/{queue_name}"


def push_headers_purpose(account_id: str, queue_name: str) -> str:
    """Return what wrapped headers for calls to a queue's endpoint are bound to."""
    return f"push-headers/{account_id}/{queue_name}"


def secret_purpose(access_key_id: str) -> str:
    """Return what the wrapped secret of an access key is bound to."""
    return f"access-key/{access_key_id}"


def session_token_purpose(access_key_id: str) -> str:
    """Return what a wrapped session token is bound to that an older program stored."""
    return f"session-token/{access_key_id}"


class MasterKeyRotation:
    """Carries out a rotation over every table that holds wrapped secrets."""

    def __init__(self, mirror: Mirror, master_keys: MasterKeys) -> None:
        self._mirror = mirror
        self._master_keys = master_keys
        self._lock = asyncio.Lock()

    async def rotate(self) -> str:
        """Make a new master key, wrap everything with it, retire the old one; return the new key's id."""
        async with self._lock:
            await self._finish()
            await self._master_keys.begin_rotation()
            log.info("master key rotation began key=%s", self._master_keys.master_key_id)
            await self._finish()
            return self._master_keys.master_key_id

    async def finish(self) -> None:
        """Take up a rotation that was cut short; nothing to do otherwise."""
        async with self._lock:
            await self._finish()

    async def _finish(self) -> None:
        if not self._master_keys.row.retiring_key_ids:
            return
        while left := await self._left():
            await self._master_keys.ready()
            for start in range(0, len(left), REWRAPPED_PER_TRANSACTION):
                await self._rewrap(left[start : start + REWRAPPED_PER_TRANSACTION])
        await self._master_keys.end_rotation()
        log.info("master key rotation ended key=%s", self._master_keys.master_key_id)

    async def _left(self) -> list[tuple[Compare, str, msgspec.Struct]]:
        """Read the store itself, not the mirror: what is missed here would be lost with the old key."""
        left: list[tuple[Compare, str, msgspec.Struct]] = []
        for prefix, decode in _WRAPPED_TABLES.items():
            items, _ = await self._mirror.store.list_all(prefix)
            for number, item in enumerate(items, 1):
                if not number % LOOKED_AT_AT_A_TIME:
                    await asyncio.sleep(0)
                row = decode(item.value)
                if any(not self._master_keys.is_current(wrapped) for _, _, wrapped in _secrets_of(row)):
                    left.append((Compare(item.key, item.revision), item.key, row))
        return left

    async def _rewrap(self, rows: list[tuple[Compare, str, msgspec.Struct]]) -> None:
        puts = [Put(key, encode_row(self._rewrapped(row))) for _, key, row in rows]
        try:
            await self._mirror.transact(
                [self._master_keys.compare(), *(compare for compare, _, _ in rows)], puts
            )
        except RevisionMismatch:
            return  # a row changed or went; the next look at the store finds what is left

    def _rewrapped(self, row: msgspec.Struct) -> msgspec.Struct:
        changes: dict[str, Any] = {
            field: self._master_keys.wrap(purpose, self._master_keys.unwrap(purpose, wrapped))
            for field, purpose, wrapped in _secrets_of(row)
        }
        return msgspec.structs.replace(row, **changes)


_WRAPPED_TABLES: Final[dict[str, Callable[[bytes], msgspec.Struct]]] = {
    DATA_KEYS: row_decoder(DataKeyRow),
    RECEIPT_KEYS: row_decoder(ReceiptKeyRow),
    SESSION_KEYS: row_decoder(SessionKeyRow),
    ACCESS_KEYS: row_decoder(AccessKeyRow),
    KMS_KEYS: row_decoder(KmsKeyRow),
    PUSH_SECRETS: row_decoder(PushSecretRow),
}


def _secrets_of(row: msgspec.Struct) -> Iterator[tuple[str, str, bytes]]:
    """Yield (field, purpose, wrapped secret) of a row."""
    match row:
        case DataKeyRow():
            if not row.service:  # a key service wraps the others
                yield "wrapped", data_key_purpose(row.key_id), row.wrapped
        case KmsKeyRow():
            yield "wrapped", kms_key_purpose(row.key_id), row.wrapped
        case PushSecretRow():
            purpose = push_key_purpose(row.account_id, row.queue_name)
            yield "wrapped_key", purpose, row.wrapped_key
            if row.wrapped_older_key is not None:
                yield "wrapped_older_key", purpose, row.wrapped_older_key
            if row.wrapped_headers is not None:
                yield (
                    "wrapped_headers",
                    push_headers_purpose(row.account_id, row.queue_name),
                    row.wrapped_headers,
                )
        case ReceiptKeyRow():
            yield "wrapped", receipt_key_purpose(row.key_id), row.wrapped
        case SessionKeyRow():
            yield "wrapped", session_key_purpose(row.key_id), row.wrapped
        case AccessKeyRow():
            yield "wrapped_secret", secret_purpose(row.access_key_id), row.wrapped_secret
            if row.wrapped_session_token is not None:
                yield (
                    "wrapped_session_token",
                    session_token_purpose(row.access_key_id),
                    row.wrapped_session_token,
                )
        case _:
            raise AssertionError(f"{type(row).__name__} holds no secrets")
