"""`quaymaster account`: who owns queues. Over the admin API."""

from __future__ import annotations

from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused
from quaymaster.cli.shared.output import (
    ask_before_deletion,
    note,
    print_json,
    print_line,
    print_table,
    time_as_text,
)

app = options.new_group("List, create, disable and delete accounts.")

AccountID = Annotated[str, typer.Argument(help="The account's 12 digits.", metavar="ID")]


@app.command("list")
def list_accounts(
    deleted: Annotated[bool, typer.Option("--deleted", help="Also those that were deleted.")] = False,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List all accounts."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        accounts = list(admin.accounts(deleted=deleted))
    if as_json:
        print_json({"accounts": accounts})
    else:
        print_table(
            ("ACCOUNT ID", "NAME", "CREATED", "STATE"),
            (
                (
                    account["account_id"],
                    account["name"],
                    time_as_text(account["created_ms"]),
                    account["state"],
                )
                for account in accounts
            ),
        )


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A name for people.", metavar="NAME")],
    account_id: Annotated[
        str | None, typer.Option("--id", help="The 12 digits; otherwise they are chosen.", metavar="ID")
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create an account with a first access key, whose secret is shown only now."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("CreateAccount", name=name, account_id=account_id)
    if as_json:
        print_json(result)
    else:
        shown = ("account_id", "name", "access_key_id", "secret_access_key")
        print_table(("FIELD", "VALUE"), [(name, result[name]) for name in shown])


@app.command()
def disable(
    account_id: AccountID,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Refuse all requests of an account, until it is enabled again.

    Its access keys and temporary credentials are refused like unknown ones. Queues, messages and keys stay as they are.
    """
    _switch(account_id, "DisableAccount", data, admin_url, as_json)


@app.command()
def enable(
    account_id: AccountID,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Take requests of a disabled account again. Keys that are disabled themselves stay so."""
    _switch(account_id, "EnableAccount", data, admin_url, as_json)


@app.command()
def delete(
    account_id: AccountID,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", help="The account's id once more, instead of typing it.", metavar="ID"),
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete an account that has no queues, with its access keys, for good. Asks for the account's id.

    Usage, audit events and invoices stay, so the id is never given again.
    """
    from quaymaster.cli.shared.client import AdminClient

    if confirm is None:
        note(f"This deletes the account {account_id} and its access keys for good.")
        confirm = ask_before_deletion("Type the account's id to go on: ", f"--confirm {account_id}")
    if confirm.strip() != account_id:
        raise CommandRefused(
            f"{confirm.strip()!r} is not the account's id, {account_id}: nothing was deleted."
        )
    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("DeleteAccount", account_id=account_id)
    if as_json:
        print_json(result)
    else:
        print_line(f"Deleted the account {account_id}.")


def _switch(
    account_id: str, operation: str, data: options.Data, admin_url: options.AdminURL, as_json: bool
) -> None:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call(operation, account_id=account_id)
    if as_json:
        print_json(result)
    else:
        print_line(f"The account {account_id} ({result['name']}) is {result['state']}.")
