"""A server into whose usage queue a simulated fleet ships its blocks; it ends when all are stored.

    python -m bench.fleet_server --data DIR --blocks FILE --count 20000 --front-ends 1000

It is what `quaymaster serve` runs, with one `UsageShipper` more for each front end of the fleet: the same code, cipher
and broker as for the server's own records. Only the spool that a shipper reads is simulated: blocks of a file that
`bench.fleet_blocks` has made. All ship at a time, each its next block when the one before is durable.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from bench.fleet_blocks import KeptBlocks
from quaymaster.cli.shared.loading import run_process, settings_to_serve
from quaymaster.frontend.admin.admin import Admin
from quaymaster.frontend.usage.spool_files import SpooledBlock
from quaymaster.frontend.usage.usage_shipper import UsageShipper
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.monitoring.supervision import supervise
from quaymaster.node import server_role
from quaymaster.node.edge.front_end_role import Behind, Served, serve_sqs
from quaymaster.node.node import Node
from quaymaster.node.roles import SERVER, run_role
from quaymaster.protocol.usage.usage_blocks import decode_header


def main() -> None:
    """Ship, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--blocks", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--front-ends", type=int, required=True)
    options = parser.parse_args()
    blocks = KeptBlocks(options.blocks, options.count)

    async def serve_and_ship(node: Node, behind: Behind, admin: Admin, **others: Any) -> Served:
        served = await serve_sqs(node, behind, admin, **others)
        supervise(asyncio.create_task(ship(node, behind, blocks, options.front_ends), name="fleet"))
        return served

    settings = settings_to_serve(None, options.data, "127.0.0.1:0", "127.0.0.1:0", None)
    with mock.patch.object(server_role, "serve_sqs", serve_and_ship):
        try:
            run_process(run_role(settings, SERVER))
        except typer.Exit as ended:
            sys.exit(ended.exit_code)


async def ship(node: Node, behind: Behind, blocks: KeptBlocks, front_ends: int) -> None:
    """Ship all blocks, and stop the server."""
    cipher = MessageCipher(behind.metadata.data_key)
    spools = [FleetSpool(blocks, number, front_ends) for number in range(min(front_ends, len(blocks)))]
    shippers = [
        UsageShipper(
            spool,
            behind.broker,
            cipher,
            find_queue=behind.metadata.find_queue,
            change_queue=behind.metadata.queues.change,
            timeout_s=node.settings.broker_timeout_ms / 1000,
            now_us=lambda: time.time_ns() // 1000,
        )
        for spool in spools
    ]
    await shippers[0].ensure_queue()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    running = [supervise(asyncio.create_task(shipper.run())) for shipper in shippers]
    for shipper in shippers:
        await shipper.is_idle.wait()
    shipped = {
        "blocks": sum(shipper.blocks for shipper in shippers),
        "rows": sum(shipper.records for shipper in shippers),
        "seconds": round(time.monotonic() - began_s, 2),
        "cpu_s": round(time.process_time() - began_cpu_s, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }
    for task in running:
        task.cancel()
    print(json.dumps(shipped), flush=True)
    node.stopped.set()


class FleetSpool:
    """The spool of one front end: every so manyth block."""

    def __init__(self, blocks: KeptBlocks, first: int, step: int) -> None:
        self._blocks = blocks
        self._at = first
        self._step = step

    async def next_block(self) -> SpooledBlock | None:
        """Return the first block that is not shipped."""
        if self._at >= len(self._blocks):
            return None
        data = self._blocks[self._at]
        return SpooledBlock(data, decode_header(data), 0, 0)

    async def mark_shipped(self, block: SpooledBlock) -> None:
        """Go on to the next one."""
        del block
        self._at += self._step


if __name__ == "__main__":
    main()
