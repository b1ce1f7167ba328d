"""What is wrong with tables, with the disk they are on, or with the store that has them, as one sentence.

Imports nothing of weight, so that the command line can know it at no cost.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator


class BrokenTable(Exception):
    """A file of a table, or the log that says which files it has, is gone or cannot be read.

    The message names the table and the file, and says what to do.
    """


class StoreFails(Exception):
    """An object store cannot be reached, or refuses what was asked. Of the tables in it that says nothing."""


class CommitConflict(Exception):
    """Another process committed to a table meanwhile, or may have deleted what was to be committed: nothing was."""


class SumsDiffer(Exception):
    """What a job made does not add up to what it was made of, so nothing was committed. The message names the table."""


class UsageHasExpired(Exception):
    """What was asked for needs single requests that have expired. The message names the day from which on there are
    some."""


class WarehouseFull(Exception):
    """What must be written finds no room. The message names the place, and says what to do."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = {os.strerror(code) for code in _NO_ROOM}
"""As the system says it; Spark's JVM and the tables' library say the same in texts of their own, without the number."""


def why_no_room(error: BaseException) -> str | None:
    """Return what the system said if an error, or what it came from, is that there is no room; else None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _NO_ROOM:
            return os.strerror(seen.errno)
        text = str(seen)
        found = next((words for words in _WORDS if words in text), None)
        if found is not None:
            return found
        seen = seen.__cause__ or seen.__context__
    return None


@contextlib.contextmanager
def telling_full_disk(place: str) -> Iterator[None]:
    """What finds no room while the block runs is told as that of `place`.

    Raises:
        WarehouseFull: instead of whatever said so; the innermost place is named.
    """
    try:
        yield
    except WarehouseFull:
        raise
    except Exception as error:
        reason = why_no_room(error)
        if reason is None:
            raise
        raise WarehouseFull(
            f"no more can be written to {place} ({reason}): make room there and run the command again; "
            "what is in the tables stays, and it goes on from there"
        ) from None
