"""What operators do over the admin API leaves an audit event: in the same chain as what clients ask of queues.

    request, signed ─▶ Act ──answered──▶ AdminActs.note ─▶ one line of the log
                                              └──────────▶ UsageRecorder.record ─▶ spool ─▶ quaymaster audit

An act is a change, or a look at what may be secret. Its name is SQS's where SQS has the same; the request's parameters
are kept, and of the answer what `ANSWERED` names: no secret is.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.usage.recorder import RecordedTimes, UsageRecorder, bounded_json
from quaymaster.monitoring.logs import log_event
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.actions.acts import ADMIN_CHANGES, ADMIN_LOOKS

ANSWERED: Final = frozenset(
    {
        *("name", "group", "queue", "queue_id", "deleted", "account_id", "access_key_id", "parent_id"),
        *("enabled", "created_ms", "expires_ms", "master_key_id", "previous_master_key_id", "receipt_key_id"),
        "session_key_id",
        *("table_version", "parents", "children"),
        *("expiry_held", "path", "bytes", "incarnation", "state", "action", "requests"),
    }
)
"""Fields of an answer that its event keeps."""

log = logging.getLogger(__name__)


class ActName(msgspec.Struct, frozen=True):
    """The action of an act, as records name it."""

    name: str


class ActTimes(msgspec.Struct):
    """Acts wait in no long poll."""

    submitted_ms: float = 0.0


class Act(msgspec.Struct):
    """One request of an operator, as `UsageRecorder.record` takes it."""

    action: ActName
    request: HTTPRequest
    principal: Principal
    queue_name: str
    """Of an act on a queue or a consumer group."""
    asked: Mapping[str, Any]
    request_id: str
    queue: QueueDefinition | None = None
    change: tuple[str, str] | None = None
    is_begun: bool = False
    form: None = None
    """It came by the admin port."""
    times: RecordedTimes = msgspec.field(default_factory=ActTimes)
    payload_bytes: int = 0
    message_count: int = 0
    duplicate_count: int = 0
    wait_ms: int = 0
    replied_ms: float = 0.0


class AdminActs:
    """Notes each act once it was answered, whatever came of it. `usage` None: only the log has them."""

    def __init__(self, usage: UsageRecorder | None = None) -> None:
        self.usage = usage

    @staticmethod
    def begin(
        name: str, request: HTTPRequest, principal: Principal, queue_name: str, asked: Mapping[str, Any]
    ) -> Act:
        """Return an act that was asked for by a key that may."""
        assert name in ADMIN_CHANGES or name in ADMIN_LOOKS, f"{name} is an act that records know"
        return Act(ActName(name), request, principal, queue_name, asked, str(uuid.uuid4()))

    def note(
        self, act: Act, code: str, status: int, answer: Mapping[str, Any] | None, response_bytes: int
    ) -> None:
        """Record and log an act that was answered, "OK" or with an error's code."""
        name = act.action.name
        if name in ADMIN_CHANGES:
            log_event(
                *(log, logging.INFO, "operator changed something"),
                act=name,
                **({"queue": act.queue_name} if act.queue_name else {}),
                access_key_id=act.principal.access_key_id,
                address=act.request.peer,
                code=code,
            )
        if self.usage is None:
            return
        kept = {} if answer is None else {name: answer[name] for name in answer if name in ANSWERED}
        act.change = (bounded_json(act.asked), bounded_json(kept) if kept else "")
        self.usage.record(act, code, status, time.monotonic() * 1000, response_bytes)

    def check(self, act: Act) -> None:
        """Raise NotNow for a change while no audit event can be written."""
        if self.usage is not None and act.action.name in ADMIN_CHANGES:
            self.usage.audit.check()

    def when_noted(
        self, act: Act, then: Callable[[], None], if_late: Callable[[NotNow], None] | None
    ) -> None:
        """Call `then` once the event of an act that was noted is on the disk; at once for a look.

        Where it is not in time, `if_late` takes what is said of a change that was made; None where none was.
        """
        if self.usage is None or act.action.name not in ADMIN_CHANGES:
            then()
            return
        audit = self.usage.audit
        self.usage.when_written(then, None if if_late is None else lambda: if_late(audit.not_written()))
