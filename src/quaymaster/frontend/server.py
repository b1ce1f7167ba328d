"""The SQS endpoint: from an HTTP request to its reply.

    requests ──▶ preflight? ──▶ wire form ──▶ authenticate ──▶ action, decode ──▶ allow ──▶ act: handler ──▶ reply
                                   │
              X-Amz-Target: AmazonSQS.<Action>      AWS JSON 1.0
              Action=<Action> in body or URL        AWS Query: XML, or older JSON if asked with Accept
              signed for sts, or its Version        AWS Query of STS
              no action of SQS                      CloudWatch in its three forms (`actions/monitoring`)

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
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

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
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.sts_errors import ExpiredIdentityToken, InvalidIdentityToken
from quaymaster.frontend.account_loads import AccountLoad
from quaymaster.frontend.actions.binding import Handlers, TaskHandler
from quaymaster.frontend.call import NOBODY, Call, Calls, PassTimes, render_headers
from quaymaster.frontend.callers.authentication import Authentication, Unjudged, too_many_connections
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.unsigned_actions import Charged, Place, UnsignedActions
from quaymaster.frontend.cors import CORS
from quaymaster.frontend.front_end_metrics import ACCOUNT_SHARE
from quaymaster.frontend.limits.admission import Admission
from quaymaster.frontend.limits.limit_shares import LimitShares
from quaymaster.frontend.limits.limits import LimitReached, Limits
from quaymaster.frontend.limits.parked_polls import ParkedPolls
from quaymaster.frontend.limits.refusals import Refusals
from quaymaster.frontend.wire_forms import (
    SMITHY_PROTOCOL,
    form_of_head,
    form_of_query,
    form_of_target,
    query_parameters,
    queue_of_path,
    sqs_query_form,
)
from quaymaster.monitoring.answering_tasks import begin_answer, end_all
from quaymaster.monitoring.metrics import ActionMetrics, Metrics, Sample
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.monitoring.supervision import supervise
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.routing.metadata_client import known
from quaymaster.protocol.actions import monitoring, sqs_json, sqs_query, sts_query
from quaymaster.protocol.actions.error_replies import error_code, render_error
from quaymaster.protocol.actions.table import ACTIONS, UNKNOWN_ACTION, Action, Plane
from quaymaster.protocol.admin.operation import API
from quaymaster.protocol.cloudwatch.operations import MonitoringInput
from quaymaster.protocol.sqs.form_parameters import parse_parameters
from quaymaster.protocol.sqs.metrics_password import METRICS_PATH
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.sqs.shapes import Shape

WEB_IDENTITY_BYTES_MAX: Final = 32 * 1024
"""Of the body of a request that has a web identity token in place of a signature."""
_WRONG_TOKEN: Final = (InvalidIdentityToken, ExpiredIdentityToken)
"""What unsigned actions raise where a web identity token does not hold: like a wrong signature it counts against its
address. What else they raise concerns a token that holds, or an issuer that is away."""
_LENGTH_DIGITS_MAX: Final = 9
MANAGEMENT: Final = API.encode()
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


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """Of actions that run as tasks: how many run at once, and for how long.

    Each plane has a budget of its own, so that readers of logs do not keep an operator from creating a queue.
    """

    actions_max: int
    timeout_ms: int
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Management(Protocol):
    """The admin API of owners: it answers requests of this port below MANAGEMENT."""

    on_bad: Callable[[HTTPRequest, CallerError], None]

    def refuse_head(
        self, request: HTTPRequest, error: CallerError | NotNow
    ) -> tuple[int, bytes, bytes] | None:
        """Return the reply to a request that is not signed as it must be; None where it need not be."""
        ...

    def handle(self, request: HTTPRequest) -> None: ...

    async def stop(self) -> None: ...


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
        judge: Callable[[Call], None],
        limits: Limits,
        shares: LimitShares | None,
        budgets: Mapping[Plane, TaskBudget],
        claimed_issuer: Callable[[Any], str],
        takes_web_identities: bool = False,
        management: Management | None = None,
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`allow`: the step of `frontend/access/allow`. `judge`: the same without limits, for polls that were allowed
        before.

        `shares`: of the limits, in a cell. `budgets`: of each plane whose actions run as tasks. `claimed_issuer`
        returns whose token a request for a session has, or raises why it is not worth a task. `takes_web_identities`:
        clients may ask for a session of a role with a token in place of a signature. `on_stop` is called when all
        requests have ended. `check_receive` raises what a poll is told whose messages could not be opened.
        """
        self._on_stop = on_stop
        self._takes_web_identities = takes_web_identities
        self._management = management
        if management is not None:
            management.on_bad = self._note_bad
        self._steps = (self._begin, self._authenticate, self._decode, allow, self._act)
        self._limits = limits
        self._shares = shares
        self._sharing: asyncio.Task[None] | None = None
        self._budgets = budgets
        self._claimed_issuer = claimed_issuer
        self._unsigned = UnsignedActions()
        self.calls = calls
        self._check_receive = check_receive
        self._judge = judge
        calls.judge = self._judge_again
        self.polls = ParkedPolls(lambda: calls.waiting, self._judge_again)
        """Tell it when permissions may have been taken away."""
        self._authentication = authentication
        self._cors = cors
        self._message_handlers = handlers.message
        self._task_handlers = handlers.task
        self._counted: dict[str, ActionMetrics] = {name: metrics.action(name) for name in ACTIONS}
        self._unknown = metrics.action(UNKNOWN_ACTION.name)
        self._unknown_waiting = 0
        """Requests for what is not in memory, and is being asked for."""
        self._unjudged = Unjudged()
        self._next_id = RequestIds().next
        self._refusals = Refusals(
            *(admission, authentication, limits, cors),
            count=self._unknown.observe,
            counts=calls.counts,
            usage=calls.usage,
            next_id=self._next_id,
        )
        self._admission = admission
        metrics.add_source(self._samples)
        metrics.add_source(calls.counts.samples)
        metrics.add_histograms(calls.counts.histograms)

    def start(self) -> None:
        """Begin to watch over requests in progress; call on the loop."""
        self.calls.start()
        if self._shares is not None:
            self._sharing = supervise(asyncio.get_running_loop().create_task(self._shares.run()))

    async def stop(self) -> None:
        """End what is still in progress; call after the HTTP server was drained."""
        self.calls.stop()
        await self.polls.close()
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.gather(self._sharing, return_exceptions=True)
        self._refusals.stop()
        await end_all([task for budget in self._budgets.values() for task in budget.tasks])
        if self._management is not None:
            await self._management.stop()
        if self._on_stop is not None:
            await self._on_stop()

    def admit(self, request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        """Refuse a request whose body is not worth reading: its head shows that it is not signed as it must be."""
        refusal = self._refusals.by_head(request)
        if refusal is not None:
            return refusal
        if request.path == METRICS_PATH and request.method == b"GET":
            return None  # it has no body, and a password in place of a signature
        error = self._authentication.judge_head(request)
        if error is None or (
            isinstance(error, MissingAuthenticationToken) and self._may_be_web_identity(request)
        ):
            return None
        of_management = None
        if self._management is not None and request.path.startswith(MANAGEMENT):
            of_management = self._management.refuse_head(request, error)
            if of_management is None:
                return None  # it says in its body who signs in
        self._note_bad(request, error)
        if of_management is not None:
            return of_management
        form = form_of_head(request)
        request_id = self._next_id()
        response = render_error(error, form, request_id)
        code = error_code(error)
        self._unknown.observe(code, 0.0)
        self._refusals.record(request, code, response.status, form, response.body)
        origin = request.header(b"origin")
        cors = b"" if origin is None else self._cors.headers(origin.decode("latin-1"))
        return response.status, render_headers(response) + cors, response.body

    def _note_bad(self, request: HTTPRequest, error: CallerError | NotNow) -> None:
        """Count a request that does not say who sends it, or not rightly."""
        self._refusals.note_bad(request, error)
        self.calls.counts.fail(error_code(error))

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
        requests = self._refusals.take(requests, times.started_ms, waiting)
        calls, unknown, next_id = self.calls, self._unknown, self._next_id
        carry_out = self._carry_out
        begin, authenticate, decode, allow, act = self._steps
        counts = calls.counts
        for request in requests:
            counts.queued.observe((times.started_ms - request.received_ms) / 1000)
        begun = [Call(calls, request, next_id(), unknown, times) for request in requests]
        begun = [call for call in begun if carry_out(begin, call)]
        begun = [call for call in begun if carry_out(authenticate, call)]
        times.authenticated_ms = _monotonic() * 1000
        counts.auth.observe((times.authenticated_ms - times.started_ms) / 1000, len(requests))
        authenticated = len(begun)
        begun = [call for call in begun if carry_out(decode, call)]
        times.decoded_ms = _monotonic() * 1000
        counts.parse.observe((times.decoded_ms - times.authenticated_ms) / 1000, authenticated)
        begun = [call for call in begun if carry_out(allow, call)]
        counts.cache_hits += len(begun)
        for call in begun:
            carry_out(act, call)
        times.submitted_ms = _monotonic() * 1000
        counts.prepare.observe((times.submitted_ms - times.decoded_ms) / 1000, len(begun))

    def carry_out_for(self, request: HTTPRequest, principal: Principal, action: Action, given: Shape) -> None:
        """Carry out an action that this server itself takes for an account: from the step `allow` on, as any other."""
        now_ms = _monotonic() * 1000
        times = PassTimes(now_ms, now_ms, now_ms)
        call = Call(
            *(self.calls, request, self._next_id(), self._counted[action.name], times),
            action=action,
            principal=principal,
            given=given,
        )
        *_, allow, act = self._steps
        if self._carry_out(allow, call):
            self._carry_out(act, call)

    def _carry_out(self, step: Callable[[Call], None], call: Call) -> bool:
        """Take one step with a call; False when that was its last, because it is answered."""
        try:
            step(call)
        except NotYetKnown as unknown:
            self.calls.counts.cache_misses += 1
            self._go_on_when_known(unknown, step, call)
            return False
        except LimitReached as error:
            self._refusals.limit(call, error.reached)
            return False
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            if call.principal is NOBODY and isinstance(error, CallerError):
                call.request.doubt()
                self.calls.counts.fail(error_code(error))
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
            if self._management is not None and request.path.startswith(MANAGEMENT):
                call.is_done = True
                self._management.handle(request)
                return
            call.form = sqs_query_form(request)
        if origin is not None and request.method == b"OPTIONS":
            call.is_done = True
            self._answer_preflight(request, origin.decode("latin-1"))
            return
        if self._cors.is_open:
            why_refused = self._cors.why_refused(request)
            if why_refused is not None:
                raise AccessDenied(why_refused)
        if target is None:
            if SMITHY_PROTOCOL in fields:
                call.form = WireForm.CLOUDWATCH_CBOR
            elif request.path == METRICS_PATH:
                call.form = WireForm.METRICS
                if request.method != b"GET":
                    raise UnknownOperation
                return
            else:
                call.encoded = encoded = query_parameters(request)
                call.form = form_of_query(request, encoded) or call.form
                return
        else:
            action = sqs_json.named_action(target)
            if action is None:
                call.form = form_of_target(target)
            else:
                call.action = action
        if request.method != b"POST":
            raise UnknownOperation

    def _authenticate(self, call: Call) -> None:
        request = call.request
        service = call.form.service
        if service == "sts" and self._is_unsigned(request):
            request.doubt()
            return
        try:
            if call.form is WireForm.METRICS:
                call.principal = principal = self._authentication.authenticate_reader(request)
            else:
                call.principal = principal = self._authentication.authenticate(request, service)
        except CallerError as error:
            self._refusals.note_bad(request, error)
            raise
        if not request.vouch(principal.access_key_id, principal.account_id):
            raise too_many_connections()

    def _judge_again(self, call: Call) -> None:
        """Raise what a call is told that may go on no longer; NotYetKnown where something must be asked for."""
        floor = self.calls.floor()
        call.principal = self._authentication.renew(call.request, call.principal)
        self._judge(call)
        if call.wait_ms:
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
        try:
            self._read_action(call)
        except CallerError:
            if self._limits.scopes:
                self._limits.charge_refused(call)
            raise

    def _read_action(self, call: Call) -> None:
        request, form = call.request, call.form
        if form is WireForm.JSON:
            action = call.action
            if action is UNKNOWN_ACTION:
                raise UnknownOperation
            call.counted = self._counted[action.name]
            call.given = sqs_json.decode_request(action, request.body)
        elif form.service == "monitoring":
            self._read_monitoring(call)
            return
        elif form is WireForm.STS:
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

    def _read_monitoring(self, call: Call) -> None:
        request, form = call.request, call.form
        parameters: dict[str, str] = {}
        if form is WireForm.METRICS:
            call.action = action = monitoring.SCRAPE_ACTION
            call.counted = self._counted[action.name]
            call.given = MonitoringInput({})
            return
        if form is WireForm.CLOUDWATCH_JSON:
            call.action = action = monitoring.action_of_target(request.first[b"x-amz-target"])
        elif form is WireForm.CLOUDWATCH_CBOR:
            call.action = action = monitoring.action_of_path(request.path)
        elif request.path not in (b"/", b""):
            raise UnknownOperation
        else:
            parameters = parse_parameters(call.encoded)
            call.action = action = monitoring.action_of_parameters(parameters)
        call.counted = self._counted[action.name]
        call.given = monitoring.decode_request(form, action, request.body, parameters)

    def _act(self, call: Call) -> None:
        given = call.given
        assert given is not None, "a decoded request has its input"
        handler = self._message_handlers.get(call.action.name)
        if handler is not None:
            loads = self.calls.loads
            if loads.of(call.principal.account_id).requests >= loads.requests_max:
                self.calls.counts.throttle(ACCOUNT_SHARE)
                raise RequestThrottled
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
        if call.action.is_owed and self.calls.usage is not None:
            self.calls.usage.audit.check()
        loads, plane = self.calls.loads, call.action.plane
        load = loads.of(call.principal.account_id)
        own = load.actions.get(plane, 0)
        # Those who have signed nothing are no account.
        is_over = own >= loads.part_of(budget.actions_max) and call.principal is not NOBODY
        if len(budget.tasks) >= budget.actions_max or is_over:
            raise Overloaded
        places = self._enter_unsigned(call, given) if plane == "unsigned" else ()
        load.actions[plane] = own + 1
        call.is_control = True
        answering = self._answer_unsigned if places else self._answer
        task = begin_answer(
            budget.tasks, answering(call, budget, given), if_ended=lambda: call.fail(Timeout())
        )
        task.add_done_callback(lambda _: self._give_back(plane, load, places))

    def _enter_unsigned(self, call: Call, given: Shape) -> tuple[Place, ...]:
        """Judge what can be judged in the pass, whose time is measured; Overloaded, and what the token is told."""
        try:
            issuer = self._claimed_issuer(given)
        except CallerError as error:
            if call.principal is NOBODY:
                self._refusals.note_bad(call.request, error)
            raise
        return self._unsigned.enter(call.request.peer, issuer)

    def _give_back(self, plane: Plane, load: AccountLoad, places: tuple[Place, ...]) -> None:
        load.actions[plane] -= 1
        if not load.actions[plane]:
            del load.actions[plane]
        if places:
            self._unsigned.leave(places)

    async def _answer_unsigned(self, call: Call, budget: TaskBudget, given: Shape) -> None:
        await Charged(self._answer(call, budget, given), call.request.charging())

    async def _answer(self, call: Call, budget: TaskBudget, given: Shape) -> None:
        REQUEST_ID.set(call.request_id)  # of this task
        try:
            async with asyncio.timeout(budget.timeout_ms / 1000):
                output = await self._when_known(call, self._task_handlers[call.action.name], given)
        except TimeoutError:
            call.fail(Timeout())
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            if call.principal is NOBODY and isinstance(error, _WRONG_TOKEN):
                self._refusals.note_bad(call.request, error)
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
        polls = self.calls.long_polls
        control = self._budgets["control"]
        used = "quaymaster_pool_used_ratio"
        return [
            Sample("quaymaster_long_polls", polls),
            Sample(used, (len(self.calls.waiting) - polls) / self._admission.in_progress_max, ("requests",)),
            Sample(used, polls / self.calls.loads.polls_of_all_max, ("long_polls",)),
            Sample(used, len(control.tasks) / control.actions_max, ("control",)),
        ]
