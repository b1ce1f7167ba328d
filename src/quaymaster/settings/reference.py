"""Settings as people read them: the reference page, and the values in effect.

`docs/reference/settings.md` is `settings_as_markdown()`; a test keeps the two equal.
"""

from __future__ import annotations

import itertools
from typing import get_args

from pydantic.fields import FieldInfo

from quaymaster.settings.checks import Settings
from quaymaster.settings.table import SettingsTable


def effective_settings(settings: Settings) -> dict[str, object]:
    """Return every setting's value, ready for JSON, secrets masked."""
    return settings.model_dump(mode="json")


def meanings() -> dict[str, str]:
    """Return what each setting means: the text below it. Its source is read, which no start of a process waits for."""
    import ast
    import inspect

    (table,) = ast.parse(inspect.getsource(SettingsTable)).body
    assert isinstance(table, ast.ClassDef), "the source of a class is one"
    found = {}
    for setting, text in itertools.pairwise(table.body):
        if isinstance(setting, ast.AnnAssign) and isinstance(setting.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{setting.target.id} says what it means"
            found[setting.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def settings_as_markdown() -> str:
    """Return the reference page of all settings."""
    lines = [
        "# Settings",
        "",
        "A flag (`--listen`) weighs more than the environment (`QUAYMASTER_LISTEN`), that more than the",
        'TOML file (`listen = "127.0.0.1:9324"`; `--config` or `QUAYMASTER_CONFIG` names the file), that',
        "more than the default. Settings are read at start; a name in the file that does not exist is an",
        "error. The unit is part of the name: `_s` seconds, `_ms` milliseconds, `_bytes` bytes.",
        "`quaymaster settings` shows what is in effect. The first table of a group has the settings that",
        "many installations change.",
    ]
    group = ""
    is_common = True
    meaning_of = meanings()
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict), f"{name} belongs to no group"
        if extra["group"] != group:
            group = str(extra["group"])
            lines += ["", f"## {group}", "", "| Name | Default | Meaning |", "|---|---|---|"]
        elif is_common and not extra["is_common"]:
            lines += ["", "Others:", "", "| Name | Default | Meaning |", "|---|---|---|"]
        is_common = bool(extra["is_common"])
        lines.append(f"| `{name}` | {_default_as_text(field)} | {meaning_of[name]} |")
    return "\n".join(lines) + "\n"


def _default_as_text(field: FieldInfo) -> str:
    default = field.default
    if default is None:
        return "unset"
    if isinstance(default, bool):
        text = str(default).lower()
    else:
        text = str(default)
    choices = get_args(field.annotation) if field.annotation is not None else ()
    others = [str(choice) for choice in choices if isinstance(choice, str) and choice != default]
    shown = f"`{text}`" if text else "empty"
    return shown + "".join(f" (or `{other}`)" for other in others)
