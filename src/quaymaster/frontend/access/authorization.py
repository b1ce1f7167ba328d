"""Whether the principal of a call may do to a queue what it asks: the queue's policy is asked, if there is one.

    owner's root key, no policy ──▶ yes
    all others ──▶ core/access/decisions ──▶ yes, or AccessDenied with the reason

What depends on principal, queue and permission alone is worked out once, and remembered by the identity of these
objects: a decision, or the conditions that are left to ask. A changed queue, key or user is another object, so no entry
is ever out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from quaymaster.core.access.decisions import Decision, Ruling, decide, refusal_text, rule
from quaymaster.core.access.permissions import (
    MONITORING_PERMISSION_NAMES,
    PERMISSION_NAMES,
    SERVICE,
    MonitoringPermission,
    Permission,
)
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import AccessDenied
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.call import Call
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.request_keys import RequestKeys
from quaymaster.protocol.actions.table import COMPLETE_MESSAGES
from quaymaster.protocol.cloudwatch.operations import TAGS, MonitoringInput
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
        self._remembered: dict[_Key, tuple[Principal, QueueDefinition, str | Ruling]] = {}
        """What a principal is told, empty where it is allowed, or what is to be asked for each request; with the
        objects whose ids are the key."""

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

    def authorize_completed(self, call: Call, queue: QueueDefinition) -> None:
        """Raise AccessDenied unless a call may delete messages of a queue, which what it sends completes."""
        self._judge(call, queue, COMPLETE_MESSAGES.permissions, queue.name)

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
            check_identity(request, principal)

    def authorize_resources(self, call: Call) -> None:
        """Raise AccessDenied unless a call may carry out an action of CloudWatch on all that its input names."""
        principal, operation, given = call.principal, call.action.operation, call.given
        if principal.is_root:
            return
        assert operation is not None, "only actions of CloudWatch are about resources"
        assert isinstance(given, MonitoringInput), "that is their input"
        account_id, permissions = principal.account_id, [MonitoringPermission(operation.asks_for)]
        if given.members.get(TAGS):
            permissions.append(MonitoringPermission.TAG_RESOURCE)
        find = self._keys(call, account_id).find
        for resource in operation.resources(given.members, self._region, account_id):
            for permission in permissions:
                name = MONITORING_PERMISSION_NAMES[permission]
                request = AccessRequest(
                    principal.requester, name, resource, account_id, find, can_cross=False
                )
                check_identity(request, principal)

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
            remembered = self._remembered.get(key)
            known = self._rule(call, queue, key) if remembered is None else remembered[2]
            refusal = known if isinstance(known, str) else self._ask(known, call, queue, permission)
            if refusal:
                raise AccessDenied(refusal)

    def _rule(self, call: Call, queue: QueueDefinition, key: _Key) -> str | Ruling:
        """Return and remember why such calls are refused, empty text where they are allowed, or what is to be asked."""
        principal = call.principal
        policy = queue.policy if self._is_full else None
        request = self._request_on(queue, call, key[2], can_cross=key[3])
        ruling = rule(request, policy, principal.policies, principal.session_policy)
        known: str | Ruling = ruling
        if ruling.is_fixed:
            known = _refusal_of(request, ruling.decide(request.find))
        if len(self._remembered) >= DECISIONS_REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[key] = principal, queue, known
        return known

    def _ask(self, ruling: Ruling, call: Call, queue: QueueDefinition, permission: Permission) -> str:
        """Return why a call is refused, empty text where it is allowed."""
        decision = ruling.decide(self._keys(call, queue.account_id).find)
        if decision is Decision.ALLOWED:
            return ""
        return _refusal_of(self._request_on(queue, call, permission, can_cross=ruling.can_cross), decision)

    def _request_on(
        self, queue: QueueDefinition, call: Call, permission: Permission, *, can_cross: bool
    ) -> AccessRequest:
        # A consumer group is authorized as its log.
        name = split_group(queue.name)[0]
        return self._request(call, permission, queue.account_id, name, can_cross=can_cross)

    def _request(
        self, call: Call, permission: Permission, owner: str, name: str, *, can_cross: bool
    ) -> AccessRequest:
        return AccessRequest(
            call.principal.requester,
            PERMISSION_NAMES[permission],
            ("arn", "aws", SERVICE, self._region, owner, name),
            owner,
            self._keys(call, owner).find,
            can_cross=can_cross,
        )

    def _keys(self, call: Call, owner: str) -> RequestKeys:
        return RequestKeys(call.request, call.principal, owner, self._region, self._now_ms())


def _refusal_of(request: AccessRequest, decision: Decision) -> str:
    return "" if decision is Decision.ALLOWED else refusal_text(request, decision)


def refuse_internal(owner: str, name: str) -> None:
    """Raise AccessDenied for a queue that the server alone writes, so that clients cannot forge what was used."""
    if is_internal(owner, name):
        raise AccessDenied(f"The queue {USAGE_QUEUE} is written by the server alone.")


def check_identity(request: AccessRequest, principal: Principal) -> None:
    """Raise AccessDenied unless a principal's own policies allow what no other policy is about."""
    decision = decide(request, None, principal.policies, principal.session_policy)
    if decision is not Decision.ALLOWED:
        raise AccessDenied(refusal_text(request, decision))
