"""The role of a console, put together: in a cell, and next to a server.

store ─▶ queues ─┐
leaders ─────────┴▶ monitor ─▶ history        front ends ──RPC──▶ operations        browsers ──HTTP──▶ pages
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.broker.storage.disk import DirectoryInUse
from quaymaster.console.alerts.destination_operations import DestinationOperations
from quaymaster.console.alerts.history_series import HistorySeries
from quaymaster.console.api_client import APIClient
from quaymaster.console.cell_operations import CellOperations
from quaymaster.console.dashboard_operations import DashboardOperations
from quaymaster.console.decision_book import DecisionBook
from quaymaster.console.dispatch import Dispatch
from quaymaster.console.exchange import APIPlace
from quaymaster.console.known_queues import KnownQueues
from quaymaster.console.metric_operations import MetricOperations
from quaymaster.console.metric_text import ScrapeRefused, render_queues, select_queues, told_queues
from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.console.reports import ReportOperations
from quaymaster.console.server_site import ServerSite
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.leader_watch import LeaderWatch
from quaymaster.coordination.presence import PresenceRow
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.history.files import HistoryFiles
from quaymaster.history.history import History
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.monitoring.metrics import Sample
from quaymaster.net.console_key import make_console_key, read_console_key
from quaymaster.net.listener import bind_all
from quaymaster.net.routing.queue_metrics_client import AllLeaders, OneAddress, QueueMetricsClient
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.node.cell.membership import Membership
from quaymaster.node.cell.transport import BROKER_ROLE, CONSOLE_ROLE, FRONT_END_ROLE, MANAGER_ROLE, Transport
from quaymaster.node.children.console_child import ConsoleBrief
from quaymaster.node.children.lifeline import Lifeline
from quaymaster.node.console.alerts import start_alerts
from quaymaster.node.console.cell_state import CellState, CellView, ServerState, charts_of
from quaymaster.node.console.pages import serve_pages, sockets_of
from quaymaster.node.data.data_directory import DirectoryLock, lock_data_directory
from quaymaster.node.data.stores import SQLITE_FILE, open_etcd
from quaymaster.node.edge.sockets import ADMIN_SOCKET, CONSOLE_SOCKET, SERVER_SOCKET, SQS_SOCKET, unix_address
from quaymaster.node.node import Node, Role, cannot_listen
from quaymaster.protocol.rpc.console_calls import (
    METRICS,
    QUEUE_METRICS,
    QueueMetricsText,
    encode_queue_metrics,
)
from quaymaster.protocol.rpc.monitoring_calls import MONITORING, decode_call, encode_answer
from quaymaster.settings import Address, Settings, parse_endpoint

DIRECTORY: Final = "console"
"""In a server's data directory."""
HISTORY: Final = "history"
ZLIB_LEVEL: Final = 1
BEFORE_S: Final = 15.0
"""So long the console of a start before is waited for, which ends when it has noticed that its server is gone."""
BEFORE_LOOK_S: Final = 0.1
STORE_POLL_MS: Final = 1_000
"""How often the console of a server looks for what others wrote into the store."""
FREE_TIMES: Final = 4
"""So many times the space must be free below which sends are refused: history must not be why."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a console stands on, wherever it runs. `sqs`, `admin`: of a front end, for pages."""

    key: bytes
    store: Coordination
    leaders: QueueMetricsClient
    sqs: APIPlace
    admin: APIPlace
    cell: Callable[[QueueMonitor], CellView]
    is_alone: bool
    """Whether there is no other console."""


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
    settings, stack = node.settings, node.stack
    if settings.tls_directory is None:
        key = await asyncio.to_thread(make_console_key, node.data)
    else:
        key = await asyncio.to_thread(read_console_key, settings.tls_directory)
    transport = Transport(settings, CONSOLE_ROLE, node.rpc)
    leaders, table = await _all_leaders(node, transport, cell.store)
    sqs = APIPlace(settings.public_url or f"http://{settings.listen}")
    admin = APIPlace(f"http://{settings.admin_listen}")
    is_one_host = parse_endpoint(settings.console_rpc_address).is_loopback
    state = CellState(cell.store, table, settings.cell, settings.zone, is_one_host=is_one_host)
    console = await _start(
        node,
        Surroundings(
            *(key, cell.store, leaders, sqs, admin, lambda _: state),
            is_alone=False,
        ),
    )
    state.on_front_end = partial(_move, console.site.api, settings.public_url)
    node.run("cell-state", state.look_for_ever())
    transport.check_peer(MANAGER_ROLE)  # now, not with the first connection
    book = DecisionBook(node.data, state.managers, lambda address: transport.connect(address, MANAGER_ROLE))
    stack.push_async_callback(book.close)
    state.decisions = book.decisions
    node.run("decisions", book.run())
    node.metrics.queues = console.scrape
    await transport.listen(stack, settings.console_rpc_listen_address, console.handlers(), FRONT_END_ROLE)
    wanted = settings.console_listen_address
    try:
        bound = await bind_all(wanted.host, wanted.port, shares_port=False)
    except OSError as error:
        raise cannot_listen(wanted, "console_listen", error) from error
    await serve_pages(node, console.site, key, bound)


def _move(api: APIClient, public_url: str | None, front_end: PresenceRow) -> None:
    """Let pages ask a front end that is there; by the URL of clients, which may have TLS, where there is one."""
    api.move(APIPlace(public_url or f"http://{front_end.address}"), APIPlace(f"http://{front_end.admin}"))


async def _start_child(brief: ConsoleBrief, pipe: int, node: Node) -> None:
    """Start the console of a server."""
    settings, stack = node.settings, node.stack
    Lifeline(pipe).watch(drain=node.ask_to_stop, hurry=node.hurry)
    data = settings.data_directory.absolute()
    store: Coordination
    if settings.coordination == "sqlite":
        store = await SQLiteCoordination.open(data / SQLITE_FILE, on_stopped=node.fail, poll_ms=STORE_POLL_MS)
    else:
        store = open_etcd(settings)
    stack.push_async_callback(store.close)
    transport = Transport(settings, CONSOLE_ROLE, node.rpc)
    leaders: QueueMetricsClient
    if brief.has_workers:
        leaders, _ = await _all_leaders(node, transport, store)
    else:
        address = unix_address(Path(brief.sockets) / SERVER_SOCKET)
        leaders = OneAddress(transport.connect(address, BROKER_ROLE))
        stack.push_async_callback(leaders.close)
    key = await asyncio.to_thread(read_console_key, data)
    admin = APIPlace(f"http://{Address(*brief.admin)}", Path(brief.sockets) / ADMIN_SOCKET)
    surroundings = Surroundings(
        key,
        store,
        leaders,
        APIPlace(f"http://{Address(*brief.endpoint)}", Path(brief.sockets) / SQS_SOCKET),
        admin,
        lambda monitor: ServerState(settings.cell, monitor, admin),
        is_alone=True,
    )
    console = await _start(node, surroundings)
    place = unix_address(Path(brief.sockets) / CONSOLE_SOCKET)
    await transport.listen(stack, place, console.handlers(), FRONT_END_ROLE)
    await serve_pages(node, console.site, key, sockets_of(brief.listen))


async def _all_leaders(
    node: Node, transport: Transport, store: Coordination
) -> tuple[AllLeaders, LeaderTable]:
    transport.check_peer(BROKER_ROLE)  # now, not with the first connection
    table = LeaderTable()
    watch = LeaderWatch(store, table)
    watch.start()
    node.stack.push_async_callback(watch.close)
    leaders = AllLeaders(table, lambda address: transport.connect(address, BROKER_ROLE))
    node.stack.push_async_callback(leaders.close)
    return leaders, table


class Console:
    """The parts of a console that others ask."""

    def __init__(
        self,
        node: Node,
        monitor: QueueMonitor,
        dispatch: Dispatch,
        site: ServerSite,
        more: Mapping[str, CallHandler],
    ) -> None:
        """`more`: calls that its parts answer themselves."""
        self.site = site
        self._more = more
        self._node = node
        self._monitor = monitor
        self._dispatch = dispatch
        self._tasks = BrokerTasks(node.fail)
        node.stack.push_async_callback(self._tasks.close)

    def handlers(self) -> dict[str, CallHandler]:
        """The calls that front ends and the server make."""
        return {
            METRICS: self._on_metrics,
            QUEUE_METRICS: self._on_queue_metrics,
            MONITORING: self._on_monitoring,
            **self._more,
        }

    async def scrape(self, query: str) -> tuple[int, bytes]:
        """Return the answer to `/metrics/queues`: a status, and a text."""
        try:
            told = told_queues(self._monitor, select_queues(self._monitor, query))
        except ScrapeRefused as error:
            return error.status, f"{error}\n".encode()
        return 200, (await asyncio.to_thread(render_queues, told, self._monitor.now_ms())).encode()

    def _on_metrics(self, call: IncomingCall) -> None:
        async def render() -> None:
            text = await self._node.metrics.render_in_steps()
            call.reply(await asyncio.to_thread(zlib.compress, text, ZLIB_LEVEL))

        self._tasks.answer(call, render())

    def _on_queue_metrics(self, call: IncomingCall) -> None:
        async def render() -> None:
            status, text = await self.scrape(call.body.decode())
            packed = await asyncio.to_thread(zlib.compress, text, ZLIB_LEVEL)
            call.reply(encode_queue_metrics(QueueMetricsText(status, packed)))

        self._tasks.answer(call, render())

    def _on_monitoring(self, call: IncomingCall) -> None:
        async def answer() -> None:
            call.reply(encode_answer(await self._dispatch.call(decode_call(call.body))))

        self._tasks.answer(call, answer())


async def _start(node: Node, around: Surroundings) -> Console:
    """Start all that a console has, but its pages."""
    settings, stack = node.settings, node.stack
    queues = KnownQueues(around.store, QUEUES)
    stack.push_async_callback(queues.close)
    await queues.start()
    files = HistoryFiles(
        node.data / HISTORY,
        bytes_max=settings.history_bytes_max,
        free_bytes_min=lambda disk_bytes: FREE_TIMES * settings.disk_low_limit(disk_bytes),
    )
    history = History(files)
    monitor = QueueMonitor(around.leaders, queues, history, now_ms=wall_ms)
    await monitor.start()
    stack.push_async_callback(monitor.close)
    monitor.ask()
    node.health.add_notices(monitor.notices)
    node.metrics.add_source(
        lambda: [
            Sample("quaymaster_history_lag_seconds", monitor.lag_s),
            Sample("quaymaster_history_bytes", history.bytes),
        ]
    )
    operations = MetricOperations(monitor)
    dispatch = Dispatch()
    dispatch.add("cloudwatch", operations.handlers)
    dispatch.add("admin", operations.admin_handlers)
    dashboards = DashboardOperations(around.store, now_ms=wall_ms)
    dispatch.add("cloudwatch", dashboards.handlers)
    dispatch.add("admin", dashboards.admin_handlers)
    alerts = await start_alerts(
        node,
        around.store,
        around.key,
        HistorySeries(
            queues, history, is_dead_letter_queue=partial(_is_dead_letter_queue, queues), now_ms=wall_ms
        ),
        console_url=settings.console_url or f"http://{settings.console_listen}",
        is_alone=around.is_alone,
    )
    dispatch.add("cloudwatch", dict.fromkeys(alerts.alarms.operations, alerts.alarms.answer))
    dispatch.add("admin", DestinationOperations(alerts.book, alerts.delivery).handlers)
    reports = ReportOperations(
        settings.data_directory.absolute() if around.is_alone else None, settings.console_warehouse
    )
    stack.push_async_callback(reports.close)
    dispatch.add("admin", reports.handlers)
    state = around.cell(monitor)
    dispatch.add("admin", CellOperations(state.now).handlers)
    node.run("process-monitor", state.processes.run())
    api = APIClient(
        around.sqs,
        around.admin,
        region=settings.region,
        now_ms=wall_ms,
    )
    site = ServerSite(
        monitor,
        operations,
        api,
        cell=state.now,
        process=partial(charts_of, state),
        are_policies_enforced=settings.policy_evaluation == "full",
        alerts=alerts.now,
        accounts_with_alerts=alerts.book.rows.alerts.accounts,
        confirm_address=alerts.confirm_address,
    )
    return Console(node, monitor, dispatch, site, alerts.handlers)


def _is_dead_letter_queue(queues: KnownQueues, account: str, name: str) -> bool:
    queue = queues.find(account, name)
    return queue is not None and queues.dead_letters_of(queue) > 0
