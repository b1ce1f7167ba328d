"""A wall clock of its own for a process under test, which can be set while it runs."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

SHIM = Path(__file__).resolve().parent / "own_clock"
_OFFSET = struct.Struct("<q")


class WallClock:
    """How far a process's wall clock is from the right one, in a file that the process maps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(_OFFSET.pack(0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _OFFSET.size)

    def environment(self) -> dict[str, str]:
        """Return what the process's environment must have."""
        before = os.environ.get("PYTHONPATH")
        path = f"{SHIM}{os.pathsep}{before}" if before else str(SHIM)
        return {"PYTHONPATH": path, "TEST_WALL_CLOCK": str(self._path)}

    def set(self, offset_s: float) -> None:
        """Set the clock so far ahead of the right one (negative: behind it)."""
        _OFFSET.pack_into(self._shared, 0, round(offset_s * 1e9))
