"""What workers recorded that are no more, because a server has fewer of them now: brought into the usage queue.

    <data>/workers/<number>/usage      the spool of a worker
    <data>/workers/<number>/shipped    there is nothing in it that is not in the queue, and no incarnation without seal

Such a spool gets one more incarnation, like a front end without clients, which ships what is there and is sealed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from quaymaster.broker.storage.disk import DirectoryInUse, RealDisk, write_file_durably
from quaymaster.coordination.left_acts import LeftActs
from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.assembly import make_usage_feed, make_usage_shipper
from quaymaster.frontend.usage.spool_head import SpoolUnusable, spool_directory
from quaymaster.monitoring.logs import log_event
from quaymaster.node.data.data_directory import (
    DataDirectoryUnusable,
    lock_data_directory,
    worker_directory,
    workers_of,
)
from quaymaster.node.edge.front_end_role import Behind
from quaymaster.node.node import Node

SHIPPED_FILE: Final = "shipped"

log = logging.getLogger(__name__)


def worker_name(node: str | None, number: int) -> str:
    """Return the name under which a worker records, on this host or that of the settings."""
    return f"{node or socket.gethostname()}.{number}"


def note_in_use(directory: Path) -> None:
    """Say that a worker records in its directory again, before it does."""
    (directory / SHIPPED_FILE).unlink(missing_ok=True)


def ship_left_usage(node: Node, behind: Behind, workers: int) -> None:
    """Begin to ship what is left of workers from number `workers` on. Ends with the node; the next start continues."""
    left = [number for number in workers_of(node.data) if number >= workers]
    if not node.settings.usage or not left:
        return
    node.run("left-usage", _ship_all(node, behind, left))


async def _ship_all(node: Node, behind: Behind, left: Sequence[int]) -> None:
    for number in left:
        directory = worker_directory(node.data, number)
        if not spool_directory(directory).is_dir() or (directory / SHIPPED_FILE).exists():
            continue
        try:
            lock = await asyncio.to_thread(lock_data_directory, directory)
            try:
                await _ship(node, behind, directory, number)
            finally:
                lock.release()
        except (NotNow, SpoolUnusable, DataDirectoryUnusable, DirectoryInUse, OSError) as error:
            log_event(log, logging.WARNING, "usage of a worker not shipped", worker=number, reason=str(error))


async def _ship(node: Node, behind: Behind, directory: Path, number: int) -> None:
    settings = node.settings
    named = settings.model_copy(update={"node": settings.node and worker_name(settings.node, number)})
    feed = make_usage_feed(named, directory, node=worker_name(None, number))
    try:
        await feed.start(behind.store, settings.region)
    except BaseException:
        feed.abandon()
        raise
    shipper = make_usage_shipper(settings, feed, broker=behind.broker, metadata=behind.metadata)
    try:
        await feed.chain_acts(behind.store, settings.account_id, LeftActs(directory))
        feed.ship(shipper)
        await shipper.is_idle.wait()
    finally:
        await feed.stop()
    if shipper.is_idle.is_set():
        with suppress(OSError):  # it is looked at once more by the next start
            write_file_durably(RealDisk(), str(directory), SHIPPED_FILE, b"")
        log_event(log, logging.INFO, "usage of a worker shipped", worker=number, records=shipper.records)
