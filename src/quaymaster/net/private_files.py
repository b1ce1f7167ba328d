"""Files that only their owner reads, written whole or not at all: keys, certificates, notes of a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600


def write_private(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write a file in place of any that is there, durably. `mode`: where others may read it. Raises OSError.

    What an attempt before left is not written into: it could be readable by others, or be a link to elsewhere.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
