"""`quaymaster oidc`: issuers whose web identity tokens are taken for sessions of roles. Over the admin API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from quaymaster.cli.admin.identity_calls import print_done
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import print_json, print_table, time_as_text

app = options.new_group("Set the issuers of web identity tokens: of pods, of CI jobs.")


@app.command("list")
def list_issuers(
    data: options.Data = None, admin_url: options.AdminURL = None, as_json: options.AsJSON = False
) -> None:
    """List the issuers."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        found = admin.call("ListOIDCIssuers")
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "AUDIENCES", "KEYS", "CHANGED"),
        (
            (one["name"], ", ".join(one["audiences"]), _keys_of(one), time_as_text(one["changed_ms"]))
            for one in found["issuers"]
        ),
    )


def _keys_of(issuer: dict[str, Any]) -> str:
    if issuer["key_count"] is not None:
        return str(issuer["key_count"])
    return f"from {issuer['keys_url']}" if issuer["keys_url"] else "by discovery"


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
        Path | None,
        typer.Option("--keys", help="File with the issuer's JSON Web Key Set.", metavar="FILE"),
    ] = None,
    keys_url: Annotated[
        str | None,
        typer.Option("--keys-url", help="Where front ends fetch the key set, by https.", metavar="URL"),
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Set an issuer, or change its audiences and keys.

    With neither --keys nor --keys-url, front ends find its keys by its discovery document.
    Roles whose trust policies name it can then be assumed with its tokens, where the setting `oidc_issuers` is on.
    """
    from quaymaster.cli.shared.client import AdminClient

    fields: dict[str, Any] = {"issuer": issuer, "audiences": audience}
    if keys is not None:
        fields["keys"] = options.read_text(keys)
    if keys_url is not None:
        fields["keys_url"] = keys_url
    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("SetOIDCIssuer", **fields)
    print_done(result, f"Tokens of {result['name']} are taken.", as_json)


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="Name of the issuer, without https://.", metavar="NAME")],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Refuse the tokens of an issuer from now on. Sessions that were given for them stay until they end."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        result = admin.call("DeleteOIDCIssuer", name=name.removeprefix("https://"))
    print_done(result, f"Deleted the issuer {name}.", as_json)
