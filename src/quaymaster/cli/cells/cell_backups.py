"""`quaymaster cell backup`, `cell restore`: a copy of a whole cell, and a cell that begins with a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.loading import Config, Overrides, load_for
from quaymaster.cli.shared.output import print_done, progress_bar


def cell_backup(
    destination: Annotated[Path, typer.Argument(help="Where to; must not exist yet.", metavar="DESTINATION")],
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Write a consistent copy of the cell, all journals and the store, to a directory of this machine.

    Requests continue. Only messages on their way from journal to journal wait while their ends are fixed, for some
    hundredths of a second. It begins again when a leader changes meanwhile.
    """
    from quaymaster.cli.cells.cell_cut import run_cell_backup

    run_cell_backup(load_for(config, overrides), destination.absolute(), as_json=as_json)


def cell_restore(
    source: Annotated[
        Path, typer.Argument(help="What a backup wrote, of a cell or a server.", metavar="BACKUP")
    ],
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="Copy of the master keys.", metavar="DIR"),
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make a new cell of a backup. Its brokers run and have nothing; nothing else of it runs yet.

    Refused without the master keys the backup was made under, when the cell's etcd prefix has anything in it but
    its brokers, and when a broker has a journal. The number of brokers need not be that of the backup.
    """
    import asyncio

    from quaymaster.cli.cells.cell_restoring import restore_cell
    from quaymaster.core.values.errors import NotNow
    from quaymaster.node.restoring import RestoreRefused

    if not source.exists():
        raise WrongUsage(f"{source} does not exist.")
    settings = load_for(config, overrides)
    with progress_bar("Restoring", quiet=as_json, in_bytes=True) as bar:
        try:
            event = asyncio.run(
                restore_cell(
                    source.absolute(),
                    settings,
                    None if keys is None else keys.absolute(),
                    lambda done, total: bar.update(done, total=total),
                )
            )
        except RestoreRefused as error:
            raise CommandRefused(str(error)) from None
        except NotNow as error:
            raise NoServer(f"the cell: {error}") from None
    print_done(
        event,
        f"restored {len(event['journals'])} journals; start the other processes of the cell",
        "Give each front end the master keys of the backup, before it starts.",
        as_json=as_json,
    )
