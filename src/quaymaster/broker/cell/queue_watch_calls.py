"""What those who watch queues ask of a process that leads journals.

queue_metrics    QueueMetricsRequest ─▶ QueueMetricsPage (core/values/queue_metrics)
"""

from __future__ import annotations

from typing import Final

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.queue_watch import QueueWatch
from quaymaster.core.values.queue_metrics import decode_request, encode_page
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import QUEUE_METRICS

CALLERS: Final[dict[str, tuple[str, ...]]] = {QUEUE_METRICS: ("console", "frontend", "operator")}
"""Which roles may call what."""


class QueueWatchCalls:
    """Answers for the journals of one process."""

    def __init__(self, watch: QueueWatch, tasks: BrokerTasks) -> None:
        self._watch = watch
        self._tasks = tasks

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {QUEUE_METRICS: self._on_queue_metrics}

    def _on_queue_metrics(self, call: IncomingCall) -> None:
        request = decode_request(call.body)

        async def tell() -> None:
            call.reply(encode_page(await self._watch.ask(request)))

        self._tasks.answer(call, tell())
