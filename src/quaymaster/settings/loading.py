"""Where settings come from, and what is said of those that cannot be.

A value comes from, first found wins: a flag of the command line, the environment (`QUAYMASTER_<NAME>`), the
TOML file, the default in the table.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from quaymaster.settings.checks import Settings
from quaymaster.settings.table import ENVIRONMENT_PREFIX

CONFIG_VARIABLE = "QUAYMASTER_CONFIG"
"""Names the TOML file when no flag does."""

FLAGS = {"data_directory": "--data", "admin_listen": "--admin"}
"""Flags that are shorter than their settings."""


class SettingsError(Exception):
    """The settings cannot be used; the message names each wrong setting, its value and what it may be."""


def load_settings(
    config: Path | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings from flags, environment and TOML file, in this order of weight.

    Flags that are None count as not given. Without `config`, `QUAYMASTER_CONFIG` names the file, if any.

    Raises:
        SettingsError: a file that cannot be read, an unknown name in it, a value that cannot be.
    """
    environment = os.environ if environment is None else environment
    config = settings_file(config, environment)
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    if config is not None:
        for name, value in read_settings_file(config).items():
            values[name] = value
            sources[name] = str(config)
    for name in Settings.model_fields:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            values[name] = environment[variable]
            sources[name] = variable
    for name, given in (flags or {}).items():
        if given is not None:
            values[name] = given
            sources[name] = FLAGS.get(name, f"--{name.replace('_', '-')}")
    try:
        return Settings(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(_explain(error, values, sources)) from None


def settings_file(config: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the TOML file that is read: `config`, else the one that `QUAYMASTER_CONFIG` names, if any."""
    named = environment.get(CONFIG_VARIABLE)
    return config or (Path(named) if named else None)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return variables that look like settings but are none, each with the nearest real one, if any.

    They are not refused: Kubernetes puts `QUAYMASTER_PORT` and the like into the environment of every pod
    beside a service of that name.
    """
    known = [CONFIG_VARIABLE, *(ENVIRONMENT_PREFIX + name.upper() for name in Settings.model_fields)]
    return {
        variable: _nearest(variable, known)
        for variable in sorted(environment)
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known
    }


def read_settings_file(path: Path) -> dict[str, Any]:
    """Return what a TOML file sets. Raises SettingsError where it cannot be read, or a name in it is no setting."""
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    unknown = [name for name in values if name not in Settings.model_fields]
    if unknown:
        raise SettingsError("\n".join(_unknown(name, str(path)) for name in unknown))
    return values


def _unknown(name: str, source: str) -> str:
    nearest = _nearest(name, list(Settings.model_fields))
    hint = f"did you mean {nearest}?" if nearest else "`quaymaster settings` lists those there are."
    return f"{source}: there is no setting {name}; {hint}"


def _nearest(name: str, known: list[str]) -> str | None:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return matches[0] if matches else None


def _explain(error: ValidationError, values: Mapping[str, object], sources: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        message = problem["msg"].removeprefix("Value error, ")
        if not name:
            lines.append(f"{message}.")
            continue
        if problem["type"] == "extra_forbidden":
            lines.append(_unknown(name, sources.get(name, name)))
            continue
        # The value of a secret must not get into a log by being wrong.
        is_secret = Settings.model_fields[name].annotation == (SecretStr | None)
        value = "" if is_secret else f" {values.get(name)!r}"
        lines.append(f"{sources.get(name, name)}: {name}{value} is not possible: {message}.")
    return "\n".join(lines)
