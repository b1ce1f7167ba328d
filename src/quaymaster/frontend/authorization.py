"""Whether the principal of a call may do to a queue what it asks: the queue's policy is asked, if there is one.

    owner's key, no policy ──▶ yes
    all others ──▶ core/access/decisions ──▶ yes, or AccessDenied with the reason

All keys are root keys of an account. Decisions that depend only on principal, queue and permission are remembered by
the identity of these objects: a changed queue or key is another object, so no entry is ever out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from quaymaster.core.access.decisions import Decision, decide, refusal_text
from quaymaster.core.access.permissions import PERMISSION_NAMES, SERVICE, Permission
from quaymaster.core.access.principals import Requester
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import AccessDenied
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_names import split_group
from quaymaster.frontend.authentication import Principal
from quaymaster.frontend.call import Call
from quaymaster.frontend.request_keys import RequestKeys
from quaymaster.protocol.sqs.internal_queues import USAGE_QUEUE, is_internal

DECISIONS_REMEMBERED_MAX: Final = 16_384

_Key = tuple[int, int, Permission, bool]


class Authorization:
    """Judges calls. `is_full`: policies are evaluated; otherwise the owner may do everything, and others nothing.

    `now_ms` is the wall clock.
    """

    def __init__(self, *, region: str, is_full: bool, now_ms: Callable[[], int]) -> None:
        self._region = region
        self._is_full = is_full
        self._now_ms = now_ms
        self._refusals: dict[_Key, tuple[Principal, QueueDefinition, str]] = {}
        """What a principal is told, empty where it is allowed; with the objects whose ids are the key."""

    def authorize(self, call: Call, queue: QueueDefinition, resource: str) -> None:
        """Raise AccessDenied unless a call may carry out its action on a queue, which it calls `resource`."""
        action = call.action
        self._judge(call, queue, action.permissions, resource)
        if action.writes:
            refuse_internal(queue.account_id, queue.name)

    def authorize_destination(self, call: Call, queue: QueueDefinition) -> None:
        """Raise AccessDenied unless a call may move messages to a queue."""
        self._judge(call, queue, call.action.destination_permissions, queue.name)
        refuse_internal(queue.account_id, queue.name)

    def _judge(
        self, call: Call, queue: QueueDefinition, permissions: Iterable[Permission], resource: str
    ) -> None:
        principal = call.principal
        if queue.account_id == principal.account_id:
            if not self._is_full or queue.policy is None:
                return
        elif not self._is_full:
            raise AccessDenied.to_resource(resource)
        can_cross = not call.action.owner_only
        for permission in permissions:
            key = id(principal), id(queue), permission, can_cross
            remembered = self._refusals.get(key)
            refusal = self._decide(call, queue, key) if remembered is None else remembered[2]
            if refusal:
                raise AccessDenied(refusal)

    def _decide(self, call: Call, queue: QueueDefinition, key: _Key) -> str:
        """Return why a call is refused, empty text where it is allowed; remember it if no condition was asked."""
        principal, policy = call.principal, queue.policy
        requester = Requester(principal.account_id)
        keys = RequestKeys(call.request, requester, queue.account_id, self._region, self._now_ms())
        request = AccessRequest(
            requester,
            PERMISSION_NAMES[key[2]],
            # A consumer group is authorized as its log.
            ("arn", "aws", SERVICE, self._region, queue.account_id, split_group(queue.name)[0]),
            queue.account_id,
            keys.find,
            can_cross=key[3],
        )
        decision = decide(request, policy)
        refusal = "" if decision is Decision.ALLOWED else refusal_text(request, decision)
        if policy is None or policy.is_fixed:
            if len(self._refusals) >= DECISIONS_REMEMBERED_MAX:
                self._refusals.clear()
            self._refusals[key] = principal, queue, refusal
        return refusal


def refuse_internal(owner: str, name: str) -> None:
    """Raise AccessDenied for a queue that the server alone writes, so that clients cannot forge what was used."""
    if is_internal(owner, name):
        raise AccessDenied(f"The queue {USAGE_QUEUE} is written by the server alone.")
