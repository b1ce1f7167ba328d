"""How long files and content are kept; without other modules, since commands have these as their defaults."""

from __future__ import annotations

from typing import Final

CONTENT_DAYS: Final = 35
"""How long blocks keep their content, and quarantine its `raw`: a month, and days in which it may have to be looked
at."""
QUARANTINE_DAYS: Final = 400
"""How long quarantine keeps its rows: why usage of a year was not billed can be asked until then."""
KEEP_HOURS: Final = 24
"""How long files that no table has any more are kept for those who still read them, and files that nobody committed:
another job may be about to."""
