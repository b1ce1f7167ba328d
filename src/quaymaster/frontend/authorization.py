"""Whether the principal of a call may do to a queue what it asks: the queue's policy is asked, if there is one.

    owner's root key, no policy ──▶ yes
    all others ──▶ core/access/decisions ──▶ yes, or AccessDenied with the reason

Decisions that depend only on principal, queue and permission are remembered by the identity of these objects: a changed
queue, key or user is another object, so no entry is ever out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from quaymaster.core.access.decisions import Decision, decide, refusal_text
from quaymaster.core.access.permissions import PERMISSION_NAMES, SERVICE, Permission
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import AccessDenied
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_names import split_group
from quaymaster.frontend.call import Call
from quaymaster.frontend.principal import Principal
from quaymaster.frontend.request_keys import RequestKeys
from quaymaster.protocol.sqs.internal_queues import USAGE_QUEUE, is_internal

DECISIONS_REMEMBERED_MAX: Final = 16_384

_Key = tuple[int, int, Permission, bool]


class Floor(Protocol):
    """Up to which change that could take permissions away the rows in memory are complete, and how old they may be."""

    @property
    def revision(self) -> int: ...

    @property
    def raised(self) -> int: ...

    @property
    def listeners(self) -> list[Callable[[], None]]: ...

    @property
    def age_ms(self) -> float: ...


class Authorization:
    """Judges calls. `is_full`: queue policies are evaluated; otherwise the owner's root may do everything, its users
    what their own policies allow, and others nothing.

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

    def authorize_account(self, call: Call, name: str, permissions: Iterable[Permission]) -> None:
        """Raise AccessDenied unless a call may carry out an action of its account on no queue, or one yet to be.

        `name` is that queue's; empty where there is none.
        """
        principal = call.principal
        if call.action.writes:
            refuse_internal(principal.account_id, name)
        if principal.is_root:
            return
        for permission in permissions:
            request = self._request(call, permission, principal.account_id, name, can_cross=False)
            decision = decide(request, None, principal.policies, principal.session_policy)
            if decision is not Decision.ALLOWED:
                raise AccessDenied(refusal_text(request, decision))

    def _judge(
        self, call: Call, queue: QueueDefinition, permissions: Iterable[Permission], resource: str
    ) -> None:
        principal = call.principal
        if queue.account_id == principal.account_id:
            if principal.is_root and (queue.policy is None or not self._is_full):
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
        principal = call.principal
        policy = queue.policy if self._is_full else None
        # A consumer group is authorized as its log.
        name = split_group(queue.name)[0]
        request = self._request(call, key[2], queue.account_id, name, can_cross=key[3])
        decision = decide(request, policy, principal.policies, principal.session_policy)
        refusal = "" if decision is Decision.ALLOWED else refusal_text(request, decision)
        asked = (policy, principal.session_policy, *principal.policies)
        if all(one is None or one.is_fixed for one in asked):
            if len(self._refusals) >= DECISIONS_REMEMBERED_MAX:
                self._refusals.clear()
            self._refusals[key] = principal, queue, refusal
        return refusal

    def _request(
        self, call: Call, permission: Permission, owner: str, name: str, *, can_cross: bool
    ) -> AccessRequest:
        principal = call.principal
        keys = RequestKeys(call.request, principal, owner, self._region, self._now_ms())
        return AccessRequest(
            principal.requester,
            PERMISSION_NAMES[permission],
            ("arn", "aws", SERVICE, self._region, owner, name),
            owner,
            keys.find,
            can_cross=can_cross,
        )


def refuse_internal(owner: str, name: str) -> None:
    """Raise AccessDenied for a queue that the server alone writes, so that clients cannot forge what was used."""
    if is_internal(owner, name):
        raise AccessDenied(f"The queue {USAGE_QUEUE} is written by the server alone.")
