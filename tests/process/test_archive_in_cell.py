"""A log of a cell, through any of its front ends: read in bulk over its whole range, archived, and let go."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from harness.running_cell import RunningCell
from harness.waiting import PATIENCE_S

from pyspark_quaymaster.client import Client as LogClient
from pyspark_quaymaster.credentials import Endpoint
from quaymaster_pipeline.archive.live_logs import LiveLogs
from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.tables import Warehouse

from .support import CellClient, bodies

ROLES = {"manager": 1, "metadata": 1, "broker": 3, "frontend": 2}
COUNT = 200
LARGE_BYTES = 900_000
WAIT_S = PATIENCE_S


def archive(cell: RunningCell, front_end: str, warehouse: Path, *options: str) -> dict[str, Any]:
    command = ("archive", "run", "--data", str(cell[front_end].data), "--warehouse", str(warehouse))
    done = cell[front_end].command(*command, "--queue", "events", "--once", "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(900)
def test_a_log_of_a_cell_is_archived_through_its_front_ends_while_a_broker_dies(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with RunningCell.started(tmp_path, ROLES) as cell:
        client = CellClient(cell)
        # What is in front of the last 8 MiB goes as soon as the archive lets it.
        client.create("events", RetentionMode="Log", RetentionBytes="1")
        sent = bodies(COUNT)
        client.send("events", sent)
        first = archive(cell, "frontend-1", warehouse, "--close-after", "0", "--after", "1")
        assert first["messages"] == COUNT

        large = [f"{number:>{LARGE_BYTES}}" for number in range(12)]
        for body in large:
            client.send("events", [body])
        client.close()
        cell["broker-1"].kill9()
        second = archive(cell, "frontend-2", warehouse, "--close-after", "0", "--after", "1")
        assert second["messages"] == len(large)

        environment = cell.environment("frontend-2")
        endpoint = Endpoint(
            environment.endpoint_url,
            environment.region,
            environment.access_key_id,
            environment.secret_access_key,
        )
        with LogClient(endpoint) as asked:
            logs = LiveLogs(asked)
            (log,) = logs.archived(["events"])
            assert log.partitions[0].earliest == 1  # nothing went though the log is too large
            fetched = [
                row["value"].decode()
                for batch in logs.batches(log, 0, 1, log.partitions[0].next)
                for row in batch.to_pylist()
            ]
            assert fetched == sent + large

            archive(cell, "frontend-1", warehouse, "--after", "0", "--grace", "0")
            until = time.monotonic() + WAIT_S
            while logs.earliest(log)[0] <= COUNT:
                assert time.monotonic() < until, "the broker let nothing go"
                time.sleep(0.5)

    rows = Warehouse(warehouse).table(MESSAGES).read(["offset", "value"]).to_pylist()
    found = {row["offset"]: row["value"].decode() for row in rows}
    assert found == dict(enumerate(sent + large, 1))
