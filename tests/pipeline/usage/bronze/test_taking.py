"""What tasks of bronze read and write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from harness.pipeline_site import Site, expected_usage
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.usage.blocks import BatchFacts, ReadBlock, block_rows, read_block
from quaymaster_pipeline.usage.bronze import taking
from quaymaster_pipeline.usage.feed import NewerBlocks
from quaymaster_pipeline.warehouse.schemas import BLOCKS


def test_a_task_has_no_more_blocks_in_memory_than_a_file_has_however_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    site.ship(one.block(1))
    site.run()
    site.ship(*(front_end.block(40) for _ in range(20) for front_end in (one, two)))
    most = 20_000
    monkeypatch.setattr(taking, "FILE_BYTES", most)
    held: list[int] = []

    def counted(found: Sequence[ReadBlock], batch: BatchFacts) -> pa.Table:
        held.append(sum(len(block.content) for block in found))
        return block_rows(found, batch)

    monkeypatch.setattr(taking, "block_rows", counted)
    monkeypatch.setattr(
        "quaymaster_pipeline.usage.bronze.batches.plan_tasks", lambda ranges, *_: [[(0, *ranges[0])]]
    )
    site.run()

    files = [file for file in site.warehouse.table(BLOCKS).files() if file.bounds["batch_id"] == (1, 1)]
    assert sum(held) > 2 * most
    assert max(held) <= most
    assert sum(file.rows for file in files) == 40
    assert len(files) == len(held)
    assert site.usage() == expected_usage(one, two)


def test_blocks_of_a_newer_program_stay_where_they_are(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(5))
    site.run()
    newer = one.block(6)
    with (site.feed / "0002.blocks").open("wb") as file:
        file.write(newer)

    def of_an_older_program(partition: int, offset: int, body: bytes) -> ReadBlock:
        return read_block(partition, offset, bytes([9]) + body[1:])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("quaymaster_pipeline.usage.bronze.taking.read_block", of_an_older_program)
        with pytest.raises(NewerBlocks, match=r"block 1 of partition 0 .* until the pipeline is upgraded"):
            site.run()
    before = site.warehouse.table(BLOCKS).rows
    site.run()

    assert before == 1
    assert site.usage() == expected_usage(one)
