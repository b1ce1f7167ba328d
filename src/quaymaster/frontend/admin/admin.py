"""The admin port: health checks, metrics, and the API that the command line uses.

    GET    /health/live                      200 while the process answers
    GET    /health/ready                     200; 404 while draining or full; else 503; and why not
    GET    /metrics                          Prometheus text
    GET    /admin/v1/status                  journal, disk, metadata
    GET    /admin/v1/pauses                  of the event loop
    GET    /admin/v1/settings                what is in effect, secrets masked
    GET    /admin/v1/queues                  ?prefix= &account_id= &limit= &next_token=
    DELETE /admin/v1/queues/NAME             ?account_id=
    GET    /admin/v1/policies                ?account_id= &limit= &next_token= : of queues
    GET    /admin/v1/queues/NAME/messages    ?count= &from= : a look at messages, which changes nothing
    GET    /admin/v1/queues/NAME/groups      consumer groups of a log-retained queue; POST: a new one
    GET    /admin/v1/queues/NAME/partitions  and what is in them; POST .../split, merge, move
    POST   /admin/v1/queues/NAME/reset       NAME is QUEUE@GROUP: it begins anew; /offset: all below is consumed
    GET    /admin/v1/accounts                ?limit= &next_token= &deleted= ; POST: a new one with a first key
    POST   /admin/v1/accounts/ID/enable      also disable
    DELETE /admin/v1/accounts/ID             one without queues, with its keys
    GET    /admin/v1/kms-keys                ?account_id= ; POST: a new one, `alias` names it
    GET    /admin/v1/kms-keys/ID             POST .../enable, disable, schedule-deletion, cancel-deletion
    POST   /admin/v1/kms-keys/ID/alias       let an alias name it
    DELETE /admin/v1/kms-aliases             ?alias= &account_id=
    GET    /admin/v1/keys                    ?account_id= ; POST: a new one, its secret is shown once
    POST   /admin/v1/keys/ID/enable          also disable, rotate (a new secret), session (temporary credentials)
    DELETE /admin/v1/keys/ID                 for good
    GET    /admin/v1/users                   ?account_id= &limit= &next_token= ; also roles; POST: a new one
    GET    /admin/v1/users/NAME              ?account_id= ; its policies; DELETE; of roles, POST: trust policy, time
    POST   /admin/v1/users/NAME/policy       an identity policy; DELETE: ?policy_name= ; also roles
    POST   /admin/v1/users/NAME/revoke-sessions   its temporary credentials are refused; also roles
    GET    /admin/v1/limits                  ?account_id= &limit= &next_token= ; POST: set one
    GET    /admin/v1/limits/ID               ?queue= : what holds there; DELETE: ?queue= &action= : remove one
    GET    /admin/v1/oidc                    issuers of web identity tokens; POST: one is set; DELETE oidc/NAME
    POST   /admin/v1/keys/rotate-master      also rotate-receipts, rotate-sessions
    POST   /admin/v1/clock/accept            the clock is right: messages may expire again after a jump
    GET    /admin/v1/front-ends              those that ever recorded usage; POST NAME/seal: one is gone for good
    GET    /admin/v1/backup                  how far the running or last one is; POST: make one

Everything below /admin/ is signed like an SQS request, with an enabled access key of the default account: a root key,
or one of a user whose policies allow the operation (`quaymaster:CreateAccount`),
also where `authentication` is open: who reads the data directory is an operator, a process on this machine
is not. Answers are JSON; a failure is `{"error": {"code": ..., "message": ...}}`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from quaymaster import __version__
from quaymaster.core.access.operations import Operation
from quaymaster.core.values.errors import (
    CallerError,
    InternalFailure,
    InvalidParameterValue,
    MalformedInput,
    NotNow,
    NotYetKnown,
    Overloaded,
    UnsupportedOperation,
)
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.actions.sts_actions import SessionService
from quaymaster.frontend.admin.account_admin import AccountAdmin, AccountService
from quaymaster.frontend.admin.admin_acts import Act, AdminActs
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute, Handler
from quaymaster.frontend.admin.identity_admin import IdentityAdmin, IdentityService
from quaymaster.frontend.admin.issuer_admin import IssuerAdmin, IssuerService
from quaymaster.frontend.admin.kms_admin import KMSAdmin, LocalKeyService
from quaymaster.frontend.admin.limit_admin import LimitAdmin, LimitService
from quaymaster.frontend.admin.operator_authorization import OperatorAuthorization
from quaymaster.frontend.admin.partition_admin import PartitionAdmin
from quaymaster.frontend.admin.policy_admin import PolicyAdmin
from quaymaster.frontend.admin.queue_admin import QueueAdmin
from quaymaster.frontend.authentication import FindSession, Signed, Unjudged, too_many_connections
from quaymaster.frontend.authorization import Floor
from quaymaster.frontend.key_uses import KeyUses
from quaymaster.frontend.standing import Enforced, Standing
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations, Incarnation
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.messaging.lent_keys import LendsKeys
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.logs import log_failure
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.probe_port import ProbePort
from quaymaster.net.routing.broker_client import BrokerClient
from quaymaster.net.routing.metadata_client import known
from quaymaster.protocol.sqs.errors import wire_error
from quaymaster.protocol.sqs.form_parameters import parse_parameters, percent_decode
from quaymaster.settings import Settings, effective_settings

API: Final = "/admin/v1/"
REQUESTS_MAX: Final = 64
_OF_ACCOUNTS: Final = frozenset({"policies", "queues", "roles", "users"})
"""What belongs to the account that a request names. Access keys have ids that no other account has."""
_JSON_HEADERS: Final = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"

log = logging.getLogger(__name__)

Result = TypeVar("Result")


WaitForFrontEnds = Callable[[int], Awaitable[list[str]]]
"""Waits until other front ends follow an authorization floor; returns who does not after a while."""


class AdminMetadata(Protocol):
    """What the admin API asks of the metadata service."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def accounts(self) -> AccountService: ...

    @property
    def identities(self) -> IdentityService: ...

    @property
    def floor(self) -> Floor: ...

    @property
    def limits(self) -> LimitService: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def data_key(self) -> Callable[[int], bytes]: ...

    @property
    def queue_keys(self) -> LendsKeys: ...

    @property
    def local_keys(self) -> LocalKeyService: ...

    @property
    def master_key_id(self) -> str: ...

    async def rotate_master_key(self) -> str: ...

    async def rotate_receipt_key(self) -> int: ...

    async def rotate_session_key(self) -> int: ...

    @property
    def sessions(self) -> SessionService: ...

    @property
    def session(self) -> FindSession: ...

    @property
    def issuers(self) -> IssuerService: ...


class Operations(Protocol):
    """What the admin API asks of the parts that keep data. Whoever puts the process together hands it in."""

    async def status(self) -> Mapping[str, Any]:
        """Return figures of journal, cache and disk, ready for JSON."""
        ...

    async def pauses(self) -> list[Mapping[str, float]]:
        """Return the longest pause of each event loop in each second of the last minute that had one."""
        ...

    async def accept_clock(self) -> None:
        """Let messages expire again although the clock jumped: an operator says that it is right."""
        ...

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        """Write a consistent copy of all data to a directory that does not exist yet; return what was
        written.

        `progress` is told (bytes done, bytes in all) now and then. Raises CallerError for a destination that
        cannot be, NotNow when a backup cannot be made now.
        """
        ...


class Admin:
    """Answers the requests of the admin port. Give `handle` and `admit` to an HTTP server."""

    def __init__(
        self,
        settings: Settings,
        *,
        broker: BrokerClient,
        metadata: AdminMetadata,
        metrics: Metrics,
        health: Health,
        operations: Operations,
        authentication: Signed,
        authorization: OperatorAuthorization,
        wait_for_front_ends: WaitForFrontEnds,
        standing: Standing,
        incarnations: FrontEndIncarnations | None = None,
        key_uses: KeyUses | None = None,
    ) -> None:
        self._settings = settings
        self._standing = standing
        self._broker = broker
        self._metadata = metadata
        self._accounts = metadata.accounts
        self._probes = ProbePort(metrics, health)
        self._health = health
        self._operations = operations
        self._incarnations = incarnations
        self._authentication = authentication
        self._authorization = authorization
        self._wait_for_front_ends = wait_for_front_ends
        self._unjudged = Unjudged()
        # Only opens messages; those who send have ciphers of their own.
        cipher = MessageCipher(metadata.data_key, lender=metadata.queue_keys)
        self._timeout_s = settings.control_timeout_ms / 1000
        self._looking: set[asyncio.Task[None]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        self._acts = AdminActs()
        self._takes_no_acts = False
        self._backup: dict[str, Any] = {"state": "none"}
        # "*" stands for one part of the path, which the handler gets as `name`.
        self._routes: dict[tuple[str, ...], AdminRoute] = {
            ("GET", "status"): AdminRoute(self._show_status, looks_at=Operation.GET_STATUS),
            ("GET", "pauses"): AdminRoute(self._show_pauses, looks_at=Operation.GET_PAUSES),
            ("GET", "settings"): AdminRoute(self._show_settings, looks_at=Operation.GET_SETTINGS),
            **QueueAdmin(broker, metadata, cipher).routes(),
            **PartitionAdmin(broker, metadata).routes(),
            **PolicyAdmin(metadata.queues, metadata.find_queue, metadata.identities.stale_names).routes(),
            **AccountAdmin(metadata.accounts, metadata.sessions, settings.account_id, key_uses).routes(),
            **IdentityAdmin(metadata.identities, metadata.accounts, key_uses).routes(),
            **LimitAdmin(metadata.limits).routes(),
            **IssuerAdmin(metadata.issuers).routes(),
            **KMSAdmin(metadata.local_keys).routes(),
            ("POST", "keys", "rotate-master"): AdminRoute(self._rotate_master_key, "RotateMasterKey"),
            ("POST", "keys", "rotate-receipts"): AdminRoute(self._rotate_receipt_key, "RotateReceiptKey"),
            ("POST", "keys", "rotate-sessions"): AdminRoute(self._rotate_session_key, "RotateSessionKey"),
            ("POST", "clock", "accept"): AdminRoute(self._accept_clock, "AcceptClock"),
            ("GET", "front-ends"): AdminRoute(self._list_front_ends, looks_at=Operation.LIST_FRONT_ENDS),
            ("POST", "front-ends", "*", "seal"): AdminRoute(self._seal_front_end, "SealFrontEnd"),
            ("GET", "backup"): AdminRoute(self._show_backup, looks_at=Operation.GET_BACKUP),
            ("POST", "backup"): AdminRoute(self._make_backup, "CreateBackup"),
        }
        self._untimed: tuple[Handler, ...] = (self._make_backup, self._rotate_master_key)
        """What may take as long as it takes."""

    def record_acts(self, usage: UsageRecorder) -> None:
        """Let acts leave records from now on."""
        self._acts.usage = usage

    async def stop_acts(self) -> None:
        """Take no more acts, and end those in progress: before what records them ends."""
        self._takes_no_acts = True
        await _cancel(self._acting)

    async def stop(self) -> None:
        """End what is in progress; call after the HTTP server was drained."""
        await self.stop_acts()
        await _cancel(self._looking)
        await self._probes.stop()

    def admit(self, request: HTTPRequest) -> tuple[int, bytes, bytes] | None:
        """Refuse a request that no key signed, or that is not of the API, before its body is read."""
        if not request.path.startswith(b"/admin/"):
            return self._probes.admit(request)
        error: CallerError | NotNow | None = self._authentication.judge_head(request)
        if error is not None and self._health.state == "starting":
            error = _starting()  # the keys are not known yet
        return None if error is None else _error_reply(error)

    def handle(self, request: HTTPRequest) -> None:
        """Answer `request`, now or later."""
        path = percent_decode(request.path.replace(b"+", b"%2B")).decode("utf-8", "replace")
        try:
            if path.startswith(API):
                self._handle_api(request, path)
            else:
                request.doubt()
                self._probes.handle(request)
        except NotYetKnown as unknown:  # the key that signed it
            try:
                self._unjudged.enter(request, lambda: self._refuse(request, None, Overloaded()))
            except Overloaded as error:
                self._refuse(request, None, error)
            else:
                unknown.when_known(partial(self._handle_when_known, request))
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            self._refuse(request, None, error)

    def _handle_when_known(self, request: HTTPRequest, error: CallerError | NotNow | None) -> None:
        if not self._unjudged.leave(request):
            return
        if error is None:
            self.handle(request)
        else:
            self._refuse(request, None, error)

    def _handle_api(self, request: HTTPRequest, path: str) -> None:
        if self._health.state == "starting":
            raise _starting()
        try:
            principal = self._authentication.authenticate(request)
        except CallerError:
            request.doubt()
            raise
        if not request.vouch(principal.access_key_id):
            raise too_many_connections()
        self._standing.check()
        method = request.method.decode("latin-1")
        parts = [
            percent_decode(part.replace(b"+", b"%2B")).decode("utf-8", "replace")
            for part in request.path[len(API) :].split(b"/")
        ]
        route, name = self._find(method, parts)
        if route is None:
            self._authorization.check_account(principal)
            request.respond(404, *_error_reply(UnsupportedOperation(f"There is no {method} {path}."))[1:])
            return
        act = None
        if route.act:
            queue_name = name if parts[0] == "queues" else ""
            act = self._acts.begin(route.act, request, principal, queue_name, {"name": name})
        try:
            self._authorization.check_account(principal)
            query, fields = parse_parameters(request.query), _fields(request.body)
            if act is not None:
                # What the path names is what is acted upon, whatever a query or a body calls a name.
                act.asked = query | fields | ({"name": name} if name else {})
            call = AdminCall(name, query, fields, principal.account_id)
            owner = call.owner if parts[0] in _OF_ACCOUNTS or parts == ["keys"] else principal.account_id
            judge = partial(self._authorization.check, principal, request, route.operation, owner)
            judge(name)
            self._start(self._answer(request, route, call, act, judge), act)
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            self._refuse(request, act, error)

    def _start(self, work: Coroutine[Any, Any, None], act: Act | None) -> None:
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
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _find(self, method: str, parts: list[str]) -> tuple[AdminRoute | None, str]:
        exact = self._routes.get((method, *parts))
        if exact is not None:
            return exact, ""
        if len(parts) < 2 or not parts[1]:
            return None, ""
        return self._routes.get((method, parts[0], "*", *parts[2:])), parts[1]

    async def _answer(
        self,
        request: HTTPRequest,
        route: AdminRoute,
        call: AdminCall,
        act: Act | None,
        judge: Callable[[str], None],
    ) -> None:
        try:
            async with asyncio.timeout(None if route.handler in self._untimed else self._timeout_s):
                if route.stored_name is not None:
                    # Paths name it in any case, policies in one: a Deny must not depend on how it is asked for.
                    judge(await _when_known(_soon(route.stored_name), call))
                if act is not None and act.queue_name:
                    act.queue = await _when_known(self._queue_of_act, call)
                floor = self._metadata.floor.raised
                answer = await _when_known(route.handler, call)
            if act is not None and self._metadata.floor.raised > floor:
                behind = await self._wait_for_front_ends(self._metadata.floor.raised)
                answer = {**answer, "behind": behind} if behind else answer
        except asyncio.CancelledError:
            self._refuse(request, act, _stopping())
            raise
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            self._refuse(request, act, error)
        else:
            body = msgspec.json.encode(answer, enc_hook=str) + b"\n"
            self._respond(request, act, "OK", answer, 200, _JSON_HEADERS, body)

    def _refuse(self, request: HTTPRequest, act: Act | None, error: Exception) -> None:
        reported = _reported(request, error)
        status, headers, body = _error_reply(reported)
        self._respond(request, act, wire_error(reported).code, None, status, headers, body)

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

    async def _queue_of_act(self, call: AdminCall) -> QueueDefinition | None:
        return self._metadata.find_queue(call.owner, call.name)

    # Looking

    async def _show_status(self, call: AdminCall) -> Mapping[str, Any]:
        reason = self._health.why_not_ready()
        return {
            "version": __version__,
            "state": self._health.state,
            "ready": reason is None,
            "reason": reason,
            "broker": await self._operations.status(),
            "accounts": self._accounts.count_accounts(),
        }

    async def _show_pauses(self, call: AdminCall) -> Mapping[str, Any]:
        return {"pauses": await self._operations.pauses()}

    async def _accept_clock(self, call: AdminCall) -> Mapping[str, Any]:
        await self._operations.accept_clock()
        return {"expiry_held": False}

    async def _show_settings(self, call: AdminCall) -> Mapping[str, Any]:
        return effective_settings(self._settings)

    # The server's own keys, backup

    async def _rotate_master_key(self, call: AdminCall) -> Mapping[str, Any]:
        if self._settings.master_key_source == "environment":
            raise UnsupportedOperation(
                "The master key is in the environment. To rotate it, start the server with the new one in "
                "QUAYMASTER_MASTER_KEY and the present one in QUAYMASTER_MASTER_KEY_PREVIOUS."
            )
        previous = self._metadata.master_key_id
        master_key_id = await self._metadata.rotate_master_key()
        # Backups made before this can be read with the previous one only.
        return {"master_key_id": master_key_id, "previous_master_key_id": previous}

    async def _rotate_receipt_key(self, call: AdminCall) -> Mapping[str, Any]:
        receipt_key_id = await self._metadata.rotate_receipt_key()
        return {"receipt_key_id": receipt_key_id}

    async def _rotate_session_key(self, call: AdminCall) -> Mapping[str, Any]:
        return {"session_key_id": await self._metadata.rotate_session_key()}

    async def _list_front_ends(self, call: AdminCall) -> Mapping[str, Any]:
        rows = {} if self._incarnations is None else await self._incarnations.rows()
        return {"front_ends": [_front_end_row(name, row) for name, row in sorted(rows.items())]}

    async def _seal_front_end(self, call: AdminCall) -> Mapping[str, Any]:
        if self._incarnations is None:
            raise UnsupportedOperation("This process records no usage.")
        return _front_end_row(call.name, await self._incarnations.seal(call.name))

    async def _show_backup(self, call: AdminCall) -> Mapping[str, Any]:
        return self._backup

    async def _make_backup(self, call: AdminCall) -> Mapping[str, Any]:
        destination = Path(call.text("path"))
        if not destination.is_absolute() or "\0" in str(destination):
            raise InvalidParameterValue.of("path", destination, "Must be an absolute path.")
        if self._backup["state"] == "running":
            raise UnsupportedOperation("A backup is running; there can be one at a time.")
        progress: dict[str, Any] = {
            "state": "running",
            "path": str(destination),
            "done_bytes": 0,
            "total_bytes": 0,
        }
        self._backup = progress

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            progress["done_bytes"] = done_bytes
            progress["total_bytes"] = total_bytes

        try:
            result = await self._operations.backup(destination, on_progress)
        except BaseException as error:
            progress["state"] = "failed"
            progress["reason"] = str(error)
            if isinstance(error, OSError):  # of the destination's: no permission, no room, no such path
                raise NotNow(f"The backup could not be written: {error}") from error
            raise
        progress["state"] = "done"
        return {"path": str(destination), **result}


async def _no_others(floor: int) -> list[str]:
    """Wait for nobody: this is the only front end."""
    return []


def make_admin(
    settings: Settings,
    *,
    broker: BrokerClient,
    metadata: AdminMetadata,
    metrics: Metrics,
    health: Health,
    operations: Operations,
    wait_for_front_ends: WaitForFrontEnds = _no_others,
    incarnations: FrontEndIncarnations | None = None,
    enforced: Enforced | None = None,
    key_uses: KeyUses | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Admin:
    """Return what answers the admin port.

    `now_ms` is the wall clock; `incarnations` are of front ends that record usage; `key_uses` are noted of requests
    here too, and shown. `wait_for_front_ends` returns once all others know of a revocation, or the names of those that
    do not. `enforced`: what the brokers of a cell say of the authorization floor.
    """
    authentication = Signed(
        metadata.accounts.access_key,
        metadata.identities.user,
        metadata.session,
        region=settings.region,
        skew_ms=settings.clock_skew_s * 1000,
        now_ms=now_ms,
        on_use=(lambda access_key_id: None) if key_uses is None else key_uses.note,
    )
    return Admin(
        settings,
        broker=broker,
        metadata=metadata,
        metrics=metrics,
        health=health,
        operations=operations,
        authentication=authentication,
        wait_for_front_ends=wait_for_front_ends,
        authorization=OperatorAuthorization(settings.account_id, region=settings.region, now_ms=now_ms),
        standing=Standing(metadata.floor, enforced, age_max_ms=settings.authorization_max_age_s * 1000),
        incarnations=incarnations,
        key_uses=key_uses,
    )


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def _when_known(handler: Callable[[AdminCall], Awaitable[Result]], call: AdminCall) -> Result:
    while True:
        try:
            return await handler(call)
        except NotYetKnown as unknown:  # handlers look before they change anything
            await known(unknown)


def _soon(find: Callable[[AdminCall], Result]) -> Callable[[AdminCall], Awaitable[Result]]:
    async def found(call: AdminCall) -> Result:
        return find(call)

    return found


def _respond_late(request: HTTPRequest, error: NotNow) -> None:
    request.respond(*_error_reply(error))


def _stopping() -> NotNow:
    return NotNow("The server is stopping.")


def _starting() -> NotNow:
    return NotNow("The server is starting.")


def _front_end_row(name: str, row: Incarnation) -> dict[str, Any]:
    return {
        "front_end": name,
        "incarnation": row.number,
        "started_ms": row.started_us // 1000,
        "seen_ms": max(row.started_us if not row.seals else 0, row.renewed_us) // 1000,
        "sealed_incarnation": row.seals or None,
        "is_told": row.is_told,
    }


def _fields(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedInput("The request body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise MalformedInput("The request body must be a JSON object.")
    return fields


def _reported(request: HTTPRequest, error: Exception) -> CallerError | NotNow:
    """Return what is said of an error; a bug of ours is logged."""
    if isinstance(error, CallerError | NotNow):
        return error
    if isinstance(error, TimeoutError):
        return NotNow("No answer came in time. Whether it was carried out is unknown.")
    log_failure(log, "admin request failed", error, path=request.path.decode("latin-1"))
    return InternalFailure()


def _error_reply(error: CallerError | NotNow) -> tuple[int, bytes, bytes]:
    row = wire_error(error)
    body = msgspec.json.encode({"error": {"code": row.code, "message": error.message}})
    return row.status, _JSON_HEADERS, body + b"\n"
