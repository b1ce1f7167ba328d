"""`quaymaster oidc`: issuers whose web identity tokens are taken for sessions of roles. Over the admin API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli import options
from quaymaster.cli.admin.identity_calls import print_done
from quaymaster.cli.connection import find_connection
from quaymaster.cli.failures import WrongUsage, reason_of
from quaymaster.cli.output import print_json, print_table, time_as_text

app = options.new_group("Set the issuers of web identity tokens: of pods, of CI jobs.")


@app.command("list")
def list_issuers(
    data: options.Data = None, admin_url: options.AdminURL = None, as_json: options.AsJSON = False
) -> None:
    """List the issuers."""
    from quaymaster.cli.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        found = admin.call("GET", "oidc")
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "AUDIENCES", "KEYS", "CHANGED"),
        (
            (one["name"], ", ".join(one["audiences"]), one["key_count"], time_as_text(one["changed_ms"]))
            for one in found["issuers"]
        ),
    )


@app.command("set")
def set_issuer(
    issuer: Annotated[
        str, typer.Argument(help="URL of the issuer, as its tokens have it in iss.", metavar="URL")
    ],
    audience: Annotated[
        list[str],
        typer.Option(
            "--audience", help="Whom its tokens must be for (aud); may be repeated.", metavar="TEXT"
        ),
    ],
    keys: Annotated[
        Path, typer.Option("--keys", help="File with the issuer's JSON Web Key Set.", metavar="FILE")
    ],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Set an issuer, or change its audiences and keys.

    Roles whose trust policies name it can then be assumed with its tokens, where the setting `oidc_issuers` is on.
    """
    from quaymaster.cli.client import AdminClient

    try:
        text = keys.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{keys} cannot be read: {reason_of(error)}") from None
    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("POST", "oidc", fields={"issuer": issuer, "audiences": audience, "keys": text})
    print_done(result, f"Tokens of {result['name']} are taken; it has {result['key_count']} keys.", as_json)


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the issuer, without https://.", metavar="NAME")],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Refuse the tokens of an issuer from now on. Sessions that were given for them stay until they end."""
    from quaymaster.cli.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("DELETE", "oidc", name.removeprefix("https://"))
    print_done(result, f"Deleted the issuer {name}.", as_json)
