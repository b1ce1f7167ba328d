"""Readers that go by the statistics in a table's log find what is there."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable
from harness.pipeline_site import Site
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_EVENTS, USAGE_HOURLY


def test_filters_by_texts_and_nulls_find_rows(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(50), b"\x01QMU damaged")
    site.run()
    sends = [record for record in one.records if record.action == "SendMessage"]

    def found(uri: str, condition: pc.Expression) -> int:
        return int(DeltaTable(uri).to_pyarrow_dataset().to_table(filter=condition).num_rows)

    events = site.warehouse.place(USAGE_EVENTS).uri
    hourly = site.warehouse.place(USAGE_HOURLY).uri
    blocks = site.warehouse.place(BLOCKS).uri
    assert found(events, pc.field("action") == "SendMessage") == len(sends) > 0
    assert found(events, pc.field("sequence") == 7) == 1
    assert found(events, pc.field("error_code").is_null()) == 0
    assert found(hourly, pc.field("action") == "SendMessage") > 0
    assert found(blocks, pc.field("damage").is_null()) == 1
    assert found(blocks, pc.field("epoch").is_null()) == 1
    assert found(blocks, pc.field("damage").is_valid()) == 1
