"""Which queues are Quaymaster's own: the server alone writes them, lists do not show them, nobody pays for them."""

from __future__ import annotations

from typing import Final

INTERNAL_ACCOUNT: Final = "000000000000"
"""The account of what Quaymaster keeps for itself. It may be the default account as well."""
USAGE_QUEUE: Final = "quaymaster-usage"
"""Usage records of all front ends, in blocks (protocol/usage/usage_blocks)."""


def is_internal(account_id: str, name: str) -> bool:
    """Tell whether a queue, or a consumer group of one, is Quaymaster's own."""
    return account_id == INTERNAL_ACCOUNT and name.partition("@")[0] == USAGE_QUEUE
