"""The options that several commands have, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data directory of the server (else QUAYMASTER_DATA, else ./quaymaster-data).",
        metavar="DIR",
    ),
]
EndpointURL = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        help="SQS endpoint; credentials then come from AWS_ACCESS_KEY_ID and its kin.",
        metavar="URL",
    ),
]
AdminURL = Annotated[
    str | None,
    typer.Option("--admin-url", help="Admin API, where --data does not say it.", metavar="URL"),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QueueName = Annotated[str, typer.Argument(help="Name or URL of the queue.", metavar="QUEUE")]


def new_group(help_text: str) -> typer.Typer:
    """Return a group of commands that looks like all others."""
    return typer.Typer(
        help=help_text, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
