"""What a turn of a run asks the tables, also an idle one: by lines of their logs, a file is no object of Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.broker_counts import EVERY_US, LATE_US, count_of, done_until, keep, started, time_of

from quaymaster_pipeline.checks.brokers.broker_counts import last_counted, set_back_from
from quaymaster_pipeline.checks.status import read_status
from quaymaster_pipeline.jobs import content_expiry, usage_expiry
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TABLES, USAGE_EVENTS


def test_a_turn_makes_no_objects_of_the_files_of_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = started(tmp_path)
    keep(site, count_of(done_until(LATE_US, one, two)), LATE_US)
    warehouse = site.warehouse
    coverage = coverage_of(warehouse)
    expected = {
        spec.name: {
            "version": table.version,
            "files": len(table.files()),
            "rows": sum(file.rows for file in table.files()),
            "bytes": sum(file.size for file in table.files()),
        }
        for spec in TABLES
        for table in [warehouse.table(spec)]
    }

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a file became an object")

    monkeypatch.setattr(DataFile, "__init__", refuse)

    assert read_status(warehouse, coverage)["tables"] == expected
    assert last_counted(warehouse) == time_of(LATE_US)
    assert set_back_from(warehouse, time_of(LATE_US + EVERY_US)) is None
    assert usage_expiry._first_with_content(warehouse.table(BLOCKS)) == 0
    assert usage_expiry.due(warehouse.table(USAGE_EVENTS), "2026-01-01", 1) == []
    assert content_expiry.due(warehouse.table(BLOCKS), time_of(LATE_US), 35, 1) == []
