"""`quaymaster open`: the console, signed in with the key that the command has. Over the admin API."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import note, print_json, print_line


def open_console(
    just_print: Annotated[bool, typer.Option("--print", help="Print the link, and open no browser.")] = False,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Open the console in a browser, signed in.

    The link works once, within a minute. Whoever opens it may do what the access key of this command may, for 12 hours.
    """
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        link = admin.call("CreateSignInLink")
    if as_json:
        print_json(link)
    elif just_print or not webbrowser.open(link["url"]):
        print_line(link["url"])
        note("It signs in once, within a minute.")
