"""What monitoring asks every process, without a key: whether it lives, whether it is ready, its metrics.

GET /health/live     200 while the process answers
GET /health/ready    200, or 503 and why not
GET /metrics         Prometheus text
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from quaymaster import __version__
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.logs import log_failure
from quaymaster.monitoring.metrics import CONTENT_TYPE, Metrics
from quaymaster.net.http_message import HTTPRequest

SCRAPES_MAX: Final = 8
_GET_ONLY: Final = 405, b"Content-Type: text/plain\r\nAllow: GET, HEAD\r\n", b"GET only\n"

log = logging.getLogger(__name__)


class ProbePort:
    """Answers these three, and nothing else."""

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self._health = health
        self._scrapes: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End what is in progress; call after the HTTP server was drained."""
        for scrape in list(self._scrapes):
            scrape.cancel()
        await asyncio.gather(*self._scrapes, return_exceptions=True)

    def admit(self, request: HTTPRequest) -> tuple[int, bytes, bytes]:
        """Refuse a request whose body is still to come: nothing here has one."""
        return _GET_ONLY

    def handle(self, request: HTTPRequest) -> None:
        """Answer `request`, now or later."""
        path = request.path
        if request.method not in (b"GET", b"HEAD"):
            request.respond(*_GET_ONLY)
        elif path == b"/health/live":
            _respond(request, 200, {"status": "live", "version": __version__})
        elif path == b"/health/ready":
            reason = self._health.why_not_ready()
            answer = {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
            _respond(request, 200 if reason is None else 503, answer)
        elif path == b"/metrics":
            self._scrape(request)
        else:
            request.respond(404, b"Content-Type: text/plain\r\n", b"nothing is here\n")

    def _scrape(self, request: HTTPRequest) -> None:
        if len(self._scrapes) >= SCRAPES_MAX:
            request.respond(503, b"Content-Type: text/plain\r\n", b"too many scrapes at once\n")
            return
        scrape = asyncio.get_running_loop().create_task(self._show_metrics(request))
        self._scrapes.add(scrape)
        scrape.add_done_callback(self._scrapes.discard)

    async def _show_metrics(self, request: HTTPRequest) -> None:
        try:
            text = await self._metrics.render_in_steps()
        except Exception as error:  # noqa: BLE001 -- the scrape is answered with it
            log_failure(log, "metrics not rendered", error)
            request.respond(500, b"Content-Type: text/plain\r\n", b"the metrics cannot be rendered\n")
        else:
            request.respond(200, f"Content-Type: {CONTENT_TYPE}\r\n".encode(), text)


def _respond(request: HTTPRequest, status: int, answer: Mapping[str, Any]) -> None:
    request.respond(status, b"Content-Type: application/json\r\n", msgspec.json.encode(answer))
