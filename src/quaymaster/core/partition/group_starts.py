"""Where a consumer group of a log-retained queue starts, as people and attributes say it.

earliest            the oldest message there is
latest              behind the newest
offset:NUMBER       the message of this sequence number; the nearest there is, when it is gone or not there yet
timestamp:NUMBER    the first message sent at or after this time, in milliseconds since 1970
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.attributes import EARLIEST, LATEST
from quaymaster.core.values.errors import InvalidParameterValue

OFFSET: Final = "offset:"
TIMESTAMP: Final = "timestamp:"
_DIGITS_MAX: Final = 18


def check_start(text: str) -> None:
    """Raise InvalidParameterValue unless a group can start there."""
    if text in (EARLIEST, LATEST):
        return
    for kind in (OFFSET, TIMESTAMP):
        digits = text.removeprefix(kind)
        if digits != text and digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX:
            return
    raise InvalidParameterValue.of(
        "Start",
        text,
        f"It is earliest, latest, offset:NUMBER or timestamp:MILLISECONDS, with at most {_DIGITS_MAX} digits.",
    )


def find_start(text: str, log: Partition) -> int:
    """Return the first message that a group starting there has not consumed. `text` was checked."""
    head, end = log.head, log.next_sequence
    if text == LATEST:
        return end
    if text.startswith(OFFSET):
        return min(max(int(text.removeprefix(OFFSET)), head), end)
    if text.startswith(TIMESTAMP):
        return log.index.first_sent_after(head, end, int(text.removeprefix(TIMESTAMP)) - 1)
    return head
