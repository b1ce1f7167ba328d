"""`quaymaster frontend`: front ends as usage counts them, over the admin API. `quaymaster run frontend` is one."""

from __future__ import annotations

from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import print_json, print_line, print_table, time_as_text

app = options.new_group("List front ends that recorded usage, and give up one that is gone.")


@app.command("list")
def list_front_ends(
    data: options.Data = None, admin_url: options.AdminURL = None, as_json: options.AsJSON = False
) -> None:
    """List front ends that ever recorded usage, and when each last said that it runs."""
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        found = admin.call("ListFrontEnds")
    if as_json:
        print_json(found)
        return
    print_table(
        ("FRONT END", "INCARNATION", "SEEN", "STATE"),
        (
            (
                row["front_end"],
                row["incarnation"],
                time_as_text(row["seen_ms"]),
                "" if row["sealed_incarnation"] is None else f"{row['sealed_incarnation']} sealed for it",
            )
            for row in found["front_ends"]
        ),
    )


@app.command()
def retire(
    name: Annotated[str, typer.Argument(help="Name of the front end.", metavar="NAME")],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Give up a front end that is gone for good, so that hours can be closed without it.

    What it had shipped counts. What it had recorded and not shipped is not billed, unless its disk comes back. Its last
    incarnation is sealed in the usage queue within a minute or two. A front end that runs is refused.
    """
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        row = admin.call("SealFrontEnd", front_end=name)
    if as_json:
        print_json(row)
    elif row["sealed_incarnation"] is None:
        print_line(f"{name} has ended in order; nothing is to be sealed")
    else:
        print_line(f"incarnation {row['sealed_incarnation']} of {name} is sealed")
