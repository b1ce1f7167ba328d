"""Memory that reads of logs in bulk have freed is kept for the next ones.

An answer has some MiB, several times over until it is sent. glibc gives that back to the system each time, and getting
it again, a page fault for each 4 KiB, is a tenth of a front end's processor time a row, and a quarter of a worker's.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""So much free memory at the end of the heap stays with the process."""
MAPPED_FROM_BYTES: Final = 16 << 20
"""What is larger than any answer is mapped by itself, and unmapped when it is freed."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


@cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to KEPT_BYTES; False where the C library knows no such setting.

    Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
