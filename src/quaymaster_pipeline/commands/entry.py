"""What the pipeline adds to the `quaymaster` command, and how its failures are told there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quaymaster.cli.extensions import Extension
from quaymaster.cli.shared.failures import CommandFailed, CommandRefused
from quaymaster_pipeline.warehouse.errors import (
    BrokenTable,
    CommitConflict,
    StoreFails,
    SumsDiffer,
    UsageHasExpired,
    WarehouseFull,
    why_no_room,
)

COMMANDS: Final[Mapping[str, str]] = {
    "pipeline": "quaymaster_pipeline.commands.pipeline:app",
    "usage": "quaymaster_pipeline.commands.usage:usage",
    "billing": "quaymaster_pipeline.commands.billing:app",
    "archive": "quaymaster_pipeline.commands.archive:app",
    "audit": "quaymaster_pipeline.commands.audit:app",
}


def tell(error: Exception) -> CommandFailed | None:
    """Say what an exception means, if it is of tables, of the disk that they are on, or of the store that has them."""
    match error:
        case BrokenTable() | StoreFails() | SumsDiffer() | UsageHasExpired() | WarehouseFull():
            return CommandRefused(f"{error}.")
        case CommitConflict():
            return CommandRefused(f"{error}. What was done stays so; stop the other one, and run it again.")
        case OSError() if reason := why_no_room(error):
            return CommandRefused(f"{error.filename or 'What is written'} finds no room: {reason}.")
    return None


extension = Extension(COMMANDS, tell)
