"""Messages are sealed before they leave the front end and opened when they come back: brokers see ciphertext.

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
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quaymaster.core.messages import (
    DATA_KEY_ID_AT,
    HEAD_BYTES,
    KEY_AT,
    MESSAGE_ID_AT,
    NONCE_COUNTER_AT,
    ORIGIN_QUEUE_ID_AT,
    PLAIN_HEAD,
    START_ID_BYTES,
    MessageContent,
    StoredMessage,
    associated_data,
    decode_content,
    decode_message,
    encode_content,
    encode_message_head,
)
from quaymaster.core.queue_definitions import QueueDefinition

CACHED_KEYS_MAX = 16_384
"""Derived keys kept ready, about 1 KiB each; one per queue and front-end start met lately."""

_NONCE = Struct("<QI")
"""A counter, and four bytes that stay 0."""
_NONCE_END = bytes(4)
_VERSION_BYTE = PLAIN_HEAD[:1]

OpenedMessage = tuple[bytes, str | None, MessageContent]
"""Message id, the ARN of the queue it died in (None: it did not), and what its sender said."""


class MessageDamaged(Exception):
    """A stored message does not decrypt: its bytes, or the data key they name, are not what they were."""


class MessageCipher:
    """Seals and opens messages. One per process: make it after a fork, never before.

    `data_key` gives the 32 bytes of a data key by its id (KeyError when there is none).
    """

    def __init__(
        self,
        data_key: Callable[[int], bytes],
        *,
        start_id: bytes | None = None,
        cached_keys_max: int = CACHED_KEYS_MAX,
    ) -> None:
        self._data_key = data_key
        self._start_id = os.urandom(START_ID_BYTES) if start_id is None else start_id
        assert len(self._start_id) == START_ID_BYTES, "a start id is 8 bytes"
        self._next_counter = count(1).__next__
        self._key = lru_cache(maxsize=cached_keys_max)(self._derive_key)

    def __repr__(self) -> str:
        return f"MessageCipher(start_id={self._start_id.hex()})"

    def seal_content(self, content: MessageContent, definition: QueueDefinition, message_id: bytes) -> bytes:
        """Return the bytes to store for content sent to a queue under a new 16-byte message id."""
        data_key_id = definition.data_key_id
        queue_id = definition.queue_id
        start_id = self._start_id
        counter = self._next_counter()
        return encode_message_head(message_id, data_key_id, start_id, queue_id, counter) + self._key(
            data_key_id, start_id
        ).encrypt(
            _NONCE.pack(counter, 0),
            encode_content(content),
            associated_data(data_key_id, queue_id, message_id),
        )

    def open(self, message: bytes | memoryview) -> MessageContent:
        """Return the content of stored bytes; MessageDamaged or UnknownMessageFormat if not whole."""
        return self.open_stored(decode_message(message))

    def open_stored(self, stored: StoredMessage) -> MessageContent:
        """Return the content of a message whose head was already decoded."""
        try:
            key = self._key(stored.data_key_id, stored.start_id)
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

    def open_run(self, messages: Iterable[bytes]) -> Iterator[OpenedMessage]:
        """Yield what stored messages hold, one after another; raises as `open` does.

        For long stretches of a queue, whose messages mostly have one key: it costs half of what `open` does.
        """
        key: AESGCM | None = None
        key_part = b""
        for message in messages:
            if not message.startswith(PLAIN_HEAD):
                stored = decode_message(message)
                yield stored.message_id, stored.dead_letter_source_arn, self.open_stored(stored)
                continue
            if key is None or message[KEY_AT] != key_part:
                stored = decode_message(message)  # and it is of a message's length
                content = self.open_stored(stored)
                key_part = message[KEY_AT]
                key = self._key(stored.data_key_id, stored.start_id)
                yield stored.message_id, None, content
                continue
            message_id = message[MESSAGE_ID_AT]
            try:
                plain = key.decrypt(
                    message[NONCE_COUNTER_AT] + _NONCE_END,
                    message[HEAD_BYTES:],
                    _VERSION_BYTE + message[DATA_KEY_ID_AT] + message[ORIGIN_QUEUE_ID_AT] + message_id,
                )
            except InvalidTag:
                raise MessageDamaged(f"message {message_id.hex()} does not decrypt") from None
            yield message_id, None, decode_content(plain)

    def _derive_key(self, data_key_id: int, start_id: bytes) -> AESGCM:
        derivation = HKDF(SHA256(), length=32, salt=start_id, info=b"quaymaster message key 1")
        return AESGCM(derivation.derive(self._data_key(data_key_id)))
