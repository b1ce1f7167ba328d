"""`quaymaster broker`, `metadata`, `manager`, `frontend`: the processes of a cell, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from quaymaster.cli.cells import cell_operations
from quaymaster.cli.loading import (
    Admin,
    Config,
    Listen,
    Overrides,
    ServedData,
    run_process,
    settings_to_serve,
)

if TYPE_CHECKING:
    from quaymaster.node.cell_process import Role


broker_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, pretty_exceptions_enable=False)
broker_app.command("drain")(cell_operations.drain)
broker_app.command("activate")(cell_operations.activate)


@broker_app.callback()
def broker(
    context: typer.Context,
    data: ServedData = None,
    admin: Admin = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run a broker of a cell: it keeps replicas of journals, and leads what it is appointed for.

    With a command: do something about a broker of a cell that runs.
    """
    if context.invoked_subcommand is None:
        _run("broker", data, None, admin, config, overrides)


def metadata(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a metadata node of a cell: it tells front ends what queues, accounts and keys there are. Two or more."""
    _run("metadata", data, None, admin, config, overrides)


def manager(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a manager of a cell: it appoints leaders and places replicas. Two or more; one acts."""
    _run("manager", data, None, admin, config, overrides)


def frontend(
    data: ServedData = None,
    listen: Listen = None,
    admin: Admin = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run a front end of a cell: it speaks SQS, and sends commands to the brokers. Any number."""
    _run("frontend", data, listen, admin, config, overrides)


def _run(
    role: Role, data: ServedData, listen: Listen, admin: Admin, config: Config, overrides: Overrides
) -> None:
    settings = settings_to_serve(config, data, listen, admin, overrides)

    from quaymaster.node.cell_process import run_role

    run_process(run_role(settings, role))
