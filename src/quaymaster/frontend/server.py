"""The SQS endpoint: from an HTTP request to its reply.

    requests ──▶ preflight? ──▶ wire form ──▶ authenticate ──▶ action, decode ──▶ allow ──▶ act: handler ──▶ reply
                                   │
              X-Amz-Target: AmazonSQS.<Action>      AWS JSON 1.0
              Action=<Action> in body or URL        AWS Query: XML, or older JSON if asked with Accept
              signed for sts, or its Version        AWS Query of STS

The requests that came together take each step together: a step's code stays in the processor's caches, and a
request costs a third less than when each takes all steps by itself (decision 17). Actions on messages run as
callbacks; actions on queues as one task each, bounded in number and time. Nothing of a request but its head and
the name of its action is looked at before its signature is verified.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from quaymaster.core.values.errors import (
    AccessDenied,
    CallerError,
    MissingAuthenticationToken,
    NotNow,
    NotYetKnown,
    Overloaded,
    RequestThrottled,
    Timeout,
    UnknownOperation,
)
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.binding import Handlers, TaskHandler
from quaymaster.frontend.admission import GUARD_MS, Admission
from quaymaster.frontend.authentication import Authentication, Unjudged, too_many_connections
from quaymaster.frontend.call import NOBODY, Call, Calls, PassTimes, render_headers
from quaymaster.frontend.parked_polls import ParkedPolls
from quaymaster.frontend.wire_forms import (
    is_for_sts,
    is_signed_for_sts,
    query_form,
    query_parameters,
    queue_of_path,
)
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import ActionMetrics, Metrics, Sample
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.routing.metadata_client import known
from quaymaster.protocol.actions import sqs_json, sqs_query, sts_query
from quaymaster.protocol.actions.table import ACTIONS, UNKNOWN_ACTION, Plane
from quaymaster.protocol.sqs.errors import render_error, wire_error
from quaymaster.protocol.sqs.form_parameters import parse_parameters
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.sqs.shapes import Shape
from quaymaster.protocol.sqs.sigv4 import Service

_LOOPBACK_ORIGIN: Final = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_LOOPBACK_HOST: Final = re.compile(r"(.+\.)?localhost|127(\.[0-9]{1,3}){3}|\[::1\]")
_PORT: Final = re.compile(r":[0-9]*\Z")
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""Sec-Fetch-Site of what a page of this very origin asks, or a person by typing the address."""
_EXPOSED: Final = b"x-amzn-RequestId, x-amzn-query-error, Content-Type, Content-Length, Date"
_ALLOWED: Final = (
    b"authorization, cache-control, content-length, content-md5, content-type, location, x-amz-target, "
    b"x-amz-date, x-amz-content-sha256, x-amz-security-token, x-amz-user-agent, x-amzn-trace-id, "
    b"x-amzn-query-mode, x-amz-api-version, amz-sdk-invocation-id, amz-sdk-request"
)
_PREFLIGHT_MAX_AGE_S: Final = 3600
WEB_IDENTITY_BYTES_MAX: Final = 32 * 1024
"""Of the body of a request that has a web identity token in place of a signature."""
_LENGTH_DIGITS_MAX: Final = 9
UNKNOWN_WAITING_MAX: Final = 10_000
"""Requests that wait at once until metadata has been asked for what they name."""

log = logging.getLogger(__name__)

_monotonic = time.monotonic


class RequestIds:
    """Makes request ids in the form of a UUID: random at each start, then counted up."""

    def __init__(self) -> None:
        random = os.urandom(16).hex()
        self._prefix = f"{random[:8]}-{random[8:12]}-4{random[13:16]}-a{random[17:20]}-"
        self._numbers = itertools.count(int(random[20:], 16) >> 8)

    def next(self) -> str:
        """Return an id that no other request of any start has."""
        return f"{self._prefix}{next(self._numbers):012x}"


class CORS:
    """Which web pages may call the API.

    `origins` is the setting `cors_origins`. Signed requests prove who sends them, so `*` is safe there. With
    open authentication everybody on this machine is let in, and a web page must not borrow that: `*` then
    means pages of this machine, and what any other page makes a browser send is refused, not only left
    unreadable. Origin alone does not show such requests: a browser leaves it out when a page loads an image
    or follows a link, and a name that an attacker points at this machine makes his page same-origin. So
    requests that a page of another site caused (Sec-Fetch-Site), and those of a browser that reached us by a
    name that is neither this machine's nor in `hosts`, are refused as well, unless `is_forced`: other
    machines may then call by any name. Programs that are no browsers may use any name.

    Source: Fetch Metadata Request Headers (W3C); RFC 6454.
    """

    def __init__(
        self, origins: str, *, is_open: bool, is_forced: bool = False, hosts: Iterable[str] = ()
    ) -> None:
        listed = [origin.strip() for origin in origins.split(",") if origin.strip()]
        self._any = "*" in listed
        self._listed = frozenset(listed) - {"*"}
        self.is_open = is_open
        self._is_forced = is_forced
        self._hosts = frozenset(host.lower() for host in hosts)

    def allows(self, origin: str) -> bool:
        """Tell whether a page from `origin` may call the API."""
        if origin in self._listed:
            return True
        return self._any and (not self.is_open or _LOOPBACK_ORIGIN.fullmatch(origin) is not None)

    def why_refused(self, request: HTTPRequest) -> str | None:
        """Return why a request must not be carried out: a web page may have caused it. None when it may."""
        if not self.is_open:
            return None
        origin = request.header(b"origin")
        if origin is not None and not self.allows(origin.decode("latin-1")):
            return "Web pages from this origin may not call this service (see cors_origins)."
        site = request.header(b"sec-fetch-site")
        if origin is None and site is not None and site not in _OWN_SITES:
            return "Web pages of other sites may not call this service (see cors_origins)."
        if self._is_forced:  # then any name may be this service's
            return None
        if (origin is not None or site is not None or _is_of_browser(request)) and not self._is_ours(
            request.header(b"host")
        ):
            return "Web browsers may call this service only as localhost or by its public_url."
        return None

    def _is_ours(self, host: bytes | None) -> bool:
        if host is None:
            return False
        name = _PORT.sub("", host.decode("latin-1").lower())
        return name in self._hosts or _LOOPBACK_HOST.fullmatch(name) is not None

    def headers(self, origin: str) -> bytes:
        """Return the header lines of a reply to a page from `origin`; none when it may not read it."""
        if not self.allows(origin):
            return b""
        allowed = b"*" if self._any and not self.is_open else origin.encode("latin-1")
        lines = b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\n" % (
            allowed,
            _EXPOSED,
        )
        return lines if allowed == b"*" else lines + b"Vary: Origin\r\n"

    def preflight(self, request: HTTPRequest, origin: str) -> bytes:
        """Return the header lines that answer a browser's question."""
        asked = request.header(b"access-control-request-headers")
        return self.headers(origin) + (
            b"Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
            b"Access-Control-Allow-Headers: %b\r\n"
            b"Access-Control-Max-Age: %d\r\n"
        ) % (asked or _ALLOWED, _PREFLIGHT_MAX_AGE_S)


def host_of(url: str) -> str:
    """Return the host of a URL that ends with it, without its port."""
    return _PORT.sub("", url.partition("://")[2])


class ThrottledReplies:
    """What a refused request is told, made ready: a refusal must cost next to nothing."""

    _ID: Final = b"00000000-0000-4000-a000-000000000000"
    _HINTS: Final = b"Retry-After: %d\r\nx-amz-retry-after: %d\r\n"

    def __init__(self) -> None:
        self._rendered: dict[WireForm, tuple[int, bytes, bytes]] = {}
        for form in WireForm:
            response = render_error(RequestThrottled(), form, self._ID.decode())
            self._rendered[form] = response.status, render_headers(response), response.body

    def reply(self, form: WireForm, request_id: str, retry_ms: int) -> tuple[int, bytes, bytes]:
        """Return status, header lines and body; they say to ask again after `retry_ms`."""
        status, headers, body = self._rendered[form]
        given = request_id.encode()
        hints = self._HINTS % (-(-retry_ms // 1000), retry_ms)
        return status, headers.replace(self._ID, given) + hints, body.replace(self._ID, given)


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """Of actions that run as tasks: how many run at once, and for how long.

    Each plane has a budget of its own, so that readers of logs do not keep an operator from creating a queue.
    """

    actions_max: int
    timeout_ms: int
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class FrontEnd:
    """Answers the requests of the SQS port. Give `handle` and `admit` to the HTTP server."""

    def __init__(
        self,
        calls: Calls,
        *,
        authentication: Authentication,
        admission: Admission,
        metrics: Metrics,
        cors: CORS,
        handlers: Handlers,
        allow: Callable[[Call], None],
        check_receive: Callable[[QueueDefinition], None],
        budgets: Mapping[Plane, TaskBudget],
        takes_web_identities: bool = False,
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`allow`: the step of `frontend/allow`. `budgets`: of each plane whose actions run as tasks.

        `takes_web_identities`: clients may ask for a session of a role with a token in place of a signature. `on_stop`
        is called when all requests have ended. `check_receive` raises what a poll is told whose messages could not be
        opened.
        """
        self._on_stop = on_stop
        self._takes_web_identities = takes_web_identities
        self._steps = (self._begin, self._authenticate, self._decode, allow, self._act)
        self._budgets = budgets
        self.calls = calls
        self._allow = allow
        self._check_receive = check_receive
        calls.judge = self._judge_again
        self.polls = ParkedPolls(lambda: calls.waiting, self._judge_again)
        """Tell it when permissions may have been taken away."""
        self._authentication = authentication
        self._admission = admission
        self._throttled = ThrottledReplies()
        self._is_overloaded = False
        """Whether the log says that requests are refused."""
        self._looker: asyncio.TimerHandle | None = None
        self._cors = cors
        self._message_handlers = handlers.message
        self._task_handlers = handlers.task
        self._counted: dict[str, ActionMetrics] = {name: metrics.action(name) for name in ACTIONS}
        self._unknown = metrics.action(UNKNOWN_ACTION.name)
        self._unknown_waiting = 0
        """Requests for what is not in memory, and is being asked for."""
        self._unjudged = Unjudged()
        self._next_id = RequestIds().next
        metrics.add_source(self._samples)

    def start(self) -> None:
        """Begin to watch over requests in progress; call on the loop."""
        self.calls.start()

    async def stop(self) -> None:
        """End what is still in progress; call after the HTTP server was drained."""
        self.calls.stop()
        await self.polls.close()
        if self._looker is not None:
            self._looker.cancel()
        tasks = {task for budget in self._budgets.values() for task in budget.tasks}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._on_stop is not None:
            await self._on_stop()

    def admit(self, request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        """Refuse a request whose body is not worth reading: its head shows that it is not signed as it must be."""
        error = self._authentication.judge_head(request)
        if error is None or (
            isinstance(error, MissingAuthenticationToken) and self._may_be_web_identity(request)
        ):
            return None
        form = WireForm.JSON
        if request.header(b"x-amz-target") is None:
            form = WireForm.STS if is_signed_for_sts(request) else WireForm.QUERY
        request_id = self._next_id()
        response = render_error(error, form, request_id)
        code = wire_error(error).code
        self._unknown.observe(code, 0.0)
        self._record_refused(request, code, response.status, form, response.body)
        origin = request.header(b"origin")
        cors = b"" if origin is None else self._cors.headers(origin.decode("latin-1"))
        return response.status, render_headers(response) + cors, response.body

    def _may_be_web_identity(self, request: HTTPRequest) -> bool:
        """Tell whether an unsigned request may be one for a session of a role, whose body says who asks.

        What it takes is of strangers' share: its connection is one.
        """
        if not self._takes_web_identities or request.header(b"x-amz-target") is not None:
            return False
        length = request.header(b"content-length") or (b"0" if request.method == b"GET" else b"")
        is_short = length.isdigit() and len(length) <= _LENGTH_DIGITS_MAX
        return request.path in (b"/", b"") and is_short and int(length) <= WEB_IDENTITY_BYTES_MAX

    def handle(self, requests: list[HTTPRequest]) -> None:
        """Answer the requests of a pass, each now or later."""
        times = PassTimes(_monotonic() * 1000)
        waiting = len(self.calls.waiting) - self.calls.long_polls
        admission, count = self._admission, len(requests)
        if requests[0].is_strangers and admission.has_room(count, waiting):
            pass  # Strangers wait for their turns: that says nothing of how much there is to do.
        elif not admission.takes_all(times.started_ms, requests[0].received_ms, count, waiting):
            requests = self._refuse_excess(requests, times.started_ms)
        calls, unknown, next_id = self.calls, self._unknown, self._next_id
        carry_out = self._carry_out
        begin, authenticate, decode, allow, act = self._steps
        begun = [Call(calls, request, next_id(), unknown, times) for request in requests]
        begun = [call for call in begun if carry_out(begin, call)]
        begun = [call for call in begun if carry_out(authenticate, call)]
        times.authenticated_ms = _monotonic() * 1000
        begun = [call for call in begun if carry_out(decode, call)]
        times.decoded_ms = _monotonic() * 1000
        begun = [call for call in begun if carry_out(allow, call)]
        for call in begun:
            carry_out(act, call)
        times.submitted_ms = _monotonic() * 1000

    def _refuse_excess(self, requests: list[HTTPRequest], now_ms: float) -> list[HTTPRequest]:
        """Answer what is too much, before anything is done for it; return what is taken."""
        admission = self._admission
        taken = []
        for request in requests:
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
        fields = request.first
        form = WireForm.JSON if b"x-amz-target" in fields else query_form(request)
        request_id = self._next_id()
        status, headers, body = self._throttled.reply(form, request_id, hold_ms)
        origin = fields.get(b"origin")
        if origin is not None:
            headers += self._cors.headers(origin.decode("latin-1"))
        request.hold_off(hold_ms)
        request.respond(status, headers, body)
        self._unknown.observe("RequestThrottled", 0.0)
        self._record_refused(request, "RequestThrottled", status, form, body)

    def _record_refused(
        self, request: HTTPRequest, code: str, status: int, form: WireForm, body: bytes
    ) -> None:
        usage = self.calls.usage
        if usage is not None:
            usage.record_refused(
                request,
                code,
                status,
                is_json=form is WireForm.JSON,
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

    def _carry_out(self, step: Callable[[Call], None], call: Call) -> bool:
        """Take one step with a call; False when that was its last, because it is answered."""
        try:
            step(call)
        except NotYetKnown as unknown:
            self._go_on_when_known(unknown, step, call)
            return False
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            if call.principal is NOBODY and isinstance(error, CallerError):
                call.request.doubt()
            call.fail(error)
            return False
        return not call.is_done

    def _go_on_when_known(self, unknown: NotYetKnown, step: Callable[[Call], None], call: Call) -> None:
        """Take the step again, and those after it, when what it looked for has been asked for."""
        is_strangers = call.principal is NOBODY
        try:
            if self._unknown_waiting >= UNKNOWN_WAITING_MAX:
                raise Overloaded
            if is_strangers:
                self._unjudged.enter(call.request, lambda: call.fail(Overloaded()))
        except Overloaded as error:
            call.fail(error)
            return
        self._unknown_waiting += 1

        def go_on(error: CallerError | NotNow | None) -> None:
            self._unknown_waiting -= 1
            if is_strangers and not self._unjudged.leave(call.request):
                return
            if error is not None:
                call.fail(error)
                return
            for left in self._steps[self._steps.index(step) :]:
                if not self._carry_out(left, call):
                    return

        unknown.when_known(go_on)

    def _begin(self, call: Call) -> None:
        """Find the wire form; answer a browser's question."""
        request = call.request
        fields = request.first
        origin = fields.get(b"origin")
        if origin is not None:
            call.cors = self._cors.headers(origin.decode("latin-1"))
        target = fields.get(b"x-amz-target")
        if target is None:
            call.form = query_form(request)
        if origin is not None and request.method == b"OPTIONS":
            call.is_done = True
            self._answer_preflight(request, origin.decode("latin-1"))
            return
        if self._cors.is_open:
            why_refused = self._cors.why_refused(request)
            if why_refused is not None:
                raise AccessDenied(why_refused)
        if target is None:
            call.encoded = encoded = query_parameters(request)
            if is_for_sts(request, encoded):
                call.form = WireForm.STS
        elif request.method != b"POST":
            raise UnknownOperation

    def _authenticate(self, call: Call) -> None:
        request = call.request
        service: Service = "sts" if call.form is WireForm.STS else "sqs"
        if service == "sts" and self._is_unsigned(request):
            request.doubt()
            return
        call.principal = principal = self._authentication.authenticate(request, service)
        if not request.vouch(principal.access_key_id):
            raise too_many_connections()

    def _judge_again(self, call: Call) -> None:
        """Raise what a poll is told that may go on no longer; NotYetKnown where something must be asked for."""
        floor = self.calls.floor()
        call.principal = self._authentication.renew(call.request)
        self._allow(call)
        self._check_receive(call.resolved)
        call.floor = floor

    def _is_unsigned(self, request: HTTPRequest) -> bool:
        """Tell whether a request is without a signature, and may be: which action it asks for is judged later."""
        return (
            not self._cors.is_open
            and b"authorization" not in request.first
            and b"X-Amz-Signature=" not in request.query
            and self._may_be_web_identity(request)
        )

    def _decode(self, call: Call) -> None:
        request = call.request
        target = request.first.get(b"x-amz-target")
        if target is not None:
            call.action = action = sqs_json.parse_target(target)
            call.counted = self._counted[action.name]
            call.given = sqs_json.decode_request(action, request.body)
        elif call.form is WireForm.STS:
            if request.path not in (b"/", b""):
                raise UnknownOperation
            parameters = parse_parameters(call.encoded)
            action = sts_query.action_of(parameters)
            if call.principal is NOBODY and action.plane != "unsigned":
                raise MissingAuthenticationToken
            call.action = action
            call.counted = self._counted[action.name]
            call.given = sts_query.decode_request(action, parameters)
        else:
            parameters = parse_parameters(call.encoded)
            call.action = action = sqs_query.action_of(parameters)
            call.counted = self._counted[action.name]
            call.given = sqs_query.decode_request(action, parameters, queue_of_path(request, action))
        if action.check is not None:
            call.meant = action.check(call.given)

    def _act(self, call: Call) -> None:
        given = call.given
        assert given is not None, "a decoded request has its input"
        handler = self._message_handlers.get(call.action.name)
        if handler is not None:
            handler(call, given)
        else:
            self._run(call, given)

    def _answer_preflight(self, request: HTTPRequest, origin: str) -> None:
        if self._cors.allows(origin):
            request.respond(200, self._cors.preflight(request, origin), b"")
        else:
            request.respond(403, b"Vary: Origin\r\n", b"")

    def _run(self, call: Call, given: Shape) -> None:
        budget = self._budgets[call.action.plane]
        if call.action.is_change and self.calls.usage is not None:
            self.calls.usage.audit.check()
        if len(budget.tasks) >= budget.actions_max:
            raise Overloaded
        call.is_control = True
        task = asyncio.get_running_loop().create_task(self._answer(call, budget, given))
        budget.tasks.add(task)
        task.add_done_callback(budget.tasks.discard)

    async def _answer(self, call: Call, budget: TaskBudget, given: Shape) -> None:
        try:
            async with asyncio.timeout(budget.timeout_ms / 1000):
                output = await self._when_known(call, self._task_handlers[call.action.name], given)
        except TimeoutError:
            call.fail(Timeout())
        except asyncio.CancelledError:
            call.fail(Timeout())
            raise
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            call.fail(error)
        else:
            if not call.is_done:  # some answer with more than an output
                call.succeed(output)

    async def _when_known(self, call: Call, handler: TaskHandler, given: Shape) -> Shape | None:
        while True:
            try:
                return await handler(call, given)
            except NotYetKnown as unknown:  # handlers ask for data keys before they change anything
                await known(unknown)

    def _samples(self) -> Iterable[Sample]:
        return [Sample("quaymaster_long_polls", self.calls.long_polls)]


def _is_of_browser(request: HTTPRequest) -> bool:
    """Tell whether a request without Origin and Sec-Fetch-Site looks like a browser's all the same.

    Browsers keep Sec-Fetch-* from hosts they do not trust, which is any name over plain HTTP but localhost. A
    page can change User-Agent and Accept-Language there, but cannot leave the latter out. Node's fetch sends
    it too, with a Sec-Fetch-Mode and no Sec-Fetch-Site, which no browser does and no page can set.
    """
    if (request.header(b"user-agent") or b"").startswith(b"Mozilla/"):
        return True
    return request.header(b"accept-language") is not None and request.header(b"sec-fetch-mode") is None
