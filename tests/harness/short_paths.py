"""A directory for processes that make Unix sockets there: the paths of those have at most 103 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def short_directory() -> Iterator[Path]:
    """Give a directory with a short path; pytest's own may be longer than a socket's path can be."""
    with TemporaryDirectory(dir="/tmp", prefix="qm", ignore_cleanup_errors=True) as name:
        yield Path(name)
