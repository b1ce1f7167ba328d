"""The store of a cell: etcd v3, several members, agreed on by a majority of them.

Every key is kept under a root (`quaymaster/<cell>/`), so that several cells, and others, may share one etcd. The
root is no part of keys here. A revision is etcd's: it counts the changes of all who use that etcd.

    get, list, read  a linearizable range: needs a majority, never answers from the past
    transaction      one etcd transaction: compare mod_revision, then write; else read what was found
    lease            etcd's; its time is whole seconds, and at least one and a half elections
    watch            a stream from the last seen revision; after a cut, from there again, at any member

A watch may be dead without a sign: its member paused or cut off, a proxy between that forgot it. So while one is
silent, its member must answer a read that needs the leader each WATCH_PROBE_S, also one that others ask for; and
the watch is made again after WATCH_RENEW_S.

Each row carries a checksum (`row_checksum`), which is put on and taken off here.

A member that answers from a revision before one it had has lost its data, or was restored. One that gives a row whose
checksum does not fit is damaged. Processes that saw that do not ask this member any more. When no other member is left,
etcd is away for them, and what they know stays as it is.

What etcd does when it is unsure (time-out, leader changed) is OutcomeUnknown; see `etcd_gateway`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from quaymaster.coordination.interface import (
    ABSENT,
    LIST_LIMIT_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Coordination,
    CoordinationUnavailable,
    Event,
    KeyValue,
    LeaseExpired,
    Listing,
    Put,
    RevisionMismatch,
    StoreUnusable,
    WatchLost,
    check_limit,
    check_read,
    check_transaction,
    prefix_end,
    transaction_bytes,
)
from quaymaster.coordination.start_patience import StartPatience
from quaymaster.coordination.store_witness import with_generation
from quaymaster.coordination.stores.etcd_gateway import (
    NOT_FOUND,
    EndpointFailed,
    EtcdAccess,
    EtcdGateway,
    EtcdRefused,
    Header,
    Reply,
    Stream,
    WithHeader,
    for_operators,
)
from quaymaster.coordination.stores.row_checksum import roots_nearby, value_of, why_damaged, with_checksum
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.timed import timed
from quaymaster.monitoring.logs import log_event

log = logging.getLogger(__name__)

T = TypeVar("T", bound=WithHeader)

TIMEOUT_MS: Final = 5_000
WATCH_PROBE_S: Final = 2.0
WATCH_RENEW_S: Final = 30.0
WATCH_RETRY_MIN_S: Final = 0.05
WATCH_RETRY_MAX_S: Final = 1.0
WATCH_GIVE_UP_S: Final = 30.0
"""Without any stream for so long, a watch says that it is blind."""
VERIFY_ROWS: Final = 256
"""So many rows are read at once when all are."""
RESTORE: Final = (
    "If other members of etcd are whole, replace this one by an empty one; else restore etcd from a snapshot. Then "
    "restart all that use it"
)


class _KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    """As it is stored, with its checksum."""
    mod_revision: int = 0
    lease: int = 0


class _Range(msgspec.Struct, frozen=True):
    kvs: tuple[_KeyValue, ...] = ()
    count: int = 0


class _RangeReply(Reply, frozen=True):
    kvs: tuple[_KeyValue, ...] = ()
    more: bool = False


class _Operation(msgspec.Struct, frozen=True):
    response_range: _Range = _Range()


class _TransactionReply(Reply, frozen=True):
    succeeded: bool = False
    responses: tuple[_Operation, ...] = ()


class _LeaseReply(Reply, frozen=True):
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class _KeepAliveReply(msgspec.Struct, frozen=True):
    """A stream of one answer."""

    result: _LeaseReply

    @property
    def header(self) -> Header:
        return self.result.header


class _Change(msgspec.Struct, frozen=True):
    kv: _KeyValue
    type: str = "PUT"


class _WatchReply(Reply, frozen=True):
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: tuple[_Change, ...] = ()


class _WatchLine(msgspec.Struct, frozen=True):
    result: _WatchReply | None = None
    error: Any = None


_watch_decoder: Final = msgspec.json.Decoder(_WatchLine, strict=False)


class _LeaseNotFound(Exception):
    """etcd knows no such lease (any more)."""


class EtcdCoordination(Coordination):
    """Use within the event loop that made it. etcd need not be there: calls fail until it is, then work."""

    def __init__(
        self,
        access: EtcdAccess,
        *,
        root: str,
        timeout_ms: int = TIMEOUT_MS,
        is_counted: Callable[[str], bool] = lambda key: False,
    ) -> None:
        """Keep everything under `root`, for example `quaymaster/eu1/`. No call takes longer than `timeout_ms`.

        A change of a key that `is_counted` makes a new generation of the store (`core/cell/store_history`).

        Raises:
            StoreUnusable: an endpoint or a TLS file cannot be used, or the root does not end with a slash.
        """
        if not root.endswith("/"):
            raise StoreUnusable(
                f"the etcd prefix {root!r} must end with '/', so that no other begins with it"
            )
        self._root = root.encode()
        self._end = _encode(prefix_end(root) or "")
        self._gateway = EtcdGateway(access, timeout_ms=timeout_ms, probe_key=self._root)
        self._timeout_s = timeout_ms / 1000
        self._is_counted = is_counted
        self.patience: StartPatience | None = None
        """Of the process that uses the store, while it starts."""
        self._closing = asyncio.Event()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # The interface

    @property
    def why_refused(self) -> str | None:
        return self._gateway.why_refused

    @timed
    async def get(self, key: str) -> KeyValue | None:
        reply = await self._call(
            "/v3/kv/range", {"key": self._full(key)}, _RangeReply, check=self._check_range
        )
        return self._key_value(reply.kvs[0]) if reply.kvs else None

    @timed
    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        check_limit(limit)
        reply = await self._range(prefix, after, limit)
        return Listing(
            tuple(self._key_value(row) for row in reply.kvs), revision=reply.header.revision, more=reply.more
        )

    @timed
    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        check_transaction(compares, puts, deletes)
        puts = with_generation(puts, deletes, self._is_counted)
        request = {
            "compare": [
                {
                    "key": self._full(compare.key),
                    "target": "MOD",
                    "result": "EQUAL",
                    "mod_revision": compare.revision,
                }
                for compare in compares
            ],
            "success": [{"request_put": self._stored(put)} for put in puts]
            + [{"request_delete_range": {"key": self._full(key)}} for key in deletes],
            "failure": [
                {"request_range": {"key": self._full(compare.key), "keys_only": True}} for compare in compares
            ],
        }
        try:
            reply = await self._call("/v3/kv/txn", request, _TransactionReply, changes=True, repeatable=False)
        except _LeaseNotFound:
            leases = sorted({put.lease_id for put in puts if put.lease_id})
            raise LeaseExpired(f"lease {', '.join(map(str, leases))} is over") from None
        if reply.succeeded:
            return reply.header.revision
        for compare, operation in zip(compares, reply.responses, strict=True):
            rows = operation.response_range.kvs
            found = rows[0].mod_revision if rows else ABSENT
            if found != compare.revision:
                raise RevisionMismatch(compare.key, compare.revision, found)
        raise AssertionError("a transaction that failed has a compare that does not hold")

    async def verify(self) -> None:
        try:
            after = ""
            while (page := await self._range("", after, VERIFY_ROWS)).more:
                after = self._key(page.kvs[-1].key)
            await self._look_for_strays()
        except CoordinationUnavailable:
            self.check_asked()
            raise

    async def read(self, keys: Sequence[str]) -> tuple[list[KeyValue], int]:
        check_read(keys)
        request = {"success": [{"request_range": {"key": self._full(key)}} for key in keys]}
        reply = await self._call("/v3/kv/txn", request, _TransactionReply, check=self._check_read)
        return [self._key_value(row) for row in _rows_read(reply)], reply.header.revision

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        position = after_revision
        loop = asyncio.get_running_loop()
        retry_s = WATCH_RETRY_MIN_S
        followed_s = loop.time()
        while True:
            self._check_open()
            reason = "renewed"
            try:
                async with self._gateway.stream("/v3/watch", self._watch_request(prefix, position)) as stream:
                    while (reply := await self._next_reply(stream, position)) is not None:
                        retry_s = WATCH_RETRY_MIN_S
                        followed_s = loop.time()
                        if reply.events:
                            position = reply.events[-1].kv.mod_revision
                            yield [self._event(change) for change in reply.events]
                        elif not reply.created:
                            # A progress notification: all up to there was sent.
                            position = max(position, reply.header.revision)
                followed_s = loop.time()
                continue
            except EndpointFailed as error:
                reason = str(error)
            except EtcdRefused as refused:
                reason = refused.message
            self._check_open()
            log_event(log, logging.DEBUG, "watch cut", prefix=prefix, revision=position, reason=reason)
            if loop.time() - followed_s > WATCH_GIVE_UP_S:
                raise for_operators(CoordinationUnavailable(), f"etcd cannot be followed: {reason}")
            await self._pause(retry_s)
            retry_s = min(2 * retry_s, WATCH_RETRY_MAX_S)

    @timed
    async def grant_lease(self, ttl_ms: int) -> int:
        # A lease that nobody learned of ends by itself, so asking twice does no harm.
        reply = await self._call(
            "/v3/lease/grant", {"TTL": max(-(-ttl_ms // 1000), 1)}, _LeaseReply, changes=True
        )
        return reply.id

    @timed
    async def keep_alive(self, lease_id: int) -> None:
        reply = await self._call("/v3/lease/keepalive", {"ID": lease_id}, _KeepAliveReply, changes=True)
        if reply.result.ttl <= 0:
            raise LeaseExpired(f"lease {lease_id} is over")

    async def revoke_lease(self, lease_id: int) -> None:
        with contextlib.suppress(_LeaseNotFound):
            await self._call("/v3/lease/revoke", {"ID": lease_id}, Reply, changes=True)

    async def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._idle.wait()
        await self._gateway.close()

    # Beyond the interface

    async def backup(self, target: Path) -> int:
        """Write our keys, as they are at one revision, to a SQLite store that must not exist; return the revision.

        Keys bound to leases are left out: who holds something now is no part of what is kept.
        """
        touch = functools.partial(target.touch, mode=0o600, exist_ok=False)
        await asyncio.get_running_loop().run_in_executor(None, touch)
        copy = await SQLiteCoordination.open(target)
        try:
            reply = await self._range("", "", LIST_LIMIT_MAX)
            revision = reply.header.revision
            while True:
                puts = [Put(self._key(row.key), value_of(row.value)) for row in reply.kvs if not row.lease]
                await _write_all(copy, puts)
                if not reply.more:
                    return revision
                reply = await self._range("", self._key(reply.kvs[-1].key), LIST_LIMIT_MAX, revision)
        finally:
            await copy.close()

    # Calls

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise CoordinationUnavailable("The metadata store is closed.")

    async def _call(
        self,
        path: str,
        request: object,
        reply_type: type[T],
        *,
        changes: bool = False,
        repeatable: bool = True,
        check: Callable[[T], str | None] = lambda reply: None,
    ) -> T:
        def call() -> Awaitable[T]:
            return self._call_once(
                path, request, reply_type, changes=changes, repeatable=repeatable, check=check
            )

        return await (call() if self.patience is None else self.patience.call(call, self._is_asked))

    def _is_asked(self) -> bool:
        return self.why_refused is None and not self._closing.is_set()

    async def _call_once(
        self,
        path: str,
        request: object,
        reply_type: type[T],
        *,
        changes: bool,
        repeatable: bool,
        check: Callable[[T], str | None],
    ) -> T:
        self._check_open()
        self._calls += 1
        self._idle.clear()
        try:
            return await self._gateway.call(
                path, request, reply_type, changes=changes, repeatable=repeatable, check=check
            )
        except EtcdRefused as refused:
            if refused.code == NOT_FOUND:
                raise _LeaseNotFound from None
            raise for_operators(CoordinationUnavailable(), f"etcd refused: {refused.message}") from None
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _range(self, prefix: str, after: str, limit: int, revision: int = 0) -> _RangeReply:
        start = self._full(prefix)
        if after:
            start = max(start, self._full(after) + b"\0")
        end = prefix_end(prefix)
        request = {
            "key": start,
            "range_end": self._end if end is None else self._full(end),
            "limit": limit,
            "revision": revision,
        }
        return await self._call("/v3/kv/range", request, _RangeReply, check=self._check_range)

    # Watching

    def _watch_request(self, prefix: str, position: int) -> object:
        end = prefix_end(prefix)
        return {
            "create_request": {
                "key": self._full(prefix),
                "range_end": self._end if end is None else self._full(end),
                "start_revision": position + 1,
                "progress_notify": True,
            }
        }

    async def _next_reply(self, stream: Stream, position: int) -> _WatchReply | None:
        """Return what the watch says next; None when it was silent for so long that a new one is due."""
        silent_s = 0.0
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        while (line := await stream.next_line(WATCH_PROBE_S)) is None:
            silent_s += WATCH_PROBE_S
            # A read begun in the silence is of a later revision than all that the watch had told before.
            if await self._gateway.revision_since(stream.endpoint, since_s) < position:
                raise WatchLost(f"etcd is at a revision before {position}: it was restored")
            if silent_s >= WATCH_RENEW_S:
                return None
            since_s = loop.time()
        try:
            parsed = _watch_decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._gateway.avoid(stream.endpoint, "a watch that is not etcd's")
            raise EndpointFailed(stream.endpoint, str(error), may_have_acted=True) from error
        reply = parsed.result
        if reply is None:
            raise EndpointFailed(stream.endpoint, f"the watch ended: {parsed.error}", may_have_acted=True)
        self._gateway.check_cluster(stream.endpoint, reply.header)
        if reply.compact_revision:
            raise WatchLost(f"changes before revision {reply.compact_revision} are compacted")
        if reply.canceled:
            raise EndpointFailed(
                stream.endpoint, f"the watch was cancelled: {reply.cancel_reason}", may_have_acted=True
            )
        rows = [change.kv for change in reply.events if change.type != "DELETE"]
        if reason := self._why_damaged(rows, reply.header.revision):
            self._gateway.refuse(stream.endpoint, reason)
            raise EndpointFailed(stream.endpoint, reason, may_have_acted=True)
        return reply

    async def _pause(self, duration_s: float) -> None:
        """Wait, or not when the store is closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await self._closing.wait()

    # Rows

    async def _look_for_strays(self) -> None:
        """Refuse an etcd in which a row of ours has left the root: a bit of its key flipped."""
        roots = roots_nearby(self._root)
        for first in range(0, len(roots), TRANSACTION_OPERATIONS_MAX):
            some = roots[first : first + TRANSACTION_OPERATIONS_MAX]
            request = {"success": [{"request_range": _under(root) | {"count_only": True}} for root in some]}
            try:
                reply = await self._gateway.call(
                    "/v3/kv/txn", request, _TransactionReply, changes=False, repeatable=True
                )
            except EtcdRefused:
                return  # this user may read nothing outside of the root
            for root, operation in zip(some, reply.responses, strict=True):
                if operation.response_range.count:
                    await self._look_for_strays_under(root)

    async def _look_for_strays_under(self, root: bytes) -> None:
        """Read what is under another root, which may rightly be another cell's."""
        request = _under(root) | {"limit": VERIFY_ROWS}
        while True:
            reply = await self._call(
                "/v3/kv/range", request, _RangeReply, check=functools.partial(self._why_stray, root)
            )
            if not reply.more:
                return
            request["key"] = reply.kvs[-1].key + b"\0"

    def _why_stray(self, root: bytes, reply: _RangeReply) -> str | None:
        for row in reply.kvs:
            was = self._root + row.key[len(root) :]
            if why_damaged(row.key, row.value, row.lease) and not why_damaged(was, row.value, row.lease):
                return f"is damaged at the key {_shown(was)}: it is now {_shown(row.key)}. {RESTORE}"
        return None

    def _check_range(self, reply: _RangeReply) -> str | None:
        return self._why_damaged(reply.kvs, reply.header.revision)

    def _check_read(self, reply: _TransactionReply) -> str | None:
        return self._why_damaged(_rows_read(reply), reply.header.revision)

    def _why_damaged(self, rows: Sequence[_KeyValue], revision: int) -> str | None:
        """Return why a member is not to be believed, None when each row is as it was written."""
        for row in rows:
            reason = why_damaged(row.key, row.value, row.lease)
            if reason is None and row.mod_revision > revision:
                reason = f"it was changed at revision {row.mod_revision}, and etcd is at {revision}"
            if reason is not None:
                return f"is damaged at the key {_shown(row.key)}: {reason}. {RESTORE}"
        return None

    def _stored(self, put: Put) -> dict[str, object]:
        key = self._full(put.key)
        return {"key": key, "value": with_checksum(key, put.value, put.lease_id), "lease": put.lease_id}

    def _full(self, key: str) -> bytes:
        return self._root + _encode(key)

    def _key(self, full: bytes) -> str:
        return full[len(self._root) :].decode("utf-8", "surrogateescape")

    def _key_value(self, row: _KeyValue) -> KeyValue:
        return KeyValue(self._key(row.key), value_of(row.value), row.mod_revision)

    def _event(self, change: _Change) -> Event:
        value = None if change.type == "DELETE" else value_of(change.kv.value)
        return Event(self._key(change.kv.key), value, change.kv.mod_revision)


def _rows_read(reply: _TransactionReply) -> list[_KeyValue]:
    return [row for operation in reply.responses for row in operation.response_range.kvs]


def _under(root: bytes) -> dict[str, object]:
    return {"key": root, "range_end": root[:-1] + bytes([root[-1] + 1])}


def _shown(key: bytes) -> str:
    return repr(key.decode(errors="backslashreplace"))


async def _write_all(store: Coordination, puts: Sequence[Put]) -> None:
    together: list[Put] = []
    size = 0
    for put in puts:
        put_bytes = transaction_bytes([put])
        if len(together) == TRANSACTION_OPERATIONS_MAX or size + put_bytes > TRANSACTION_BYTES_MAX:
            await store.transaction([], together)
            together, size = [], 0
        together.append(put)
        size += put_bytes
    if together:
        await store.transaction([], together)


def _encode(key: str) -> bytes:
    # A key that is no UTF-8 can only be another program's; it is listed and passed over all the same.
    return key.encode("utf-8", "surrogateescape")
