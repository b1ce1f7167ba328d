"""What commits say beside their files: the notes of jobs, and an id of its own. Read from the table's log.

Jobs know by their notes where they are, so losing them must not look like never having begun. Each of our commits
carries all notes on; those of vacuum, and of other programs that write to the table, have none. So the newest ones are
looked for from a version backwards, however many commits without any there are.
"""

from __future__ import annotations

import json
from typing import Any, Final

from quaymaster_pipeline.warehouse.data_files import RESTORE, TablePlace
from quaymaster_pipeline.warehouse.errors import BrokenTable

NOTE: Final = "quaymaster"
"""Where a commit has the notes of its jobs: `{"<app>": {...}}`, carried on from commit to commit."""
COMMIT_ID: Final = "quaymaster_commit"
"""Where a commit has what tells it from all others, for who does not get the answer: it looks whether it is there."""
_INFO: Final = '{"commitInfo"'


def notes_of(place: TablePlace, name: str, version: int) -> str | None:
    """Return the notes that a version of a table has, as JSON; None when none of its commits has any.

    Raises:
        BrokenTable: the log was cut off behind the commit that has them.
    """
    for number in range(version, -1, -1):
        try:
            info = _info_of(place, number)
        except FileNotFoundError:
            raise BrokenTable(
                f"the table {name} is broken: its log {place.uri}/_delta_log has no notes of the jobs "
                f"that filled it: none is in commits from {number + 1} on, and those before were deleted; {RESTORE}"
            ) from None
        if NOTE in info:
            return str(info[NOTE])
    return None


def has_id(place: TablePlace, version: int, commit_id: str) -> bool:
    """Return whether a version is there and is the commit with this id."""
    try:
        return _info_of(place, version).get(COMMIT_ID) == commit_id
    except FileNotFoundError:
        return False


def _info_of(place: TablePlace, version: int) -> dict[str, Any]:
    """Return what a commit says of itself. FileNotFoundError when the log does not have it any more."""
    with place.filesystem().open_input_stream(f"_delta_log/{version:020}.json") as source:
        lines = source.read().decode().splitlines()
    found = (json.loads(line)["commitInfo"] for line in lines if line.startswith(_INFO))
    return next(found, {})
