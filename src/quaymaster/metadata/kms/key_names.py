"""What a KmsMasterKeyId names. Pure.

    1234abcd-12ab-34cd-56ef-1234567890ab                 a key of the queue's account, by id
    alias/NAME                                           by alias
    arn:aws:kms:REGION:ACCOUNT:key/ID, ...:alias/NAME    of any account

SQS does not check the attribute when it is set, so what cannot be a name comes here as well: it is not found.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from quaymaster.core.values.errors import KmsNotFound

ALIAS: Final = "alias/"
OWN_KEY_ALIAS: Final = "alias/aws/sqs"
"""The key that the service manages itself."""

_ARN: Final = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):([0-9]{12}):(key|alias)/([A-Za-z0-9/_:-]{1,256})")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
_ALIAS_NAME: Final = re.compile(r"[A-Za-z0-9/_-]{1,250}")


class KeyName(NamedTuple):
    """An account's key: its id, or its alias without `alias/`."""

    account_id: str
    name: str
    is_alias: bool

    @property
    def is_own(self) -> bool:
        """Whether it is the key that the service manages itself."""
        return self.is_alias and self.name == OWN_KEY_ALIAS.removeprefix(ALIAS)


@lru_cache(maxsize=4_096)
def parse_key_name(text: str, *, account_id: str, region: str) -> KeyName:
    """Return what the KmsMasterKeyId of an account's queue names; KmsNotFound where it cannot be a key here."""
    match = _ARN.fullmatch(text)
    if match is not None:
        if match[1] != region:
            raise not_found(text)
        return KeyName(match[2], match[4], match[3] == "alias")
    if text.startswith(ALIAS) and is_alias_name(text.removeprefix(ALIAS)):
        return KeyName(account_id, text.removeprefix(ALIAS), True)
    if _KEY_ID.fullmatch(text) is None:
        raise not_found(text)
    return KeyName(account_id, text, False)


def is_alias_name(name: str) -> bool:
    """Tell whether a text can be an alias, without `alias/`."""
    return _ALIAS_NAME.fullmatch(name) is not None


def key_arn(region: str, account_id: str, key_id: str) -> str:
    """Return the ARN of a key."""
    return f"arn:aws:kms:{region}:{account_id}:key/{key_id}"


def not_found(text: str) -> KmsNotFound:
    """Return the error for a key that there is not."""
    return KmsNotFound(f"Key '{text}' does not exist.")
