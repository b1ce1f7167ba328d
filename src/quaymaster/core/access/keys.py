"""Condition keys: which of them requests have, and which policies may name.

A key that requests can never have here is kept, for policies are written for other services too: what its operator says
of an absent key holds. Keys of tags are refused until identities have tags, so that no Deny on them is ignored.

Source: IAM User Guide, "AWS global condition context keys"; names are compared without case.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quaymaster.core.access.errors import PolicyValueIsWrong

KEY_CHARS_MAX: Final = 256


class Presence(Enum):
    """Whether requests have a condition key."""

    ALWAYS = "always"
    SOMETIMES = "where it exists"
    NEVER = "never"


ALWAYS: Final = frozenset(
    {
        "aws:currenttime",
        "aws:epochtime",
        "aws:principalaccount",
        "aws:principalarn",
        "aws:principaltype",
        "aws:requestedregion",
        "aws:resourceaccount",
        "aws:securetransport",
        "aws:sourceip",
        "aws:userid",
    }
)
SOMETIMES: Final = frozenset({"aws:referer", "aws:tokenissuetime", "aws:useragent", "aws:username"})
_OF_TAGS: Final = ("aws:principaltag/", "aws:requesttag/", "aws:resourcetag/", "aws:tagkeys")
_GLOBAL: Final = "aws:"


def parse_key(name: str) -> str:
    """Return a condition key as it is looked up, in lower case; PolicyValueIsWrong for those refused."""
    key = name.lower()
    if key.startswith(_OF_TAGS):
        raise PolicyValueIsWrong("A condition key", name, "keys of tags are not supported")
    if not key.startswith(_GLOBAL) or len(key) == len(_GLOBAL):
        raise PolicyValueIsWrong("A condition key", name, "only keys that begin with aws: are known")
    if len(key) > KEY_CHARS_MAX:
        raise PolicyValueIsWrong("A condition key", name, f"it is longer than {KEY_CHARS_MAX} characters")
    return key


def presence_of(key: str) -> Presence:
    """Return whether requests have a key that `parse_key` returned."""
    if key in ALWAYS:
        return Presence.ALWAYS
    return Presence.SOMETIMES if key in SOMETIMES else Presence.NEVER
