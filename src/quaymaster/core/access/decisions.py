"""Whether a request is allowed: what the policies of the queue, of the identity and of its session say together.

    explicit Deny in any      denied, to the owner's root too
    same account              allowed: whom the queue policy names directly; and where both allow:
                              root, identity policy, or queue policy by the role · session policy, if any
    other account             allowed where all allow:
                              queue policy · root, or identity policy · session policy, if any

Source: IAM User Guide, "Policy evaluation logic"; wordings as the service sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from quaymaster.core.access.patterns import FindValues
from quaymaster.core.access.policies import CompiledPolicy, Narrowed, Outcome, PolicyInForce
from quaymaster.core.access.principals import Requester
from quaymaster.core.access.statements import AccessRequest


class Decision(Enum):
    """What becomes of a request, and in a refusal's words why."""

    ALLOWED = ""
    DENIED_BY_QUEUE = "with an explicit deny in a resource-based policy"
    DENIED_BY_IDENTITY = "with an explicit deny in an identity-based policy"
    DENIED_BY_SESSION = "with an explicit deny in a session policy"
    NO_QUEUE_POLICY = "because no resource-based policy allows the {action} action"
    NO_IDENTITY_POLICY = "because no identity-based policy allows the {action} action"
    NO_SESSION_POLICY = "because no session policy allows the {action} action"


class Ruling(NamedTuple):
    """What policies say of one requester's action on one resource, ready to be asked for each request of that kind."""

    requester: Requester
    owner: str
    can_cross: bool
    queue: Narrowed | None
    identity: tuple[Narrowed, ...]
    session: Narrowed | None

    @property
    def is_fixed(self) -> bool:
        """Whether all these requests get the same decision."""
        asked = (self.queue, self.session, *self.identity)
        return all(policy is None or policy.is_fixed for policy in asked)

    def decide(self, find: FindValues) -> Decision:
        """Return whether a request with these values of condition keys is allowed, or why not."""
        queue = Outcome.NOTHING if self.queue is None else self.queue.outcome(find)
        identity = [policy.outcome(find) for policy in self.identity]
        session = Outcome.ALLOWS if self.session is None else self.session.outcome(find)
        if queue is Outcome.DENIES:
            return Decision.DENIED_BY_QUEUE
        if Outcome.DENIES in identity:
            return Decision.DENIED_BY_IDENTITY
        if session is Outcome.DENIES:
            return Decision.DENIED_BY_SESSION
        requester = self.requester
        is_by_identity = requester.is_root or Outcome.ALLOWS in identity
        if requester.account_id == self.owner:
            if queue is Outcome.ALLOWS and not requester.is_root:
                return Decision.ALLOWED
            is_by_identity = is_by_identity or queue is Outcome.ALLOWS_INDIRECTLY
        elif queue is Outcome.NOTHING or not self.can_cross:
            return Decision.NO_QUEUE_POLICY
        if not is_by_identity:
            return Decision.NO_IDENTITY_POLICY
        return Decision.ALLOWED if session is Outcome.ALLOWS else Decision.NO_SESSION_POLICY


def rule(
    request: AccessRequest,
    queue_policy: PolicyInForce | None,
    identity_policies: Sequence[PolicyInForce] = (),
    session_policy: CompiledPolicy | None = None,
) -> Ruling:
    """Return what policies say of all requests of this requester for this action on this resource."""
    return Ruling(
        request.requester,
        request.owner,
        request.can_cross,
        None if queue_policy is None else queue_policy.narrowed(request),
        tuple(policy.narrowed(request) for policy in identity_policies),
        None if session_policy is None else session_policy.narrowed(request),
    )


def decide(
    request: AccessRequest,
    queue_policy: PolicyInForce | None,
    identity_policies: Sequence[PolicyInForce] = (),
    session_policy: CompiledPolicy | None = None,
) -> Decision:
    """Return whether a request is allowed, or why not."""
    return rule(request, queue_policy, identity_policies, session_policy).decide(request.find)


def decide_role(
    request: AccessRequest,
    trust_policy: PolicyInForce,
    identity_policies: Sequence[PolicyInForce] = (),
    session_policy: CompiledPolicy | None = None,
) -> Decision:
    """Return whether a requester may assume a role, or why not.

    The trust policy must allow it. So must the requester's own policies, unless the trust policy names the requester, a
    user, role or session of the role's account. Its account's name, or `*`, does not do that. Root keys never may; a
    web identity needs the trust policy alone.
    """
    requester = request.requester
    trust = trust_policy.outcome(request)
    identity = [policy.outcome(request) for policy in identity_policies]
    session = Outcome.ALLOWS if session_policy is None else session_policy.outcome(request)
    if trust is Outcome.DENIES:
        return Decision.DENIED_BY_QUEUE
    if Outcome.DENIES in identity:
        return Decision.DENIED_BY_IDENTITY
    if session is Outcome.DENIES:
        return Decision.DENIED_BY_SESSION
    if trust is Outcome.NOTHING or requester.is_root:
        return Decision.NO_QUEUE_POLICY
    is_named = trust is Outcome.ALLOWS and requester.account_id in (request.owner, "")
    if not is_named and Outcome.ALLOWS not in identity:
        return Decision.NO_IDENTITY_POLICY
    return Decision.ALLOWED if session is Outcome.ALLOWS else Decision.NO_SESSION_POLICY


def refusal_text(request: AccessRequest, decision: Decision) -> str:
    """Return what a requester is told that is not allowed what it asks for."""
    action = request.action
    return (
        f"User: {request.requester.arn} is not authorized to perform: {action} on resource: "
        f"{':'.join(request.resource)} {decision.value.format(action=action)}"
    )
