"""`quaymaster identity`: users and roles as a file declares them. Over the admin API."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from quaymaster.cli.admin.identity_calls import Admin, read_policy_file
from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_line

app = options.new_group("Users and roles from a file.")


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="TOML file with users and roles.", metavar="FILE")],
    account: options.Account = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete users and roles that the file does not name.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be changed.")] = False,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create and change users and roles so that they are as a file says. Applied twice, it changes nothing more.

    New users get no access keys: `key create --user`.
    """
    from quaymaster.cli.admin.identity_plan import KINDS, parse_identities, plan_changes

    wanted = parse_identities(_read(file), lambda name: read_policy_file(file.parent / name))
    done: list[str] = []
    with Admin(data, admin_url, account) as admin:
        current: dict[Any, dict[str, dict[str, Any]]] = {
            kind: {
                one["name"].lower(): admin.show(kind, one["name"])
                if one["name"].lower() in {name.lower() for name in wanted[kind]}
                else one
                for one in admin.listed(kind)
            }
            for kind in KINDS
        }
        for step in plan_changes(wanted, current, prune=prune):
            if not dry_run:
                admin.call(step.operation, **step.members)
            done.append(step.text)
            if not as_json:
                print_line(step.text)
    if as_json:
        print_json({"changes": done, "dry_run": dry_run})
    elif not done:
        note("Nothing to change.")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(options.read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise WrongUsage(f"{file} is no TOML: {error}") from None
