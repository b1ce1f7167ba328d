"""`quaymaster user`: users of an account, with keys and policies of their own. Over the admin API."""

from __future__ import annotations

import sys
from getpass import getpass
from typing import Annotated

import typer

from quaymaster.cli.admin.identity_calls import (
    Admin,
    NamePath,
    UserName,
    print_done,
    print_listed,
)
from quaymaster.cli.admin.identity_commands import add_commands
from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import WrongUsage
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


@app.command()
def password(
    name: UserName,
    remove: Annotated[bool, typer.Option("--remove", help="Take the user's password.")] = False,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Give a user a password for the console, in place of the one it had.

    It is asked for, or read from standard input: 12 to 256 characters. The user's temporary credentials end.
    """
    with Admin(data, admin_url, account) as admin:
        if remove:
            result = admin.call("DeleteUserPassword", name=name)
        else:
            result = admin.call("SetUserPassword", name=name, password=_read_password())
    print_done(result, f"The user {name} has {'no' if remove else 'a new'} password.", as_json)


def _read_password() -> str:
    """Return a password that was typed twice, or is the first line of standard input; WrongUsage."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    typed = getpass("Password: ")
    if getpass("Once more: ") != typed:
        raise WrongUsage("The two passwords differ.")
    return typed


add_commands(
    app,
    "users",
    show_help="Show a user's keys and policies.",
    revoke_help="Refuse all temporary credentials that a user has now. Its keys stay.",
    delete_help="""Delete a user for good, with its keys.

    Queue policies that name it do not mean a later user of this name.
    """,
)
