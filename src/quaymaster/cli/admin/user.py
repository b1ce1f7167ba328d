"""`quaymaster user`: users of an account, with keys and policies of their own. Over the admin API."""

from __future__ import annotations

from typing import Annotated

import typer

from quaymaster.cli.admin.identity_calls import (
    Admin,
    NamePath,
    PolicyFile,
    PolicyName,
    UserName,
    print_done,
    print_identity,
    print_listed,
    read_policy_file,
)
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
        result = admin.post("users", name=name, path=path, key=key)
    if as_json:
        print_json(result)
    else:
        shown = ("account_id", "arn", "id", "access_key_id", "secret_access_key")
        print_table(("FIELD", "VALUE"), [(field, result[field]) for field in shown if field in result])


@app.command()
def show(
    name: UserName,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a user's keys and policies."""
    with Admin(data, admin_url, account) as admin:
        print_identity(admin.get("users", name), as_json)


@app.command()
def put_policy(
    name: UserName,
    policy: PolicyName,
    file: PolicyFile,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Give a user a policy, in place of the one with this name."""
    text = read_policy_file(file)
    with Admin(data, admin_url, account) as admin:
        result = admin.post("users", name, "policy", policy_name=policy, policy=text)
    print_done(result, f"The user {name} has the policy {policy}.", as_json)


@app.command()
def delete_policy(
    name: UserName,
    policy: PolicyName,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Take a policy from a user."""
    with Admin(data, admin_url, account) as admin:
        result = admin.delete("users", name, "policy", policy_name=policy)
    print_done(result, f"The user {name} does not have the policy {policy} any more.", as_json)


@app.command()
def revoke_sessions(
    name: UserName,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Refuse all temporary credentials that a user has now. Its keys stay."""
    with Admin(data, admin_url, account) as admin:
        result = admin.post("users", name, "revoke-sessions")
    print_done(result, f"The temporary credentials of the user {name} are refused.", as_json)


@app.command()
def delete(
    name: UserName,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete a user for good, with its keys.

    Queue policies that name it do not mean a later user of this name.
    """
    with Admin(data, admin_url, account) as admin:
        result = admin.delete("users", name)
    print_done(result, f"Deleted the user {name}.", as_json)
