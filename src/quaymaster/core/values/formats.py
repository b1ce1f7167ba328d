"""Which forms a cell writes: so that versions of this program live side by side, and can go back.

    key `format` in coordination     1 ──`quaymaster cell upgrade`, once every process reads 2──▶ 2
    this program                     reads all forms of FORMAT_MIN to FORMAT_MAX, writes those of the cell's format

One number stands for everything that a cell writes: batches, snapshots, and what its processes send each other inside
of calls. Each of those has a table beside its constants, from the cell format on which a version is written to that
version: `{1: 1, 3: 2}` says that version 2 is written in cells of format 3 and later. All versions in the table are
read, whatever the cell's format.

To change a form: raise FORMAT_MAX, add a row for the new format to the table of what changes, teach the reader the new
version and the writer both, and add a test that reads what the old code wrote. A release later, when no cell may be of
the old format any more, raise FORMAT_MIN. What is only appended, with a default that older programs may ignore and
drop, needs none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quaymaster.core.values.errors import UnsupportedOperation

FORMAT_MIN: Final = 1
FORMAT_MAX: Final = 8


class UnknownFormat(Exception):
    """Whole bytes that this program cannot read: a newer one wrote them. The message says what they are."""


Versions = Mapping[int, int]
"""From the cell format on which a version is written, to that version."""

LOG_QUEUES: Final[Versions] = {1: 0, 3: 1}
"""Since which cell format there are log-retained queues: 0 stands for not at all."""
SHARED_DATA_KEYS: Final[Versions] = {1: 0, 4: 1}
"""Since which cell format queues of an account share data keys, and unused ones are deleted."""
REVISIONS_COMPARED: Final[Versions] = {1: 0, 4: 1}
"""Since which cell format a journal refuses attributes that are not newer than those it has."""
KEYED_IDS: Final[Versions] = {1: 0, 4: 1}
"""Since which cell format new queues have deduplication ids hashed with a key."""
ACCOUNT_STATES: Final[Versions] = {1: 0, 5: 1}
"""Since which cell format accounts can be disabled and deleted: older programs serve those as well."""
FRONT_DOOR: Final[Versions] = {1: 0, 6: 1}
"""Since which cell format there are users, roles, limits and keys of KMS: older programs follow none of their rows."""

PARTITIONS: Final[Versions] = {1: 0, 7: 1}
"""Since which cell format queues can have several partitions: older programs would use the first one only."""
DELIVERY: Final[Versions] = {1: 0, 8: 1}
"""Since which cell format queues may have another DeliveryGuarantee than AtLeastOnce, longer windows of ids, claims,
and an endpoint that they are pushed to."""


class CellFormat:
    """The format that is written now, as far as this process knows. Who writes asks for each write; it only grows."""

    __slots__ = ("number",)

    def __init__(self, number: int = FORMAT_MAX) -> None:
        assert FORMAT_MIN <= number <= FORMAT_MAX, f"format {number} cannot be written"
        self.number = number

    def raise_to(self, number: int) -> None:
        """Write what is read in cells of this format from now on."""
        assert FORMAT_MIN <= number <= FORMAT_MAX, f"format {number} cannot be written"
        self.number = max(self.number, number)

    def version_of(self, versions: Versions) -> int:
        """Return which version of something is written."""
        return version_in(versions, self.number)

    def require(self, versions: Versions, what: str) -> None:
        """Raise UnsupportedOperation where the cell does not write something yet; `what` begins the sentence."""
        if not self.version_of(versions):
            raise UnsupportedOperation(
                f"{what} once all processes of this cell run this version: `quaymaster cell upgrade`."
            )


def version_in(versions: Versions, number: int) -> int:
    """Return which version of something is written in cells of a format."""
    version = versions.get(number)
    if version is None:
        version = versions[max(since for since in versions if since < number)]
    return version


def why_unreadable(number: int) -> str | None:
    """Return why this program cannot be part of a cell of a format, None if it can."""
    if FORMAT_MIN <= number <= FORMAT_MAX:
        return None
    return (
        f"the cell writes format {number}; this program reads formats {FORMAT_MIN} to {FORMAT_MAX}. "
        f"Start {'a newer' if number > FORMAT_MAX else 'an older'} version of Quaymaster"
    )
