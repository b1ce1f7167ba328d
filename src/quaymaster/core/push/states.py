"""How calls to a queue's endpoint go, as its owner sees it: the attribute PushState.

verifying ──it answers──▶ active ◀──a probe works──▶ unreachable
    │                        └──410──▶ gone ──an hour──▶ active
    └── it does not allow calls, or its address may not be called ──▶ refused
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple, get_args

PushState = Literal["verifying", "active", "unreachable", "gone", "refused"]
PUSH_STATES: Final[tuple[PushState, ...]] = get_args(PushState)
FIRST_STATE: Final[PushState] = "verifying"
"""That of an endpoint of which nothing is known yet."""
_MARK_BYTES: Final = 8


class TriedEndpoint(NamedTuple):
    """What came of one call to an endpoint that a person asked for, and why."""

    state: PushState
    outcome: Literal["taken", "failed", "not called"]
    reason: str


def endpoint_mark(endpoint: str) -> str:
    """Return what tells endpoints apart, and does not show one."""
    return hashlib.blake2b(endpoint.encode(), digest_size=_MARK_BYTES).hexdigest()
