"""What a task does: fetch ranges piece by piece, one ahead, check that nothing is missing, give Arrow batches.

Reading a range again gives the same rows, so a task may be repeated or run twice at the same time (speculation).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pyspark_quaymaster.client import Client, Fetched
from pyspark_quaymaster.errors import AnswerIsWrong, RequestRefused, ServerIsUnavailable
from pyspark_quaymaster.logs import NO_SUCH_QUEUE, lose
from pyspark_quaymaster.offsets import Range
from pyspark_quaymaster.options import BATCH_ROWS, SourceOptions
from pyspark_quaymaster.schema import arrow_schema, decode

if TYPE_CHECKING:
    import pyarrow as pa

TRIMMED = "OffsetOutOfRange"
# How often a server that has not yet what it described is asked again.
_BEHIND_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class _Piece:
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
    columns = schema.fieldNames()
    with Client(options.endpoint, options.patience) as client, ThreadPoolExecutor(1) as ahead:
        for one in ranges:
            first = one.first
            coming: Future[_Piece] | None = ahead.submit(_fetch, client, one, first, options, columns)
            while coming is not None:
                piece = coming.result()
                coming = None
                if piece.fetched is None:
                    break
                following = piece.fetched.next_offset
                if following < one.end:
                    # The next piece is on its way while Spark takes this one.
                    coming = ahead.submit(_fetch, client, one, following, options, columns)
                rows = 0
                for batch in decode(piece.fetched, target, BATCH_ROWS):
                    rows += batch.num_rows
                    yield batch
                if rows != following - piece.first:
                    raise AnswerIsWrong(
                        f"{one.url} partition {one.partition}: {rows} messages between the offsets {piece.first} and "
                        f"{following}; offsets have no gaps"
                    )


def _fetch(client: Client, one: Range, first: int, options: SourceOptions, columns: list[str]) -> _Piece:
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
            if fetched.next_offset < one.end:
                is_planned = True
            else:
                # Ids never come back: what is the planned queue now was it all the time.
                is_planned = client.describe_log(one.url).queue_id == one.queue_id
        except RequestRefused as error:
            if error.code in NO_SUCH_QUEUE:
                lose(
                    f"offsets {first} to {one.end} of {one.url}: the queue is deleted",
                    options.fails_on_data_loss,
                )
                return _Piece(first, None)
            if error.code != TRIMMED:
                raise
            log = client.describe_log(one.url)
            is_planned = log.queue_id == one.queue_id
            earliest = log.partitions[one.partition].earliest if one.partition in log.partitions else one.end
            if is_planned:
                if earliest <= first:
                    raise
                lose(
                    f"offsets {first} to {min(earliest, one.end)} of {one.url} partition {one.partition} are trimmed "
                    f"while they are read: it begins at {earliest}",
                    options.fails_on_data_loss,
                )
                if earliest >= one.end:
                    return _Piece(first, None)
                first = earliest
                continue
            fetched = None
        if not is_planned:
            lose(
                f"offsets {first} to {one.end} of {one.url}: the queue was made anew under its name",
                options.fails_on_data_loss,
            )
            return _Piece(first, None)
        assert fetched is not None, "only another queue's answer is thrown away"
        if first < fetched.next_offset <= one.end:
            return _Piece(first, fetched)
        if fetched.next_offset > one.end:
            raise AnswerIsWrong(f"{one.url}: asked up to {one.end}, answered up to {fetched.next_offset}")
        # A leader that just took over may not know yet that these are committed.
        if time.monotonic() > deadline_s:
            raise ServerIsUnavailable(
                f"{one.url} partition {one.partition}: nothing at {first} for {options.patience.deadline_s:g} s, "
                f"though {one.end} is committed"
            )
        time.sleep(_BEHIND_PAUSE_S)
