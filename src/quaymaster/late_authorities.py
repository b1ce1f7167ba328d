"""TLS contexts that read the system's authorities when they are first used, and not when they are made.

    with reading_authorities_later():
        import aiohttp

As it is imported, aiohttp makes two contexts with them: a tenth of what a process takes to start, and most processes
never call who has a certificate of a public authority.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_read_now: Final = ssl.SSLContext.set_default_verify_paths
"""Kept, for another thread may be in the block when a context is used for the first time."""


class LateAuthorities(ssl.SSLContext):
    """A context that is to trust the system's authorities. With its first connection it becomes a usual one."""

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """Read the authorities, and do what every context does."""
        return _read(self).wrap_socket(*arguments, **options)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Read the authorities, and do what every context does."""
        return _read(self).wrap_bio(*arguments, **options)


@contextmanager
def reading_authorities_later() -> Iterator[None]:
    """Let contexts that are made in this block read the system's authorities when they are first used."""
    ssl.SSLContext.set_default_verify_paths = _read_later  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ssl.SSLContext.set_default_verify_paths = _read_now  # type: ignore[method-assign]


def _read_later(context: ssl.SSLContext) -> None:
    context.__class__ = LateAuthorities


def _read(context: ssl.SSLContext) -> ssl.SSLContext:
    # In this order: another thread may use it meanwhile, and authorities may be read twice.
    _read_now(context)
    context.__class__ = ssl.SSLContext
    return context
