"""Whether a console can run here: the extra `console` brings what it is made of."""

from __future__ import annotations

import importlib.util
from typing import Final

NEEDED: Final = ("jinja2", "python_multipart", "starlette", "uvicorn")
"""What the extra installs."""
INSTALL: Final = "pip install 'quaymaster[console]'"


def missing_for_console() -> list[str]:
    """Return the modules of the extra that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]
