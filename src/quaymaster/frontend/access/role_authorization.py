"""Whether a principal may have a session of a role: the trust policy is asked, and the principal's own policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quaymaster.core.access.decisions import Decision, decide_role
from quaymaster.core.access.permissions import ROLE_PERMISSION_NAMES, RolePermission
from quaymaster.core.access.policies import PolicyInForce
from quaymaster.core.access.statements import AccessRequest
from quaymaster.frontend.call import Call
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.request_keys import RequestKeys

_NO_VALUES: Final[tuple[str, ...]] = ()


class RoleAuthorization:
    """Judges who asks for a session of a role. `now_ms` is the wall clock."""

    def __init__(self, *, region: str, now_ms: Callable[[], int]) -> None:
        self._region = region
        self._now_ms = now_ms

    def may_assume(
        self,
        call: Call,
        principal: Principal,
        permission: RolePermission,
        trust_policy: PolicyInForce,
        role_arn: str,
        more_keys: Mapping[str, tuple[str, ...]],
    ) -> bool:
        """Tell whether a principal may have a session of a role.

        `more_keys`: condition keys of this action, in lower case.
        """
        resource = tuple(role_arn.split(":", 5))
        owner = resource[4]
        keys = RequestKeys(call.request, principal, owner, self._region, self._now_ms())

        def find(key: str) -> tuple[str, ...]:
            return more_keys.get(key, _NO_VALUES) or keys.find(key)

        asked = AccessRequest(principal.requester, ROLE_PERMISSION_NAMES[permission], resource, owner, find)
        decision = decide_role(asked, trust_policy, principal.policies, principal.session_policy)
        return decision is Decision.ALLOWED
