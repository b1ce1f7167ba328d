"""What the pipeline adds to the `quaymaster` command, and how its failures are told there."""

from __future__ import annotations

import typer

from quaymaster.cli.extensions import Extension
from quaymaster.cli.failures import CommandFailed, Refused
from quaymaster_pipeline.commands import archive, audit, billing, pipeline
from quaymaster_pipeline.warehouse.errors import (
    BrokenTable,
    CommitConflict,
    DiskFull,
    StoreFails,
    why_no_room,
)


def add_commands(app: typer.Typer) -> None:
    """Add `pipeline`, `usage`, `billing`, `archive` and `audit`."""
    app.add_typer(pipeline.app, name="pipeline")
    app.command()(pipeline.usage)
    app.add_typer(billing.app, name="billing")
    app.add_typer(archive.app, name="archive")
    app.add_typer(audit.app, name="audit")


def tell(error: Exception) -> CommandFailed | None:
    """Say what an exception means, if it is of tables, of the disk that they are on, or of the store that has them."""
    match error:
        case BrokenTable() | DiskFull() | StoreFails():
            return Refused(f"{error}.")
        case CommitConflict():
            return Refused(f"{error}. What was done stays so; stop the other one, and run it again.")
        case OSError() if reason := why_no_room(error):
            return Refused(f"{error.filename or 'What is written'} finds no room: {reason}.")
    return None


extension = Extension(add_commands, tell)
