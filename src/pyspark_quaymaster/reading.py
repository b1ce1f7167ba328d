"""What a task does: fetch ranges piece by piece, one ahead, check that nothing is missing, give Arrow batches.

Reading a range again gives the same rows, so a task may be repeated or run twice at the same time (speculation).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pyspark_quaymaster.archive import Archive, ArchivedFile
from pyspark_quaymaster.client import Client, Fetched
from pyspark_quaymaster.errors import AnswerIsWrong, RequestRefused, ServerIsUnavailable
from pyspark_quaymaster.logs import NO_SUCH_QUEUE, lose
from pyspark_quaymaster.offsets import Range
from pyspark_quaymaster.options import BATCH_ROWS, SourceOptions
from pyspark_quaymaster.schema import arrow_schema, columns_to_fetch, conform, decode

if TYPE_CHECKING:
    import pyarrow as pa

TRIMMED = "OffsetOutOfRange"
# How often a server that has not yet what it described is asked again.
_BEHIND_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Piece:
    """What was fetched of a range; `fetched` is None when the rest of the range is lost."""

    first: int
    fetched: Fetched | None


def read_ranges(
    ranges: tuple[Range, ...], options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges, in their order, as batches of exactly `schema`.

    Raises DataIsLost when a queue is not the one that was planned, or is trimmed meanwhile (with failOnDataLoss=false
    that part is left out), AnswerIsWrong when messages are missing inside a range.
    """
    target = arrow_schema(schema)
    columns = columns_to_fetch(schema)
    archive = None if options.archive is None else ArchiveReader(options, columns, target)
    with Client(options.endpoint, options.patience) as client, ThreadPoolExecutor(1) as ahead:
        for one in ranges:
            at, live = one.first, one.live
            while at < one.end:
                if archive is not None and at < live:
                    yield from archive.read(one, at, min(one.end, live))
                    at = min(one.end, live)
                    continue
                try:
                    for batch in _read_live(replace(one, first=at), client, ahead, options, target, columns):
                        at += batch.num_rows
                        yield batch
                    at = one.end
                except _Trimmed as trimmed:
                    # Archived before it was trimmed, or lost.
                    live = trimmed.earliest


class _Trimmed(Exception):
    """The log begins at `earliest` now, and what was to be read is below that."""

    def __init__(self, earliest: int) -> None:
        super().__init__(earliest)
        self.earliest = earliest


class ArchiveReader:
    """Reads what is in the archive, as the server would have answered. One per task."""

    def __init__(self, options: SourceOptions, columns: list[str], target: pa.Schema) -> None:
        assert options.archive is not None, "there is an archive to read"
        self._archive = Archive(options.archive, options.archive_storage)
        self._fails_on_data_loss = options.fails_on_data_loss
        self._columns = columns
        self._target = target

    def read(self, one: Range, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages of [first, end); those that are lost, and DataIsLost is not to be raised, are left out."""
        at = first
        while at < end:
            stretch = self._find(one, at)
            if stretch is None:
                later = self._archive.stretches(one.queue_id, one.partition)
                found = min([end, *(other.first for other in later if other.first > at)])
                lose(
                    f"offsets {at} to {found} of {one.url} partition {one.partition} are trimmed, and not in the "
                    "archive",
                    self._fails_on_data_loss,
                )
                at = found
                continue
            stop = min(end, stretch.end)
            for batch in self._archive.read(stretch, at, stop, self._columns):
                for piece in conform(batch, self._target, BATCH_ROWS):
                    at += piece.num_rows
                    yield piece
            if at != stop:
                raise AnswerIsWrong(f"{stretch.path} of the archive ends at {at}, not at {stop}")

    def _find(self, one: Range, offset: int) -> ArchivedFile | None:
        found = self._archive.find(one.queue_id, one.partition, offset)
        if found is None:
            self._archive.refresh()
            found = self._archive.find(one.queue_id, one.partition, offset)
        return found


def _read_live(
    one: Range,
    client: Client,
    ahead: ThreadPoolExecutor,
    options: SourceOptions,
    target: pa.Schema,
    columns: list[str],
) -> Iterator[pa.RecordBatch]:
    def fetch(first: int) -> Piece:
        return _fetch(client, one, first, options, columns)

    return read_pieces(one, fetch, ahead, target)


def read_pieces(
    one: Range, fetch: Callable[[int], Piece], ahead: ThreadPoolExecutor, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what `fetch` brings of a range, the next piece being on its way while Spark takes one.

    Raises AnswerIsWrong when messages are missing in a piece.
    """
    coming: Future[Piece] | None = ahead.submit(fetch, one.first)
    while coming is not None:
        piece = coming.result()
        coming = None
        if piece.fetched is None:
            break
        following = piece.fetched.next_offset
        if following < one.end:
            coming = ahead.submit(fetch, following)
        rows = 0
        for batch in decode(piece.fetched, target, BATCH_ROWS):
            rows += batch.num_rows
            yield batch
        if rows != following - piece.first:
            raise AnswerIsWrong(
                f"{one.url} partition {one.partition}: {rows} messages between the offsets {piece.first} and "
                f"{following}; offsets have no gaps"
            )


def _fetch(client: Client, one: Range, first: int, options: SourceOptions, columns: list[str]) -> Piece:
    """Return the next piece of a range. With its last piece, the queue was still the one that was planned."""
    deadline_s = time.monotonic() + options.patience.deadline_s
    while True:
        try:
            fetched = client.fetch(
                one.url,
                one.partition,
                first,
                one.end,
                bytes_max=options.fetch_bytes,
                columns=columns,
                form=options.fetch_format,
            )
            # Ids never come back: what is the planned queue now was it all the time.
            is_planned = (
                fetched.next_offset < one.end or client.describe_log(one.url).queue_id == one.queue_id
            )
        except RequestRefused as error:
            following = _next_after_refusal(error, client, one, first, options)
            if following is None:
                return Piece(first, None)
            first = following
            continue
        if not is_planned:
            _lose_remade(one, first, options)
            return Piece(first, None)
        if first < fetched.next_offset <= one.end:
            return Piece(first, fetched)
        if fetched.next_offset > one.end:
            raise AnswerIsWrong(f"{one.url}: asked up to {one.end}, answered up to {fetched.next_offset}")
        # A leader that just took over may not know yet that these are committed.
        if time.monotonic() > deadline_s:
            raise ServerIsUnavailable(
                f"{one.url} partition {one.partition}: nothing at {first} for {options.patience.deadline_s:g} s, "
                f"though {one.end} is committed"
            )
        time.sleep(_BEHIND_PAUSE_S)


def _next_after_refusal(
    error: RequestRefused, client: Client, one: Range, first: int, options: SourceOptions
) -> int | None:
    """Return the offset at which a range goes on whose `first` was refused; None when the rest of it is lost.

    Raises:
        _Trimmed: there is an archive, and it may have what is gone.
    """
    if error.code in NO_SUCH_QUEUE:
        lose(f"offsets {first} to {one.end} of {one.url}: the queue is deleted", options.fails_on_data_loss)
        return None
    if error.code != TRIMMED:
        raise error
    log = client.describe_log(one.url)
    if log.queue_id != one.queue_id:
        _lose_remade(one, first, options)
        return None
    earliest = log.partitions[one.partition].earliest if one.partition in log.partitions else one.end
    if earliest <= first:
        raise error
    if options.archive is not None:
        raise _Trimmed(earliest) from None
    lose(
        f"offsets {first} to {min(earliest, one.end)} of {one.url} partition {one.partition} are trimmed "
        f"while they are read: it begins at {earliest}",
        options.fails_on_data_loss,
    )
    return earliest if earliest < one.end else None


def _lose_remade(one: Range, first: int, options: SourceOptions) -> None:
    lose(
        f"offsets {first} to {one.end} of {one.url}: the queue was made anew under its name",
        options.fails_on_data_loss,
    )
