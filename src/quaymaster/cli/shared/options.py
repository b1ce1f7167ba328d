"""The options that several commands have, spelled once."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from quaymaster.cli.shared.failures import WrongUsage, reason_of

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data directory of the server (else QUAYMASTER_DATA_DIRECTORY, else ./quaymaster-data).",
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
Account = Annotated[
    str | None, typer.Option("--account", help="Account; otherwise the caller's own.", metavar="ID")
]
QueueAccount = Annotated[
    str | None,
    typer.Option("--account", help="Account of the queues; otherwise the caller's own.", metavar="ID"),
]
AdminURL = Annotated[
    str | None,
    typer.Option("--admin-url", help="Admin API, where --data does not say it.", metavar="URL"),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Interval = Annotated[
    float, typer.Option("--interval", help="Look for more this often.", metavar="SECONDS", min=0)
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QueueName = Annotated[str, typer.Argument(help="Name or URL of the queue.", metavar="QUEUE")]


def new_group(help_text: str) -> typer.Typer:
    """Return a group of commands that looks like all others."""
    return typer.Typer(
        help=help_text, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def gathered(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command with many options take them as one value.

    The command's last parameter is annotated with a frozen dataclass. Its fields are the options, in the order of the
    help; the parameters before it stay as they are.
    """
    taken = get_type_hints(command, include_extras=True)
    *others, (value_name, kind) = [(name, hint) for name, hint in taken.items() if name != "return"]
    hints = get_type_hints(kind, include_extras=True)
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint) for name, hint in others]
    fields = dataclasses.fields(kind)
    for field in fields:
        default = Parameter.empty if field.default is dataclasses.MISSING else field.default
        parameters.append(
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
        )

    def run(**given: Any) -> None:
        value = kind(**{field.name: given.pop(field.name) for field in fields if field.name in given})
        command(**given, **{value_name: value})

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    # Typer makes the options of it.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def parse_time(text: str, option: str, wanted: str) -> datetime.datetime:
    """Return the time that an option names, in UTC where it names no zone. Raises WrongUsage, with what is `wanted`."""
    try:
        found = datetime.datetime.fromisoformat(text)
        # In its own zone it may be of a year that UTC does not have.
        return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise WrongUsage(f"{option} takes {wanted}, not {text!r}.") from None


def read_text(file: Path) -> str:
    """Return what is in a file that a command was given; WrongUsage where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{file} cannot be read: {reason_of(error)}") from None


def parse_assignments(texts: Iterable[str], what: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a dict; WrongUsage names the first that is none, or repeats a name."""
    values: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise WrongUsage(f"{text!r} is no {what}; write NAME=VALUE.")
        if name in values:
            raise WrongUsage(f"The {what} {name} is given twice.")
        values[name] = value
    return values
