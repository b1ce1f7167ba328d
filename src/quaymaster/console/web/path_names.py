"""Names of any characters as one part of a page's path.

Browsers take `.` and `..` out of paths, also where they are written `%2E`. So these two have a tilde before them, and
so has each name that begins with one:

    orders/old  ──▶  orders%2Fold          ..  ──▶  ~..          ~x  ──▶  ~~x
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_MARK: Final = "~"
_TAKEN_OUT: Final = (".", "..")


def path_of_name(name: str) -> str:
    """Return a name as a part of a path."""
    is_marked = name in _TAKEN_OUT or name.startswith(_MARK)
    return quote(_MARK + name if is_marked else name, safe="")


def name_of_path(part: str) -> str:
    """Return the name that a part of a path has, once its escapes are decoded."""
    return part.removeprefix(_MARK)
