"""What the process that looks after workers asks of each of them, by RPC as an operator.

worker.look          ─▶ WorkerLook
worker.metrics       ─▶ Prometheus text, compressed
worker.status        ─▶ figures of each journal, as JSON
worker.accept_clock  ─▶
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

import msgspec

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.own_journals import OwnJournals
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.node.children.lifeline import Lifeline
from quaymaster.node.node import Node
from quaymaster.node.operations import show_pauses

LOOK: Final = "worker.look"
METRICS: Final = "worker.metrics"
STATUS: Final = "worker.status"
ACCEPT_CLOCK: Final = "worker.accept_clock"
CALLERS: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(
    (LOOK, METRICS, STATUS, ACCEPT_CLOCK), ("operator",)
)
"""Which roles may call what."""
ZLIB_LEVEL: Final = 1


class WorkerLook(msgspec.Struct, frozen=True):
    """How a worker is: why it should get no clients, whether those that it has are served, what operators should know.

    `has_drained`: it asks other workers nothing any more.
    """

    is_serving: bool
    reason: str | None
    keeps_clients: bool
    notices: list[str]
    pauses: list[dict[str, float]]
    has_drained: bool


encode_json = msgspec.json.Encoder().encode
decode_look = msgspec.json.Decoder(WorkerLook).decode
decode_status = msgspec.json.Decoder(list[dict[str, Any]]).decode


class WorkerCalls:
    """Answers for one worker."""

    def __init__(self, node: Node, own: OwnJournals, lifeline: Lifeline, tasks: BrokerTasks) -> None:
        self._node = node
        self._own = own
        self._lifeline = lifeline
        self._tasks = tasks

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {
            LOOK: self._on_look,
            METRICS: self._on_metrics,
            STATUS: self._on_status,
            ACCEPT_CLOCK: self._on_accept_clock,
        }

    def _on_look(self, call: IncomingCall) -> None:
        health = self._node.health
        look = WorkerLook(
            health.state == "serving",
            health.why_not_ready(),
            health.keeps_clients(),
            health.notices(),
            [dict(pause) for pause in show_pauses(self._node.watch)],
            self._lifeline.has_drained,
        )
        call.reply(encode_json(look))

    def _on_metrics(self, call: IncomingCall) -> None:
        async def render() -> None:
            text = await self._node.metrics.render_in_steps()
            call.reply(await asyncio.to_thread(zlib.compress, text, ZLIB_LEVEL))

        self._tasks.answer(call, render())

    def _on_status(self, call: IncomingCall) -> None:
        async def look() -> None:
            call.reply(encode_json(await self._own.status()))

        self._tasks.answer(call, look())

    def _on_accept_clock(self, call: IncomingCall) -> None:
        self._own.accept_clock()
        call.reply()
