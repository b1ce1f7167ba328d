"""How large rows are, by a look at the first ones of each partition: for limits in bytes, and to plan tasks.

The answer depends on the ranges alone, so a batch that is repeated is cut into the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from pyspark.sql.types import StructType

from pyspark_quaymaster.archive import Archive
from pyspark_quaymaster.client import Client
from pyspark_quaymaster.errors import RequestRefused
from pyspark_quaymaster.offsets import Range
from pyspark_quaymaster.schema import columns_to_fetch

# Of each partition, this much is looked at to tell how large its rows are.
SAMPLE_BYTES = 64 << 10
# A look is one request, and they follow each other: more of them would hold up a batch that is planned.
SAMPLES_MAX = 64


class RowSizes:
    """Asks for the first rows of ranges, in the columns of a schema."""

    def __init__(
        self, client: Client, archive: Archive | None, schema: StructType, fetch_format: str
    ) -> None:
        self._client = client
        self._archive = archive
        self._columns = columns_to_fetch(schema)
        self._fetch_format = fetch_format

    def of(self, ranges: Sequence[Range]) -> dict[str, float]:
        """Return the bytes of an average row by partition, at least 1; empty where none could be looked at.

        At most SAMPLES_MAX partitions are looked at; others count as the mean of their queue, or of all.
        """
        sampled: dict[str, float] = {}
        for one in choose_samples(ranges):
            found = self._sample(one)
            if found is not None:
                sampled[one.key] = found
        return fill_sizes(ranges, sampled)

    def _sample(self, one: Range) -> float | None:
        """Return the size of the first rows of a range; None where the server refuses, as reading it will tell."""
        if one.first < one.live:
            stretch = (
                None if self._archive is None else self._archive.find(one.queue_id, one.partition, one.first)
            )
            if self._archive is None or stretch is None:
                return None
            return self._archive.row_bytes(stretch, self._columns)
        try:
            fetched = self._client.fetch(
                one.url,
                one.partition,
                one.first,
                one.end,
                bytes_max=SAMPLE_BYTES,
                columns=self._columns,
                form=self._fetch_format,
            )
        except RequestRefused:
            return None
        return max(1.0, len(fetched.body) / max(1, fetched.next_offset - one.first))


def choose_samples(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges to look at: those with the most rows, and of each queue some before others have more."""
    by_queue: dict[str, list[Range]] = {}
    for one in sorted(ranges, key=lambda one: -one.rows):
        if one.rows:
            by_queue.setdefault(one.queue_id, []).append(one)
    turns = zip_longest(*by_queue.values())
    return [one for turn in turns for one in turn if one is not None][:SAMPLES_MAX]


def fill_sizes(ranges: Sequence[Range], sampled: Mapping[str, float]) -> dict[str, float]:
    """Return the size of a row in all ranges: what was sampled, the mean of the queue, or the mean of all."""
    if not sampled:
        return {}
    by_queue: dict[str, list[float]] = {}
    for key, size in sampled.items():
        by_queue.setdefault(key.partition("/")[0], []).append(size)
    means = {queue_id: _mean(sizes) for queue_id, sizes in by_queue.items()}
    mean = _mean(list(sampled.values()))
    return {one.key: sampled.get(one.key, means.get(one.queue_id, mean)) for one in ranges}


def _mean(sizes: Sequence[float]) -> float:
    return sum(sizes) / len(sizes)
