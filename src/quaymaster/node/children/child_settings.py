"""The settings of a process as those that it starts get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import SecretStr

from quaymaster.settings import Settings


def plain_values(settings: Settings) -> dict[str, Any]:
    """Return all settings as plain values, secrets among them: for a process that this one starts."""
    return {name: _plain(getattr(settings, name)) for name in type(settings).model_fields}


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value
