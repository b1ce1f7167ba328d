"""The admin API of one port: a router made from the table of operations (`protocol/admin/operations`).

    request ─▶ who signed it ─▶ operation ─▶ may it be asked for? ─▶ its members, checked ─▶ handler ─▶ answer
                                    └─ act: an audit event, begun here and written before the answer

Answers are JSON; a failure is `{"error": {"code": ..., "message": ...}}`, with the `field` that is why, if one is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from quaymaster.core.values.errors import (
    CallerError,
    InternalFailure,
    MissingAuthenticationToken,
    NotNow,
    NotYetKnown,
    Overloaded,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.access.authorization import Floor
from quaymaster.frontend.admin.admin_acts import Act, AdminActs
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute, Routes
from quaymaster.frontend.admin.console_admin import RefusedByConsole
from quaymaster.frontend.admin.operator_authorization import OperatorAuthorization
from quaymaster.frontend.admin.sign_in_attempts import SignInAttempts
from quaymaster.frontend.call import NOBODY
from quaymaster.frontend.callers.authentication import Signed, Unjudged, too_many_connections
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.standing import Standing
from quaymaster.frontend.callers.unsigned_actions import Charged
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.monitoring.answering_tasks import begin_answer, end_all
from quaymaster.monitoring.logs import log_failure
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.routing.metadata_client import known
from quaymaster.protocol.admin.members import Change
from quaymaster.protocol.admin.operation import API, AdminOperation
from quaymaster.protocol.admin.operations import OPERATIONS, find_operation
from quaymaster.protocol.admin.requests import BadMember, members_of, read_members
from quaymaster.protocol.admin.sign_in import BODY_BYTES_MAX, SignedInView, SignInRequest
from quaymaster.protocol.sqs.errors import wire_error
from quaymaster.protocol.sqs.form_parameters import parse_parameters, percent_decode

REQUESTS_MAX: Final = 64
SECRET_MEMBERS: Final = frozenset({"password", "secret_access_key", "token"})
"""Members of requests that no audit event has."""
SIGN_INS_MAX: Final = 16
"""Requests to sign in that nobody signed, at a time."""
_API: Final = API.encode()
_SIGN_IN: Final = _API + OPERATIONS["SignIn"].path.encode()
_LENGTH_DIGITS_MAX: Final = 5
_JSON_HEADERS: Final = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"

log = logging.getLogger(__name__)

Result = TypeVar("Result")
WaitForFrontEnds = Callable[[int], Awaitable[list[str]]]
"""Waits until other front ends follow an authorization floor; returns who does not after a while."""


async def no_others(floor: int) -> list[str]:
    """Return at once: this is the only front end."""
    return []


class AdminAPI:
    """Answers requests below API. Give `handle` its requests, whole, and `judge_head` their heads before."""

    def __init__(
        self,
        routes: Routes,
        *,
        is_starting: Callable[[], bool] = lambda: False,
        authentication: Signed,
        authorization: OperatorAuthorization,
        floor: Floor,
        standing: Standing,
        find_queue: Callable[[str, str], QueueDefinition | None],
        timeout_s: float,
        wait_for_front_ends: WaitForFrontEnds = no_others,
    ) -> None:
        self._routes = routes
        self._is_starting = is_starting
        self._authentication = authentication
        self._authorization = authorization
        self._floor = floor
        self._standing = standing
        self._find_queue = find_queue
        self._timeout_s = timeout_s
        self.wait_for_front_ends = wait_for_front_ends
        self.on_bad: Callable[[HTTPRequest, CallerError], None] = lambda request, error: None
        """Hears of requests that nobody signed as they must be."""
        self._unjudged = Unjudged()
        self._looking: set[asyncio.Task[None]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        self._acts = AdminActs()
        self._takes_no_acts = False
        self._attempts = SignInAttempts()
        self._signing_in = 0
        """Requests in progress that nobody signed."""

    def record_acts(self, usage: UsageRecorder) -> None:
        """Let acts leave records from now on."""
        self._acts.usage = usage

    async def stop_acts(self) -> None:
        """Take no more acts, and end those in progress: before what records them ends."""
        self._takes_no_acts = True
        await end_all(self._acting)

    async def stop(self) -> None:
        """End what is in progress; call after the HTTP server was drained."""
        await self.stop_acts()
        await end_all(self._looking)

    def judge_head(self, request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        """Refuse a request that no key signed, before its body is read."""
        error = self._authentication.judge_head(request)
        return None if error is None else self.refuse_head(request, error)

    def refuse_head(
        self, request: HTTPRequest, error: CallerError | NotNow
    ) -> tuple[int, bytes, bytes] | None:
        """Return the reply to a request that is not signed as it must be; None where it need not be."""
        if isinstance(error, MissingAuthenticationToken) and _may_sign_in(request):
            return None
        # While it starts, the keys are not known yet.
        return error_reply(_starting() if self._is_starting() else error)

    def handle(self, request: HTTPRequest) -> None:
        """Answer `request`, whose path is below API, now or later."""
        try:
            self._handle(request)
        except NotYetKnown as unknown:  # the key that signed it
            try:
                self._unjudged.enter(request, lambda: self.refuse(request, Overloaded()))
            except Overloaded as error:
                self.refuse(request, error)
            else:
                unknown.when_known(partial(self._handle_when_known, request))
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            self.refuse(request, error)

    def refuse(self, request: HTTPRequest, error: Exception) -> None:
        """Answer a request with an error."""
        self._refuse(request, None, error)

    def _handle_when_known(self, request: HTTPRequest, error: CallerError | NotNow | None) -> None:
        if not self._unjudged.leave(request):
            return
        if error is None:
            self.handle(request)
        else:
            self.refuse(request, error)

    def _handle(self, request: HTTPRequest) -> None:
        if self._is_starting():
            raise _starting()
        try:
            principal = self._authentication.authenticate(request)
        except CallerError as error:
            request.doubt()
            if isinstance(error, MissingAuthenticationToken) and _may_sign_in(request):
                self._sign_in(request)
                return
            self.on_bad(request, error)
            raise
        if not request.vouch(principal.access_key_id, principal.account_id):
            raise too_many_connections()
        self._standing.check()
        method = request.method.decode("latin-1")
        found = find_operation(method, _parts(request.path[len(_API) :]))
        if found is None or not self._authorization.takes(found[0]):
            self._authorization.check_account(principal)
            path = _text(request.path)
            request.respond(404, *error_reply(UnsupportedOperation(f"There is no {method} {path}."))[1:])
            return
        self._ask(request, principal, *found)

    def _sign_in(self, request: HTTPRequest) -> None:
        """Begin to answer a request that nobody signed: what it is asked with says who asks.

        Its processor time is strangers'. Refusals leave no event, which costs a write to the disk; who signs in does.
        """
        self._standing.check()
        operation = OPERATIONS["SignIn"]
        given = read_members(operation, {}, members_of(operation, {}, request.body))
        assert isinstance(given, SignInRequest), "it is what the operation takes"
        self._attempts.enter(request.peer, _name_of(given), time.monotonic() * 1000)
        if self._signing_in >= SIGN_INS_MAX:
            raise Overloaded
        call = AdminCall(NOBODY, NOBODY.account_id, request)
        signing_in = self._start(self._answer_unsigned(operation, call, given), call, None)
        # In this pass: those that come together would all see the number of before.
        self._signing_in += 1
        signing_in.add_done_callback(self._end_sign_in)

    async def _answer_unsigned(self, operation: AdminOperation, call: AdminCall, given: Any) -> None:
        await Charged(self._answer(operation, call, given, None, _allow), call.request.charging())

    def _end_sign_in(self, signing_in: asyncio.Task[None]) -> None:
        self._signing_in -= 1

    def _ask(
        self, request: HTTPRequest, principal: Principal, operation: AdminOperation, in_path: dict[str, str]
    ) -> None:
        subject = in_path.get(operation.subject, "")
        named = {"name": subject} if subject else {}
        act = None
        if operation.act:
            queue_name = subject if operation.parts[0] == "queues" else ""
            act = self._acts.begin(operation.act, request, principal, queue_name, named)
        try:
            self._authorization.check_account(principal)
            query = parse_parameters(request.query)
            members = members_of(operation, query, request.body)
            if act is not None:
                # What the path names is what is acted upon, whatever a query or a body calls a name.
                told = {name: members[name] for name in members if name not in SECRET_MEMBERS}
                act.asked = query | told | named
            told_account = members.get("account_id") if operation.is_of_account else None
            owner = told_account if isinstance(told_account, str) else principal.account_id
            judge = partial(self._authorization.check, principal, request, operation.permission)
            # Before more is said: those who may not ask learn nothing of what they asked.
            judge(owner, subject)
            given = read_members(operation, in_path, members)
            call = AdminCall(principal, owner, request)
            self._start(self._answer(operation, call, given, act, judge), call, act)
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            self._refuse(request, act, error)

    def _start(self, work: Coroutine[Any, Any, None], call: AdminCall, act: Act | None) -> asyncio.Task[None]:
        tasks = self._looking if act is None else self._acting
        try:
            if act is not None and self._takes_no_acts:
                raise _stopping()
            if len(self._acting) + len(self._looking) >= REQUESTS_MAX:
                raise Overloaded
            if act is not None:
                self._acts.check(act)
                act.is_begun = True
        except NotNow:
            work.close()
            raise
        return begin_answer(tasks, work, if_ended=lambda: self._refuse(call.request, act, _stopping()))

    async def _answer(
        self,
        operation: AdminOperation,
        call: AdminCall,
        given: Any,
        act: Act | None,
        judge: Callable[[str, str], None],
    ) -> None:
        request, route = call.request, self._routes[operation.name]
        try:
            async with asyncio.timeout(None if operation.is_untimed else self._timeout_s):
                call = await self._as_stored(operation, route, call, given, judge)
                if act is not None and act.queue_name:
                    queue = partial(self._find_queue, call.owner, act.queue_name)
                    act.queue = await _when_known(_soon(queue))
                floor = self._floor.raised
                answer = await _when_known(partial(route.handler, call, given))
                if call.principal is NOBODY:
                    act = self._act_of_new(operation, request, answer, given)
                    self._attempts.succeed(request.peer, _name_of(given))
            if isinstance(answer, Change) and self._floor.raised > floor:
                behind = await self.wait_for_front_ends(self._floor.raised)
                answer = msgspec.structs.replace(answer, behind=behind or msgspec.UNSET)
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            if call.principal is NOBODY and isinstance(error, CallerError):
                self.on_bad(request, error)
            self._refuse(request, act, error)
        else:
            body = msgspec.json.encode(answer, enc_hook=str) + b"\n"
            self._respond(request, act, "OK", _members(answer), 200, _JSON_HEADERS, body)

    def _act_of_new(
        self, operation: AdminOperation, request: HTTPRequest, answer: SignedInView, given: Any
    ) -> Act:
        """Return the act of who just signed in without a signature; NotNow while no event can be written."""
        principal = self._authentication.principal_of(answer.access_key_id, answer.session_token)
        asked = {
            name: value
            for name, value in msgspec.structs.asdict(given).items()
            if value is not None and name not in SECRET_MEMBERS
        }
        act = self._acts.begin(operation.act, request, principal, "", asked)
        self._acts.check(act)
        act.is_begun = True
        return act

    async def _as_stored(
        self,
        operation: AdminOperation,
        route: AdminRoute,
        call: AdminCall,
        given: Any,
        judge: Callable[[str, str], None],
    ) -> AdminCall:
        """Judge again what a request is about by how that is stored; return the call with whose it is."""
        name = str(getattr(given, operation.subject)) if operation.subject else ""
        if route.stored_name is not None:
            # Paths name it in any case, policies in one: a Deny must not depend on how it is asked for.
            judge(call.owner, await _when_known(_soon(partial(route.stored_name, call, given))))
        if route.owner_of is not None:
            owner = await _when_known(_soon(partial(route.owner_of, call, given)))
            judge(owner, name)
            call = msgspec.structs.replace(call, owner=owner)
        return call

    def _refuse(self, request: HTTPRequest, act: Act | None, error: Exception) -> None:
        field = error.field if isinstance(error, BadMember) else ""
        reported = _reported(request, error)
        status, headers, body = error_reply(reported, field)
        self._respond(request, act, _shape_of(reported)[0], None, status, headers, body)

    def _respond(
        self,
        request: HTTPRequest,
        act: Act | None,
        code: str,
        answer: Mapping[str, Any] | None,
        status: int,
        headers: bytes,
        body: bytes,
    ) -> None:
        """Answer a request; an act once its event is on the disk."""
        respond = partial(request.respond, status, headers, body)
        if act is None:
            respond()
        else:
            self._acts.note(act, code, status, answer, len(body))
            self._acts.when_noted(act, respond, None if answer is None else partial(_respond_late, request))


def _name_of(given: SignInRequest) -> str:
    """Return the user who is to sign in; empty: by a link."""
    return "" if given.user is None else f"{given.account_id}/{given.user.lower()}"


def _may_sign_in(request: HTTPRequest) -> bool:
    """Tell whether a request need not be signed, because what it is asked with says who asks."""
    length = request.header(b"content-length") or b""
    is_short = length.isdigit() and len(length) <= _LENGTH_DIGITS_MAX and int(length) <= BODY_BYTES_MAX
    return request.method == b"POST" and request.path == _SIGN_IN and is_short and not request.query


def _allow(owner: str, name: str) -> None:
    """Judge nothing."""


def error_reply(error: CallerError | NotNow, field: str = "") -> tuple[int, bytes, bytes]:
    """Return the reply to a request that is refused. `field`: the member that is why."""
    code, status = _shape_of(error)
    content = {"code": code, "message": error.message} | ({"field": field} if field else {})
    return status, _JSON_HEADERS, msgspec.json.encode({"error": content}) + b"\n"


def _shape_of(error: CallerError | NotNow) -> tuple[str, int]:
    """Return the code and the HTTP status of an error."""
    if isinstance(error, RefusedByConsole):
        return error.code, error.status
    row = wire_error(error)
    return row.code, row.status


async def _when_known(ask: Callable[[], Awaitable[Result]]) -> Result:
    while True:
        try:
            return await ask()
        except NotYetKnown as unknown:  # handlers look before they change anything
            await known(unknown)


def _soon(find: Callable[[], Result]) -> Callable[[], Awaitable[Result]]:
    async def found() -> Result:
        return find()

    return found


def _members(answer: msgspec.Struct | dict[str, Any]) -> dict[str, Any]:
    """Return the members of an answer that are there."""
    members = answer if isinstance(answer, dict) else msgspec.structs.asdict(answer)
    return {name: value for name, value in members.items() if value is not msgspec.UNSET}


def _text(path: bytes) -> str:
    return percent_decode(path.replace(b"+", b"%2B")).decode("utf-8", "replace")


def _parts(path: bytes) -> list[str]:
    return [_text(part) for part in path.split(b"/")]


def _respond_late(request: HTTPRequest, error: NotNow) -> None:
    request.respond(*error_reply(error))


def _stopping() -> NotNow:
    return NotNow("The server is stopping.")


def _starting() -> NotNow:
    return NotNow("The server is starting.")


def _reported(request: HTTPRequest, error: Exception) -> CallerError | NotNow:
    """Return what is said of an error; a bug of ours is logged."""
    if isinstance(error, BadMember):
        return error.error
    if isinstance(error, CallerError | NotNow):
        return error
    if isinstance(error, TimeoutError):
        return NotNow("No answer came in time. Whether it was carried out is unknown.")
    log_failure(log, "admin request failed", error, path=request.path.decode("latin-1"))
    return InternalFailure()
