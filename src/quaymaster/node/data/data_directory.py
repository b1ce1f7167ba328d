"""A data directory: whose it is now, and which forms are in it.

The file `format` has the newest cell format (`core/values/formats`) whose forms may be in the directory: 1 for all
before 4, which a program of then expects. A single server writes the newest from its start on, a process of a cell what
the cell writes; the file is raised before the first such write. A program that does not read it refuses the directory.
A file that holds no number is damaged: it is written whole or not at all, so no power cut leaves it so. The directory
is refused as well, since the number cannot be had from elsewhere: rows of a newer program may look like those of this
one.

The first start of a server with its own store creates things in this order, so that a directory that has lost both
metadata and journals differs from one whose first start was killed:

    lock ─▶ journals/ ─▶ format ─▶ journals/store.mark, empty ─▶ metadata.sqlite ─▶ journals/0/store.mark ─▶ the rest
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from quaymaster import __version__
from quaymaster.broker.storage.disk import DirectoryInUse, Disk, FileHandle, RealDisk, write_file_durably
from quaymaster.coordination.store_mark import DECIDE, MARK_FILE
from quaymaster.coordination.store_witness import WITNESS_FILE
from quaymaster.core.values.formats import FORMAT_MAX
from quaymaster.frontend.usage.front_end_name import FRONT_END_FILE
from quaymaster.frontend.usage.spool_head import spool_directory
from quaymaster.monitoring.logs import log_event
from quaymaster.node.data.client_file import CLIENT_FILE
from quaymaster.node.data.contradictions import is_to_settle
from quaymaster.node.data.stores import ETCD_FILE, JOURNALS_DIRECTORY, SQLITE_FILE

FORMAT_FILE: Final = "format"
WORKERS_DIRECTORY: Final = "workers"
"""What is each worker's own: `<data>/workers/<number>`."""
WORKERS_END_S: Final = 20.0
"""Workers end by themselves within less than that once the process that started them is gone."""
WORKERS_LOOK_S: Final = 0.05
LOCK_FILE: Final = "lock"
BEFORE_NUMBERS: Final = 4
"""Programs that read older formats only know directories of format 1."""
NUMBER_DIGITS_MAX: Final = 9

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


def prepare_data_directory(data: Path, number: int = FORMAT_MAX, *, has_store: bool = False) -> DirectoryLock:
    """Make the directory (mode 0700), or check that this program can use the one that is there; lock it.

    `number`: the cell format that is written in it from here on.
    `has_store`: the process keeps its metadata in this directory.

    Raises:
        DirectoryInUse: another process serves from it.
        DataDirectoryUnusable: it has a newer format or none that can be read, lost its metadata, or something that is
            no data directory is in the way. Nothing was changed.
    """
    lock = lock_data_directory(data)
    try:
        check_format(data)
        if has_store and not (data / ETCD_FILE).exists():
            _refuse_lost_metadata(data)
            # Before the format: with a format and without this, the directory has lost something.
            RealDisk().make_directory(str(data / JOURNALS_DIRECTORY))
        _write_or_raise_format(data, number)
    except BaseException:
        lock.release()
        raise
    return lock


def lock_data_directory(data: Path) -> DirectoryLock:
    """Make the directory (mode 0700) if it is missing, and lock it; raises as `prepare_data_directory`."""
    disk = RealDisk()
    try:
        disk.make_directory(str(data))
    except OSError as error:
        raise DataDirectoryUnusable(f"{data} cannot be made: {error.strerror}") from error
    return DirectoryLock(disk, data / LOCK_FILE)


def wait_for_workers(data: Path) -> None:
    """Return when no worker of a start before uses a directory any more; DirectoryInUse when one does not end.

    Who calls this has locked the directory, so no other one is started.
    """
    deadline_s = time.monotonic() + WORKERS_END_S
    is_told = False
    for number in workers_of(data):
        while True:
            try:
                DirectoryLock(RealDisk(), worker_directory(data, number) / LOCK_FILE).release()
                break
            except DirectoryInUse:
                if time.monotonic() >= deadline_s:
                    raise
            if not is_told:
                is_told = True
                log_event(log, logging.WARNING, "waiting for workers of the start before", worker=number)
            time.sleep(WORKERS_LOOK_S)


def workers_of(data: Path) -> list[int]:
    """Return the numbers of all workers that a directory ever had."""
    directory = data / WORKERS_DIRECTORY
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def worker_directory(data: Path, number: int) -> Path:
    """Return where a worker keeps what is its own."""
    return data / WORKERS_DIRECTORY / str(number)


def signs_of_service(data: Path) -> list[str]:
    """Return what a directory without metadata has that only a process with metadata has written.

    `keys/` is no sign: operators put master keys there before a first start. Nor are files of others, as `lost+found`
    where a disk of its own is mounted.
    """
    journals = data / JOURNALS_DIRECTORY
    mark = journals / MARK_FILE
    named = (data / CLIENT_FILE, data / WITNESS_FILE, spool_directory(data) / FRONT_END_FILE)
    found = [path for path in named if path.exists()]
    if mark.exists() and mark.stat().st_size:
        found.append(mark)
    if journals.is_dir():
        found += sorted(path for path in journals.iterdir() if path.name.isdecimal())
    elif (data / FORMAT_FILE).exists():
        found.append(data / FORMAT_FILE)
    return [str(path.relative_to(data)) for path in found]


def check_format(data: Path) -> None:
    """Raise DataDirectoryUnusable when this program must not write in a directory, which may be an empty one."""
    path = data / FORMAT_FILE
    if not path.exists():
        if (data / SQLITE_FILE).exists():
            raise DataDirectoryUnusable(
                f"{data} has metadata but no file {FORMAT_FILE!r}; restore it from a backup"
            )
        return
    number = _read_format(path)
    if number > FORMAT_MAX:
        raise DataDirectoryUnusable(
            f"{data} has format {number}; this version of Quaymaster ({__version__}) reads formats up to {FORMAT_MAX}. "
            "Start the version that wrote it."
        )


def _refuse_lost_metadata(data: Path) -> None:
    """Refuse a directory of which the metadata is gone, and of which no operator decided to use what is left."""
    if (data / SQLITE_FILE).exists() or is_to_settle(data):
        return
    found = signs_of_service(data)
    if not found:
        return
    missing = [f"{SQLITE_FILE} is missing"]
    if not (data / JOURNALS_DIRECTORY).is_dir():
        missing.append(f"{JOURNALS_DIRECTORY}/ is missing")
    raise DataDirectoryUnusable(
        f"{data} was served before, as {', '.join(found)} in it tells, but {' and '.join(missing)}: its queues and "
        f"their messages would be gone. {DECIDE}."
    )


def _write_or_raise_format(data: Path, number: int) -> None:
    path = data / FORMAT_FILE
    if not path.exists():
        _write_format(data, number)
    else:
        raise_format_of(data, number)


def _read_format(path: Path) -> int:
    """Return the number in a format file; DataDirectoryUnusable when it holds something else."""
    text = path.read_bytes().decode("ascii", "replace").strip()
    if len(text) <= NUMBER_DIGITS_MAX and text.isdecimal() and int(text):
        return int(text)
    raise DataDirectoryUnusable(
        f"{path} is damaged: it holds {text[:40]!r} in place of the number of a format. Nothing was changed. Put the "
        f"file back as it was. If no version of Quaymaster newer than this one ({__version__}) has used the "
        f"directory, write {FORMAT_MAX} into it."
    )


def raise_format_of(data: Path, number: int) -> None:
    """Say, before it happens, that forms of a format are written in a directory. It only grows.

    Raises DataDirectoryUnusable when the file is damaged.
    """
    found = _read_format(data / FORMAT_FILE)
    if _number_in_file(number) > found:
        _write_format(data, number)
        log_event(log, logging.INFO, "data directory upgraded", data=data, format=number)


def _write_format(data: Path, number: int) -> None:
    write_file_durably(RealDisk(), str(data), FORMAT_FILE, b"%d\n" % _number_in_file(number))


def _number_in_file(number: int) -> int:
    return number if number >= BEFORE_NUMBERS else 1
