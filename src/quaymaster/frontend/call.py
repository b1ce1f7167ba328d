"""One request from its arrival to its reply, and what all requests in progress share.

    handle ──▶ Call ──submit──▶ broker ──▶ outcome ──render──▶ reply
                 │                │  (later, on the loop's thread, all of a commit together)
                 │                ├── client hangs up ──▶ cancelled, no reply
                 │                └── deadline passes ──▶ 503, a late outcome is ignored
                 └── refused ──▶ error reply

A data request costs one Call and one closure; no task, no future, no timer. One sweep a second finds the
late. Outcomes are collected and answered in one go, step by step: rendered, encoded, handed to the HTTP server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from quaymaster.core.limits.bucket import Bucket
from quaymaster.core.values.commands.messages import Elsewhere, ReceiveOutcome
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import (
    CallerError,
    InternalFailure,
    NotNow,
    NotYetKnown,
    QueueDoesNotExist,
    Timeout,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.account_loads import AccountLoad, AccountLoads
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.front_end_metrics import FrontEndMetrics
from quaymaster.frontend.partitions.partitioned_broker import GOES_ON, PartitionedBroker, SubmittedCommand
from quaymaster.frontend.usage.recorder import (
    CLIENT_GONE,
    CLIENT_GONE_STATUS,
    UsageRecorder,
    asked_queue_name,
    describe_change,
)
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.metrics import ActionMetrics, Metrics
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.monitoring.slow_lines import SlowLines
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.routing.broker_client import Submitted
from quaymaster.protocol.actions import sqs_json, sqs_query, sts_query
from quaymaster.protocol.actions.error_replies import error_code, render_error
from quaymaster.protocol.actions.monitoring import MonitoringOutput
from quaymaster.protocol.actions.table import UNKNOWN_ACTION, Action
from quaymaster.protocol.sqs.response import CONTENT_TYPE, Response, WireForm
from quaymaster.protocol.sqs.shapes import Shape

SWEEP_INTERVAL_S: Final = 1.0
WAITED_MS: Final = 250
"""A poll that waited for so long is judged again before it gives messages."""
DRAIN_ANSWER_S: Final = 0.2
"""How long a drained long poll may still get messages the broker was just handing out."""

log = logging.getLogger(__name__)

_monotonic = time.monotonic
_JSON_HEADERS: Final = b"x-amzn-RequestId: %b\r\nContent-Type: application/x-amz-json-1.0\r\n"
_ID_HEADER: Final = b"x-amzn-RequestId: %b\r\n"
_OTHER_HEADERS: Final = b"x-amzn-RequestId: %b\r\nContent-Type: %b\r\n"
_MONITORING_HEADERS: Final = {
    WireForm.CLOUDWATCH_JSON: _JSON_HEADERS,
    WireForm.CLOUDWATCH_CBOR: b"x-amzn-RequestId: %b\r\nContent-Type: application/cbor\r\n"
    b"smithy-protocol: rpc-v2-cbor\r\n",
    WireForm.CLOUDWATCH_QUERY: b"x-amzn-RequestId: %b\r\nContent-Type: text/xml\r\n",
    WireForm.METRICS: b"x-amzn-RequestId: %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
}

NOBODY: Final = Principal.of_root("", "", "")
"""Who asks before that is known."""


class RecordsSpans(Protocol):
    """What makes spans of requests: `frontend/traces`."""

    def record(self, call: Call, code: str, now_ms: float) -> None:
        """Take a call that is over."""
        ...


class Calls:
    """What all requests in progress share. Everything happens on the loop's thread."""

    def __init__(
        self,
        broker: PartitionedBroker,
        metrics: Metrics,
        *,
        broker_timeout_ms: int,
        slow_request_ms: int,
        usage: UsageRecorder | None = None,
        floor: Callable[[], int] = lambda: 0,
        loads: AccountLoads,
        knows_enough: Callable[[], bool] = lambda: True,
        traces: RecordsSpans | None = None,
    ) -> None:
        """`floor`: the authorization floor that this front end follows. `knows_enough` tells whether it may answer."""
        self.floor = floor
        self._knows_enough = knows_enough
        self.judge: Callable[[Call], None] = lambda call: None
        """Judges a poll before its answer, if its permissions may have been taken away, or have ended, meanwhile."""
        self.broker = broker
        self.loads = loads
        self.metrics = metrics
        self.counts = FrontEndMetrics()
        self.usage = usage
        """Takes a record of every request; None: they are not wanted."""
        self.traces = traces
        self.broker_timeout_ms = broker_timeout_ms
        self.slow_request_ms = slow_request_ms or float("inf")
        self.waiting: set[Call] = set()
        """Those whose outcome is awaited."""
        self.replied: list[tuple[Call, Outcome | Exception]] = []
        """Outcomes that came in this pass of the loop."""
        self.long_polls = 0
        self.slow_lines = SlowLines()
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
        return await self.broker.ask(command)

    def reply(self, call: Call, outcome: Outcome | Exception) -> None:
        """Take the broker's answer; it is passed on with all others of this pass of the loop."""
        replied = self.replied
        if not replied:
            asyncio.get_running_loop().call_soon(self.answer_replied)
        replied.append((call, outcome))

    def answer_replied(self) -> None:
        """Pass on the answers that have come."""
        replied, self.replied = self.replied, []
        now_ms = _monotonic() * 1000
        rendered: list[tuple[Call, Shape | None]] = []
        for call, outcome in replied:
            if call.is_done:  # a late one is forgotten: the client was told that it is unknown
                continue
            if (type(outcome) is Elsewhere or type(outcome) is QueueDoesNotExist) and call.go_on(outcome):
                continue
            call.leave(now_ms)
            if isinstance(outcome, Exception):
                call.fail(outcome)
                continue
            try:
                if self._may_have_ended(call, outcome, now_ms):
                    self.judge(call)
                rendered.append((call, call.render(outcome)))
            except NotYetKnown as unknown:
                unknown.when_known(partial(self._render_when_known, call, outcome))
            except Exception as error:  # noqa: BLE001 -- the request is answered with it
                call.fail(error)
        encoded: list[tuple[Call, bytes, bytes]] = []
        for call, output in rendered:
            try:
                encoded.append((call, *call.encode(output)))
            except Exception as error:  # noqa: BLE001 -- the request is answered with it
                call.fail(error)
        for call, headers, body in encoded:
            call.request.respond(200, headers, body)
        for call, _, body in encoded:
            call.count("OK", now_ms, 200, len(body))
        counts = self.counts
        for call, _, _ in encoded:
            phase = counts.poll if call.wait_ms else counts.broker
            phase.observe((now_ms - call.times.submitted_ms) / 1000)
        if encoded:
            counts.render.observe(_monotonic() - now_ms / 1000, len(encoded))

    def _render_when_known(self, call: Call, outcome: Outcome, error: CallerError | NotNow | None) -> None:
        """Answer a call whose messages are encrypted with a data key that had to be asked for."""
        try:
            if error is not None:
                raise error
            if self._may_have_ended(call, outcome, _monotonic() * 1000):
                self.judge(call)
            call.succeed(call.render(outcome))
        except NotYetKnown as unknown:  # they may be encrypted with several
            unknown.when_known(partial(self._render_when_known, call, outcome))
        except Exception as failure:  # noqa: BLE001 -- the request is answered with it
            call.fail(failure)

    def _may_have_ended(self, call: Call, outcome: Outcome, now_ms: float) -> bool:
        """Tell whether a poll may no longer have what it was allowed when it was parked.

        Sessions expire and conditions end with time alone, which no floor tells of. A process that was stopped, or cut
        off, may not have heard of the floor. A poll that comes back at once is like any other receive, and an empty
        answer gives nothing away.
        """
        if not call.wait_ms:
            return False
        if call.floor != self.floor() or not self._knows_enough():
            return True
        has_waited = now_ms - call.times.decoded_ms >= WAITED_MS
        return has_waited and isinstance(outcome, ReceiveOutcome) and bool(outcome.deliveries)

    def expire(self, now_ms: float) -> None:
        """Answer every request whose outcome is late, as unknown."""
        late = [call for call in self.waiting if call.deadline_ms <= now_ms]
        for call in late:
            call.on_late()

    def _sweep(self) -> None:
        self.start()
        self.expire(_monotonic() * 1000)


def cannot_render(outcome: Outcome) -> Shape | None:
    """Stand for the rendering of a call that was not submitted: it has no outcome."""
    raise AssertionError("a call that was not submitted has no outcome")


class PassTimes(msgspec.Struct, gc=False):
    """When the requests of one pass had come how far, in ms of `time.monotonic`; 0 until then."""

    started_ms: float
    authenticated_ms: float = 0.0
    decoded_ms: float = 0.0
    submitted_ms: float = 0.0


class Call(msgspec.Struct, eq=False):
    """One request in progress. Answered once, by `succeed` or `fail`; not at all if the client has gone."""

    calls: Calls
    request: HTTPRequest
    request_id: str
    counted: ActionMetrics
    times: PassTimes
    form: WireForm = WireForm.JSON
    cors: bytes = b""
    action: Action = UNKNOWN_ACTION
    principal: Principal = NOBODY
    encoded: bytes = b""
    """A Query request's parameters."""
    given: Shape | None = None
    """The action's input."""
    is_control: bool = False
    is_done: bool = False
    replied_ms: float = 0.0
    deadline_ms: float = 0.0
    wait_ms: int = 0
    floor: int = 0
    """Of a poll: the authorization floor when it was parked."""
    queue_name: str = ""
    meant: Any = None
    """What the input means, for actions whose input is checked before their queue is found."""
    queue: QueueDefinition | None = None
    """What the action is about; see `allow`."""
    others: tuple[QueueDefinition, ...] = ()
    """Of a move, its destination; of a consumer group, its log; of a log whose messages are counted, its group.

    Of a completion, the queue of each message it sends; of a send, the queues whose messages it completes."""
    recorded_as: Action | None = None
    """What it is in records of usage, where that is another action."""
    is_refreshed: bool = False
    """Whether it was asked how the queue is now."""
    payload_bytes: int = 0
    """Of the messages sent or returned: bodies and attributes."""
    message_count: int = 0
    """Messages that were stored, delivered, deleted or changed."""
    duplicate_count: int = 0
    """Of those stored or deleted, how many were so before."""
    trace_headers: tuple[str, ...] = ()
    """Of the messages returned, if spans are made."""
    debtors: tuple[Bucket, ...] = ()
    """Buckets of limits on bytes, which are charged for its reply."""
    change: tuple[str, str] | None = None
    """What was asked and answered of an action that changes a queue, as JSON."""
    load: AccountLoad | None = None
    """Of its account, while it waits for a broker."""
    command: SubmittedCommand | None = None
    """What was submitted, until it has gone on."""
    submitted: Submitted | None = None
    render: Callable[[Outcome], Shape | None] = cannot_render

    @property
    def resolved(self) -> QueueDefinition:
        """The queue of an action that is about one."""
        queue = self.queue
        assert queue is not None, "a call that is allowed has its queue"
        return queue

    # The way to the broker and back.

    def submit(self, command: SubmittedCommand, render: Callable[[Outcome], Shape | None]) -> None:
        """Send a command; `render` makes the output of its outcome, or raises what the caller is told."""
        calls = self.calls
        self.render = render
        self.command = command
        self.deadline_ms = self.times.decoded_ms + calls.broker_timeout_ms
        request = REQUEST_ID.set(self.request_id)
        try:
            self.submitted = calls.broker.submit(command, self.on_outcome)
        finally:
            REQUEST_ID.reset(request)
        calls.waiting.add(self)
        self.load = load = calls.loads.of(self.principal.account_id)
        load.requests += 1

    def submit_poll(
        self, command: SubmittedCommand, render: Callable[[Outcome], Shape | None], wait_ms: int
    ) -> None:
        """Send a receive that may be parked for `wait_ms`: taken back when the client hangs up."""
        self.submit(command, render)
        self.wait_ms = wait_ms
        self.floor = self.calls.floor()
        self.deadline_ms += wait_ms
        self.calls.long_polls += 1
        if self.load is not None:
            self.load.requests -= 1
            self.calls.loads.begin_poll(self.load, self)
        self.request.on_disconnect = self.on_disconnect
        self.request.hurry_by(self.on_hurry)

    def go_on(self, outcome: Elsewhere | QueueDoesNotExist) -> bool:
        """Go on where the partition is now that the command was to go to; return false for what has gone on before.

        A poll goes on for the rest of its wait.
        """
        command, self.command = self.command, None
        if not isinstance(command, GOES_ON):
            return False
        if self.wait_ms:
            left_ms = self.deadline_ms - self.calls.broker_timeout_ms - _monotonic() * 1000
            command = msgspec.structs.replace(command, wait_ms=max(1, round(left_ms)))
        request = REQUEST_ID.set(self.request_id)
        try:
            self.submitted = self.calls.broker.go_on(command, outcome, self.on_outcome)
        finally:
            REQUEST_ID.reset(request)
        return True

    def on_outcome(self, outcome: Outcome | Exception) -> None:
        """Take the broker's answer."""
        self.calls.reply(self, outcome)

    def on_disconnect(self) -> None:
        """The client has gone: no messages may be handed out in its name."""
        if self.is_done:
            return
        if self.submitted is not None:
            self.submitted.cancel()
        self.leave(0.0)
        now_ms = _monotonic() * 1000
        self.counted.observe(CLIENT_GONE, (now_ms - self.request.received_ms) / 1000)
        if self.calls.usage is not None:
            self.calls.usage.record(self, CLIENT_GONE, CLIENT_GONE_STATUS, now_ms, 0)
        if self.calls.traces is not None:
            self.calls.traces.record(self, CLIENT_GONE, now_ms)
        self._let_go()

    def on_hurry(self) -> None:
        """The server stops, or others need the connection: a poll still parked ends empty, one being served gets its
        messages.
        """
        if self.is_done:
            return
        if self.submitted is not None:
            self.submitted.cancel()
        asyncio.get_running_loop().call_later(DRAIN_ANSWER_S, self._end_empty)

    def on_late(self) -> None:
        """The broker did not answer in time."""
        if self.submitted is not None:
            self.submitted.cancel()
        self.leave(0.0)
        self.fail(Timeout())

    def _end_empty(self) -> None:
        if self.is_done:
            return
        if self.submitted is not None:
            self.submitted.cancel()  # it may have gone on meanwhile
        self.leave(0.0)
        assert self.action.output is not None, "only ReceiveMessage waits"
        self.succeed(self.action.output())

    def leave(self, replied_ms: float) -> None:
        """Wait no longer. `replied_ms` is when the broker answered, 0 when it did not."""
        self.is_done = True
        self.replied_ms = replied_ms
        calls = self.calls
        calls.waiting.discard(self)
        load = self.load
        if self.wait_ms:
            calls.long_polls -= 1
            if load is not None:
                calls.loads.end_poll(load, self)
        elif load is not None:
            load.requests -= 1
        self.load = None

    # The reply.

    @property
    def is_begun(self) -> bool:
        """Whether an action that runs as a task was begun."""
        return self.is_control

    def encode(self, output: Shape | None) -> tuple[bytes, bytes]:
        """Return header lines and body of the reply with the action's output."""
        form = self.form
        request_id = self.request_id
        if form is WireForm.JSON:
            return _JSON_HEADERS % request_id.encode() + self.cors, sqs_json.encode_response(output)
        if isinstance(output, MonitoringOutput):
            return _MONITORING_HEADERS[form] % request_id.encode() + self.cors, output.body
        if form is WireForm.STS:
            assert output is not None, "actions of STS have outputs"
            body = sts_query.encode_response(self.action, output, request_id)
        else:
            body = sqs_query.encode_response(self.action, output, request_id, form)
        return _OTHER_HEADERS % (request_id.encode(), CONTENT_TYPE[form]) + self.cors, body

    def succeed(self, output: Shape | None) -> None:
        """Answer with the action's output."""
        headers, body = self.encode(output)
        self.is_done = True
        if self.is_control and self.calls.usage is not None:
            self.change = describe_change(self.action, self.given, output)
        self._answer("OK", 200, headers, body)

    def succeed_with(self, headers: bytes, body: bytes) -> None:
        """Answer with a body that is no JSON; `headers` say what it is."""
        self.is_done = True
        self.request.respond(200, _ID_HEADER % self.request_id.encode() + headers + self.cors, body)
        self.count("OK", _monotonic() * 1000, 200, len(body))

    def fail(self, error: Exception) -> None:
        """Answer with an error; what is neither the caller's nor "not now" is a bug of ours, and logged."""
        if not isinstance(error, CallerError | NotNow):
            log_failure(
                log,
                "request failed",
                error,
                action=self.action.name,
                request=self.request_id,
                queue=self.queue_name,
            )
            error = InternalFailure()
        self.is_done = True
        if not self.queue_name:
            self.queue_name = asked_queue_name(self.given)
        response = render_error(error, self.form, self.request_id)
        if self.given is not None and self.calls.usage is not None:
            self.change = describe_change(self.action, self.given, None)
        headers = render_headers(response) + self.cors
        self._answer(error_code(error), response.status, headers, response.body)

    def throttle(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer that it came too soon: nothing was done."""
        self.is_done = True
        self.request.respond(status, headers + self.cors, body)
        self.count("RequestThrottled", _monotonic() * 1000, status, len(body))

    def _answer(self, code: str, status: int, headers: bytes, body: bytes) -> None:
        """Answer and record; what is owed in the other order, its record on the disk first.

        Where that is not written in time, the client of a change that was made is told that the outcome is unknown, and
        credentials are not given.
        """
        request, usage = self.request, self.calls.usage
        if usage is None or not self.action.is_owed or not self.principal.account_id:
            request.respond(status, headers, body)
            self.count(code, _monotonic() * 1000, status, len(body))
            return
        self.count(code, _monotonic() * 1000, status, len(body))
        respond = partial(request.respond, status, headers, body)
        usage.when_written(respond, self._answer_late if status == HTTPStatus.OK else None)

    def _answer_late(self) -> None:
        usage = self.calls.usage
        assert usage is not None, "the answer waited for its record"
        response = render_error(usage.audit.not_written(), self.form, self.request_id)
        self.request.respond(response.status, render_headers(response) + self.cors, response.body)

    def count(self, code: str, now_ms: float, status: int, response_bytes: int) -> None:
        """Count and record the answered request, and log it if it was slow."""
        took_ms = now_ms - self.request.received_ms
        self.counted.observe(code, took_ms / 1000)
        for bucket in self.debtors:
            bucket.charge(response_bytes, now_ms)
        usage = self.calls.usage
        if self.recorded_as is not None:
            self.action = self.recorded_as
        if usage is not None:
            usage.record(self, code, status, now_ms, response_bytes)
        if self.calls.traces is not None:
            self.calls.traces.record(self, code, now_ms)
        if took_ms > self.calls.slow_request_ms:
            self._log_if_slow(code, took_ms)
        self._let_go()

    def _let_go(self) -> None:
        """Refer to nothing that refers back: what was answered is freed at once, with all its body's bytes."""
        self.submitted = self.command = None
        self.render = cannot_render
        if self.wait_ms:
            self.request.on_disconnect = self.request.on_hurry = None

    def _log_if_slow(self, code: str, took_ms: float) -> None:
        times = self.times
        now_ms = _monotonic() * 1000
        broker_ms = self.replied_ms - times.submitted_ms if self.replied_ms else 0.0
        waited_ms = min(broker_ms, self.wait_ms)
        if took_ms - waited_ms <= self.calls.slow_request_ms:
            return
        left_out = self.calls.slow_lines.enter(now_ms)
        if left_out is None:
            return
        authenticated_ms = times.authenticated_ms or now_ms
        decoded_ms = times.decoded_ms or now_ms
        log_event(
            log,
            logging.WARNING,
            "request was slow",
            action=self.action.name,
            queue=self.queue_name or None,
            request=self.request_id,
            code=code,
            took_ms=round(took_ms, 1),
            queued_ms=round(times.started_ms - self.request.received_ms, 1),
            # Of the whole pass: the requests that came together are authenticated together, and so on.
            auth_ms=round(authenticated_ms - times.started_ms, 1),
            parse_ms=round(decoded_ms - authenticated_ms, 1),
            # A control action asks metadata and journal as it goes; one on messages prepares a command for the broker.
            control_ms=round(now_ms - decoded_ms, 1) if self.is_control else None,
            prepare_ms=None if self.is_control else round((times.submitted_ms or now_ms) - decoded_ms, 1),
            broker_ms=round(broker_ms, 1),
            waited_ms=round(waited_ms, 1),
            render_ms=round(now_ms - self.replied_ms, 1) if self.replied_ms else None,
            left_out=left_out or None,
        )


def render_headers(response: Response) -> bytes:
    """Return a rendered response's headers as the lines the HTTP server takes."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in response.headers])
