"""The bodies of single records: from the cache, from the segments, or from other replicas where those are damaged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from quaymaster.broker.storage.bodies import BodyCache
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_state import JournalClosed
from quaymaster.broker.storage.segments import RecordGone, RecordUnreadable
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.logs import log_event, log_failure

Body = tuple[int, int, int, bytes]
"""Record type, flags, sequence and payload."""

log = logging.getLogger(__name__)


def log_unreadable(logger: logging.Logger, files: JournalFiles, error: RecordUnreadable) -> None:
    """Say that a record of a journal cannot be read."""
    log_event(
        logger,
        logging.ERROR,
        "record unreadable",
        journal=files.journal_id,
        offset=error.offset,
        error=str(error),
    )


class RecordBodies:
    """Reads records by offset; one per replica, on the loop's thread but for its reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        files: JournalFiles,
        cache: BodyCache,
        readers: Executor,
        *,
        repaired: Callable[[list[int]], Awaitable[dict[int, Body]]],
        tasks: set[asyncio.Future[Any]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`repaired` returns records that are damaged here; what is under way is in `tasks`, to be cancelled."""
        self.cached = cache.get
        """Returns the record at an offset, None when it must be read."""
        self._loop = loop
        self._files = files
        self._readers = readers
        self._repaired = repaired
        self._tasks = tasks
        self._spawn = spawn
        self._is_stopped = False

    def stop(self) -> None:
        """Read no segments from now on."""
        self._is_stopped = True

    def read(self, offsets: list[int], finish: Callable[[dict[int, Body]], None]) -> None:
        """Call `finish` with the records that can be read, now or from a later turn. A bad one is left out."""
        found: dict[int, Body] = {}
        missing: list[int] = []
        for offset in offsets:
            body = self.cached(offset)
            if body is None:
                missing.append(offset)
            else:
                found[offset] = body
        if not missing:
            finish(found)
            return
        if self._is_stopped:
            finish(found)
            return
        reading = self._loop.run_in_executor(self._readers, self._read_cold, missing)
        self._tasks.add(reading)

        def done(future: asyncio.Future[tuple[dict[int, Body], list[int]]]) -> None:
            self._tasks.discard(future)
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                read, damaged = future.result()
                found.update(read)
                if damaged:
                    self._spawn(self._repair(damaged, found, finish))
                    return
            else:
                log_event(log, logging.ERROR, "bodies not read", offsets=len(missing), error=str(error))
            finish(found)

        reading.add_done_callback(done)

    async def of(self, offsets: list[int]) -> dict[int, Body]:
        """Return what `read` finds."""
        found: asyncio.Future[dict[int, Body]] = self._loop.create_future()

        def finish(bodies: dict[int, Body]) -> None:
            if not found.done():
                found.set_result(bodies)

        self.read(offsets, finish)
        return await found

    async def _repair(
        self, damaged: list[int], found: dict[int, Body], finish: Callable[[dict[int, Body]], None]
    ) -> None:
        try:
            found |= await self._repaired(damaged)
        except (
            NotNow,
            CallerError,
            RecordUnreadable,
            JournalClosed,
            OSError,
        ) as error:  # as unreadable as before
            log_failure(log, "repair failed", error, journal=self._files.journal_id)
        finish(found)

    def _read_cold(self, offsets: list[int]) -> tuple[dict[int, Body], list[int]]:
        """Read records from the segments; on the reader's thread. Return those, and the offsets of damaged ones."""
        wanted = list(offsets)
        damaged: list[int] = []
        while wanted:
            try:
                records = self._files.read_records(wanted)
            except RecordUnreadable as error:
                log_unreadable(log, self._files, error)
                wanted = [offset for offset in wanted if offset != error.offset]
                if not isinstance(error, RecordGone):
                    damaged.append(error.offset)
                continue
            found = {row.offset: (row.type, row.flags, row.sequence, payload) for row, payload in records}
            return found, damaged
        return {}, damaged
