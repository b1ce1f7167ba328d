"""What is refused before anything is done for it: in overload, over a limit, and of addresses with wrong signatures.

    requests of a pass ──▶ too many wait ──▶ its address sent wrong signatures ──▶ its account is over a limit ──▶ taken

Refusals come as `RequestThrottled` and say when to ask again. They must cost next to nothing, so they are rendered
once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from quaymaster.core.values.errors import CallerError, MissingAuthenticationToken, NotNow, RequestThrottled
from quaymaster.frontend.call import Call, render_headers
from quaymaster.frontend.callers.authentication import Authentication
from quaymaster.frontend.callers.bad_signatures import BadSignatures
from quaymaster.frontend.cors import CORS
from quaymaster.frontend.front_end_metrics import LIMIT, OVERLOAD, WRONG_SIGNATURES, FrontEndMetrics
from quaymaster.frontend.limits.admission import FEW, GUARD_MS, Admission
from quaymaster.frontend.limits.limits import Limits, Reached
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.frontend.wire_forms import form_of_head
from quaymaster.monitoring.logs import log_event
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.strangers import peer_name
from quaymaster.protocol.actions.error_replies import render_error
from quaymaster.protocol.sqs.response import WireForm

Reply = tuple[int, bytes, bytes]
"""Status, header lines and body."""

log = logging.getLogger(__name__)

_monotonic = time.monotonic


class ThrottledReplies:
    """What a refused request is told, made ready: a refusal must cost next to nothing."""

    _ID: Final = b"00000000-0000-4000-a000-000000000000"
    _HINTS: Final = b"Retry-After: %d\r\nx-amz-retry-after: %d\r\n"

    def __init__(self) -> None:
        self._rendered: dict[WireForm, tuple[int, list[bytes], list[bytes]]] = {}
        """Of each form the status, and what stands around the id in header lines and body."""
        for form in WireForm:
            response = render_error(RequestThrottled(), form, self._ID.decode())
            headers, body = render_headers(response), response.body
            self._rendered[form] = response.status, headers.split(self._ID), body.split(self._ID)

    def reply(
        self, form: WireForm, request_id: str, retry_ms: int, more: bytes = b""
    ) -> tuple[int, bytes, bytes]:
        """Return status, header lines with some `more`, and body; they say to ask again after `retry_ms`."""
        status, headers, body = self._rendered[form]
        given = request_id.encode()
        hints = self._HINTS % (-(-retry_ms // 1000), retry_ms)
        return status, given.join(headers) + hints + more, given.join(body)


class Refusals:
    """Refuses for one front end. `count` notes an answer by its code and seconds."""

    def __init__(
        self,
        admission: Admission,
        authentication: Authentication,
        limits: Limits,
        cors: CORS,
        *,
        count: Callable[[str, float], None],
        counts: FrontEndMetrics,
        usage: UsageRecorder | None,
        next_id: Callable[[], str],
    ) -> None:
        self.bad = BadSignatures()
        self._admission = admission
        self._authentication = authentication
        self._limits = limits
        self._cors = cors
        self._count = count
        self._counts = counts
        self._usage = usage
        self._next_id = next_id
        self._replies = ThrottledReplies()
        self._is_overloaded = False
        """Whether the log says that requests are refused."""
        self._looker: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Look no longer for the end of overload."""
        if self._looker is not None:
            self._looker.cancel()

    def by_head(self, request: HTTPRequest) -> Reply | None:
        """Return what refuses a request whose body is not worth reading, None where there is no reason here."""
        if self.bad.is_refusing:
            wait_ms = self.bad.wait_ms(request, _monotonic() * 1000)
            if wait_ms:
                self._counts.throttle(WRONG_SIGNATURES)
                return self._throttled_reply(request, wait_ms)
        reached = self._limit_reached_by(request) if self._limits.is_refusing() else None
        return None if reached is None else self._refuse_in_time(request, reached)

    def take(self, requests: list[HTTPRequest], now_ms: float, waiting: int) -> list[HTTPRequest]:
        """Answer those of a pass that are refused; return the others. `waiting` wait for a broker already."""
        admission, count = self._admission, len(requests)
        if requests[0].is_strangers and admission.has_room(count, waiting):
            pass  # Strangers wait for their turns: that says nothing of how much there is to do.
        elif not admission.takes_all(now_ms, _oldest_ms(requests), count, waiting):
            requests = self._refuse_excess(requests, now_ms)
        if self.bad.is_refusing:
            requests = self._refuse_bad(requests, now_ms)
        if self._limits.is_refusing():
            requests = self._refuse_limited(requests)
        return requests

    def limit(self, call: Call, reached: Reached) -> None:
        """Answer a call that reached a limit."""
        retry_ms = reached.retry_ms
        self._counts.throttle(LIMIT)
        call.request.hold_off_if_early(retry_ms)
        call.throttle(*self._replies.reply(call.form, call.request_id, retry_ms, reached.meter.header))

    def _refuse_excess(self, requests: list[HTTPRequest], now_ms: float) -> list[HTTPRequest]:
        """Answer what is too much, before anything is done for it; return what is taken.

        Flows with fewest requests in the pass come first, so those with most are refused first.
        """
        admission = self._admission
        taken = []
        for request in _lightest_first(requests):
            if admission.takes(now_ms, request.received_ms):
                taken.append(request)
            else:
                self._throttle(request, admission.hold_ms(now_ms))
        if len(taken) < len(requests) and not self._is_overloaded:
            self._is_overloaded = True
            log_event(log, logging.WARNING, "overloaded, requests are refused")
            self._look_for_end_later(admission.refused - len(requests) + len(taken))
        return taken

    def _throttle(self, request: HTTPRequest, hold_ms: int) -> None:
        self._counts.throttle(OVERLOAD)
        request.hold_off(hold_ms)
        request.respond(*self._throttled_reply(request, hold_ms))

    def _throttled_reply(
        self, request: HTTPRequest, retry_ms: int, more: bytes = b""
    ) -> tuple[int, bytes, bytes]:
        """Return what a request is told that nothing was done for, and count it."""
        form = form_of_head(request)
        status, headers, body = self._replies.reply(form, self._next_id(), retry_ms, more)
        origin = request.first.get(b"origin")
        if origin is not None:
            headers += self._cors.headers(origin.decode("latin-1"))
        self._count("RequestThrottled", 0.0)
        self.record(request, "RequestThrottled", status, form, body)
        return status, headers, body

    def _refuse_bad(self, requests: list[HTTPRequest], now_ms: float) -> list[HTTPRequest]:
        """Answer those of addresses with too many wrong signatures, and look at none of them; return the others.

        A connection by which more come before the time that it was told is not read until then.
        """
        taken = []
        for request in requests:
            wait_ms = self.bad.wait_ms(request, now_ms)
            if wait_ms:
                self._counts.throttle(WRONG_SIGNATURES)
                request.hold_off_if_early(wait_ms)
                request.respond(*self._throttled_reply(request, wait_ms))
            else:
                taken.append(request)
        return taken

    def note_bad(self, request: HTTPRequest, error: CallerError | NotNow) -> None:
        # One without a signature costs next to nothing.
        if isinstance(error, CallerError) and not isinstance(error, MissingAuthenticationToken):
            self.bad.note(request, _monotonic() * 1000)

    def _refuse_limited(self, requests: list[HTTPRequest]) -> list[HTTPRequest]:
        """Answer those whose account has reached a limit, before their signatures are looked at; return the others."""
        taken = []
        for request in requests:
            reached = self._limit_reached_by(request)
            if reached is None:
                taken.append(request)
            else:
                request.respond(*self._refuse_in_time(request, reached))
        return taken

    def _limit_reached_by(self, request: HTTPRequest) -> Reached | None:
        claimed = self._authentication.claimed(request)
        if claimed is None:
            return None
        key, account_id = claimed
        is_known = request.is_known_by(key)
        return self._limits.reached_by(account_id, request, is_known=is_known)

    def _refuse_in_time(self, request: HTTPRequest, reached: Reached) -> tuple[int, bytes, bytes]:
        retry_ms = reached.retry_ms
        self._counts.throttle(LIMIT)
        request.hold_off_if_early(retry_ms)
        return self._throttled_reply(request, retry_ms, reached.meter.header)

    def record(self, request: HTTPRequest, code: str, status: int, form: WireForm, body: bytes) -> None:
        usage = self._usage
        if usage is not None:
            usage.record_refused(
                request,
                code,
                status,
                protocol=form.protocol,
                request_bytes=len(request.body),
                response_bytes=len(body),
            )

    def _look_for_end_later(self, refused_before: int) -> None:
        loop = asyncio.get_running_loop()
        self._looker = loop.call_later(GUARD_MS / 1000, self._look_for_end, refused_before)

    def _look_for_end(self, refused_before: int) -> None:
        if self._admission.is_guarded(_monotonic() * 1000):
            self._look_for_end_later(refused_before)
        else:
            self._is_overloaded = False
            refused = self._admission.refused - refused_before
            log_event(log, logging.INFO, "overload ended", refused=refused)


def _oldest_ms(requests: list[HTTPRequest]) -> float:
    """Return when the first of them came; few are not refused, whenever they came."""
    if len(requests) <= FEW:
        return requests[0].received_ms
    return min([request.received_ms for request in requests])


def _lightest_first(requests: list[HTTPRequest]) -> list[HTTPRequest]:
    """Return requests of accounts, or addresses, with fewest of them first; those with equally many as they came."""
    flows = [request.account or peer_name(request.peer) for request in requests]
    counts = Counter(flows)
    order = sorted(range(len(requests)), key=lambda at: counts[flows[at]])
    return [requests[at] for at in order]
