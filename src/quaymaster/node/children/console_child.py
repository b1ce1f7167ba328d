"""The console next to a server, as the server has it: a process, started once it serves, and again when that ends.

serving ──is it installed?──▶ child, told of settings, sockets, addresses ──ends──▶ again, after a while
drained ──▶ told to end

The server waits for nothing of it. Its port is bound here, so that the address is known from the start, and stays.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.console_key import make_console_key
from quaymaster.net.listener import bind_all
from quaymaster.net.rpc import RPCClient
from quaymaster.node.cell.transport import CONSOLE_ROLE, FRONT_END_ROLE, Transport
from quaymaster.node.children.child import Child, read_first_line
from quaymaster.node.children.child_settings import plain_values
from quaymaster.node.children.console_extra import INSTALL, missing_for_console
from quaymaster.node.children.lifeline import HURRY
from quaymaster.node.edge.edge_listener import listen_for_console
from quaymaster.node.edge.sockets import ADMIN_SOCKET, CONSOLE_SOCKET, unix_address
from quaymaster.node.node import Node
from quaymaster.protocol.rpc.console_calls import METRICS, QUEUE_METRICS, decode_queue_metrics
from quaymaster.settings import Address, Settings

COMMAND: Final = (sys.executable, "-P", "-m", "quaymaster.node.console.process")
END_S: Final = 5.0
METRICS_MS: Final = 2_000
QUEUE_METRICS_MS: Final = 20_000
NOT_THE_CONSOLES: Final[dict[str, Any]] = {
    "master_key_source": "file",
    "master_key": None,
    "master_key_previous": None,
    "kms": "ignore",
    "kms_key_id": None,
    "kms_credentials_file": None,
    "vault_url": None,
    "vault_token_file": None,
    "tls_directory": None,
    "loop_watch_ms": 0,
}
"""Settings of secrets that a console has not, of a cell, of which it is no part, and of what costs it at rest."""

log = logging.getLogger(__name__)


class ConsoleBrief(msgspec.Struct, frozen=True):
    """What a server tells its console at the start.

    `sockets`: the directory of Unix sockets. `listen`: descriptors of sockets that are bound to `console_listen`.
    `endpoint`, `admin`: where it serves SQS and operators. `has_workers`: whether its journals are led by workers.
    """

    settings: dict[str, Any]
    sockets: str
    listen: list[int]
    endpoint: tuple[str, int]
    admin: tuple[str, int]
    has_workers: bool


class ServerConsole:
    """The console of this server. `address` is None where it has none."""

    def __init__(self, address: Address | None, child: Child | None, client: RPCClient) -> None:
        self.address = address
        self._child = child
        self._client = client
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run it from now on."""
        if self._child is not None:
            self._keeping = supervise(asyncio.create_task(self._child.keep(), name="console"))

    async def end(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.let_go()
            self._child.tell(HURRY)
            await self._child.end(END_S)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._client.close()

    async def metrics(self) -> Mapping[str, bytes]:
        """Return the console's own metrics by its name; nothing while it does not answer."""
        if self._child is None or self._child.pid is None:
            return {}
        try:
            return {CONSOLE_ROLE: zlib.decompress(await self._client.ask(METRICS, b"", METRICS_MS))}
        except (NotNow, CallerError):
            return {}

    async def queue_metrics(self, query: str) -> tuple[int, bytes]:
        """Return the answer to `/metrics/queues`: a status, and a text. Raises NotNow, CallerError."""
        answer = await self._client.ask(QUEUE_METRICS, query.encode(), QUEUE_METRICS_MS)
        found = decode_queue_metrics(answer)
        return found.status, await asyncio.to_thread(zlib.decompress, found.text)


async def choose_console_port(node: Node) -> Sequence[socket.socket] | None:
    """Bind the console's port where any port will do, and let the settings say which: links that sign in name it.

    Return what `prepare_console` is to be given. Another port is not bound before the server can serve.
    """
    settings = node.settings
    wanted = settings.console_listen_address
    if settings.console == "off" or wanted.port:
        return None
    bound = await _bind(node)
    if bound:
        chosen = Address(wanted.host, bound[0].getsockname()[1])
        node.settings = settings.model_copy(update={"console_listen": str(chosen)})
    return bound


async def prepare_console(
    node: Node,
    sockets: Path,
    endpoint: Address,
    *,
    has_workers: bool,
    bound: Sequence[socket.socket] | None = None,
) -> ServerConsole:
    """Return the console of a server, which begins once that serves, and ends before anything else of it does.

    `bound`: what `choose_console_port` returned.
    """
    settings = node.settings
    client = Transport(settings.model_copy(update={"tls_directory": None}), FRONT_END_ROLE, node.rpc).connect(
        unix_address(sockets / CONSOLE_SOCKET), CONSOLE_ROLE
    )
    if bound is None:
        bound = await _bind(node) if settings.console == "on" else []
    address, child = None, None
    if bound:
        await asyncio.to_thread(make_console_key, node.data)
        address = Address(*bound[0].getsockname()[:2])
        brief = ConsoleBrief(
            plain_values(settings) | NOT_THE_CONSOLES,
            str(sockets),
            [one.fileno() for one in bound],
            (endpoint.host, endpoint.port),
            (node.admin_address.host, node.admin_address.port),
            has_workers,
        )
        line = msgspec.json.encode(brief) + b"\n"
        child = Child("console", COMMAND, lambda: line, on_ended=lambda code: None, pass_fds=brief.listen)
    console = ServerConsole(address, child, client)
    if child is not None:
        node.metrics.queues = console.queue_metrics
        listen_for_console(node, node.admin, sockets / ADMIN_SOCKET)
    node.stack.push_async_callback(console.end)
    node.on_serving.append(console.start)
    if child is not None:
        node.on_notice.append(child.let_go)
    return console


async def _bind(node: Node) -> Sequence[socket.socket]:
    """Return sockets bound to the address of the console; none where there can be no console, and the log says why."""
    if missing := missing_for_console():
        log_event(
            *(log, logging.INFO, "console is not installed"),
            missing=",".join(missing),
            install=INSTALL,
        )
        return []
    wanted = node.settings.console_listen_address
    try:
        bound = await bind_all(wanted.host, wanted.port, shares_port=False)
    except OSError as error:
        reason = error.strerror or str(error)
        log_event(log, logging.WARNING, "no console", console_listen=str(wanted), reason=reason)
        return []
    for one in bound:
        node.stack.callback(one.close)
    return bound


def read_console_brief(descriptor: int) -> ConsoleBrief:
    """Read what a server says first, and nothing that comes after it. Raises EOFError."""
    return msgspec.json.decode(read_first_line(descriptor), type=ConsoleBrief)


def settings_of(brief: ConsoleBrief) -> Settings:
    """Return the settings that a server gives its console."""
    return Settings(**brief.settings)
