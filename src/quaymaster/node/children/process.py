"""A process that runs to its end, on the fastest event loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run_to_code(process: Coroutine[Any, Any, int]) -> int:
    """Run a process to its end, and return its exit code."""
    try:
        import uvloop
    except ImportError:  # it has no wheel everywhere; the loop of the standard library does the same, slower
        return asyncio.run(process)
    return uvloop.run(process)
