"""The kinds of policies: where each stands, which decides what it can say."""

from __future__ import annotations

from enum import Enum


class PolicyKind(Enum):
    """Where a policy stands: with a queue; with an identity or a session, which it then is about; or with a role.

    A trust policy says who may assume the role.
    """

    QUEUE = "queue"
    IDENTITY = "identity"
    TRUST = "trust"
