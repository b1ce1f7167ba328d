"""One request from the moment its action is known to its reply, and what all requests in progress share.

    handle ──▶ Call ──submit──▶ broker ──▶ outcome ──render──▶ reply
                 │                │  (later, on the loop's thread)
                 │                ├── client hangs up ──▶ cancelled, no reply
                 │                └── deadline passes ──▶ 503, a late outcome is ignored
                 └── refused ──▶ error reply

A data request costs one Call and one closure; no task, no future, no timer. One sweep a second finds the
late.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quaymaster.core.commands import Command, Outcome
from quaymaster.core.errors import CallerError, InternalFailure, NotNow, Timeout
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.metrics import ActionMetrics, Metrics
from quaymaster.net.broker_client import BrokerClient, Submitted
from quaymaster.net.http_message import HTTPRequest
from quaymaster.protocol import sqs_json, sqs_query
from quaymaster.protocol.errors import render_error, wire_error
from quaymaster.protocol.response import CONTENT_TYPE, Response, WireForm
from quaymaster.protocol.shapes import Action, Shape

if TYPE_CHECKING:
    from quaymaster.frontend.authentication import Principal

SWEEP_INTERVAL_S: Final = 1.0
DRAIN_ANSWER_S: Final = 0.2
"""How long a drained long poll may still get messages the broker was just handing out."""

log = logging.getLogger(__name__)

_monotonic = time.monotonic
_JSON_HEADERS: Final = b"x-amzn-RequestId: %b\r\nContent-Type: application/x-amz-json-1.0\r\n"
_OTHER_HEADERS: Final = b"x-amzn-RequestId: %b\r\nContent-Type: %b\r\n"


class Calls:
    """What all requests in progress share. Everything happens on the loop's thread."""

    def __init__(
        self, broker: BrokerClient, metrics: Metrics, *, broker_timeout_ms: int, slow_request_ms: int
    ) -> None:
        self.broker = broker
        self.metrics = metrics
        self.broker_timeout_ms = broker_timeout_ms
        self.slow_request_ms = slow_request_ms or float("inf")
        self.waiting: set[Call] = set()
        """Those whose outcome is awaited."""
        self.long_polls = 0
        self.is_draining = False
        """Set when the server wants to stop: from then on nobody waits for messages."""
        self._sweeper: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look for late outcomes."""
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)

    def stop(self) -> None:
        """Stop looking."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    async def ask(self, command: Command) -> Outcome:
        """Send a command for an action that runs as a task, and return the outcome. Raises as `ask` does."""
        return await ask(self.broker, command)

    def expire(self, now_ms: float) -> None:
        """Answer every request whose outcome is late, as unknown."""
        late = [call for call in self.waiting if call.deadline_ms <= now_ms]
        for call in late:
            call.on_late()

    def _sweep(self) -> None:
        self.expire(_monotonic() * 1000)
        self.start()


class Call:
    """One request in progress. Answered once, by `succeed` or `fail`; not at all if the client has gone."""

    __slots__ = (
        "action",
        "authenticated_ms",
        "calls",
        "cors",
        "counted",
        "deadline_ms",
        "decoded_ms",
        "form",
        "is_control",
        "is_done",
        "principal",
        "queue_name",
        "render",
        "replied_ms",
        "request",
        "request_id",
        "started_ms",
        "submitted",
        "submitted_ms",
        "wait_ms",
    )

    def __init__(
        self,
        calls: Calls,
        request: HTTPRequest,
        request_id: str,
        form: WireForm,
        action: Action,
        counted: ActionMetrics,
        principal: Principal,
        cors: bytes,
        started_ms: float,
    ) -> None:
        self.calls = calls
        self.request = request
        self.request_id = request_id
        self.form = form
        self.action = action
        self.counted = counted
        self.principal = principal
        self.cors = cors
        self.started_ms = started_ms
        self.authenticated_ms = _monotonic() * 1000
        self.decoded_ms = 0.0
        self.is_control = False
        self.submitted_ms = 0.0
        self.replied_ms = 0.0
        self.deadline_ms = 0.0
        self.wait_ms = 0
        self.is_done = False
        self.queue_name = ""
        self.submitted: Submitted | None = None
        self.render: Callable[[Outcome], Shape | None]

    # The way to the broker and back.

    def submit(self, command: Command, render: Callable[[Outcome], Shape | None]) -> None:
        """Send a command; `render` makes the output of its outcome, or raises what the caller is told."""
        calls = self.calls
        self.render = render
        self.submitted_ms = now_ms = _monotonic() * 1000
        self.deadline_ms = now_ms + calls.broker_timeout_ms
        calls.waiting.add(self)
        self.submitted = calls.broker.submit(command, self.on_outcome)

    def submit_poll(self, command: Command, render: Callable[[Outcome], Shape | None], wait_ms: int) -> None:
        """Send a receive that may be parked for `wait_ms`: taken back when the client hangs up."""
        self.submit(command, render)
        self.wait_ms = wait_ms
        self.deadline_ms += wait_ms
        self.calls.long_polls += 1
        self.request.on_disconnect = self.on_disconnect
        self.request.on_drain = self.on_drain

    def on_outcome(self, outcome: Outcome | Exception) -> None:
        """Take the broker's answer. A late one is forgotten: the client was told that it is unknown."""
        if self.is_done:
            return
        self.replied_ms = _monotonic() * 1000
        self._leave()
        if isinstance(outcome, Exception):
            self.fail(outcome)
            return
        try:
            output = self.render(outcome)
        except Exception as error:
            self.fail(error)
            return
        self.succeed(output)

    def on_disconnect(self) -> None:
        """The client has gone: nobody must be handed messages in its name."""
        if self.is_done:
            return
        self.is_done = True
        self._leave()
        if self.submitted is not None:
            self.submitted.cancel()
        self.counted.observe("ClientGone", _monotonic() - self.request.received_ms / 1000)

    def on_drain(self) -> None:
        """The server stops: a poll still parked ends empty; one being served gets its messages."""
        self.calls.is_draining = True
        if self.is_done:
            return
        if self.submitted is not None:
            self.submitted.cancel()
        asyncio.get_running_loop().call_later(DRAIN_ANSWER_S, self._end_empty)

    def on_late(self) -> None:
        """The broker did not answer in time."""
        if self.submitted is not None:
            self.submitted.cancel()
        self._leave()
        self.fail(Timeout())

    def _end_empty(self) -> None:
        if self.is_done:
            return
        self._leave()
        assert self.action.output is not None, "only ReceiveMessage waits"
        self.succeed(self.action.output())

    def _leave(self) -> None:
        calls = self.calls
        calls.waiting.discard(self)
        if self.wait_ms:
            calls.long_polls -= 1

    # The reply.

    def succeed(self, output: Shape | None) -> None:
        """Answer with the action's output."""
        form = self.form
        request_id = self.request_id
        if form is WireForm.JSON:
            body = sqs_json.encode_response(output)
            headers = _JSON_HEADERS % request_id.encode()
        else:
            body = sqs_query.encode_response(self.action, output, request_id, form)
            headers = _OTHER_HEADERS % (request_id.encode(), CONTENT_TYPE[form])
        self.is_done = True
        self.request.respond(200, headers + self.cors, body)
        self._count("OK")

    def fail(self, error: Exception) -> None:
        """Answer with an error; what is neither the caller's nor "not now" is a bug of ours, and logged."""
        if not isinstance(error, CallerError | NotNow):
            log_failure(
                log,
                "request failed",
                error,
                action=self.action.name,
                request_id=self.request_id,
                queue=self.queue_name,
            )
            error = InternalFailure()
        self.is_done = True
        respond_error(self.request, error, self.form, self.request_id, self.cors)
        self._count(wire_error(error).code)

    def _count(self, code: str) -> None:
        now_ms = _monotonic() * 1000
        took_ms = now_ms - self.request.received_ms
        self.counted.observe(code, took_ms / 1000)
        if took_ms > self.calls.slow_request_ms:
            self._log_if_slow(code, now_ms, took_ms)

    def _log_if_slow(self, code: str, now_ms: float, took_ms: float) -> None:
        broker_ms = self.replied_ms - self.submitted_ms if self.replied_ms else 0.0
        waited_ms = min(broker_ms, self.wait_ms)
        if took_ms - waited_ms <= self.calls.slow_request_ms:
            return
        decoded_ms = self.decoded_ms or now_ms
        handled_ms = (self.submitted_ms or now_ms) - decoded_ms
        log_event(
            log,
            logging.WARNING,
            "request was slow",
            action=self.action.name,
            queue=self.queue_name or None,
            request_id=self.request_id,
            code=code,
            took_ms=round(took_ms, 1),
            queued_ms=round(self.started_ms - self.request.received_ms, 1),
            auth_ms=round(self.authenticated_ms - self.started_ms, 1),
            parse_ms=round(decoded_ms - self.authenticated_ms, 1),
            # A control action asks metadata and journal as it goes; one on messages prepares a command for the broker.
            control_ms=round(handled_ms, 1) if self.is_control else None,
            prepare_ms=None if self.is_control else round(handled_ms, 1),
            broker_ms=round(broker_ms, 1),
            waited_ms=round(waited_ms, 1),
            render_ms=round(now_ms - self.replied_ms, 1) if self.replied_ms else None,
        )


async def ask(broker: BrokerClient, command: Command) -> Outcome:
    """Send a command and return its outcome. The caller's task has the timeout.

    Raises:
        CallerError: what the broker refused.
        NotNow: nothing can be promised.
    """
    answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def reply(outcome: Outcome | Exception) -> None:
        if answered.done():
            return
        if isinstance(outcome, Exception):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)

    broker.submit(command, reply)
    return await answered


def respond_error(
    request: HTTPRequest, error: CallerError | NotNow, form: WireForm, request_id: str, cors: bytes
) -> None:
    """Answer a request with an error in its own form."""
    response = render_error(error, form, request_id)
    request.respond(response.status, render_headers(response) + cors, response.body)


def render_headers(response: Response) -> bytes:
    """Return a rendered response's headers as the lines the HTTP server takes."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in response.headers])
