"""A directory for processes that make Unix sockets there: the paths of those have at most 103 bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def short_directory() -> Iterator[Path]:
    """Give a directory with a short path; pytest's own may be longer than a socket's path can be."""
    # The place that `scripts/test` makes for all that is temporary has a short path, too.
    place = os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")
    with TemporaryDirectory(dir=place, prefix="qm", ignore_cleanup_errors=True) as name:
        yield Path(name)
