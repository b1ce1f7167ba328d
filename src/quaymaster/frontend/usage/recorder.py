"""What each answered request used, noted as it is answered: `UsageRecorder.record`, on the path of every request.

    Call.count ──record──▶ rows in memory ──take, once a second──▶ usage_spool ──▶ usage_shipper
                             │ too many
                             ├──▶ counted by account and action, and said to be missing
                             │ of a client that is not known
                             ├──▶ counted by error, one record a minute
                             │ denied, above DENIALS_PER_S_MAX
                             └──▶ recorded as usage alone; counted by account and action, one audit event a minute

A record is ten cells at the end of one long list: numbers, and an index into the contexts met since the last `take`.
All else is worked out when a block is made of them, on another thread. A record leaves no object behind that
collections of garbage would look at. Nothing here waits, and nothing fails a request.

Records of changes that were begun are *owed*: others are counted where they cannot be written, these are kept.

What a policy denies is an audit event, whatever the action, up to so many a second.

Requests that were refused before it was known who asks are not recorded one by one: anyone can send any number,
and records are kept for long.

Reads and sends of the pipeline's own queue are not recorded: they are not billed, and a pipeline that
reads would otherwise have something new to read for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from quaymaster.core.limits.fair_window import FairWindow
from quaymaster.core.values.errors import AccessDenied, CallerError
from quaymaster.core.values.queues.attribute_rules import says_push, shown_attributes
from quaymaster.core.values.queues.attributes import LOG
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import is_addressed_name
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.usage.audit_gate import AuditGate
from quaymaster.frontend.usage.counted_refusals import OTHERS, CountedRefusals, RefusalKind
from quaymaster.frontend.usage.taken_rows import MS_TO_US, TakenRows, one_dropped
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.actions.acts import ADMIN_CHANGES, ADMIN_LOOKS, NOTED_CHANGES
from quaymaster.protocol.actions.monitoring import MonitoringOutput
from quaymaster.protocol.actions.table import ACTIONS, PUSH, UNKNOWN_ACTION, Action
from quaymaster.protocol.cloudwatch.operations import MonitoringInput
from quaymaster.protocol.sqs.errors import WIRE_ERRORS
from quaymaster.protocol.sqs.internal_queues import is_internal
from quaymaster.protocol.sqs.queue_urls import parse_queue_url
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.sqs.shapes import Shape
from quaymaster.protocol.usage.client_details import ClientDetail, client_of
from quaymaster.protocol.usage.dropped_records import DroppedCount, add_dropped
from quaymaster.protocol.usage.usage_records import Category, Change, UsageContext

CLIENT_GONE: Final = "ClientGone"
CLIENT_GONE_STATUS: Final = 499
"""As web servers note it: the client closed its connection before it was answered."""
ROWS_MAX: Final = 65_536
"""Records in memory that wait to be written, at about 400 bytes each."""
ROWS_TO_WRITE: Final = 16_384
"""So many are written without waiting for the next turn."""
USER_AGENT_CHARS_MAX: Final = 256
JSON_CHARS_MAX: Final = 4_096
OMITTED: Final = '{"omitted":true}'
"""In place of parameters or an answer that is longer than that."""

STS_SECRETS: Final = frozenset({"WebIdentityToken", "ExternalId"})
"""Parameters of STS that records leave out."""

REFUSED_KINDS_MAX: Final = 64
"""So many kinds of requests refused before it was known who asks are told apart in an interval: a kind is a protocol, a
status and an error's code, which are ours."""

DENIED: Final = WIRE_ERRORS[AccessDenied].code
DENIALS_PER_S_MAX: Final = 100
"""So many requests a second that a policy denies are audit events of their own, each account's part of them."""
DENIED_KINDS_MAX: Final = 4_096
"""So many kinds of others are told apart in an interval: a kind is an account, a protocol and an action."""

ASKED_NAMES_MAX: Final = 1_000
"""So many names of queues that were not found are told apart in an hour."""
INVALID_NAME: Final = "(invalid)"
"""In place of a name that no queue can have; `OTHERS` is in place of names beyond that many."""
_HOUR_US: Final = 3_600_000_000

ADMIN: Final = "admin"
"""The wire form of what was asked over the admin API."""

PUSH_PROTOCOL: Final = "push"
"""The wire form of calls to endpoints."""

_MANAGEMENT: Final = (
    {action.name for action in ACTIONS.values() if action.category == "management"}
    | ADMIN_CHANGES
    | ADMIN_LOOKS
    | NOTED_CHANGES
)
_READ_ONLY: Final = {action.name for action in ACTIONS.values() if action.read_only} | ADMIN_LOOKS

_OWED: Final = {action.name for action in ACTIONS.values() if action.is_owed} | ADMIN_CHANGES
_json = msgspec.json.Encoder()

RowKey = tuple[str, str, str, str, bytes | None, str, int, str, str, int, str, bool]
"""Account, key, principal, address, user agent, action, queue id and name, protocol, status, code, whether it is a
denial that is no event of its own."""


class PushSizes(NamedTuple):
    """How large a call was. `deleted`: messages that were deleted because of its answer; `gone`: those already were."""

    request_bytes: int
    response_bytes: int
    payload_bytes: int
    deleted: int
    gone: int = 0


class RecordedTimes(Protocol):
    """When the requests of one pass had come how far, in ms of `time.monotonic`."""

    submitted_ms: float


class Named(Protocol):
    """An action, of SQS or of the admin API."""

    @property
    def name(self) -> str: ...


class AnsweredCall(Protocol):
    """What a record says of a call. `form` None: it came by the admin port."""

    request: HTTPRequest
    request_id: str
    principal: Principal
    queue: QueueDefinition | None
    queue_name: str
    payload_bytes: int
    message_count: int
    duplicate_count: int
    change: tuple[str, str] | None
    wait_ms: int
    replied_ms: float

    @property
    def is_begun(self) -> bool:
        """Whether its action was begun: otherwise nothing was changed."""
        ...

    @property
    def form(self) -> WireForm | None: ...
    @property
    def action(self) -> Named: ...
    @property
    def times(self) -> RecordedTimes: ...


class UsageRecorder:
    """Takes one record a request, on the event loop's thread. `now_us` is the wall clock."""

    def __init__(
        self,
        *,
        now_us: Callable[[], int],
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        rows_max: int = ROWS_MAX,
        client_detail: ClientDetail = "network",
    ) -> None:
        self._now_us = now_us
        self._monotonic_ms = monotonic_ms
        self._rows_max = rows_max
        self._client_detail = client_detail
        self._rows_to_write = min(ROWS_TO_WRITE, rows_max)
        self._cells: list[Any] = []
        self._count = 0
        self._numbers: dict[RowKey, int] = {}
        self._contexts: list[UsageContext] = []
        self._changes: list[Change] = []
        self._owed: list[int] = []
        self._overflow: dict[tuple[str, str], DroppedCount] = {}
        unknown = UNKNOWN_ACTION.name
        self._refused = CountedRefusals(
            REFUSED_KINDS_MAX, RefusalKind("", "query", unknown, HTTPStatus.BAD_REQUEST, OTHERS), monotonic_ms
        )
        self._denied = CountedRefusals(
            DENIED_KINDS_MAX, RefusalKind("", "query", unknown, HTTPStatus.FORBIDDEN, OTHERS), monotonic_ms
        )
        self._denials = FairWindow(DENIALS_PER_S_MAX)
        self._asked: set[str] = set()
        """Names of queues that were not found in this hour: requests for garbage must not fill the tables."""
        self._asked_hour = 0
        self._anchor_us = now_us() - int(monotonic_ms() * MS_TO_US)
        self.recorded = 0
        """Requests so far, those that were too many among them."""
        self.on_many: Callable[[], None] = lambda: None
        """Called when there is enough to be written at once."""
        self.has_writer = False
        """Whether what is recorded is taken, and answers that wait in `audit` are given once it is on the disk."""
        self.audit = AuditGate()

    def record(self, call: AnsweredCall, code: str, status: int, now_ms: float, response_bytes: int) -> None:
        """Note a request that was answered, "OK" or with an error's code. On the path of every request: 1 us."""
        queue, request, principal = call.queue, call.request, call.principal
        if not principal.account_id:
            self.record_refused(
                request,
                code,
                status,
                protocol=_protocol_of(call),
                request_bytes=len(request.body),
                response_bytes=response_bytes,
            )
            return
        is_counted = code == DENIED and self._is_counted(call, status, now_ms)
        key = self._key_of(call, code, status, is_counted=is_counted)
        number = self._numbers.get(key)
        if number is None and _is_of_pipeline(call, queue):
            return
        self.recorded += 1
        count = self._count
        is_owed = call.action.name in _OWED and call.is_begun
        if count >= self._rows_max and not is_owed:
            dropped = one_dropped(
                principal.account_id, call.action.name, call.message_count, call.payload_bytes, status
            )
            add_dropped(self._overflow, dropped)
            return
        if number is None:
            number = self._add_context(key, queue)
        wait_ms: float = call.wait_ms
        if wait_ms and call.replied_ms:
            wait_ms = min(wait_ms, call.replied_ms - call.times.submitted_ms)
        if self._contexts[number].category == "management":
            self._changes.append(Change(count, *(call.change or ("", ""))))
            if is_owed:
                self._owed.append(count)
        self._count = count + 1
        self._cells.extend(
            (
                number,
                now_ms,
                request.received_ms,
                wait_ms,
                len(request.body),
                response_bytes,
                call.payload_bytes,
                call.message_count,
                call.duplicate_count,
                call.request_id,
            )
        )
        if count == self._rows_to_write:
            self.on_many()

    def record_push(
        self,
        queue: QueueDefinition,
        code: str,
        status: int,
        began_ms: float,
        now_ms: float,
        sizes: PushSizes,
        request_id: str,
    ) -> None:
        """Note a call to a queue's endpoint, "OK" or with a word for what came of it. It is the account's own."""
        account_id = queue.account_id
        if is_internal(account_id, queue.name):
            return
        self.recorded += 1
        count = self._count
        if count >= self._rows_max:
            dropped = one_dropped(account_id, PUSH.name, sizes.deleted, sizes.payload_bytes, status)
            add_dropped(self._overflow, dropped)
            return
        key: RowKey = (
            *(account_id, "", "", "", None),
            *(PUSH.name, queue.queue_id, queue.name, PUSH_PROTOCOL, status, code, False),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._add_context(key, queue)
        self._count = count + 1
        self._cells.extend((number, now_ms, began_ms, 0.0, sizes.request_bytes, sizes.response_bytes))
        self._cells.extend((sizes.payload_bytes, sizes.deleted, sizes.gone, request_id))
        if count == self._rows_to_write:
            self.on_many()

    def _is_counted(self, call: AnsweredCall, status: int, now_ms: float) -> bool:
        """Tell whether a denial is one too many in this second; then count it."""
        account_id = call.principal.account_id
        if self._denials.takes(account_id, now_ms):
            return False
        self._denied.count(
            (account_id, _protocol_of(call), call.action.name, status, DENIED), call.request.peer
        )
        return True

    def _key_of(self, call: AnsweredCall, code: str, status: int, *, is_counted: bool) -> RowKey:
        queue, request, principal = call.queue, call.request, call.principal
        queue_name = call.queue_name
        if queue is None and queue_name:
            queue_name = self._asked_name(queue_name)
        return (
            principal.account_id,
            principal.access_key_id,
            principal.sender_id,
            request.peer,
            request.first.get(b"user-agent"),
            call.action.name,
            0 if queue is None else queue.queue_id,
            queue_name,
            _protocol_of(call),
            status,
            code,
            is_counted,
        )

    def record_refused(
        self,
        request: HTTPRequest,
        code: str,
        status: int,
        *,
        protocol: str,
        request_bytes: int,
        response_bytes: int,
    ) -> None:
        """Count a request that was refused before it was known who asks."""
        self._refused.count(
            ("", protocol, UNKNOWN_ACTION.name, status, code),
            request.peer,
            request_bytes=request_bytes,
            response_bytes=response_bytes,
        )

    @property
    def waiting(self) -> int:
        """How many records wait to be taken."""
        return self._count

    def when_written(self, then: Callable[[], None], if_late: Callable[[], None] | None = None) -> None:
        """Call `then` once what is recorded so far is on the disk; at once where nothing writes it.

        What changed something is answered only then: a server that is killed after an answer has the event. Where it
        is not written in time, `if_late` is called instead; None where nothing was changed (`AuditGate.wait`).
        """
        if not self.has_writer:
            then()
            return
        self.audit.wait(then, if_late)
        self.on_many()

    def take(self, *, is_last: bool = False) -> TakenRows:
        """Return what was recorded since the last time; what was counted of refusals, once a minute or at last."""
        now_ms = self._monotonic_ms()
        for counted in (self._refused, self._denied):
            self._record_counts(counted, now_ms, is_last=is_last)
        contexts, self._contexts = self._contexts, []
        cells, self._cells = self._cells, []
        self._count = 0
        changes, self._changes = self._changes, []
        owed, self._owed = self._owed, []
        overflow, self._overflow = list(self._overflow.values()), {}
        self._numbers = {}
        anchor_us = self._anchor_us
        # Hours are closed by these times, so they never go back: where the wall clock did, time stands still.
        elapsed_us = int(now_ms * MS_TO_US)
        watermark_us = max(anchor_us + elapsed_us, self._now_us())
        self._anchor_us = watermark_us - elapsed_us
        if watermark_us // _HOUR_US != self._asked_hour:
            self._asked_hour = watermark_us // _HOUR_US
            self._asked = set()
        return TakenRows(
            contexts,
            cells,
            changes,
            anchor_us,
            watermark_us,
            sum(count.requests for count in overflow),
            overflow,
            owed,
        )

    def _record_counts(self, counted: CountedRefusals, now_ms: float, *, is_last: bool) -> None:
        """Make a record of each kind. They are of management, so that an auditor sees them in the chain."""
        for kind, refused, seconds in counted.take(now_ms, is_last=is_last):
            told = bounded_json({"requests": refused.requests, "seconds": seconds})
            self._changes.append(Change(self._count, told, ""))
            # Not the time of any request: these would be averages of nothing.
            self._cells.extend((len(self._contexts), now_ms, now_ms, 0.0))
            self._cells.extend((refused.request_bytes, refused.response_bytes, 0, 0, 0, ""))
            self._contexts.append(
                UsageContext(
                    *(kind.account_id, "", "", refused.peer, ""),
                    *(kind.protocol, kind.action, "management"),
                    kind.action in _READ_ONLY or kind.action == UNKNOWN_ACTION.name,
                    *(0, "", ""),
                    kind.status,
                    kind.code,
                )
            )
            self._count += 1
            self.recorded += 1

    def _asked_name(self, name: str) -> str:
        """Return the name under which a request for a queue that was not found is recorded."""
        if name in self._asked:
            return name
        if not is_addressed_name(name):
            return INVALID_NAME
        if len(self._asked) >= ASKED_NAMES_MAX:
            return OTHERS
        self._asked.add(name)
        return name

    def _add_context(self, key: RowKey, queue: QueueDefinition | None) -> int:
        account_id, access_key_id, principal_id, peer, user_agent, action, queue_id, queue_name = key[:8]
        protocol, status, code, is_counted = key[8:]
        number = self._numbers[key] = len(self._contexts)
        agent = (user_agent or b"")[:USER_AGENT_CHARS_MAX].decode("latin-1")
        category = category_of(action)
        if code == DENIED:
            category = "data" if is_counted else "management"
        if category == "data":
            peer, agent = client_of(self._client_detail, peer, agent)
        self._contexts.append(
            UsageContext(
                account_id,
                principal_id,
                access_key_id,
                peer,
                agent,
                protocol,
                action,
                category,
                action in _READ_ONLY,
                queue_id,
                queue_name,
                "" if queue is None else queue_type(queue),
                status,
                "" if code == "OK" else code,
            )
        )
        return number


def _is_of_pipeline(call: AnsweredCall, queue: QueueDefinition | None) -> bool:
    """Tell whether a client asks for Quaymaster's own queue."""
    return queue is not None and call.form is not None and is_internal(queue.account_id, queue.name)


def _protocol_of(call: AnsweredCall) -> str:
    return ADMIN if call.form is None else call.form.protocol


def category_of(action: str) -> Category:
    """Return whether an action is about queues, or about what is in them."""
    return "management" if action in _MANAGEMENT else "data"


def queue_type(queue: QueueDefinition) -> str:
    """Return a queue's kind as records name it; a FIFO queue that is a log as well is fifo, as it is billed."""
    if queue.is_fifo:
        return "fifo"
    return "log" if queue.retention_mode == LOG else "standard"


def asked_queue_name(given: Shape | None) -> str:
    """Return the name of the queue that an action's input means by its URL, "" where it names none."""
    url = getattr(given, "QueueUrl", None)
    if not url:
        return ""
    try:
        return parse_queue_url(url).name
    except CallerError:
        return INVALID_NAME


def describe_change(action: Action, given: Shape | None, output: Shape | None) -> tuple[str, str] | None:
    """Return what was asked and answered, as JSON, of an action that changes something, or of STS; None of others."""
    if action.service == "sts":
        return _without_secrets(given), _without_secrets(output)
    if not action.is_change:
        return None
    if isinstance(given, MonitoringInput):
        answered = output.members if isinstance(output, MonitoringOutput) else None
        return bounded_json(given.members), bounded_json(answered) if answered else ""
    return _as_json(given), _as_json(output)


def _without_secrets(shape: Shape | None) -> str:
    """Return what was asked of STS, or what it answered: tokens and secrets are never recorded."""
    if shape is None:
        return ""
    told = {name: getattr(shape, name) for name in shape.__struct_fields__ if name not in STS_SECRETS}
    credentials = told.pop("Credentials", None)
    if credentials is not None:
        told |= {name: getattr(credentials, name) for name in ("AccessKeyId", "Expiration")}
    told = {name: value for name, value in told.items() if value is not None}
    return bounded_json(told) if told else ""


def _as_json(shape: Shape | None) -> str:
    """Return what was asked or answered. What is secret in attributes of queues is never recorded."""
    if shape is None:
        return ""
    attributes = getattr(shape, "Attributes", None)
    if attributes and says_push(attributes):
        shape = msgspec.structs.replace(shape, Attributes=shown_attributes(attributes))
    return bounded_json(shape)


def bounded_json(value: Any) -> str:
    """Return parameters or an answer as records have them."""
    text = _json.encode(value).decode()
    return text if len(text) <= JSON_CHARS_MAX else OMITTED
