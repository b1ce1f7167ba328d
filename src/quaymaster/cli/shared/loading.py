"""Settings as commands get them, from flags, environment and file; and processes that run with them to their end."""

from __future__ import annotations

import gc
import os
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared.connection import chosen_profile
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.cli.shared.output import note
from quaymaster.cli.shared.profile_files import PROFILE_VARIABLE, read_profile

if TYPE_CHECKING:
    from quaymaster.settings import Settings

FILES_WANTED = 65_536

Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with settings (else QUAYMASTER_CONFIG).", metavar="FILE"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting, as in --set authentication=open.", metavar="NAME=VALUE"),
]
ServedData = Annotated[
    Path | None, typer.Option("--data", help="Data directory, made at first start.", metavar="DIR")
]
Listen = Annotated[str | None, typer.Option("--listen", help="Address of the SQS API.", metavar="HOST:PORT")]
Admin = Annotated[
    str | None, typer.Option("--admin", help="Address of health, metrics and admin API.", metavar="HOST:PORT")
]

Workers = Annotated[
    str | None,
    typer.Option("--workers", help="Processes that share the work; auto: one for each core.", metavar="N"),
]


@contextmanager
def collecting_later() -> Iterator[None]:
    """Begin a process that runs in this block: what it imports stays, and `node/garbage` collects once it serves.

    To look through all of it again and again took an eighth of the time until then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settings_to_serve(
    config: Path | None,
    data: Path | None,
    listen: str | None,
    admin: str | None,
    overrides: list[str] | None,
    workers: str | None = None,
) -> Settings:
    """Return the settings of a process that is about to run, and make it ready for many connections."""
    settings, _ = load_settings_of(config, data, listen, admin, overrides, workers)
    warn_of_unknown_variables()
    _raise_file_limit()
    return settings


def load_for(config: Path | None, overrides: list[str] | None) -> Settings:
    """Return the settings of a command that asks processes: from the file that those have, and the profile.

    What a profile says weighs less than flags and variables.
    """
    from quaymaster.cli.shared.options import parse_assignments
    from quaymaster.settings import ENVIRONMENT_PREFIX, settings_file

    profile = chosen_profile(os.environ)
    if profile is None:
        return load_settings_of(config, None, None, None, overrides)[0]
    found = read_profile(profile, os.environ)
    if settings_file(config, os.environ) is None and found.config is not None:
        config = Path(found.config)
    given = parse_assignments(overrides or (), "setting")
    less = [
        f"{name}={text}"
        for name, text in found.settings.items()
        if name not in given and ENVIRONMENT_PREFIX + name.upper() not in os.environ
    ]
    return load_settings_of(config, None, None, None, [*less, *(overrides or ())])[0]


def run_process(process: Coroutine[Any, Any, int]) -> None:
    """Run a process to its end, and exit with its code."""
    from quaymaster.node.children.process import run_to_code

    raise typer.Exit(run_to_code(process))


def load_settings_of(
    config: Path | None,
    data: Path | None,
    listen: str | None,
    admin: str | None,
    overrides: list[str] | None,
    workers: str | None = None,
) -> tuple[Settings, dict[str, str]]:
    """Return the settings, and for each where its value is from."""
    from quaymaster.cli.shared.options import parse_assignments
    from quaymaster.settings import SettingsError, load_settings

    flags: dict[str, Any] = dict(parse_assignments(overrides or (), "setting"))
    named = {"data_directory": data, "listen": listen, "admin_listen": admin, "workers": workers}
    flags |= {name: value for name, value in named.items() if value is not None}
    try:
        settings = load_settings(config, flags=flags)
    except SettingsError as error:
        raise WrongUsage(str(error)) from None
    return settings, _origins(config, flags, os.environ)


def _origins(
    config: Path | None, flags: Mapping[str, object], environment: Mapping[str, str]
) -> dict[str, str]:
    import tomllib

    from quaymaster.settings import ENVIRONMENT_PREFIX, Settings, settings_file

    path = settings_file(config, environment)
    in_file = set(tomllib.loads(path.read_text(encoding="utf-8"))) if path is not None else set()
    origins = {}
    for name in Settings.model_fields:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if name in flags:
            origins[name] = "command line"
        elif variable in environment:
            origins[name] = variable
        else:
            origins[name] = str(path) if name in in_file else "default"
    return origins


def _raise_file_limit() -> None:
    """Take as many file descriptors as this process may: connections and segments need one each."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft < wanted:
        with suppress(OSError, ValueError):  # macOS refuses more than it has, whatever it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def warn_of_unknown_variables() -> None:
    """Name variables that look like settings and are none."""
    from quaymaster.settings import unknown_variables

    settings = {name: text for name, text in os.environ.items() if name != PROFILE_VARIABLE}
    for variable, nearest in unknown_variables(settings).items():
        hint = f"; did you mean {nearest}?" if nearest else ""
        note(f"quaymaster: {variable} is in the environment, but there is no such setting{hint}")
