"""Links that sign in once: rows `sign_in_links/ID`, outside of what processes follow.

    make ──row──▶ token = ID.SECRET, printed in a link ──▶ take: the row is deleted by compare-and-swap ──▶ whose it is

A row is MessagePack: when it was made, in ms since 1970, the access key that it signs in, and the SHA-256 of SECRET. So
who reads the store signs in with none. A link is good for LINK_MS; rows that nobody took are deleted when others are
made.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final

import msgspec

from quaymaster.coordination.interface import Compare, Coordination, KeyValue, Put, RevisionMismatch
from quaymaster.core.values.errors import LimitExceeded
from quaymaster.protocol.admin.sign_in import LINK_MS

SIGN_IN_LINKS: Final = "sign_in_links/"
CLOCKS_DIFFER_MS: Final = 10_000
"""A row from so far in the future is still taken: another front end made it."""
LINKS_MAX: Final = 256
TOKEN_CHARS_MAX: Final = 128
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32


class SignInLink(msgspec.Struct, frozen=True, array_like=True):
    """A row. Append fields with defaults to change it."""

    made_ms: int
    access_key_id: str
    digest: bytes


_decode = msgspec.msgpack.Decoder(SignInLink).decode


class SignInLinks:
    """Makes and takes them. `now_ms` is the wall clock. Both raise NotNow when the store does not answer."""

    def __init__(self, store: Coordination, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    async def make(self, access_key_id: str) -> str:
        """Return a token that signs in an access key once; LimitExceeded while there are too many."""
        await self._drop_old()
        link_id = secrets.token_hex(_ID_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        row = SignInLink(self._now_ms(), access_key_id, sha256(secret.encode()).digest())
        key = SIGN_IN_LINKS + link_id
        await self._store.transaction([Compare(key, 0)], [Put(key, msgspec.msgpack.encode(row))])
        return f"{link_id}.{secret}"

    async def take(self, token: str) -> str | None:
        """Return the access key that a token signs in, and let it sign in no more; None where it signs in none."""
        link_id, _, secret = token.partition(".")
        if len(token) > TOKEN_CHARS_MAX or len(link_id) != 2 * _ID_BYTES or not link_id.isalnum():
            return None
        key = SIGN_IN_LINKS + link_id
        rows, _ = await self._store.read([key])
        if not rows:
            return None
        link = _decode(rows[0].value)
        if not hmac.compare_digest(sha256(secret.encode()).digest(), link.digest):
            return None
        try:
            await self._store.transaction([Compare(key, rows[0].revision)], deletes=[key])
        except RevisionMismatch:
            return None  # another took it
        return link.access_key_id if self._is_good(link) else None

    async def _drop_old(self) -> None:
        page = await self._store.list_prefix(SIGN_IN_LINKS, limit=LINKS_MAX)
        old = [row for row in page.items if not self._is_good(_decode(row.value))]
        for row in old:
            await self._drop(row)
        if len(page.items) - len(old) >= LINKS_MAX:
            raise LimitExceeded(f"There may be {LINKS_MAX} links at a time. Each ends after a minute.")

    async def _drop(self, row: KeyValue) -> None:
        with suppress(RevisionMismatch):  # another dropped it
            await self._store.transaction([Compare(row.key, row.revision)], deletes=[row.key])

    def _is_good(self, link: SignInLink) -> bool:
        return -CLOCKS_DIFFER_MS <= self._now_ms() - link.made_ms <= LINK_MS
