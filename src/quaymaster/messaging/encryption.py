"""Messages are encrypted before they leave the front end and opened when they come back: brokers see ciphertext.

AES-256-GCM. The key of one message is derived (HKDF-SHA256) from its queue's data key and this front end's
start id, eight random bytes chosen at each start. So no two starts share a key, the nonce can be a plain
counter, and no number of messages wears a data key out (random 96-bit nonces under one key do at 2^32).

The ciphertext is bound to data key, origin queue and origin message id, which the message's head keeps for
life: it stays readable in a dead-letter queue, after a redrive under a new message id, after its origin queue
was deleted, and after the master key was rotated. What a broker could still do is swap the *current* id or
queue of a message that was moved; those are the broker's to decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import count
from struct import Struct
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quaymaster.core.values.messages import (
    HEAD_BYTES,
    START_ID_BYTES,
    MessageContent,
    StoredMessage,
    UnknownMessageFormat,
    associated_data,
    associated_start,
    decode_content,
    decode_contents,
    decode_message,
    encode_content,
    encode_message_head,
    split_key_part,
    split_plain_heads,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.messaging.lent_keys import KeyIsLent, LendsKeys, LentKey

CACHED_KEYS_MAX = 16_384
"""Derived keys kept ready, about 1 KiB each; one per queue and front-end start met lately."""

LENT_DERIVED_MAX = 256
"""Front-end starts whose derived keys are kept for one lent data key, which encrypts for a day."""

_NONCE = Struct("<QI")
"""A counter, and four bytes that stay 0."""
_NONCE_END = bytes(4)

_NOT_ALL_PLAIN = (UnknownMessageFormat, InvalidTag, KeyError)
"""One of many messages was moved or is damaged, or its data key does not exist."""


class OpenedMessages(msgspec.Struct, gc=False):
    """What was opened, an entry in each list for each message.

    `dead_letter_sources` are the ARNs of the queues they died in, None for others.
    """

    message_ids: list[bytes]
    dead_letter_sources: list[str | None]
    contents: list[MessageContent]


class _OpeningKey(NamedTuple):
    """What decrypts messages with the same key, and what they are bound to but for their id."""

    decrypt: Callable[[bytes, bytes, bytes], bytes]
    bound_to: bytes


class MessageDamaged(Exception):
    """A stored message does not decrypt: its bytes, or the data key they name, are not what they were."""


class MessageCipher:
    """Encrypts and decrypts messages. One per process: make it after a fork, never before.

    `data_key` gives the 32 bytes of a data key by its id (KeyError when there is none, KeyIsLent when a key service
    wraps it). `lender` gives the others; None: KmsMasterKeyId means nothing. Where a service must be asked first,
    methods raise NotYetKnown.
    """

    def __init__(
        self,
        data_key: Callable[[int], bytes],
        *,
        start_id: bytes | None = None,
        cached_keys_max: int = CACHED_KEYS_MAX,
        lender: LendsKeys | None = None,
    ) -> None:
        self._data_key = data_key
        self._lender = lender
        self._start_id = os.urandom(START_ID_BYTES) if start_id is None else start_id
        assert len(self._start_id) == START_ID_BYTES, "a start id is 8 bytes"
        self._next_counter = count(1).__next__
        self._key = lru_cache(maxsize=cached_keys_max)(self._derive_key)
        self._id_key = lru_cache(maxsize=cached_keys_max)(self._derive_id_key)

    def __repr__(self) -> str:
        return f"MessageCipher(start_id={self._start_id.hex()})"

    def encrypt_content(
        self,
        content: MessageContent,
        definition: QueueDefinition,
        message_id: bytes,
        origin_id: bytes | None = None,
    ) -> bytes:
        """Return the bytes to store for content sent to a queue under a new 16-byte message id.

        `origin_id`: the id that it had elsewhere, None for `message_id`.
        """
        data_key_id = definition.data_key_id
        queue_id = definition.queue_id
        start_id = self._start_id
        if self._lender is None or not definition.kms_master_key_id:
            key = self._key(data_key_id, start_id)
        else:
            data_key_id = self._lender.encrypting_key_id(definition)
            key = self._key_of(data_key_id, start_id)
        counter = self._next_counter()
        bound_id = message_id if origin_id is None else origin_id
        return encode_message_head(
            message_id, data_key_id, start_id, queue_id, counter, origin_id
        ) + key.encrypt(
            _NONCE.pack(counter, 0),
            encode_content(content),
            associated_data(data_key_id, queue_id, bound_id),
        )

    def check_receive(self, definition: QueueDefinition) -> None:
        """Return when a queue's messages can be opened now; raises as `LendsKeys`, before anything is taken."""
        if self._lender is not None and definition.kms_master_key_id:
            self._lender.check_receive(definition)

    def id_key(self, definition: QueueDefinition) -> bytes:
        """Return the key that a queue's deduplication ids are hashed with: the same in each process, for its life."""
        if not definition.has_keyed_ids:
            return b""
        return self._id_key(definition.data_key_id, definition.queue_id)

    def open(self, message: bytes | memoryview) -> MessageContent:
        """Return the content of stored bytes; MessageDamaged or UnknownMessageFormat if not whole."""
        return self.open_stored(decode_message(message))

    def open_stored(self, stored: StoredMessage) -> MessageContent:
        """Return the content of a message whose head was already decoded."""
        try:
            key = self._key_of(stored.data_key_id, stored.start_id)
        except KeyError:
            raise MessageDamaged(
                f"data key {stored.data_key_id} of a stored message does not exist"
            ) from None
        try:
            content = key.decrypt(
                _NONCE.pack(stored.nonce_counter, 0),
                stored.ciphertext,
                associated_data(stored.data_key_id, stored.origin_queue_id, stored.origin_message_id),
            )
        except InvalidTag:
            raise MessageDamaged(
                f"message {stored.message_id.hex()} sent to queue {stored.origin_queue_id} does not decrypt "
                f"with data key {stored.data_key_id}"
            ) from None
        return decode_content(content)

    def open_run(self, messages: Sequence[bytes], opened: OpenedMessages) -> None:
        """Add what stored messages hold, one after another; raises as `open` does, when those before it are added.

        It is for some hundreds of messages at a time, which cost less than half of what `open` does: what goes for
        one of them is done for all, step by step.
        """
        try:
            message_ids, contents = self._open_plain(messages)
        except _NOT_ALL_PLAIN:  # one after another they say which it is
            for message in messages:
                stored = decode_message(message)
                opened.contents.append(self.open_stored(stored))
                opened.message_ids.append(stored.message_id)
                opened.dead_letter_sources.append(stored.dead_letter_source_arn)
            return
        opened.message_ids += message_ids
        opened.dead_letter_sources += [None] * len(contents)
        opened.contents += contents

    def message_key(self, part: bytes) -> bytes:
        """Return the key of the messages with that part of their head, for a process that opens some of them.

        KeyError when its data key does not exist. The key opens one front-end start's messages under one data key.
        """
        data_key_id, start_id, _ = split_key_part(part)
        try:
            data_key = self._data_key(data_key_id)
        except KeyIsLent:
            data_key = self._lent(data_key_id).plaintext
        return _derive_message_key(data_key, start_id)

    def _open_plain(self, messages: Sequence[bytes]) -> tuple[Sequence[bytes], list[MessageContent]]:
        """Return ids and contents of messages that were never moved; raises one of _NOT_ALL_PLAIN otherwise."""
        return _open_plain(messages, self._key_of_part)

    def _key_of_part(self, part: bytes) -> _OpeningKey:
        data_key_id, start_id, queue_id = split_key_part(part)
        return _OpeningKey(
            self._key_of(data_key_id, start_id).decrypt, associated_start(data_key_id, queue_id)
        )

    def _derive_id_key(self, data_key_id: int, queue_id: int) -> bytes:
        salt = queue_id.to_bytes(8, "little")
        derivation = HKDF(SHA256(), length=32, salt=salt, info=b"quaymaster deduplication ids 1")
        return derivation.derive(self._data_key(data_key_id))

    def _key_of(self, data_key_id: int, start_id: bytes) -> AESGCM:
        try:
            return self._key(data_key_id, start_id)
        except KeyIsLent:
            lent = self._lent(data_key_id)
        key = lent.derived.get(start_id)
        if key is None:
            if len(lent.derived) >= LENT_DERIVED_MAX:
                lent.derived.clear()
            key = lent.derived[start_id] = AESGCM(_derive_message_key(lent.plaintext, start_id))
        return key

    def _lent(self, data_key_id: int) -> LentKey:
        if self._lender is None:
            raise KeyError(data_key_id)
        return self._lender.lent(data_key_id)

    def _derive_key(self, data_key_id: int, start_id: bytes) -> AESGCM:
        return AESGCM(_derive_message_key(self._data_key(data_key_id), start_id))


class MessageOpener:
    """Opens messages with keys that `MessageCipher.message_key` gave, by the part of their heads; it has no others."""

    def __init__(self, keys: Iterable[tuple[bytes, bytes]]) -> None:
        self._keys = {part: self._of_part(part, key) for part, key in keys}

    def open_plain(self, messages: Sequence[bytes]) -> tuple[Sequence[bytes], list[MessageContent]] | None:
        """Return ids and contents; None when one was moved, is damaged, or needs another key."""
        try:
            return _open_plain(messages, self._keys.__getitem__)
        except _NOT_ALL_PLAIN:
            return None

    @staticmethod
    def _of_part(part: bytes, key: bytes) -> _OpeningKey:
        data_key_id, _, queue_id = split_key_part(part)
        return _OpeningKey(AESGCM(key).decrypt, associated_start(data_key_id, queue_id))


def _derive_message_key(data_key: bytes, start_id: bytes) -> bytes:
    return HKDF(SHA256(), length=32, salt=start_id, info=b"quaymaster message key 1").derive(data_key)


def _open_plain(
    messages: Sequence[bytes], key_of_part: Callable[[bytes], _OpeningKey]
) -> tuple[Sequence[bytes], list[MessageContent]]:
    """Return ids and contents of messages that were never moved; raises one of _NOT_ALL_PLAIN otherwise."""
    message_ids, key_parts, counters = split_plain_heads(messages)
    keys = {part: key_of_part(part) for part in set(key_parts)}
    plain = [
        decrypt(counter + _NONCE_END, message[HEAD_BYTES:], bound_to + message_id)
        for (decrypt, bound_to), counter, message, message_id in zip(
            map(keys.__getitem__, key_parts), counters, messages, message_ids, strict=True
        )
    ]
    return message_ids, decode_contents(plain)
