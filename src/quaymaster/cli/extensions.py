"""Commands of other packages: what is installed beside the server adds its own, and says how they fail.

A package names an `Extension` under the entry point group `quaymaster.commands`. The server needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from quaymaster.cli.shared.failures import CommandFailed

GROUP: Final = "quaymaster.commands"


class Extension(NamedTuple):
    """What a package adds to the command line.

    `commands` says where each is, as `COMMANDS` of `cli/commands`. `tell` says what an exception of theirs means to a
    user, or None where it is not theirs.
    """

    commands: Mapping[str, str]
    tell: Callable[[Exception], CommandFailed | None]


@cache
def find_extensions() -> list[Extension]:
    """Return the extensions that are installed, by name."""
    return [entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]
