"""The bodies of a Fetch: a long stretch of one partition, in order, from the cache and from the segments.

    cached ──▶ not cached: reader thread ──▶ cached ──▶ … until all are there, or `bytes_max`
                    │
                    └── damaged: what is before it is the answer; as the first of all it is mended, or an error

On the loop's thread a message costs well under a microsecond, and a Fetch has FETCH_MESSAGES_MAX at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any, Final

from quaymaster.broker.replica.records.record_bodies import log_unreadable
from quaymaster.broker.storage.bodies import BodyCache, message_in
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.core.values.commands.decided import FetchedOffsets
from quaymaster.core.values.commands.logs import FetchOutcome
from quaymaster.core.values.errors import InternalFailure
from quaymaster.monitoring.logs import log_failure
from quaymaster.net.routing.broker_client import Reply

Mend = Callable[[list[int]], Coroutine[Any, Any, dict[int, tuple[int, int, int, bytes]]]]
"""Returns what can be had of damaged records, from here or from elsewhere."""
Spawn = Callable[[Coroutine[Any, Any, None]], None]

_FIRST_READ: Final = 16
_READ_MAX: Final = 1_024
"""So many records are read from the segments at first, and at most, before their bytes are counted."""

log = logging.getLogger(__name__)


class Fetches:
    """Reads the bodies of Fetches; one per replica, on the loop's thread but for its reads."""

    def __init__(
        self, files: JournalFiles, bodies: BodyCache, readers: Executor, *, mend: Mend, spawn: Spawn
    ) -> None:
        self._files = files
        self._bodies = bodies
        self._readers = readers
        self._mend = mend
        self._spawn = spawn

    def answer(self, found: FetchedOffsets, reply: Reply) -> None:
        """Reply with the bodies of what was found: at once when all are in the cache, else when they were read."""
        messages: list[bytes] = []
        left = self._bodies.take_run(found.offsets, messages, found.bytes_max)
        if left > 0 and len(messages) < len(found.offsets):
            self._spawn(self._read_on(found, messages, left, reply))
        else:
            reply(outcome_of(found, messages))

    async def _read_on(self, found: FetchedOffsets, messages: list[bytes], left: int, reply: Reply) -> None:
        try:
            await self._read(found, messages, left)
            reply(outcome_of(found, messages) if messages else _unreadable(found))
        except Exception as error:  # noqa: BLE001 -- the read is answered with it
            log_failure(log, "log not read", error, journal=self._files.journal_id)
            reply(InternalFailure())

    async def _read(self, found: FetchedOffsets, messages: list[bytes], left: int) -> None:
        """Append the messages that are left, as many as may be; none when the first cannot be read."""
        offsets = found.offsets
        loop = asyncio.get_running_loop()
        while left > 0 and len(messages) < len(offsets):
            wanted = offsets[len(messages) :]
            read, left = await loop.run_in_executor(
                self._readers, self._read_cold, wanted, left, not messages
            )
            messages += read
            if not read and left:
                if messages:
                    return
                body = (await self._mend(wanted[:1])).get(wanted[0])
                if body is None:
                    return
                messages.append(message_in(body[0], body[1], body[3]))
                left -= len(messages[0])
            if left > 0:
                left = self._bodies.take_run(offsets, messages, left)

    def _read_cold(self, wanted: Sequence[int], left: int, is_first: bool) -> tuple[list[bytes], int]:
        """Return the next messages, up to the first that cannot be read or is too much, and what is left of `left`.

        It is 0 when there was one too much; the first of all never is. On a reader's thread.
        """
        messages: list[bytes] = []
        step = _FIRST_READ
        at = 0
        while at < len(wanted):
            part = wanted[at : at + step]
            try:
                records = self._files.read_records(part)
            except RecordUnreadable as error:
                log_unreadable(log, self._files, error)
                step = part.index(error.offset)
                if not step:
                    break
                continue
            for row, payload in records:
                message = message_in(row.type, row.flags, payload)
                left -= len(message)
                if left <= 0 and not (is_first and not messages):
                    if left == 0:
                        messages.append(message)
                    return messages, 0
                messages.append(message)
            at += len(part)
            step = min(4 * step, _READ_MAX)
        return messages, left


def outcome_of(found: FetchedOffsets, messages: list[bytes]) -> FetchOutcome:
    """Return the outcome with the bodies that were read: the first ones, and at least one if there is any."""
    count = len(messages)
    is_all = count == len(found.sequences)
    return FetchOutcome(
        found.sequences if is_all else found.sequences[:count],
        found.sent_ms if is_all else found.sent_ms[:count],
        messages,
        found.next_sequence if is_all else _next_of(found, count),
        found.earliest,
        found.end,
    )


def _next_of(found: FetchedOffsets, count: int) -> int:
    """Return where to go on behind so many of the messages that were found."""
    return found.sequences[count] if found.places_from is None else found.places_from + count


def _unreadable(found: FetchedOffsets) -> InternalFailure:
    return InternalFailure(f"The message at offset {found.sequences[0]} cannot be read from the journal.")
