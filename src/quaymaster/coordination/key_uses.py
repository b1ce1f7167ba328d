"""When access keys were used last: rows `key_uses/<access key id>`, outside of what processes follow.

A row is the beginning of the hour of the last use, in ms since 1970, as text. Front ends write it
(`frontend/key_uses`), and what deletes a key deletes it in the same transaction. It is read when keys are shown.
"""

from __future__ import annotations

from typing import Final

KEY_USES: Final = "key_uses/"


def encode_use(at_ms: int) -> bytes:
    """Return the row of a key that was used last in the hour that began at a time."""
    return str(at_ms).encode()


def decode_use(value: bytes) -> int:
    """Return when the hour of the last use began, in ms since 1970; 0 for what is no such row."""
    return int(value) if value.isdigit() else 0
