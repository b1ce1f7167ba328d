"""Blocking work on a thread that is never left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(function: Callable[..., T], *arguments: Any) -> T:
    """Run `function` on a thread and return what it does.

    A thread cannot be cancelled. When the caller is, this waits until the thread has ended before it lets the
    cancellation through, so no task goes on to change or close what the thread still uses.
    """
    work = asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
