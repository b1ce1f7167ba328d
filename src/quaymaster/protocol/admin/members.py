"""What requests and answers of the admin API are made of: kinds of values that several operations have.

A request has one struct of members. Those that its path names are in the path; the others are in the query of a GET or
DELETE, and in the JSON body of a POST. In `v1` members are only added, to answers anywhere, to requests with a default.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

PAGE_MAX: Final = 1_000
TOKEN_CHARS_MAX: Final = 8_192

AccountId = Annotated[
    str, Meta(pattern="^[0-9]{12}$", max_length=12, description="Id of an account, 12 digits.")
]
PathName = Annotated[str, Meta(min_length=1, max_length=128)]
"""Short enough for a path, however it is encoded."""
QueueName = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_.@-]{1,168}$",
        max_length=168,
        description="Name of a queue, or `QUEUE@GROUP` of a consumer group.",
    ),
]
KeyId = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9]{1,128}$",
        max_length=128,
        description="Id of an access key, not of temporary ones.",
    ),
]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many at most.")]
NextToken = Annotated[str, Meta(max_length=TOKEN_CHARS_MAX, description="`next_token` of the page before.")]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
PolicyText = Annotated[str, Meta(description="A policy, IAM JSON, as text.")]


class AdminRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operation is asked with."""


class Nothing(AdminRequest, frozen=True):
    """An operation needs nothing but its name."""


class OfAccount(AdminRequest, frozen=True, kw_only=True):
    """It is about what an account has, by default the caller's."""

    account_id: AccountId | None = None


class AdminAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation answers."""


class Change(AdminAnswer, frozen=True, kw_only=True):
    """What a change answers."""

    behind: (
        Annotated[
            list[str],
            Meta(
                description="Front ends that did not know of a revocation within 5 s. Brokers refuse them until "
                "they do. Absent where all know."
            ),
        ]
        | UnsetType
    ) = UNSET
