"""The request that work is done for: its id goes with every call to another process, and stands in the logs of each.

    front end ──set while a command is submitted, or in an action's task──▶ broker router, metadata client
                                                                              └─▶ CallHeader.trace ─▶ request=

Only what asks for one request reads it. Connections, watches and caches outlive the request that first needed them, and
a task that they start has a copy of it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")
"""Empty: the work is of no request."""
