"""`quaymaster profile`: named ways to reach servers and cells, kept in files of this user."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import print_json, print_line, print_table
from quaymaster.cli.shared.profile_files import (
    Profile,
    create_profile,
    current_profile,
    delete_profile,
    profile_names,
    read_profile,
    use_profile,
)

app = options.new_group("Keep how to reach servers and cells, under names.")

Name = Annotated[str, typer.Argument(help="Name of the profile.", metavar="NAME")]
SECRETS = ("secret_access_key", "session_token")


@dataclass(frozen=True, kw_only=True)
class CreateOptions:
    """What a profile is made of."""

    data: Annotated[
        Path | None,
        typer.Option("--data", help="Take all of it from the data directory of a server.", metavar="DIR"),
    ] = None
    endpoint_url: options.EndpointURL = None
    admin_url: Annotated[str | None, typer.Option("--admin-url", help="Admin API.", metavar="URL")] = None
    config: Annotated[
        Path | None,
        typer.Option("--config", help="File of settings, for commands that ask a cell.", metavar="FILE"),
    ] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting, for commands that ask a cell.", metavar="NAME=VALUE"),
    ] = None
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def create(name: Name, given: CreateOptions) -> None:
    """Keep how to reach a server or a cell. The file is for its owner only: it has the secret access key.

    With --endpoint-url the credentials are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the region that of
    AWS_REGION. The secret is never an argument, which others of this machine could see.
    """
    profile = Profile()
    if given.data is not None or given.endpoint_url is not None:
        found = find_connection(given.data, given.endpoint_url)
        profile = Profile(
            endpoint_url=found.endpoint_url,
            admin_url=found.admin_url,
            region=found.region,
            account_id=found.account_id,
            access_key_id=found.access_key_id,
            secret_access_key=found.secret_access_key,
            session_token=found.session_token,
        )
    profile = replace(
        profile,
        admin_url=given.admin_url or profile.admin_url,
        config=None if given.config is None else str(given.config.absolute()),
        settings=options.parse_assignments(given.overrides or (), "setting"),
    )
    if profile == Profile():
        raise WrongUsage("Say what it is of: --data, --endpoint-url, --config or --set.")
    path = create_profile(name, profile, os.environ)
    if given.use:
        use_profile(name, os.environ)
    if given.as_json:
        print_json({"name": name, "file": str(path), "in_use": given.use})
    else:
        print_line(str(path))


@app.command("list")
def list_profiles(as_json: options.AsJSON = False) -> None:
    """List profiles, and which one is in use."""
    current = current_profile(os.environ)
    rows = [(name, name == current, read_profile(name, os.environ)) for name in profile_names(os.environ)]
    if as_json:
        print_json(
            {"profiles": [_shown(profile) | {"name": name, "in_use": used} for name, used, profile in rows]}
        )
        return
    print_table(
        ("PROFILE", "IN USE", "ENDPOINT", "ADMIN", "CONFIG"),
        ((name, used, one.endpoint_url, one.admin_url, one.config) for name, used, one in rows),
    )


@app.command()
def use(name: Name, as_json: options.AsJSON = False) -> None:
    """Use a profile from now on: commands take it where no flag and no variable says where the server is."""
    use_profile(name, os.environ)
    if as_json:
        print_json({"name": name, "in_use": True})


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(help="Name of the profile; otherwise the one in use.", metavar="NAME")
    ] = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a profile, without its secrets."""
    chosen = name or current_profile(os.environ)
    if chosen is None:
        raise CommandRefused("No profile is in use: name one.")
    shown = _shown(read_profile(chosen, os.environ))
    if as_json:
        print_json({"name": chosen} | shown)
        return
    settings = shown.pop("settings")
    print_table(
        ("FIELD", "VALUE"),
        [
            ("name", chosen),
            *((field, value) for field, value in shown.items() if value is not None),
            *((f"setting {field}", value) for field, value in settings.items()),
        ],
    )


@app.command()
def delete(name: Name, as_json: options.AsJSON = False) -> None:
    """Delete a profile, with the secret that it has."""
    delete_profile(name, os.environ)
    if as_json:
        print_json({"name": name, "deleted": True})


def _shown(profile: Profile) -> dict[str, Any]:
    hidden = {secret: "********" for secret in SECRETS if getattr(profile, secret)}
    return asdict(profile) | hidden
