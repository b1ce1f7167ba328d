"""A data directory: whose it is now, and which forms are in it.

The file `format` has the newest cell format (`core/formats`) whose forms may be in the directory: 1 for all before 4,
which a program of then expects. A single server writes the newest from its start on, a process of a cell what the cell
writes; the file is raised before the first such write. A program that does not read it refuses the directory.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from quaymaster import __version__
from quaymaster.broker.disk import Disk, FileHandle, RealDisk, write_file_durably
from quaymaster.cli.stores import SQLITE_FILE
from quaymaster.core.formats import FORMAT_MAX
from quaymaster.monitoring.logs import log_event

FORMAT_FILE: Final = "format"
BEFORE_NUMBERS: Final = 4
"""Programs that read older formats only know directories of format 1."""

log = logging.getLogger(__name__)


class DataDirectoryUnusable(Exception):
    """The data directory is of another format, or cannot be used by this user."""


class DirectoryLock:
    """Holds a data directory for this process."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._handle: FileHandle | None = FileHandle(disk, disk.lock(str(path)))

    def release(self) -> None:
        """Let another process use it."""
        self._handle = None


def prepare_data_directory(data: Path, number: int = FORMAT_MAX) -> DirectoryLock:
    """Make the directory (mode 0700), or check that this program can use the one that is there; lock it.

    `number`: the cell format that is written in it from here on.

    Raises:
        DirectoryInUse: another process serves from it.
        DataDirectoryUnusable: it has a newer format, or something that is no data directory is in the way.
    """
    disk = RealDisk()
    try:
        disk.make_directory(str(data))
    except OSError as error:
        raise DataDirectoryUnusable(f"{data} cannot be made: {error.strerror}") from error
    lock = DirectoryLock(disk, data / "lock")
    path = data / FORMAT_FILE
    if not path.exists():
        if (data / SQLITE_FILE).exists():
            raise DataDirectoryUnusable(
                f"{data} has metadata but no file {FORMAT_FILE!r}; restore it from a backup"
            )
        _write_format(data, number)
        return lock
    text = path.read_bytes().decode("ascii", "replace").strip()
    if not text.isdecimal() or int(text) == 0:
        # No program wrote that. Every file next to it says and checks its own version, so that this one is no loss.
        log_event(log, logging.WARNING, "damaged file written again", path=str(path), found=repr(text[:40]))
        _write_format(data, FORMAT_MAX)
    elif int(text) > FORMAT_MAX:
        raise DataDirectoryUnusable(
            f"{data} has format {text}; this version of Quaymaster ({__version__}) reads formats up to {FORMAT_MAX}. "
            "Start the version that wrote it."
        )
    else:
        raise_format_of(data, number)
    return lock


def raise_format_of(data: Path, number: int) -> None:
    """Say, before it happens, that forms of a format are written in a directory. It only grows."""
    found = int((data / FORMAT_FILE).read_bytes())
    if _number_in_file(number) > found:
        _write_format(data, number)
        log_event(log, logging.INFO, "data directory upgraded", data=data, format=number)


def _write_format(data: Path, number: int) -> None:
    write_file_durably(RealDisk(), str(data), FORMAT_FILE, b"%d\n" % _number_in_file(number))


def _number_in_file(number: int) -> int:
    return number if number >= BEFORE_NUMBERS else 1
