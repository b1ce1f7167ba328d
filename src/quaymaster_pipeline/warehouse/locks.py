"""A lock that only one process of a machine has, or of those that share a file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator

from quaymaster_pipeline.warehouse.errors import telling_full_disk

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems say that have no locks, as some that are mounted over a network."""
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(directory: str, name: str) -> Iterator[bool]:
    """Hold a lock file of a directory while the block runs; give whether it is ours, and not another process's.

    Where the file system has no locks, it is given to all: commits keep them apart, as in an object store.
    """
    with contextlib.ExitStack() as stack:
        with telling_full_disk(directory):
            os.makedirs(directory, exist_ok=True)
            file = stack.enter_context(open(os.path.join(directory, name), "a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            logger.warning("file system has no locks directory=%s reason=%r", directory, error.strerror)
        yield True
