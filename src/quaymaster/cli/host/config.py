"""`quaymaster config`: a file of settings, before a process reads it. Needs no server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.cli.shared.output import print_json, print_line

app = options.new_group("Check files of settings.")


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="TOML file with settings (else QUAYMASTER_CONFIG).", metavar="FILE")
    ] = None,
    as_json: options.AsJSON = False,
) -> None:
    """Say whether processes can start with a file of settings, or what is wrong with it. Then it ends with 2.

    Every line of the file is judged, also those that a variable would outweigh. Variables stand in only for what the
    file does not have. Directories, keys and ports are not looked at: `quaymaster doctor` does that.
    """
    from quaymaster.settings import (
        CONFIG_VARIABLE,
        ENVIRONMENT_PREFIX,
        SettingsError,
        load_settings,
        read_settings_file,
        settings_file,
    )

    path = settings_file(file, os.environ)
    if path is None:
        raise WrongUsage(f"Name a file, or set {CONFIG_VARIABLE}.")
    try:
        names = sorted(read_settings_file(path))
        outweighed = {ENVIRONMENT_PREFIX + name.upper() for name in names}
        load_settings(
            path, environment={name: text for name, text in os.environ.items() if name not in outweighed}
        )
    except SettingsError as error:
        raise WrongUsage(str(error)) from None
    if as_json:
        print_json({"file": str(path), "settings": names})
    else:
        print_line(f"{path} is right: {len(names)} settings")
