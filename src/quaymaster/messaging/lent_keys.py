"""Data keys that a key service wraps: they are lent for a time, and then asked for again.

What is derived from such a key is kept on it, so that it goes when the key goes.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quaymaster.core.values.queues.queue_definitions import QueueDefinition


class KeyIsLent(Exception):
    """A data key whose bytes must not be kept: ask for it as a `LentKey`."""


class LentKey:
    """A data key in the clear, until a time of `time.monotonic`, and what was derived from it by start id.

    `local_key`: the server's own key that wraps it, whose state counts at each use; empty: a service's.
    """

    __slots__ = ("derived", "local_key", "plaintext", "until_s")

    def __init__(self, plaintext: bytes, until_s: float, local_key: str = "") -> None:
        self.plaintext = plaintext
        self.until_s = until_s
        self.local_key = local_key
        self.derived: dict[bytes, AESGCM] = {}

    def __repr__(self) -> str:
        return "LentKey()"


class LendsKeys(Protocol):
    """Data keys of queues with KmsMasterKeyId.

    All raise CallerError (one of Kms*) where the queue's key cannot be used, and NotYetKnown while a service is asked.
    """

    def encrypting_key_id(self, definition: QueueDefinition) -> int:
        """Return the data key that a queue's messages are encrypted with now."""
        ...

    def check_receive(self, definition: QueueDefinition) -> None:
        """Return when messages of a queue can be opened now."""
        ...

    def lent(self, data_key_id: int) -> LentKey:
        """Return a data key that a service wraps; KeyError where there is none."""
        ...
