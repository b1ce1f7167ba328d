"""Condition keys: which of them requests have, and which policies may name.

A key that requests can never have here is kept, for policies are written for other services too: what its operator says
of an absent key holds. Keys of tags are refused until identities have tags, so that no Deny on them is ignored.

Source: IAM User Guide, "AWS global condition context keys"; names are compared without case.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from quaymaster.core.access.errors import PolicyValueIsWrong
from quaymaster.core.access.kinds import PolicyKind

KEY_CHARS_MAX: Final = 256


class Presence(Enum):
    """Whether requests have a condition key."""

    ALWAYS = "always"
    SOMETIMES = "where it exists"
    NEVER = "never"


ALWAYS_THERE: Final = {
    "aws:CurrentTime": "the time, as `2026-01-02T03:04:05Z`",
    "aws:EpochTime": "the time, in seconds since 1970",
    "aws:PrincipalAccount": "account of the caller",
    "aws:PrincipalArn": "ARN of the caller: of a session its role's, of a root key `arn:aws:iam::ACCOUNT:root`",
    "aws:PrincipalType": "`Account` (root key), `User` or `AssumedRole`",
    "aws:RequestedRegion": "region of the server",
    "aws:ResourceAccount": "account of the queue or role",
    "aws:SecureTransport": "`true` for requests over TLS, else `false`",
    "aws:SourceIp": "address of the client",
    "aws:userid": "id of the user, ROLE-ID:SESSION, or the account of a root key",
}
"""Keys that requests have, as IAM spells them, and their values. Web identities have no account and no type."""
THERE_SOMETIMES: Final = {
    "aws:Referer": "the header of this name, up to 512 bytes",
    "aws:TokenIssueTime": "when temporary credentials were made",
    "aws:UserAgent": "the header `User-Agent`, up to 512 bytes",
    "aws:username": "name of the user, without its path",
}
THERE_FOR_ROLES: Final = {
    "sts:ExternalId": "the external id that AssumeRole was given",
    "sts:RoleSessionName": "the name that the session is to have",
}
"""In trust policies only."""
ALWAYS: Final = frozenset(map(str.lower, ALWAYS_THERE))
SOMETIMES: Final = frozenset(map(str.lower, THERE_SOMETIMES))
_OF_TAGS: Final = ("aws:principaltag/", "aws:requesttag/", "aws:resourcetag/", "aws:tagkeys")
_GLOBAL: Final = "aws:"
OF_ROLES: Final = frozenset(map(str.lower, THERE_FOR_ROLES))
_CLAIM: Final = re.compile(r"[a-z0-9][a-z0-9.-]*(?::[0-9]+)?(?:/[a-z0-9._~/-]*)?:[a-z0-9_.-]+", re.ASCII)
"""A claim of a web identity token, in trust policies: accounts.example.com/path:sub."""
_SERVICES: Final = ("aws:", "sts:", "sqs:", "iam:", "kms:", "saml:")


def parse_key(name: str, kind: PolicyKind = PolicyKind.QUEUE) -> str:
    """Return a condition key as it is looked up, in lower case; PolicyValueIsWrong for those refused."""
    key = name.lower()
    is_of_trust = kind is PolicyKind.TRUST and len(key) <= KEY_CHARS_MAX
    if is_of_trust and (key in OF_ROLES or (_CLAIM.fullmatch(key) and not key.startswith(_SERVICES))):
        return key
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
    if key in SOMETIMES or key in OF_ROLES or not key.startswith(_GLOBAL):
        return Presence.SOMETIMES
    return Presence.NEVER
