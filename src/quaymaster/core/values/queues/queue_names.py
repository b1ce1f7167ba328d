"""What queues, consumer groups and accounts are called, and the ARN that names a queue in all accounts and regions.

orders          a standard queue: 1-80 letters, digits, - and _
orders.fifo     a FIFO queue, suffix included at most 80 characters
orders@billing  the consumer group `billing` of the log-retained queue `orders`

arn:aws:sqs:region:account:name
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from quaymaster.core.values.errors import InvalidParameterValue

FIFO_SUFFIX: Final = ".fifo"
GROUP_MARK: Final = "@"
"""Stands between a log's name and a consumer group's; it cannot occur in either."""

_STANDARD = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_FIFO = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo", re.ASCII)
_QUEUE = re.compile(rf"{_STANDARD.pattern}|{_FIFO.pattern}", re.ASCII)
_GROUP = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_ADDRESSED = re.compile(rf"(?:{_QUEUE.pattern})(?:{GROUP_MARK}{_GROUP.pattern})?", re.ASCII)
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)


class QueueArn(msgspec.Struct, frozen=True, gc=False):
    """The ARN of a queue, taken apart. As text it is of the partition `aws`."""

    region: str
    account_id: str
    name: str

    def __str__(self) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account_id}:{self.name}"


def parse_queue_arn(arn: str) -> QueueArn | None:
    """Return the parts of a queue's ARN, None when it is not one. A consumer group has none that is accepted."""
    match arn.split(":"):
        case ["arn", "aws" | "aws-cn" | "aws-us-gov", "sqs", region, account_id, name] if (
            region and is_account_id(account_id) and is_queue_name(name)
        ):
            return QueueArn(region, account_id, name)
    return None


def is_account_id(text: str) -> bool:
    """Return whether an account may have this id."""
    return _ACCOUNT.fullmatch(text) is not None


def is_queue_name(name: str) -> bool:
    """Return whether a queue of some kind may have this name."""
    return _QUEUE.fullmatch(name) is not None


def is_fifo_name(name: str) -> bool:
    """Return whether a queue of this name is a FIFO queue: the suffix says so and nothing else does."""
    return name.endswith(FIFO_SUFFIX)


def check_queue_name(name: str, *, fifo: bool) -> None:
    """Raise InvalidParameterValue unless a new queue, which `fifo` says what kind of, may have this name."""
    if fifo:
        if _FIFO.fullmatch(name) is None:
            raise InvalidParameterValue(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
                "must end with .fifo suffix and be 1 to 80 in length."
            )
    elif _STANDARD.fullmatch(name) is None:
        raise InvalidParameterValue(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )


def is_group_name(group: str) -> bool:
    """Return whether a consumer group may have this name."""
    return _GROUP.fullmatch(group) is not None


def check_group_name(group: str) -> None:
    """Raise InvalidParameterValue unless a consumer group may have this name."""
    if not is_group_name(group):
        raise InvalidParameterValue(
            "The name of a consumer group can only include alphanumeric characters, hyphens, or underscores. "
            "1 to 80 in length"
        )


def is_addressed_name(name: str) -> bool:
    """Return whether a queue, or a consumer group as `<queue>@<group>`, may have this name."""
    return _ADDRESSED.fullmatch(name) is not None


def group_name(log_name: str, group: str) -> str:
    """Return the name of a consumer group's queue."""
    return f"{log_name}{GROUP_MARK}{group}"


def split_group(name: str) -> tuple[str, str]:
    """Return queue and consumer group of a name; the group is empty where none is named."""
    queue, _, group = name.partition(GROUP_MARK)
    return queue, group
