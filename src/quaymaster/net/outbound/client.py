"""The client for HTTP calls to other systems.

    call ──▶ a turn (concurrency_max; at most waiting_max wait) ──▶ connection ──▶ answer, of bytes_max at most
             └────────────────────────────── all within timeout_s ──────────────────────────────┘

Certificates are always verified. Proxies of the environment, redirects, cookies and compressed answers are not used.
With `rules`, which belong to every client for customers' URLs, each address is judged as its socket is made. That is
after names were resolved, so no second look-up can give another address, and however an address was written.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from yarl import URL

from quaymaster.late_authorities import reading_authorities_later
from quaymaster.net.outbound.address_rules import AddressRules
from quaymaster.net.outbound.failures import OutboundBusy, OutboundFailed, OutboundRefused
from quaymaster.net.outbound.urls import BadURL, parse_url

with reading_authorities_later():
    import aiohttp
    from aiohttp.abc import AbstractResolver

ANSWER_BYTES_MAX: Final = 1024 * 1024
HEADER_BYTES_MAX: Final = 8 * 1024
TIMEOUT_S: Final = 5.0
CONCURRENCY_MAX: Final = 32
WAITING_MAX: Final = 1_000
IDLE_CONNECTION_S: Final = 15.0

_AddrInfo = tuple[Any, Any, int, str, tuple[Any, ...]]
_in_progress: ContextVar[_Progress | None] = ContextVar("_in_progress", default=None)
"""How far the call has come that a socket is made for: aiohttp tells only that there is no connection."""


@dataclass(frozen=True, slots=True)
class OutboundAnswer:
    """An answer of any status, redirects included. Header names are in lower case; the last of equal ones counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"OutboundAnswer({self.status}, {len(self.body)} bytes)"


class OutboundClient:
    """Makes calls for one purpose, with bounds of its own: a slow Vault takes no turns from webhooks.

    Without `rules` URLs are called as given: only for those that operators wrote. `resolver` is for tests.
    """

    def __init__(
        self,
        *,
        rules: AddressRules | None,
        ca_file: Path | None = None,
        concurrency_max: int = CONCURRENCY_MAX,
        waiting_max: int = WAITING_MAX,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._rules = rules
        with reading_authorities_later():
            self._tls = ssl.create_default_context(cafile=ca_file)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._concurrency_max = concurrency_max
        self._turns = asyncio.Semaphore(concurrency_max)
        self._waiting_max = waiting_max
        self._waiting = 0
        self._resolver = resolver
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        """Close all connections; calls in progress fail."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> OutboundAnswer:
        """Send a request and return the answer, whatever its status.

        Raises:
            OutboundRefused: the URL or its addresses may not be called.
            OutboundBusy: too many calls wait.
            OutboundFailed: there is no usable answer.
        """
        try:
            parsed = parse_url(url)
        except BadURL as error:
            raise OutboundRefused(str(error)) from None
        progress = _Progress()
        token = _in_progress.set(progress)
        try:
            async with asyncio.timeout(timeout_s), self._turn():
                return await self._call(method, parsed, headers or {}, body, answer_bytes_max, progress)
        except TimeoutError:
            raise OutboundFailed(
                f"no answer within {timeout_s:g} s",
                may_have_acted=progress.is_connected,
                was_dialed=progress.was_dialed,
            ) from None
        except aiohttp.InvalidURL:
            raise OutboundRefused("the host is neither a name nor an IP address in its usual form") from None
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            # RuntimeError: the client was closed meanwhile.
            if progress.refusals and not progress.is_connected:
                raise OutboundRefused(f"the address may not be called: {progress.refusals[0]}") from None
            raise OutboundFailed(
                _reason(error), may_have_acted=progress.is_connected, was_dialed=progress.was_dialed
            ) from None
        finally:
            _in_progress.reset(token)

    async def _call(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes,
        answer_bytes_max: int,
        progress: _Progress,
    ) -> OutboundAnswer:
        async with self._session(url.scheme).request(
            method,
            url,
            headers=headers,
            data=body or None,
            allow_redirects=False,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            trace_request_ctx=progress,
        ) as response:
            content = bytearray()
            async for piece in response.content.iter_any():
                content += piece
                if len(content) > answer_bytes_max:
                    raise OutboundFailed(f"an answer over {answer_bytes_max} bytes", may_have_acted=True)
            names = {name.lower(): value for name, value in response.headers.items()}
            return OutboundAnswer(response.status, names, bytes(content))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._turns.locked() and self._waiting >= self._waiting_max:
            raise OutboundBusy(f"{self._waiting_max} calls wait already")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    def _session(self, scheme: str) -> aiohttp.ClientSession:
        """Return the session for a scheme: sockets are judged by it, and know nothing else of their request."""
        session = self._sessions.get(scheme)
        if session is None:
            session = self._sessions[scheme] = self._new_session(is_encrypted=scheme == "https")
        return session

    def _new_session(self, *, is_encrypted: bool) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        # From here on bytes of the request may leave; before, none did.
        trace.on_connection_create_end.append(_note_connected)
        trace.on_connection_reuseconn.append(_note_connected)

        def socket_for(info: _AddrInfo) -> socket.socket:
            family, kind, protocol, _, address = info
            progress = _in_progress.get()
            assert progress is not None, "sockets are made in calls"
            if self._rules is not None:
                why = self._rules.why_refused(address[0], address[1], is_encrypted=is_encrypted)
                if why is not None:
                    progress.refusals.append(why)
                    raise PermissionError(why)
            progress.was_dialed = True
            return socket.socket(family=family, type=kind, proto=protocol)

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=self._tls,
                limit=self._concurrency_max,
                keepalive_timeout=IDLE_CONNECTION_S,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=socket_for,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "Quaymaster", "Accept-Encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[trace],
        )


class _Progress:
    """How far a call has come. Without a connection nothing of it was sent."""

    __slots__ = ("is_connected", "refusals", "was_dialed")

    def __init__(self) -> None:
        self.is_connected = False
        self.was_dialed = False
        self.refusals: list[str] = []
        """Why addresses were not dialed."""


async def _note_connected(_: aiohttp.ClientSession, context: Any, __: object) -> None:
    context.trace_request_ctx.is_connected = True


def _reason(error: Exception) -> str:
    """Return why there is no answer, without the addresses and names that aiohttp's texts hold."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "the certificate is not valid for this host, or of an authority that is not trusted"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return "no TLS"
        case aiohttp.ClientConnectorDNSError():
            return "the name of the host is not known"
        case aiohttp.ClientConnectorError():
            return "no connection"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "the connection was closed before the answer ended"
        case _:
            return f"no HTTP answer ({type(error).__name__})"
