"""`quaymaster limit`: how many requests and bytes a second accounts and queues may have. Over the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import note, print_json, print_line, print_table

app = options.new_group("Set, list, show and remove limits of accounts and queues.")

AccountID = Annotated[str, typer.Option("--account", help="The account's 12 digits.", metavar="ID")]
Queue = Annotated[
    str | None,
    typer.Option("--queue", help="A queue of the account; else the account itself.", metavar="NAME"),
]
Action = Annotated[
    str | None,
    typer.Option(
        "--action", help="An action, as SendMessage, which includes its batch; else all.", metavar="ACTION"
    ),
]


@app.command("set")
def set_limit(
    account_id: AccountID,
    queue: Queue = None,
    action: Action = None,
    requests: Annotated[
        int | None, typer.Option("--requests", help="Requests a second.", metavar="NUMBER", min=1)
    ] = None,
    bytes_per_s: Annotated[
        int | None,
        typer.Option("--bytes", help="Bytes a second, of bodies in and out.", metavar="NUMBER", min=1),
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Set a limit: on an account's requests, or on those to one of its queues, whoever sends them.

    Requests above it get RequestThrottled. What is not given is not limited. It holds within seconds everywhere.
    """
    fields = {"account_id": account_id, "queue": queue, "action": action}
    fields = {name: value for name, value in fields.items() if value is not None}
    rates = {"requests": requests, "bytes": bytes_per_s}
    result = _call(data, admin_url, "SetLimit", **fields, **rates)
    if as_json:
        print_json(result)
    else:
        _show([result])


@app.command("list")
def list_limits(
    account_id: Annotated[
        str | None, typer.Option("--account", help="Those of one account and its queues.", metavar="ID")
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the limits that are set."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        limits = list(admin.limits(account_id or ""))
    if as_json:
        print_json({"limits": limits})
    else:
        _show(limits)


@app.command()
def show(
    account_id: AccountID,
    queue: Queue = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show what holds together for an account's own requests, to one of its queues if it is named."""
    query = {"queue": queue} if queue else {}
    result = _call(data, admin_url, "GetLimits", account_id=account_id, **query)
    if as_json:
        print_json(result)
        return
    rows = [
        (scope, action, limit.get("Requests", "-"), limit.get("Bytes", "-"))
        for scope, limits in result["effective"].items()
        for action, limit in limits.items()
    ]
    if not rows:
        note(f"No limit holds for the account {account_id}.")
        return
    print_table(("OF", "ACTION", "REQUESTS/S", "BYTES/S"), rows)


@app.command()
def remove(
    account_id: AccountID,
    queue: Queue = None,
    action: Action = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Remove a limit, named as it was set."""
    query = {name: value for name, value in (("queue", queue), ("action", action)) if value}
    result = _call(data, admin_url, "RemoveLimit", account_id=account_id, **query)
    if as_json:
        print_json(result)
    else:
        print_line(f"Removed the limit of {' '.join([account_id, *query.values()])}.")


def _call(data: Any, admin_url: str | None, operation: str, **members: Any) -> dict[str, Any]:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        return admin.call(operation, **members)


def _show(limits: list[dict[str, Any]]) -> None:
    print_table(
        ("ACCOUNT ID", "QUEUE", "ACTION", "REQUESTS/S", "BYTES/S"),
        (
            (
                limit["account_id"],
                limit["queue"] or "-",
                limit["action"] or "*",
                limit["requests"] or "-",
                limit["bytes"] or "-",
            )
            for limit in limits
        ),
    )
