"""`quaymaster run broker`, `metadata`, `manager`, `frontend`, `console`, `push`: the processes of a cell."""

from __future__ import annotations

from quaymaster.cli.shared import options
from quaymaster.cli.shared.loading import (
    Admin,
    Config,
    Listen,
    Overrides,
    ServedData,
    collecting_later,
    run_process,
    settings_to_serve,
)

app = options.new_group("Run one process of a cell.")


@app.command()
def broker(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a broker of a cell: it keeps replicas of journals, and leads what it is appointed for. Three or more."""
    _run("broker", data, None, admin, config, overrides)


@app.command()
def metadata(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a metadata node of a cell: it tells front ends what queues, accounts and keys there are. Two or more."""
    _run("metadata", data, None, admin, config, overrides)


@app.command()
def manager(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a manager of a cell: it appoints leaders and places replicas. Two or more; one acts."""
    _run("manager", data, None, admin, config, overrides)


@app.command()
def frontend(
    data: ServedData = None,
    listen: Listen = None,
    admin: Admin = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run a front end of a cell: it speaks SQS, and sends commands to the brokers. Any number."""
    _run("frontend", data, listen, admin, config, overrides)


@app.command()
def console(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a console of a cell: it keeps the history of queues, judges alerts and has pages for browsers. Two."""
    _run("console", data, None, admin, config, overrides)


@app.command()
def push(
    data: ServedData = None, admin: Admin = None, config: Config = None, overrides: Overrides = None
) -> None:
    """Run a pusher of a cell: it sends messages of queues with a PushEndpoint to that by HTTP. Two or more."""
    _run("push", data, None, admin, config, overrides)


def _run(
    role: str, data: ServedData, listen: Listen, admin: Admin, config: Config, overrides: Overrides
) -> None:
    with collecting_later():
        settings = settings_to_serve(config, data, listen, admin, overrides)

        from quaymaster.node.roles import run_role

        run_process(run_role(settings, role))
