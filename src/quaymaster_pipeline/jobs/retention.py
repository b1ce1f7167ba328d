"""How long files and content are kept; without other modules, since commands have these as their defaults."""

from __future__ import annotations

from typing import Final

CONTENT_DAYS: Final = 35
"""How long blocks keep their content: a month, and days in which it may have to be looked at."""
KEEP_HOURS: Final = 24
"""How long files that no table has any more are kept for those who still read them, and files that nobody committed:
another job may be about to."""
