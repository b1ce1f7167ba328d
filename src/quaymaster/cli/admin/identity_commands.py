"""The commands that groups for users and for roles both have: `show`, those of policies and sessions, `delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from quaymaster.cli.admin.identity_calls import (
    Admin,
    Kind,
    PolicyFile,
    PolicyName,
    print_done,
    print_identity,
    read_policy_file,
)
from quaymaster.cli.shared import options

IdentityName = Annotated[str, typer.Argument(help="Name of the user or role.", metavar="NAME")]


def add_commands(app: typer.Typer, kind: Kind, *, show_help: str, revoke_help: str, delete_help: str) -> None:
    """Add them to a group. The texts are the helps of commands whose meaning differs."""
    noun = kind.removesuffix("s")
    is_role = kind == "roles"

    @app.command(help=show_help)
    def show(
        name: IdentityName,
        account: options.Account = None,
        data: options.Data = None,
        admin_url: options.AdminURL = None,
        as_json: options.AsJSON = False,
    ) -> None:
        with Admin(data, admin_url, account) as admin:
            print_identity(admin.show(kind, name), as_json)

    @app.command(help=f"Give a {noun} a policy, in place of the one with this name.")
    def put_policy(
        name: IdentityName,
        policy: PolicyName,
        file: PolicyFile,
        account: options.Account = None,
        data: options.Data = None,
        admin_url: options.AdminURL = None,
        as_json: options.AsJSON = False,
    ) -> None:
        text = read_policy_file(file)
        with Admin(data, admin_url, account) as admin:
            result = admin.call(
                "PutRolePolicy" if is_role else "PutUserPolicy", name=name, policy_name=policy, policy=text
            )
        print_done(result, f"The {noun} {name} has the policy {policy}.", as_json)

    @app.command(help=f"Take a policy from a {noun}.")
    def delete_policy(
        name: IdentityName,
        policy: PolicyName,
        account: options.Account = None,
        data: options.Data = None,
        admin_url: options.AdminURL = None,
        as_json: options.AsJSON = False,
    ) -> None:
        with Admin(data, admin_url, account) as admin:
            result = admin.call(
                "DeleteRolePolicy" if is_role else "DeleteUserPolicy", name=name, policy_name=policy
            )
        print_done(result, f"The {noun} {name} does not have the policy {policy} any more.", as_json)

    @app.command(help=revoke_help)
    def revoke_sessions(
        name: IdentityName,
        account: options.Account = None,
        data: options.Data = None,
        admin_url: options.AdminURL = None,
        as_json: options.AsJSON = False,
    ) -> None:
        with Admin(data, admin_url, account) as admin:
            result = admin.call("RevokeRoleSessions" if is_role else "RevokeUserSessions", name=name)
        print_done(result, f"The temporary credentials of the {noun} {name} are refused.", as_json)

    @app.command(help=delete_help)
    def delete(
        name: IdentityName,
        account: options.Account = None,
        data: options.Data = None,
        admin_url: options.AdminURL = None,
        as_json: options.AsJSON = False,
    ) -> None:
        with Admin(data, admin_url, account) as admin:
            result = admin.call("DeleteRole" if is_role else "DeleteUser", name=name)
        print_done(result, f"Deleted the {noun} {name}.", as_json)
