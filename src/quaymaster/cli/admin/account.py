"""`quaymaster account`: who owns queues. Over the admin API."""

from __future__ import annotations

from typing import Annotated

import typer

from quaymaster.cli import options
from quaymaster.cli.connection import find_connection
from quaymaster.cli.output import print_json, print_table, time_as_text

app = options.new_group("List and create accounts.")


@app.command("list")
def list_accounts(
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List all accounts."""
    from quaymaster.cli.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        accounts = list(admin.accounts())
    if as_json:
        print_json({"accounts": accounts})
    else:
        print_table(
            ("ACCOUNT ID", "NAME", "CREATED"),
            (
                (account["account_id"], account["name"], time_as_text(account["created_ms"]))
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
    from quaymaster.cli.client import AdminClient

    fields = {"name": name}
    if account_id is not None:
        fields["account_id"] = account_id
    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("POST", "accounts", fields=fields)
    if as_json:
        print_json(result)
    else:
        shown = ("account_id", "name", "access_key_id", "secret_access_key")
        print_table(("FIELD", "VALUE"), [(name, result[name]) for name in shown])
