"""What a task of bronze does: it reads stretches of the usage queue, checks each block, writes files, answers runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from quaymaster.protocol.usage.usage_blocks import UnknownBlockVersion
from quaymaster_pipeline.usage.blocks import BRONZE, DAMAGED, BatchFacts, ReadBlock, block_rows, read_block
from quaymaster_pipeline.usage.bronze.marks import answer_marks
from quaymaster_pipeline.usage.bronze.planning import FILE_BYTES
from quaymaster_pipeline.usage.bronze.runs import run_table
from quaymaster_pipeline.usage.feed import BlockReader, NewerBlocks
from quaymaster_pipeline.usage.tasks import answer_counts, answer_files, answer_table
from quaymaster_pipeline.warehouse.data_files import FileWriter, TablePlace
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS
from quaymaster_pipeline.warehouse.times import time_of_us

OBJECT_BYTES: Final = 1 << 10
"""About what a block takes in memory besides its content."""
GROUP_BYTES: Final = 8 << 20
"""About how much of a file is read at a time by the next layer."""


def bronze_work(
    places: Mapping[str, TablePlace], reader: BlockReader, batch: BatchFacts
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: read its stretches, write their blocks to files by front end, and answer runs.

    It cuts files while it reads: what was planned may be of far larger blocks than those of before.
    """
    ingest_date = str(time_of_us(batch.taken_us).date())

    def work(item: str) -> Iterator[Any]:
        for blocks in _files_of(_read_stretches(reader, json.loads(item))):
            yield from write(blocks)

    def write(blocks: list[ReadBlock]) -> Iterator[Any]:
        headers = [block.header for block in blocks if block.header is not None]
        blocks.sort(key=_by_front_end)
        with FileWriter(places[BLOCKS.name], BLOCKS, f"{BRONZE}-{batch.batch_id}", ingest_date) as writer:
            for number, group in enumerate(_groups(blocks)):
                if number:
                    writer.end_row_group()
                writer.write(block_rows(group, batch))
            written = writer.finish()
        yield from answer_files(BLOCKS.name, [written])
        damaged = [block for block in blocks if block.header is None]
        if damaged:
            marks = block_rows(damaged, batch)
            yield from answer_marks(places[BLOCK_MARKS.name], batch.batch_id, marks, [DAMAGED] * len(damaged))
        yield answer_table("runs", run_table(headers))
        counts = Counter(
            blocks=len(blocks),
            content_bytes=sum(len(block.content) for block in blocks),
            rows=sum(header.rows for header in headers),
            messages=sum(header.messages for header in headers),
            bytes=sum(header.payload_bytes for header in headers),
            chunks=sum(header.chunks for header in headers),
            errors=sum(header.errors for header in headers),
        )
        counts[DAMAGED] = len(damaged)
        yield answer_counts("found", counts)

    return work


def _read_stretches(reader: BlockReader, stretches: Iterable[Sequence[int]]) -> Iterator[ReadBlock]:
    """Yield the blocks of stretches; fewer than that if one is missing."""
    for partition, first, end in stretches:
        expected = first
        for offset, body in reader.read(partition, first, end):
            if offset != expected:
                return
            expected += 1
            try:
                yield read_block(partition, offset, body)
            except UnknownBlockVersion as error:
                raise NewerBlocks(
                    f"block {offset} of partition {partition} of the usage queue is of a newer program: {error}; "
                    "nothing is taken, and nothing lost, until the pipeline is upgraded"
                ) from None
        if expected != end:
            return


def _files_of(blocks: Iterable[ReadBlock]) -> Iterator[list[ReadBlock]]:
    """Yield blocks, as many at a time as a file has. A list is emptied before the next one is filled."""
    group: list[ReadBlock] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += len(block.content) + OBJECT_BYTES
        if size >= FILE_BYTES:
            yield group
            group.clear()
            size = 0
    if group:
        yield group


def _by_front_end(block: ReadBlock) -> tuple[Any, ...]:
    header = block.header
    owner = ("", 0, 0) if header is None else (header.front_end, header.incarnation, header.seq_lo)
    return (*owner, block.log_partition, block.log_offset)


def _groups(blocks: Sequence[ReadBlock]) -> Iterator[list[ReadBlock]]:
    """Yield blocks, about GROUP_BYTES at a time."""
    group: list[ReadBlock] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += len(block.content)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
