"""Receipt handles: the opaque names of deliveries, which only this installation can make.

76 characters of URL-safe base64 over 57 bytes, little-endian:

    version u8 (1) · key id u32 · queue id u64 · partition u32 · sequence u64 · epoch u64 · delivery count u32
    consumer group u32 (0: the default) · MAC 16 bytes (BLAKE2b, keyed, over all before it)

The keys are made and rotated by metadata; a key stays known for at least 12 h after it was replaced, because
no delivery lasts longer. To change the format: take a new version byte, and go on parsing the old one for a
release.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from collections.abc import Mapping
from hmac import compare_digest
from typing import Final, NamedTuple

from quaymaster.core.values.commands.messages import Receipt
from quaymaster.core.values.errors import ReceiptHandleIsInvalid

HANDLE_VERSION: Final = 1
HANDLE_CHARACTERS: Final = 76
KEY_BYTES: Final = 32
_MAC_BYTES = 16

_FIELDS = struct.Struct("<BIQIQQII")
_FIELDS_BYTES = _FIELDS.size
assert (_FIELDS_BYTES + _MAC_BYTES) * 4 == HANDLE_CHARACTERS * 3, "a handle needs no base64 padding"

_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
# The standard alphabet's own two map to a character base64 does not have, so each handle has one spelling.
_FROM_URL_SAFE = bytes.maketrans(b"-_+/", b"+/!!")


class ParsedHandle(NamedTuple):
    """What a genuine handle names: a partition, a consumer group and the delivery."""

    partition: int
    consumer_group: int
    receipt: Receipt


class ReceiptHandles:
    """Mints and parses handles with the keys it was last given."""

    def __init__(self, keys: Mapping[int, bytes], current_key_id: int) -> None:
        self.set_keys(keys, current_key_id)

    def __repr__(self) -> str:
        return f"ReceiptHandles(current_key_id={self._current_key_id}, keys={len(self._macs)})"

    def set_keys(self, keys: Mapping[int, bytes], current_key_id: int) -> None:
        """Take over new keys: `current_key_id` signs from now on, all of `keys` (32 bytes each) verify."""
        for key in keys.values():
            assert len(key) == KEY_BYTES, "a receipt handle key is 32 bytes"
        self._macs = {
            key_id: hashlib.blake2b(key=key, digest_size=_MAC_BYTES, person=b"qm-receipt")
            for key_id, key in keys.items()
        }
        self._current_key_id = current_key_id
        self._current_mac = self._macs[current_key_id]

    def mint(
        self,
        queue_id: int,
        partition: int,
        sequence: int,
        epoch: int,
        delivery_count: int,
        consumer_group: int = 0,
    ) -> str:
        """Return the handle of one delivery."""
        fields = _FIELDS.pack(
            HANDLE_VERSION,
            self._current_key_id,
            queue_id,
            partition,
            sequence,
            epoch,
            delivery_count,
            consumer_group,
        )
        mac = self._current_mac.copy()
        mac.update(fields)
        return (
            binascii.b2a_base64(fields + mac.digest(), newline=False).translate(_TO_URL_SAFE).decode("ascii")
        )

    def parse(self, handle: str, queue_id: int) -> ParsedHandle:
        """Return what a handle of this queue names; ReceiptHandleIsInvalid for anything else."""
        parsed, of_queue = self._parse(handle)
        if of_queue != queue_id:
            raise ReceiptHandleIsInvalid(handle)
        return parsed

    def queue_of(self, handle: str) -> int:
        """Return the id of the queue that a handle is of; ReceiptHandleIsInvalid unless it is genuine."""
        return self._parse(handle)[1]

    def _parse(self, handle: str) -> tuple[ParsedHandle, int]:
        if len(handle) == HANDLE_CHARACTERS and handle.isascii():
            try:
                data = binascii.a2b_base64(handle.encode("ascii").translate(_FROM_URL_SAFE), strict_mode=True)
            except binascii.Error:
                raise ReceiptHandleIsInvalid(handle) from None
            fields = data[:_FIELDS_BYTES]
            version, key_id, of_queue, partition, sequence, epoch, count, group = _FIELDS.unpack(fields)
            key_mac = self._macs.get(key_id)
            if version == HANDLE_VERSION and key_mac is not None:
                mac = key_mac.copy()
                mac.update(fields)
                if compare_digest(mac.digest(), data[_FIELDS_BYTES:]):
                    return ParsedHandle(partition, group, Receipt(sequence, epoch, count)), of_queue
        raise ReceiptHandleIsInvalid(handle)
