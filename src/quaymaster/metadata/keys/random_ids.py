"""Ids of keys, users and roles, and of what their sessions belong to: made up by chance, never given again.

They are long enough that no two are alike.
"""

from __future__ import annotations

import secrets
from typing import Final

_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def random_id(prefix: str, characters: int) -> str:
    """Return an id of so many characters behind its prefix, which tells the kind: AKIA, AIDA, AROA."""
    return prefix + "".join(secrets.choice(_BASE32) for _ in range(characters))


def random_generation() -> int:
    """Return a number of 63 bits, which fits where a count was before."""
    return secrets.randbits(63)
