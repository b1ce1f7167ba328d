"""Profiles: named ways to reach a server or a cell, in files of the user who runs commands.

    $XDG_CONFIG_HOME/quaymaster, else ~/.config/quaymaster
        profiles/NAME.toml     what `Profile` has; for its owner only: it may have a secret
        profile                the name of the one that is used when no other is named

Which one a command takes: `--profile NAME`, else QUAYMASTER_PROFILE, else the one in use. What else weighs more says
`cli/shared/connection`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from quaymaster.cli.shared.failures import CommandRefused, WrongUsage, reason_of

PROFILE_VARIABLE: Final = "QUAYMASTER_PROFILE"
DIRECTORY: Final = "profiles"
CURRENT_FILE: Final = "profile"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

_named: list[str] = []
"""The name that `--profile` gave to the command that runs; empty if none."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile says. Any of it may be missing: a profile of a cell for operators may be settings alone.

    `settings` are as with --set, for commands that ask the processes of a cell; so is `config`, a file of them.
    """

    endpoint_url: str | None = None
    admin_url: str | None = None
    region: str | None = None
    account_id: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    config: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def name_profile(name: str | None) -> None:
    """Note which profile `--profile` names for this command. The command begins with None."""
    _named[:] = [] if name is None else [name]


def named_profile() -> str | None:
    """Return the name that `--profile` gave."""
    return _named[0] if _named else None


def config_directory(environment: Mapping[str, str]) -> Path:
    """Return where the user's files are."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or Path.home()) / ".config")
    return Path(base) / "quaymaster"


def profile_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(path.stem for path in (config_directory(environment) / DIRECTORY).glob("*.toml"))


def current_profile(environment: Mapping[str, str]) -> str | None:
    """Return the name of the profile in use; None if there is none."""
    try:
        return (config_directory(environment) / CURRENT_FILE).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"The name of the profile in use cannot be read: {reason_of(error)}.") from None


def read_profile(name: str, environment: Mapping[str, str]) -> Profile:
    """Return a profile.

    Raises:
        CommandRefused: there is none of this name.
        WrongUsage: its file cannot be read, or is not as `create_profile` writes it.
    """
    import tomllib

    path = _path(name, environment)
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = ", ".join(profile_names(environment)) or "none"
        raise CommandRefused(f"There is no profile {name}; there are: {names}.") from None
    except (OSError, ValueError) as error:
        raise WrongUsage(f"The profile {path} cannot be read: {reason_of(error)}.") from None
    for key, value in found.items():
        texts = value.values() if key == "settings" and isinstance(value, dict) else [value]
        if key not in {one.name for one in fields(Profile)} or not all(
            isinstance(text, str) for text in texts
        ):
            raise WrongUsage(f"The profile {path} is wrong: {key} is nothing that it can say, or is no text.")
    return Profile(**found)


def create_profile(name: str, profile: Profile, environment: Mapping[str, str]) -> Path:
    """Write a new profile, which its owner alone can read. Raises CommandRefused where there is one of this name."""
    path = _path(name, environment)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(render_profile(profile))
    except FileExistsError:
        raise CommandRefused(f"There is a profile {name} already; delete it first.") from None
    except OSError as error:
        raise WrongUsage(f"{path} cannot be written: {reason_of(error)}.") from None
    return path


def render_profile(profile: Profile) -> str:
    """Return a profile as TOML, whose texts are written as those of JSON."""
    lines = [
        f"{one.name} = {json.dumps(value)}"
        for one in fields(profile)
        if isinstance(value := getattr(profile, one.name), str)
    ]
    if profile.settings:
        lines += [
            "",
            "[settings]",
            *(f"{name} = {json.dumps(text)}" for name, text in profile.settings.items()),
        ]
    return "\n".join(lines) + "\n"


def use_profile(name: str, environment: Mapping[str, str]) -> None:
    """Let commands take a profile when none is named. Raises CommandRefused where there is none of this name."""
    read_profile(name, environment)
    directory = config_directory(environment)
    part = directory / f".{CURRENT_FILE}.part"
    try:
        part.write_text(f"{name}\n", encoding="utf-8")
        part.replace(directory / CURRENT_FILE)
    except OSError as error:
        raise WrongUsage(f"{directory} cannot be written: {reason_of(error)}.") from None


def delete_profile(name: str, environment: Mapping[str, str]) -> None:
    """Delete a profile; if it was in use, none is. Raises CommandRefused where there is none of this name."""
    path = _path(name, environment)
    try:
        path.unlink()
    except FileNotFoundError:
        raise CommandRefused(f"There is no profile {name}.") from None
    if current_profile(environment) == name:
        (config_directory(environment) / CURRENT_FILE).unlink()


def _path(name: str, environment: Mapping[str, str]) -> Path:
    if _NAME.fullmatch(name) is None:
        raise WrongUsage(f"{name!r} is no name of a profile: letters, digits and _ . - only, 63 at most.")
    return config_directory(environment) / DIRECTORY / f"{name}.toml"
