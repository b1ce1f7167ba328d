"""The keys of issuers of web identity tokens: from the row that operators set, or fetched from the issuer.

    no keys yet, or an hour old ──▶ fetched, once for all who wait ──▶ kept for an hour
    a token names a key that is not among them ──▶ fetched again, a minute after the last time
    not fetched ──▶ keys of up to a day ago are used; without such: IDPCommunicationError
                    who asks a second after an attempt began has the next one begin

So strangers who make up tokens cause a call a minute to an issuer that answers, and an attempt a second, of two calls,
to one that does not: whose keys can be had again is believed within that second.

A key that an issuer took away is taken for an hour, and while the issuer cannot be reached for up to a day: who has
the key would have to keep the issuer from answering too. Operators who cannot wait set the issuer again, or delete it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from quaymaster.core.values.sts_errors import IDPCommunicationError
from quaymaster.net.outbound.failures import OutboundError
from quaymaster.protocol.tokens.web_identity import (
    KEY_SET_CHARS_MAX,
    BadKeySet,
    Claimed,
    KeySet,
    parse_key_set,
)

if TYPE_CHECKING:
    from quaymaster.net.outbound.client import OutboundClient

KEPT_MS: Final = 3_600_000
OLD_KEPT_MS: Final = 24 * 3_600_000
"""Keys that cannot be fetched again are used for so long."""
FETCHED_AGAIN_MS: Final = 60_000
ATTEMPT_EVERY_MS: Final = 1_000
"""One attempt begins so long after another of which nothing came; that may still wait for the issuer."""
ATTEMPT_S: Final = 5.0
"""How long an attempt lasts at most, the discovery document included."""
WAIT_S: Final = 3.0
"""How long a request waits for one."""
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
    """The keys of one issuer, and what becomes of fetching them."""

    __slots__ = ("at_ms", "attempts", "begun_ms", "is_failing", "issuer", "keys")

    def __init__(self, issuer: IssuerInForce) -> None:
        self.issuer = issuer
        self.keys: KeySet | None = None
        self.at_ms = -math.inf
        """When the attempt began that found them."""
        self.begun_ms = -math.inf
        """When the last attempt began."""
        self.attempts: set[asyncio.Task[None]] = set()
        """Those in progress; the first that succeeds counts."""
        self.is_failing = False
        """Whether the last that ended, or that was waited for, found nothing."""


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
        entry = self._entry(issuer)
        key = None if entry.keys is None else entry.keys.find(claimed)
        age_ms = self._monotonic_ms() - entry.at_ms
        if age_ms < (KEPT_MS if key is not None else FETCHED_AGAIN_MS):
            return key
        if age_ms >= OLD_KEPT_MS:
            key = None
        found_before_ms = entry.at_ms
        await self._refresh(entry, can_go_on=key is not None)
        if entry.at_ms > found_before_ms:
            assert entry.keys is not None, "what was fetched is kept"
            return entry.keys.find(claimed)
        if key is None:
            raise IDPCommunicationError(
                f"The keys of the identity provider {issuer.url} cannot be fetched now."
            )
        return key

    def _entry(self, issuer: IssuerInForce) -> _Fetched:
        entry = self._fetched.get(issuer.url)
        if entry is None or entry.issuer is not issuer:
            if len(self._fetched) >= ISSUERS_KEPT_MAX:
                self._fetched.clear()
            entry = self._fetched[issuer.url] = _Fetched(issuer)
        return entry

    async def _refresh(self, entry: _Fetched, *, can_go_on: bool) -> None:
        """Have the keys fetched, and wait for that a while. Who can go on without does not wait where it fails."""
        now_ms = self._monotonic_ms()
        if now_ms - entry.begun_ms >= ATTEMPT_EVERY_MS:
            entry.begun_ms = now_ms
            attempt = asyncio.get_running_loop().create_task(self._fetch_keys(entry, now_ms))
            entry.attempts.add(attempt)
            attempt.add_done_callback(entry.attempts.discard)
        if not entry.attempts or (can_go_on and entry.is_failing):
            return
        done, _ = await asyncio.wait(entry.attempts, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        entry.is_failing = entry.is_failing or not done
        for attempt in done:
            attempt.result()  # a bug is this request's, too

    async def _fetch_keys(self, entry: _Fetched, begun_ms: float) -> None:
        try:
            async with asyncio.timeout(ATTEMPT_S):
                keys = parse_key_set((await self._fetch(await self._place(entry.issuer))).decode())
        except (OutboundError, BadKeySet, ValueError, TimeoutError):
            entry.is_failing = entry.is_failing or begun_ms >= entry.at_ms
        else:
            if begun_ms > entry.at_ms:
                entry.keys, entry.at_ms, entry.is_failing = keys, begun_ms, False

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
        self._making = asyncio.Lock()

    async def fetch(self, url: str) -> bytes:
        """Return what is at an https URL; OutboundError, ValueError for another status than 200."""
        async with self._making:
            if self._client is None:
                # In a thread, so that other requests go on: it imports much.
                self._client = await asyncio.to_thread(self._make_client)
            client = self._client
        answer = await client.call("GET", url, answer_bytes_max=KEY_SET_CHARS_MAX)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return answer.body

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
