"""Blocks of a log of a cell are built by the front end through which it is read in bulk, and by no other."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from harness.running_cell import RunningCell
from harness.waiting import PATIENCE_S
from pyspark.sql.types import StructType

from pyspark_quaymaster import SCHEMA, DefaultSource

from .support import CellClient, bodies

ROLES = {"manager": 1, "metadata": 1, "broker": 3, "frontend": 2}
# Together more than a stretch of a log that is closed by its bytes.
COUNT = 6_400
BODY_BYTES = 700
WAIT_S = PATIENCE_S


@pytest.mark.timeout(600)
def test_blocks_of_what_is_read_in_bulk_through_a_front_end_are_built_there(tmp_path: Path) -> None:
    with RunningCell.started(tmp_path, ROLES) as cell:
        client = CellClient(cell)
        client.create("events", RetentionMode="Log")
        sent = [f"{body:<{BODY_BYTES}}" for body in bodies(COUNT)]
        client.send("events", sent)
        environment = cell.environment("frontend-2")
        source = DefaultSource(
            {
                "endpointUrl": environment.endpoint_url,
                "region": environment.region,
                "accessKeyId": environment.access_key_id,
                "secretAccessKey": environment.secret_access_key,
                "queue": "events",
            }
        )

        def read() -> list[str]:
            reader = source.reader(StructType([SCHEMA["value"]]))
            found = pa.Table.from_batches(
                [batch for part in reader.partitions() for batch in reader.read(part)]
            )
            return [value.decode() for value in found.column("value").to_pylist()]

        assert read() == sent
        until = time.monotonic() + WAIT_S
        while not (blocks := list(cell["frontend-2"].data.glob("blocks/*/0/*.qmb"))):
            assert time.monotonic() < until, "no block was built"
            time.sleep(0.5)
        assert read() == sent
        client.close()

        assert min(int(path.name[:20]) for path in blocks) == 1
        assert not list(cell["frontend-1"].data.glob("blocks/*/*/*.qmb"))
