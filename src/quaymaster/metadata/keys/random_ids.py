"""Ids of keys, users and roles: made up by chance, long enough that no two are alike, and never given again."""

from __future__ import annotations

import secrets
from typing import Final

_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def random_id(prefix: str, characters: int) -> str:
    """Return an id of so many characters behind its prefix, which tells the kind: AKIA, AIDA, AROA."""
    return prefix + "".join(secrets.choice(_BASE32) for _ in range(characters))
