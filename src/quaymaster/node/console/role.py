"""The role of a console, put together: in a cell, and next to a server.

store, leaders ─▶ console ─▶ RPC for front ends ─▶ pages
"""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.storage.disk import DirectoryInUse
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.net.console_key import make_console_key, read_console_key
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.node.console_child import ConsoleBrief
from quaymaster.node.data.data_directory import DirectoryLock, lock_data_directory
from quaymaster.node.data.stores import SQLITE_FILE, open_etcd
from quaymaster.node.membership import Membership
from quaymaster.node.node import Node, Role
from quaymaster.node.sockets import CONSOLE_SOCKET, unix_address
from quaymaster.node.transport import CONSOLE_ROLE, FRONT_END_ROLE, Transport
from quaymaster.node.workers.lifeline import Lifeline
from quaymaster.protocol.rpc.console_calls import METRICS
from quaymaster.settings import Settings

DIRECTORY: Final = "console"
"""In a server's data directory."""
ZLIB_LEVEL: Final = 1
BEFORE_S: Final = 15.0
"""So long the console of a start before is waited for, which ends when it has noticed that its server is gone."""
BEFORE_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a console stands on, wherever it runs."""

    key: bytes


@dataclass(frozen=True)
class ChildRole(Role):
    """The console of a server: it has a directory of its own below the data directory, and operators ask the server."""

    def directory(self, settings: Settings) -> Path:
        """See `Role`."""
        return settings.data_directory.absolute() / DIRECTORY

    def lock(self, settings: Settings, data: Path) -> DirectoryLock:
        """See `Role`. Raises DirectoryInUse where the console of a start before does not end."""
        deadline_s = time.monotonic() + BEFORE_S
        while True:
            try:
                return lock_data_directory(data)
            except DirectoryInUse:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(BEFORE_LOOK_S)


def child_role(brief: ConsoleBrief, pipe: int) -> ChildRole:
    """Return the role of a server's console; `pipe` is the descriptor on which that speaks."""
    return ChildRole(CONSOLE_ROLE, partial(_start_child, brief, pipe), has_admin_port=False)


async def start_console(node: Node, cell: Membership) -> None:
    """Start a console of a cell."""
    settings = node.settings
    if settings.tls_directory is None:
        key = await asyncio.to_thread(make_console_key, node.data)
    else:
        key = await asyncio.to_thread(read_console_key, settings.tls_directory)
    transport = Transport(settings, CONSOLE_ROLE, node.rpc)
    surroundings = Surroundings(key)
    handlers = await _start(node, surroundings)
    await transport.listen(node.stack, settings.console_rpc_listen_address, handlers, FRONT_END_ROLE)


async def _start_child(brief: ConsoleBrief, pipe: int, node: Node) -> None:
    """Start the console of a server."""
    settings, stack = node.settings, node.stack
    Lifeline(pipe).watch(drain=node.ask_to_stop, hurry=node.hurry)
    data = settings.data_directory.absolute()
    store: Coordination
    if settings.coordination == "sqlite":
        store = await SQLiteCoordination.open(data / SQLITE_FILE, on_stopped=node.fail)
    else:
        store = open_etcd(settings)
    stack.push_async_callback(store.close)
    surroundings = Surroundings(await asyncio.to_thread(read_console_key, data))
    transport = Transport(settings, CONSOLE_ROLE, node.rpc)
    handlers = await _start(node, surroundings)
    await transport.listen(
        stack, unix_address(Path(brief.sockets) / CONSOLE_SOCKET), handlers, FRONT_END_ROLE
    )


async def _start(node: Node, surroundings: Surroundings) -> dict[str, CallHandler]:
    """Start all that a console has; return the calls that it answers."""
    tasks = BrokerTasks(node.fail)
    node.stack.push_async_callback(tasks.close)

    def on_metrics(call: IncomingCall) -> None:
        async def render() -> None:
            text = await node.metrics.render_in_steps()
            call.reply(await asyncio.to_thread(zlib.compress, text, ZLIB_LEVEL))

        tasks.answer(call, render())

    return {METRICS: on_metrics}
