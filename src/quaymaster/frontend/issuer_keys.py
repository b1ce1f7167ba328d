"""The keys of issuers of web identity tokens: from the row that operators set, or fetched from the issuer.

    no keys yet, or an hour old ──▶ fetched, once for all who wait ──▶ kept for an hour
    a token names a key that is not among them ──▶ fetched again, a minute after the last time
    not fetched ──▶ IDPCommunicationError for all who ask within ten seconds

So strangers who make up tokens cause a call a minute to an issuer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from quaymaster.core.values.sts_errors import IDPCommunicationError
from quaymaster.net.outbound.client import OutboundClient, OutboundError
from quaymaster.protocol.tokens.web_identity import (
    KEY_SET_CHARS_MAX,
    BadKeySet,
    Claimed,
    KeySet,
    parse_key_set,
)

KEPT_MS: Final = 3_600_000
FETCHED_AGAIN_MS: Final = 60_000
FAILURE_KEPT_MS: Final = 10_000
DISCOVERY: Final = "/.well-known/openid-configuration"
ISSUERS_KEPT_MAX: Final = 256
_HTTPS: Final = "https://"

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns what is at a URL; raises OutboundError."""


class IssuerInForce(Protocol):
    """An issuer as metadata keeps it; a change makes another object. `keys` None: they are fetched."""

    @property
    def url(self) -> str: ...
    @property
    def keys_url(self) -> str: ...
    @property
    def keys(self) -> KeySet | None: ...


class _Fetched:
    """The keys of one issuer, and what became of fetching them."""

    __slots__ = ("at_ms", "failed_ms", "issuer", "keys", "task")

    def __init__(self, issuer: IssuerInForce) -> None:
        self.issuer = issuer
        self.keys: KeySet | None = None
        self.at_ms = 0.0
        self.failed_ms: float | None = None
        self.task: asyncio.Task[None] | None = None


class IssuerKeys:
    """Finds keys of issuers. `fetch` asks the issuers; `monotonic_ms` is a clock that never goes back."""

    def __init__(self, fetch: Fetch, monotonic_ms: Callable[[], float]) -> None:
        self._fetch = fetch
        self._monotonic_ms = monotonic_ms
        self._fetched: dict[str, _Fetched] = {}

    async def find(self, issuer: IssuerInForce, claimed: Claimed) -> Any:
        """Return the key that a token of an issuer names, None where it has no such key.

        Raises:
            IDPCommunicationError: the keys cannot be had now.
        """
        if issuer.keys is not None:
            return issuer.keys.find(claimed)
        entry = self._fetched.get(issuer.url)
        if entry is None or entry.issuer is not issuer:
            if len(self._fetched) >= ISSUERS_KEPT_MAX:
                self._fetched.clear()
            entry = self._fetched[issuer.url] = _Fetched(issuer)
        age_ms = self._monotonic_ms() - entry.at_ms
        if (
            entry.keys is None
            or age_ms >= KEPT_MS
            or (entry.keys.find(claimed) is None and age_ms >= FETCHED_AGAIN_MS)
        ):
            await self._refresh(entry)
        assert entry.keys is not None, "a refresh that returns has keys"
        return entry.keys.find(claimed)

    async def _refresh(self, entry: _Fetched) -> None:
        failed_ms = entry.failed_ms
        if failed_ms is None or self._monotonic_ms() - failed_ms >= FAILURE_KEPT_MS:
            if entry.task is None:
                entry.task = asyncio.get_running_loop().create_task(self._fetch_keys(entry))
            await asyncio.shield(entry.task)
        if entry.failed_ms is not None:
            raise IDPCommunicationError(
                f"The keys of the identity provider {entry.issuer.url} cannot be fetched now."
            )

    async def _fetch_keys(self, entry: _Fetched) -> None:
        try:
            keys = parse_key_set((await self._fetch(await self._place(entry.issuer))).decode())
        except (OutboundError, BadKeySet, ValueError):
            entry.failed_ms = self._monotonic_ms()
        else:
            entry.keys, entry.at_ms, entry.failed_ms = keys, self._monotonic_ms(), None
        finally:
            entry.task = None

    async def _place(self, issuer: IssuerInForce) -> str:
        """Return where an issuer's keys are; ValueError where it does not say so."""
        if issuer.keys_url:
            return issuer.keys_url
        try:
            found = json.loads(await self._fetch(issuer.url.rstrip("/") + DISCOVERY))
            place = found["jwks_uri"]
            is_same = found["issuer"] == issuer.url
        except (KeyError, TypeError, RecursionError):
            raise ValueError("the discovery document has no jwks_uri") from None
        if not is_same or not isinstance(place, str) or not place.startswith(_HTTPS):
            raise ValueError("the discovery document is another issuer's, or names no https URL")
        return place


class KeyFetcher:
    """Fetches documents of issuers that operators set; `close` it at the end."""

    def __init__(self, make_client: Callable[[], OutboundClient]) -> None:
        self._make_client = make_client
        self._client: OutboundClient | None = None
        """Made when it is needed: to read the system's certificate authorities takes a while."""

    async def fetch(self, url: str) -> bytes:
        """Return what is at an https URL; OutboundError, ValueError for another status than 200."""
        if self._client is None:
            self._client = self._make_client()
        answer = await self._client.call("GET", url, answer_bytes_max=KEY_SET_CHARS_MAX)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return answer.body

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
