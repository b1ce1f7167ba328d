"""Calls to etcd v3 through its HTTP/JSON gateway: endpoints and failover, authentication, what an answer means.

                 ┌ not sent ──────────▶ next endpoint; none left: CoordinationUnavailable
    call ─▶ send ┼ refused, unchanged ─▶ EtcdRefused (no leader: next endpoint)
                 └ no usable answer ──▶ next endpoint if repeatable, else OutcomeUnknown

An endpoint that failed is asked last for a while. One that did not answer lately, or never yet, gets no change that
must not be repeated before it answered a read. So a member that hangs costs one unknown outcome, not one after
every pause, and nothing is written to what is no etcd, or not ours.

Source: etcd's api/etcdserverpb/rpc.proto (fields, int64 as text in JSON) and api/v3rpc/rpctypes/error.go (codes,
messages). Both have stayed the same from 3.4 to 3.6.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from quaymaster.coordination.interface import CoordinationUnavailable, OutcomeUnknown, StoreUnusable
from quaymaster.core.values.errors import NotNow
from quaymaster.late_authorities import reading_authorities_later
from quaymaster.monitoring.logs import log_event

with reading_authorities_later():
    import aiohttp

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 1.0
ATTEMPT_TIMEOUT_S: Final = 2.0
"""For one endpoint, when another may be asked the same."""
AVOIDED_MIN_S: Final = 1.0
AVOIDED_MAX_S: Final = 15.0
CONNECTIONS_MAX: Final = 64
WATCHES_MAX: Final = 256
LARGE_BODY_BYTES: Final = 256 << 10
"""Larger ones are sent piece by piece, so that other work goes on between."""
REPLY_BYTES_MAX: Final = 256 << 20
IDLE_CONNECTION_S: Final = 60.0
DNS_CACHE_S: Final = 10
NEEDS_LEADER: Final = "/v3/kv/"
"""Where calls are answered only by a member that has heard of the leader, and of a majority, since they came."""

# gRPC status codes.
NOT_FOUND: Final = 5
OUT_OF_RANGE: Final = 11
UNAUTHENTICATED: Final = 16
_UNCHANGED: Final = frozenset({3, NOT_FOUND, 7, 8, 9, OUT_OF_RANGE, 12, UNAUTHENTICATED})
"""Codes with which etcd refuses before it changes anything: the request is wrong, not allowed, or too much."""
_NO_LEADER: Final = "etcdserver: no leader"
_AUTH_CHANGED: Final = "auth store is old"
_AUTH_IS_OFF: Final = "authentication is not enabled"

# The member refuses at once, and ends watches, while it knows no leader (clientv3.WithRequireLeader).
_REQUIRE_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}


class Header(msgspec.Struct, frozen=True):
    """Who answered, and the store's revision then."""

    cluster_id: int
    revision: int = 0


class Reply(msgspec.Struct, frozen=True):
    """What every answer has. One without it is not from etcd."""

    header: Header


class WithHeader(Protocol):
    """An answer that says who gave it."""

    @property
    def header(self) -> Header:
        """Who answered."""


T = TypeVar("T", bound=WithHeader)
N = TypeVar("N", bound=NotNow)


class _RangeCount(Reply, frozen=True):
    count: int = 0


class _Token(Reply, frozen=True):
    token: str


class EtcdRefused(Exception):
    """etcd answered that it did not do it, and changed nothing."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EndpointFailed(Exception):
    """One endpoint gave no usable answer. `may_have_acted`: the request may have reached it."""

    def __init__(self, endpoint: EtcdEndpoint, reason: str, *, may_have_acted: bool) -> None:
        super().__init__(f"{endpoint.url}: {reason}")
        self.reason = reason
        self.may_have_acted = may_have_acted


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Where etcd is and how it lets us in. TLS files are PEM; user and password go together."""

    endpoints: Sequence[str]
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password: str | None = None


class EtcdEndpoint:
    """One address, and how it did lately."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_trusted = False
        """Whether the last thing it did was to answer."""
        self.failures = 0
        self.avoided_until_s = 0.0
        self.why_refused = ""
        """Why it is not asked any more, for good."""
        self.heard_s = -math.inf
        """When the latest read that needs the leader was begun, of those that it answered."""
        self.revision = 0
        """Of the store, in that answer."""

    def note_answer(self) -> None:
        """It works."""
        if self.failures:
            log_event(log, logging.INFO, "etcd endpoint answers again", endpoint=self.url)
        self.failures = 0
        self.avoided_until_s = 0.0
        self.is_trusted = True

    def note_revision(self, begun_s: float, revision: int) -> None:
        """It answered a read that was begun then, at this revision of the store."""
        if begun_s >= self.heard_s:
            self.heard_s, self.revision = begun_s, revision

    def note_failure(self, now_s: float, reason: str) -> None:
        """It does not; ask others for a while."""
        if not self.failures:
            log_event(log, logging.WARNING, "etcd endpoint failed", endpoint=self.url, reason=reason)
        self.avoided_until_s = now_s + min(AVOIDED_MAX_S, AVOIDED_MIN_S * 2 ** min(self.failures, 10))
        self.failures += 1
        self.is_trusted = False
        self.heard_s = -math.inf


class Stream:
    """The lines of an answer that goes on until somebody ends it."""

    def __init__(self, endpoint: EtcdEndpoint, response: aiohttp.ClientResponse) -> None:
        self.endpoint = endpoint
        self._response = response
        self._received = bytearray()
        self._scanned = 0

    async def next_line(self, timeout_s: float) -> bytes | None:
        """Return the next line, or None after a time of silence; EndpointFailed when the stream is over."""
        while True:
            end = self._received.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._received[:end])
                del self._received[: end + 1]
                self._scanned = 0
                return line
            self._scanned = len(self._received)
            if self._scanned > REPLY_BYTES_MAX:
                raise EndpointFailed(self.endpoint, "an endless line", may_have_acted=True)
            try:
                async with asyncio.timeout(timeout_s):
                    piece = await self._response.content.readany()
            except TimeoutError:
                return None
            except (aiohttp.ClientError, OSError) as error:
                raise EndpointFailed(self.endpoint, _reason(error), may_have_acted=True) from error
            if not piece:
                raise EndpointFailed(self.endpoint, "the stream ended", may_have_acted=True)
            self._received += piece

    def close(self) -> None:
        """End it; who reads gets EndpointFailed."""
        self._response.close()


class EtcdGateway:
    """Calls and streams over some endpoints, in the order of preference given. Made within an event loop."""

    def __init__(self, access: EtcdAccess, *, timeout_ms: int, probe_key: bytes) -> None:
        """`probe_key` is a key this user may read; its value does not matter.

        Raises:
            StoreUnusable: an endpoint or a TLS file cannot be used.
        """
        self._access = access
        self._timeout_s = timeout_ms / 1000
        self._probe = {"key": probe_key, "count_only": True}
        self._endpoints = [EtcdEndpoint(_checked_url(url)) for url in access.endpoints]
        if not self._endpoints:
            raise StoreUnusable("etcd_endpoints is empty; name at least one, as in http://127.0.0.1:2379")
        context = _tls_context(access)
        self._calls = _session(context, CONNECTIONS_MAX)
        self._watches = _session(context, WATCHES_MAX)
        self._streams: set[Stream] = set()
        self._cluster_id: int | None = None
        self._revision = 0
        """The highest one seen in an answer that needed a majority: no later such answer is of an older one."""
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    @property
    def why_refused(self) -> str | None:
        """Why no endpoint is asked any more, for good; None while one is."""
        refused = [f"{one.url} {one.why_refused}" for one in self._endpoints if one.why_refused]
        return refused[0] if len(refused) == len(self._endpoints) else None

    async def close(self) -> None:
        """End all streams and connections."""
        for stream in list(self._streams):
            stream.close()
        await self._calls.close()
        await self._watches.close()

    async def call(
        self,
        path: str,
        request: object,
        reply_type: type[T],
        *,
        changes: bool,
        repeatable: bool,
        check: Callable[[T], str | None] = lambda reply: None,
    ) -> T:
        """Return etcd's answer from the first endpoint that gives one, within the time-out.

        `changes`: it is not only a read. `repeatable`: doing it twice is as good as once. `check` returns why an answer
        must not be believed: who gave it is not asked any more.

        Raises:
            EtcdRefused: etcd answered that it did not do it.
            CoordinationUnavailable: it was not done, or is a read.
            OutcomeUnknown: a change that may have been made.
        """
        body = msgspec.json.encode(request)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        may_have_acted = False
        reason = "etcd cannot be reached"
        endpoints = self.by_preference()
        for endpoint in endpoints:
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                break
            try:
                if not repeatable and not endpoint.is_trusted:
                    await self._try_out(endpoint, min(left_s, ATTEMPT_TIMEOUT_S))
                    left_s = deadline_s - loop.time()
                # The last one has all the time that is left: there is no other to ask.
                is_shared = repeatable and endpoint is not endpoints[-1]
                attempt_s = min(left_s, ATTEMPT_TIMEOUT_S) if is_shared else left_s
                reply = await self._attempt(endpoint, path, body, reply_type, attempt_s)
                if reason_refused := check(reply):
                    self.refuse(endpoint, reason_refused)
                    raise EndpointFailed(endpoint, reason_refused, may_have_acted=True)
                return reply
            except EndpointFailed as error:
                reason = str(error)
                may_have_acted = may_have_acted or (changes and error.may_have_acted)
                if may_have_acted and not repeatable:
                    break
            except EtcdRefused as refused:
                if refused.message != _NO_LEADER:
                    raise
                reason = f"{endpoint.url}: no leader"
        if may_have_acted:
            raise for_operators(OutcomeUnknown(), f"the outcome is unknown: {reason}")
        raise for_operators(CoordinationUnavailable(), f"etcd cannot be used now: {reason}")

    async def revision_since(self, endpoint: EtcdEndpoint, since_s: float) -> int:
        """Return the store's revision, as this endpoint gave it for a read begun at `since_s` of the loop or later.

        It is asked when no such read was answered: where other calls go there all the time, watches add none.

        Raises:
            EndpointFailed: this endpoint does not answer.
            EtcdRefused: it has no leader, or does not let us in.
        """
        return endpoint.revision if endpoint.heard_s >= since_s else await self.probe(endpoint)

    async def probe(self, endpoint: EtcdEndpoint, timeout_s: float = ATTEMPT_TIMEOUT_S) -> int:
        """Return the store's revision by a read that needs the leader.

        Raises:
            EndpointFailed: this endpoint does not answer.
            EtcdRefused: it has no leader, or does not let us in.
        """
        body = msgspec.json.encode(self._probe)
        reply = await self._attempt(endpoint, "/v3/kv/range", body, _RangeCount, timeout_s)
        return reply.header.revision

    async def _try_out(self, endpoint: EtcdEndpoint, timeout_s: float) -> None:
        """See that an endpoint answers a read, before a change is sent to it."""
        try:
            await self.probe(endpoint, timeout_s)
        except EndpointFailed as error:
            raise EndpointFailed(endpoint, error.reason, may_have_acted=False) from error

    @asynccontextmanager
    async def stream(self, path: str, request: object) -> AsyncIterator[Stream]:
        """Give a stream from the most preferred endpoint; EndpointFailed or EtcdRefused when it cannot be had."""
        endpoint = self.by_preference()[0]
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        response = await self._open(self._watches, endpoint, path, msgspec.json.encode(request), deadline_s)
        stream = Stream(endpoint, response)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            stream.close()

    def by_preference(self) -> list[EtcdEndpoint]:
        """Return the endpoints in the order given; those to avoid last, the longest avoided first, then the refused."""
        now_s = asyncio.get_running_loop().time()
        return sorted(
            self._endpoints,
            key=lambda endpoint: (
                bool(endpoint.why_refused),
                endpoint.avoided_until_s if endpoint.avoided_until_s > now_s else 0.0,
            ),
        )

    def avoid(self, endpoint: EtcdEndpoint, reason: str) -> None:
        """Ask others for a while."""
        endpoint.note_failure(asyncio.get_running_loop().time(), reason)

    def refuse(self, endpoint: EtcdEndpoint, reason: str) -> None:
        """Do not ask an endpoint any more, for good."""
        if not endpoint.why_refused:
            endpoint.why_refused = reason
            log_event(log, logging.ERROR, "etcd endpoint refused", endpoint=endpoint.url, reason=reason)

    def check_cluster(self, endpoint: EtcdEndpoint, header: Header) -> None:
        """Make sure that all endpoints are one etcd; EndpointFailed for one that is not."""
        if self._cluster_id is None:
            self._cluster_id = header.cluster_id
        if header.cluster_id != self._cluster_id:
            # Revisions of another cluster mean nothing here, nor those of this one after it was restored.
            reason = "belongs to another cluster (etcd was restored? then restart all that use it)"
            self.avoid(endpoint, reason)
            raise EndpointFailed(endpoint, reason, may_have_acted=False)

    def _check_revision(self, endpoint: EtcdEndpoint, path: str, header: Header, seen: int) -> None:
        """Make sure that etcd still has what it had; EndpointFailed, from now on, for an endpoint that lost changes.

        An etcd without the cell's rows would tell that brokers, journals and queues are gone. It tells us nothing.
        """
        if not path.startswith(NEEDS_LEADER):
            return  # may be of a member that is behind
        if header.revision < seen:
            self.refuse(
                endpoint,
                f"is at revision {header.revision} and was at {seen}: it lost its data, or was restored from a "
                "snapshot (restore a newer one, or decide with `quaymaster force-store`; then restart all that use it)",
            )
            raise EndpointFailed(endpoint, endpoint.why_refused, may_have_acted=True)
        self._revision = max(self._revision, header.revision)

    async def _attempt(
        self, endpoint: EtcdEndpoint, path: str, body: bytes, reply_type: type[T], timeout_s: float
    ) -> T:
        begun_s = asyncio.get_running_loop().time()
        deadline_s = begun_s + timeout_s
        seen = self._revision
        response = await self._open(self._calls, endpoint, path, body, deadline_s)
        try:
            async with asyncio.timeout_at(deadline_s):
                content = await _read(endpoint, response)
            reply = msgspec.json.decode(content, type=reply_type, strict=False)
        except (
            TimeoutError,
            aiohttp.ClientError,
            OSError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
        ) as error:
            raise self._failed(endpoint, error, may_have_acted=True) from error
        finally:
            response.release()
        self.check_cluster(endpoint, reply.header)
        self._check_revision(endpoint, path, reply.header, seen)
        endpoint.note_answer()
        if path.startswith(NEEDS_LEADER):
            endpoint.note_revision(begun_s, reply.header.revision)
        return reply

    async def _open(
        self,
        session: aiohttp.ClientSession,
        endpoint: EtcdEndpoint,
        path: str,
        body: bytes,
        deadline_s: float,
    ) -> aiohttp.ClientResponse:
        """Return a response whose status is 200; a token that is no longer good is replaced once."""
        if endpoint.why_refused:
            raise EndpointFailed(endpoint, endpoint.why_refused, may_have_acted=False)
        for is_last in (False, True):
            token = await self._current_token(endpoint, deadline_s)
            try:
                return await self._post(session, endpoint, path, body, token, deadline_s)
            except EtcdRefused as refused:
                is_about_token = refused.code == UNAUTHENTICATED or _AUTH_CHANGED in refused.message
                if is_last or self._access.user is None or not is_about_token:
                    raise
                if self._token == token:
                    self._token = None
        raise AssertionError("the last attempt returns or raises")

    async def _post(
        self,
        session: aiohttp.ClientSession,
        endpoint: EtcdEndpoint,
        path: str,
        body: bytes,
        token: str,
        deadline_s: float,
    ) -> aiohttp.ClientResponse:
        connected = SimpleNamespace(is_made=False)
        try:
            async with asyncio.timeout_at(deadline_s):
                response = await session.post(
                    endpoint.url + path,
                    data=body if len(body) < LARGE_BODY_BYTES else io.BytesIO(body),
                    headers=_REQUIRE_LEADER | ({"Authorization": token} if token else {}),
                    allow_redirects=False,
                    trace_request_ctx=connected,
                )
                if response.status == 200:
                    return response
                try:
                    content = await _read(endpoint, response)
                finally:
                    response.release()
        except (TimeoutError, aiohttp.ClientError, OSError, RuntimeError) as error:
            # RuntimeError: the session was closed meanwhile.
            raise self._failed(endpoint, error, may_have_acted=connected.is_made) from error
        raise self._refusal(endpoint, response.status, content)

    def _refusal(self, endpoint: EtcdEndpoint, status: int, content: bytes) -> EtcdRefused | EndpointFailed:
        """Return what an answer that is not 200 means."""
        try:
            code, message = parse_error(msgspec.json.decode(content))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            hint = "; is the gateway on, and etcd 3.4 or newer?" if status == 404 else ""
            reason = f"HTTP status {status} and no answer of etcd{hint}"
            self.avoid(endpoint, reason)
            return EndpointFailed(endpoint, reason, may_have_acted=status != 404)
        if message == _NO_LEADER:
            self.avoid(endpoint, message)
            return EtcdRefused(code, message)
        if code in _UNCHANGED:
            endpoint.note_answer()
            return EtcdRefused(code, message)
        self.avoid(endpoint, message)
        return EndpointFailed(endpoint, message, may_have_acted=True)

    def _failed(self, endpoint: EtcdEndpoint, error: Exception, *, may_have_acted: bool) -> EndpointFailed:
        reason = _reason(error)
        self.avoid(endpoint, reason)
        return EndpointFailed(endpoint, reason, may_have_acted=may_have_acted)

    async def _current_token(self, endpoint: EtcdEndpoint, deadline_s: float) -> str:
        """Return the token of our user; empty when we have none, or etcd does not ask who we are."""
        if self._access.user is None:
            return ""
        if self._token is None:
            try:
                async with asyncio.timeout_at(deadline_s), self._authenticating:
                    if self._token is None:
                        self._token = await self._authenticate(endpoint, deadline_s)
            except TimeoutError as error:  # another call waits for an answer, and so did we
                raise EndpointFailed(endpoint, "no login in time", may_have_acted=False) from error
        return self._token

    async def _authenticate(self, endpoint: EtcdEndpoint, deadline_s: float) -> str:
        body = msgspec.json.encode({"name": self._access.user, "password": self._access.password or ""})
        try:
            response = await self._post(self._calls, endpoint, "/v3/auth/authenticate", body, "", deadline_s)
            async with asyncio.timeout_at(deadline_s):
                content = await _read(endpoint, response)
            return msgspec.json.decode(content, type=_Token, strict=False).token
        except EtcdRefused as refused:
            if _AUTH_IS_OFF in refused.message:
                log_event(log, logging.WARNING, "etcd does not ask who we are", user=self._access.user)
                return ""
            raise
        except EndpointFailed as error:
            # What was asked for is not sent yet.
            raise EndpointFailed(endpoint, error.reason, may_have_acted=False) from error
        except (
            TimeoutError,
            aiohttp.ClientError,
            OSError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
        ) as error:
            raise self._failed(endpoint, error, may_have_acted=False) from error


def for_operators(error: N, detail: str) -> N:
    """Give an error words for logs. Its message stays: users are told nothing of addresses and logins."""
    error.args = (detail,)
    return error


def parse_error(content: object) -> tuple[int, str]:
    """Return gRPC code and message of an error as the gateways of etcd 3.4 to 3.6 write it; else ValueError."""
    fields: Any = content
    if isinstance(fields, dict) and isinstance(fields.get("error"), dict):
        fields = fields["error"]  # in a stream
    if isinstance(fields, dict):
        code = fields.get("code", fields.get("grpc_code"))
        message = fields.get("message", fields.get("error"))
        if isinstance(code, int) and isinstance(message, str):
            return code, message
    raise ValueError("not an error of etcd")


async def _read(endpoint: EtcdEndpoint, response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > REPLY_BYTES_MAX:
            response.close()
            raise EndpointFailed(endpoint, f"an answer over {REPLY_BYTES_MAX} bytes", may_have_acted=True)
    return bytes(content)


def _session(context: ssl.SSLContext | None, connections_max: int) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    # From here on bytes of the request may leave; before, none did.
    trace.on_connection_create_end.append(_note_connected)
    trace.on_connection_reuseconn.append(_note_connected)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=context if context is not None else True,
            limit=connections_max,
            keepalive_timeout=IDLE_CONNECTION_S,
            ttl_dns_cache=DNS_CACHE_S,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        trace_configs=[trace],
    )


async def _note_connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.is_made = True


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise StoreUnusable(f"{url!r} is not an address of etcd like https://etcd-1:2379")
    return url.rstrip("/")


def _tls_context(access: EtcdAccess) -> ssl.SSLContext | None:
    if access.ca_file is None and access.certificate_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.certificate_file is not None:
            context.load_cert_chain(access.certificate_file, access.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(
            str(path) for path in (access.ca_file, access.certificate_file, access.key_file) if path
        )
        raise StoreUnusable(f"the TLS files for etcd ({files}) cannot be used: {error}") from error
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, msgspec.MsgspecError | UnicodeDecodeError):
        return "an answer that is not etcd's"
    return str(error) or type(error).__name__
