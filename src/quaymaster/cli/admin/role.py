"""`quaymaster role`: roles, which users and others assume for a while. Over the admin API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli.admin.identity_calls import (
    Admin,
    NamePath,
    RoleName,
    print_done,
    print_listed,
    read_policy_file,
)
from quaymaster.cli.admin.identity_commands import add_commands
from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import WrongUsage

TrustFile = Annotated[
    Path,
    typer.Option("--trust", help="File with the trust policy: who may assume the role.", metavar="FILE"),
]
SessionSeconds = Annotated[
    int,
    typer.Option("--session-seconds", help="How long sessions may last, 3,600 to 43,200.", metavar="SECONDS"),
]

app = options.new_group("Create and delete roles, and say who may assume them and what they may do.")


@app.command("list")
def list_roles(
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the roles of an account."""
    with Admin(data, admin_url, account) as admin:
        print_listed("roles", admin, as_json)


@app.command()
def create(
    name: RoleName,
    trust: TrustFile,
    session_seconds: SessionSeconds = 3_600,
    account: options.Account = None,
    path: NamePath = "/",
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create a role. Its trust policy says who may assume it; other policies say what it may do."""
    text = read_policy_file(trust)
    with Admin(data, admin_url, account) as admin:
        result = admin.call(
            "CreateRole", name=name, path=path, trust_policy=text, session_max_s=session_seconds
        )
    print_done(result, result["arn"], as_json)


@app.command()
def update(
    name: RoleName,
    trust: Annotated[
        Path | None, typer.Option("--trust", help="File with the new trust policy.", metavar="FILE")
    ] = None,
    session_seconds: Annotated[
        int | None,
        typer.Option("--session-seconds", help="How long sessions may last now.", metavar="SECONDS"),
    ] = None,
    account: options.Account = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Change who may assume a role, or for how long at most. Present sessions stay."""
    text = None if trust is None else read_policy_file(trust)
    if text is None and session_seconds is None:
        raise WrongUsage("Give --trust or --session-seconds.")
    with Admin(data, admin_url, account) as admin:
        result = admin.call("UpdateRole", name=name, trust_policy=text, session_max_s=session_seconds)
    print_done(result, f"The role {name} was changed.", as_json)


add_commands(
    app,
    "roles",
    show_help="Show a role's trust policy and policies.",
    revoke_help="Refuse all temporary credentials that were given for a role until now.",
    delete_help="""Delete a role for good; its sessions are refused.

    Queue policies that name it do not mean a later role of this name.
    """,
)
