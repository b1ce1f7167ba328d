"""`quaymaster user`: users of an account, with keys and policies of their own. Over the admin API."""

from __future__ import annotations

from typing import Annotated

import typer

from quaymaster.cli.admin.identity_calls import (
    Admin,
    NamePath,
    UserName,
    print_listed,
)
from quaymaster.cli.admin.identity_commands import add_commands
from quaymaster.cli.shared import options
from quaymaster.cli.shared.output import print_json, print_table

app = options.new_group("Create and delete users, and say what they may do.")


@app.command("list")
def list_users(
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the users of an account."""
    with Admin(data, admin_url, account) as admin:
        print_listed("users", admin, as_json)


@app.command()
def create(
    name: UserName,
    account: options.Account = None,
    path: NamePath = "/",
    key: Annotated[bool, typer.Option("--key/--no-key", help="Create a first access key, too.")] = True,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create a user with a first access key, whose secret is shown only now.

    It may do nothing until a policy allows it: `user put-policy`.
    """
    with Admin(data, admin_url, account) as admin:
        result = admin.call("CreateUser", name=name, path=path, key=key)
    if as_json:
        print_json(result)
    else:
        shown = ("account_id", "arn", "id", "access_key_id", "secret_access_key")
        print_table(("FIELD", "VALUE"), [(field, result[field]) for field in shown if field in result])


add_commands(
    app,
    "users",
    show_help="Show a user's keys and policies.",
    revoke_help="Refuse all temporary credentials that a user has now. Its keys stay.",
    delete_help="""Delete a user for good, with its keys.

    Queue policies that name it do not mean a later user of this name.
    """,
)
