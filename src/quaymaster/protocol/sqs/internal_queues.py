"""Which queues are Quaymaster's own: the server alone writes them, lists do not show them, and they cost nothing.

The server makes an access key for their reader as well.
"""

from __future__ import annotations

from typing import Final

INTERNAL_ACCOUNT: Final = "000000000000"
"""The account of what Quaymaster keeps for itself. It may be the default account as well."""
USAGE_QUEUE: Final = "quaymaster-usage"
"""Usage records of all front ends, in blocks (protocol/usage/usage_blocks)."""

PIPELINE_KEY: Final = "pipeline"
"""The name of the access key that reads them, as `quaymaster key list` shows it. No key of an operator has it."""


def is_internal(account_id: str, name: str) -> bool:
    """Tell whether a queue, or a consumer group of one, is Quaymaster's own."""
    return account_id == INTERNAL_ACCOUNT and name.partition("@")[0] == USAGE_QUEUE


def is_pipeline_key(account_id: str, name: str, user: str) -> bool:
    """Tell whether an access key is the one that the server made for the pipeline; `user` is empty for a root key."""
    return account_id == INTERNAL_ACCOUNT and name == PIPELINE_KEY and not user
