"""What monitoring asks every process, without a key: whether it lives, whether it is ready, its metrics.

GET /health/live     200 while the process answers
GET /health/ready    200; 404 while the process drains or is full; else 503; and why not
GET /metrics         Prometheus text
GET /metrics/queues  the same of each queue, where there is a console
GET /                to the console's pages, where this process knows their address
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from quaymaster import __version__
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.logs import log_failure
from quaymaster.monitoring.metrics import CONTENT_TYPE, Metrics
from quaymaster.net.http.message import HTTPRequest
from quaymaster.settings.addresses import Address

SCRAPES_MAX: Final = 64
"""Scrapes that wait at once; one rendering answers all of them."""
PEER_SCRAPES_MAX: Final = 8
"""Of these, those of one address."""
REFUSED_SCRAPE_HOLD_MS: Final = 250
"""Nothing more is read for so long from a connection whose address has too many: each request costs a refusal."""
QUEUE_SCRAPES_MAX: Final = 4
"""Scrapes of queues at once; the console renders them."""
RENDERING_SHARE: Final = 1 / 16
"""Anyone may ask for metrics, and rendering takes milliseconds: no more of the time than this."""
SPACING_S_MAX: Final = 1.0
"""Longest wait between two renderings."""
_GET_ONLY: Final = 405, b"Content-Type: text/plain\r\nAllow: GET, HEAD\r\n", b"GET only\n"

log = logging.getLogger(__name__)


class ProbePort:
    """Answers these three, and nothing else."""

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self._metrics = metrics
        self._health = health
        self._waiting: list[HTTPRequest] = []
        self._renderer: asyncio.Task[None] | None = None
        self._scraping: set[asyncio.Task[None]] = set()
        self._next_s = 0.0
        """When metrics may be rendered again."""

    async def stop(self) -> None:
        """End what is in progress; call after the HTTP server was drained."""
        tasks = [*self._scraping, *([] if self._renderer is None else [self._renderer])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            answer: dict[str, Any] = {"status": "ready"}
            if reason is not None:
                answer = {"status": "not ready", "reason": reason}
            if notices := self._health.notices():
                answer["notices"] = notices
            _respond(request, _readiness(self._health, reason), answer)
        elif path == b"/metrics":
            self._scrape(request)
        elif path == b"/metrics/queues":
            self._scrape_queues(request)
        elif path == b"/":
            self._lead_to_console(request)
        elif path.startswith(b"/admin/") and self._health.state == "starting":
            _respond(
                request, 503, {"error": {"code": "ServiceUnavailable", "message": "The process is starting."}}
            )
        else:
            request.respond(404, b"Content-Type: text/plain\r\n", b"nothing is here\n")

    def _lead_to_console(self, request: HTTPRequest) -> None:
        url = self._metrics.console_url
        # A browser of another machine would look for the console on its own.
        if url and (
            not Address(urlsplit(url).hostname or "", 0).is_loopback or Address(request.peer, 0).is_loopback
        ):
            request.respond(302, f"Location: {url.rstrip('/')}/\r\nCache-Control: no-store\r\n".encode(), b"")
            return
        text = b"nothing is here: no address of a console is known, see the setting console_url\n"
        request.respond(404, b"Content-Type: text/plain\r\n", text)

    def _scrape(self, request: HTTPRequest) -> None:
        waiting = self._waiting
        of_peer = sum(other.peer == request.peer for other in waiting)
        if len(waiting) >= SCRAPES_MAX or of_peer >= PEER_SCRAPES_MAX:
            if of_peer >= PEER_SCRAPES_MAX:
                request.hold_off(REFUSED_SCRAPE_HOLD_MS)
            request.respond(503, b"Content-Type: text/plain\r\n", b"too many scrapes at once\n")
            return
        waiting.append(request)
        if self._renderer is None:
            self._renderer = asyncio.get_running_loop().create_task(self._render_for_all())

    def _scrape_queues(self, request: HTTPRequest) -> None:
        if len(self._scraping) >= QUEUE_SCRAPES_MAX:
            request.respond(503, b"Content-Type: text/plain\r\n", b"too many scrapes at once\n")
            return
        task = asyncio.get_running_loop().create_task(self._show_queues(request))
        self._scraping.add(task)
        task.add_done_callback(self._scraping.discard)

    async def _show_queues(self, request: HTTPRequest) -> None:
        if self._metrics.queues is None:
            request.respond(404, b"Content-Type: text/plain\r\n", b"no console is here\n")
            return
        try:
            status, text = await self._metrics.queues(request.query.decode("latin-1"))
        except (NotNow, CallerError):
            status, text = 503, b"the console does not answer\n"
        kind = CONTENT_TYPE if status == 200 else "text/plain"
        request.respond(status, f"Content-Type: {kind}\r\n".encode(), text)

    async def _render_for_all(self) -> None:
        """Answer those who wait, as often as some do."""
        while self._waiting:
            await asyncio.sleep(self._next_s - time.monotonic())
            requests, self._waiting = self._waiting, []
            began_s = time.monotonic()
            await self._show_metrics(requests)
            ended_s = time.monotonic()
            spacing_s = (ended_s - began_s) * (1 / RENDERING_SHARE - 1)
            self._next_s = ended_s + min(spacing_s, SPACING_S_MAX)
        self._renderer = None

    async def _show_metrics(self, requests: list[HTTPRequest]) -> None:
        status, headers = 200, f"Content-Type: {CONTENT_TYPE}\r\n".encode()
        try:
            text = await self._metrics.render_in_steps()
        except Exception as error:  # noqa: BLE001 -- the scrape is answered with it
            log_failure(log, "metrics not rendered", error)
            status, headers = 500, b"Content-Type: text/plain\r\n"
            text = b"the metrics cannot be rendered\n"
        for request in requests:
            request.respond(status, headers, text)


def _readiness(health: Health, reason: str | None) -> int:
    """Return the status for balancers: at 404 HAProxy (`disable-on-404`) sends nothing new, and cuts nothing off."""
    if reason is None:
        return 200
    return 404 if health.keeps_clients() else 503


def _respond(request: HTTPRequest, status: int, answer: Mapping[str, Any]) -> None:
    request.respond(status, b"Content-Type: application/json\r\n", msgspec.json.encode(answer))
