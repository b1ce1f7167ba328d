"""Runs: stretches of an incarnation that continue without a gap, as tasks answer them and the driver compares them.

So the driver looks at as many as there are front ends and tasks, not at blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_blocks import BlockHeader
from quaymaster_pipeline.usage.blocks import BLOCK_RANGE_COLUMNS
from quaymaster_pipeline.usage.sequences import BlockRange, IncarnationId

RUN_SCHEMA: Final = pa.schema(
    [
        pa.field("front_end", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("epoch", "seq_lo", "seq_hi", "low_watermark")),
        *(pa.field(name, pa.int64()) for name in ("seal_epoch", "seal_end")),
        pa.field("is_seal", pa.bool_()),
    ]
)
RUN_COLUMNS: Final = tuple(name for name in BLOCK_RANGE_COLUMNS if name != "sha256")


class Run(NamedTuple):
    """Blocks of an incarnation that follow each other, as one."""

    owner: IncarnationId
    seq_lo: int
    seq_hi: int
    low_watermark_us: int


def runs_of(headers: Iterable[BlockHeader]) -> list[Run]:
    """Return the runs of blocks. Those that came twice, or overlap, are runs of their own."""
    runs: list[Run] = []
    for header in sorted(headers, key=lambda one: (one.front_end, one.incarnation, one.seq_lo, one.seq_hi)):
        owner = IncarnationId(header.front_end, header.incarnation)
        last = runs[-1] if runs else None
        if last is not None and last.owner == owner and last.seq_hi == header.seq_lo:
            runs[-1] = Run(
                owner,
                last.seq_lo,
                header.seq_hi,
                max(last.low_watermark_us, header.low_watermark_us),
            )
        else:
            runs.append(Run(owner, header.seq_lo, header.seq_hi, header.low_watermark_us))
    return runs


def run_table(headers: Sequence[BlockHeader]) -> Any:
    """Return runs, and after them the seals."""
    lines: list[tuple[Any, ...]] = [(*run.owner, *run[1:], None, None, False) for run in runs_of(headers)]
    lines += [
        (
            *(header.front_end, header.incarnation, header.seq_hi, header.seq_hi, header.low_watermark_us),
            *(header.seal.incarnation, header.seal.end_sequence, True),
        )
        for header in headers
        if header.seal is not None
    ]
    columns = list(zip(*lines, strict=True)) or [()] * len(RUN_SCHEMA)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, RUN_SCHEMA, strict=True)],
        schema=RUN_SCHEMA,
    )


def runs_of_table(table: Any) -> Iterator[BlockRange]:
    """Yield the runs and seals that a task answered."""
    for front_end, incarnation, low, high, low_us, seal_incarnation, seal_end, is_seal in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        yield BlockRange(
            IncarnationId(front_end, incarnation),
            low,
            high,
            b"",
            low_us,
            IncarnationId(front_end, seal_incarnation) if is_seal else None,
            seal_end,
        )


def runs_of_rows(rows: Any) -> Any:
    """Return the runs of rows of bronze.blocks, as a task of bronze answers them, and after them the seals."""
    seals = rows.filter(pc.is_valid(rows.column("seal_reason")))
    columns = {name: seals.column(name) for name in ("front_end", "epoch", "seal_epoch", "seal_end")}
    columns |= {
        "seq_lo": seals.column("seq_hi"),
        "seq_hi": seals.column("seq_hi"),
        "low_watermark": seals.column("low_watermark").cast(pa.int64()),
        "is_seal": pa.repeat(pa.scalar(value=True), seals.num_rows),
    }
    of_seals = pa.table([columns[name] for name in RUN_SCHEMA.names], schema=RUN_SCHEMA)
    return pa.concat_tables([_joined(rows), of_seals])


def merged_runs(tables: Sequence[Any]) -> Any:
    """Return runs of several tasks or files as one table: those that continue each other are one run."""
    lines = pa.concat_tables(tables)
    is_seal = lines.column("is_seal")
    return pa.concat_tables([_joined(lines.filter(pc.invert(is_seal))), lines.filter(is_seal)])


def _joined(rows: Any) -> Any:
    """Return stretches of incarnations, blocks or runs of them, with those that continue each other as one run."""
    if not rows.num_rows:
        return RUN_SCHEMA.empty_table()
    names = rows.column("front_end").combine_chunks().dictionary_encode()
    ranks = np.empty(len(names.dictionary), np.int64)
    ranks[pc.array_sort_indices(names.dictionary).to_numpy()] = np.arange(len(ranks))
    front_end, epoch, low, high, low_us = (
        ranks[names.indices.to_numpy()],
        *(
            rows.column(name).cast(pa.int64()).to_numpy()
            for name in ("epoch", "seq_lo", "seq_hi", "low_watermark")
        ),
    )
    order = np.lexsort((high, low, epoch, front_end))
    front_end, epoch, low, high, low_us = (column[order] for column in (front_end, epoch, low, high, low_us))
    is_next = (front_end[1:] == front_end[:-1]) & (epoch[1:] == epoch[:-1]) & (low[1:] == high[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], ~is_next)))
    lasts = np.append(firsts[1:], len(low)) - 1
    columns = {
        "front_end": rows.column("front_end").take(pa.array(order[firsts])),
        "epoch": epoch[firsts],
        "seq_lo": low[firsts],
        "seq_hi": high[lasts],
        "low_watermark": np.maximum.reduceat(low_us, firsts),
        "is_seal": np.zeros(len(firsts), np.bool_),
    }
    return pa.table(
        [columns.get(name, pa.nulls(len(firsts), pa.int64())) for name in RUN_SCHEMA.names],
        schema=RUN_SCHEMA,
    )
