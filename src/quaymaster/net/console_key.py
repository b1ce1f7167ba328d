"""The one secret of a console: 32 bytes in `console.key`, mode 0600. A key for each purpose follows from it.

A server makes it in its data directory; in a cell `quaymaster ca` makes it, next to the TLS keys of consoles, which all
have the same one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quaymaster.net.private_files import write_private

CONSOLE_KEY_FILE: Final = "console.key"
CONSOLE_KEY_BYTES: Final = 32


class ConsoleKeyUnusable(OSError):
    """The file is missing, or is none; the message names it and says what to do."""


def make_console_key(directory: Path) -> bytes:
    """Return the key in a directory, which is made if it is not there. Raises OSError, ConsoleKeyUnusable."""
    path = directory / CONSOLE_KEY_FILE
    if not path.exists():
        write_console_key(directory, os.urandom(CONSOLE_KEY_BYTES))
    return read_console_key(directory)


def write_console_key(directory: Path, key: bytes) -> None:
    """Put a key into a directory, in place of any that is there. Raises OSError."""
    write_private(directory / CONSOLE_KEY_FILE, key)


def read_console_key(directory: Path) -> bytes:
    """Return the key in a directory. Raises ConsoleKeyUnusable."""
    path = directory / CONSOLE_KEY_FILE
    try:
        key = path.read_bytes()
    except OSError as error:
        raise ConsoleKeyUnusable(
            f"{path} cannot be read ({error.strerror}): in a cell `quaymaster ca issue NODE --role console` makes it"
        ) from error
    if len(key) != CONSOLE_KEY_BYTES:
        raise ConsoleKeyUnusable(f"{path} has {len(key)} bytes, and a console's key has {CONSOLE_KEY_BYTES}")
    return key


def derive_key(console_key: bytes, purpose: str) -> bytes:
    """Return the 32 bytes for a purpose, such as `cookies`; they tell nothing of those for another."""
    return HKDF(SHA256(), CONSOLE_KEY_BYTES, salt=None, info=f"quaymaster console {purpose}".encode()).derive(
        console_key
    )
