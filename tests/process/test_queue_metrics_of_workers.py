"""Each worker of a server tells of the queues that it leads, and operators get the figures of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S

from process.conftest import Connect
from process.support import running
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.queue_metrics import QueueMetricsPage, QueueMetricsRequest
from quaymaster.net.routing.queue_metrics_client import AllLeaders
from quaymaster.net.rpc import RPCClient
from quaymaster.node.workers.brief import worker_address
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.settings import load_settings

WORKERS = 2
QUEUES = 6


@pytest.fixture(name="tmp_path")
def short_tmp_path() -> Iterator[Path]:
    """Sockets are in the data directory."""
    with short_directory() as path:
        yield path


def test_workers_tell_of_the_queues_they_lead(tmp_path: Path, connect: Connect) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"workers": str(WORKERS)})
    with running(process):
        client = connect(process)
        for number in range(QUEUES):
            client.create(f"jobs-{number}")
            if number:
                client.send(f"jobs-{number}", [f"{number}-{message}" for message in range(number)])

        pages = asyncio.run(pages_of(process.data))
        with AdminClient(find_connection(process.data, None)) as admin:
            listed = {row["queue_id"]: row["visible"] for row in admin.queues("000000000000", "jobs-")}

    told = {row.queue_id: row.visible for page in pages for row in page.rows}
    assert listed.items() <= told.items()
    assert sorted(listed.values()) == list(range(QUEUES))
    assert len({page.leader for page in pages}) == WORKERS
    assert all(page.rows for page in pages), "each of them leads some"


async def pages_of(data: Path) -> list[QueueMetricsPage]:
    """Ask each worker, as a console does."""
    table = LeaderTable()
    for number in range(WORKERS):
        table.set_address(f"j{number}", str(worker_address(data / "run", number)))
    hello = Hello(load_settings(environment={}).cell, "console", "console-1")
    client = AllLeaders(table, lambda address: RPCClient(address, hello))
    async with asyncio.timeout(PATIENCE_S):
        pages = [await client.ask(leader, QueueMetricsRequest()) for leader in client.leaders()]
        await client.close()
    return pages
