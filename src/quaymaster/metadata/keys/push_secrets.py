"""What signs calls to the endpoints of queues, and headers for them: a row for each queue, wrapped by the master key.

    endpoint set ──▶ key ──rotated──▶ newer key signs ──a day──▶ alone
                      └───────────────── signs as well ───┘

So receivers have a day to exchange a secret. The day is of counted time (`coordination/counted_time`): no wall clock
takes a secret from them. A row is stored with the attributes that it belongs to, and goes with its queue.

Headers are wrapped together with the host that they were given for, and are for no other, also while a process has the
new endpoint and the old row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from quaymaster.coordination.interface import Put, RevisionMismatch
from quaymaster.core.push.calls import NO_SECRETS, PushSecrets
from quaymaster.core.values.errors import Overloaded, UnsupportedOperation
from quaymaster.core.values.formats import DELIVERY, CellFormat
from quaymaster.core.values.queues.attribute_rules import PUSHED
from quaymaster.core.values.queues.attributes import PUSH_ENDPOINT, PUSH_HEADERS
from quaymaster.core.values.queues.push_rules import MASKED, endpoint_of, parse_endpoint_text, parse_headers
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.metadata.keys.data_keys import KEY_BYTES, push_headers_purpose, push_key_purpose
from quaymaster.metadata.keys.master_keys import MasterKeys
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import (
    MASTER_KEY,
    PUSH_SECRETS,
    PushSecretRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import NewPushSecret

BOTH_SIGN_MS: Final = 24 * 3_600_000
ATTEMPTS_MAX: Final = 16


class _Headers(msgspec.Struct, array_like=True):
    """What is wrapped as headers."""

    host: str
    headers: dict[str, str]


class _Opened(NamedTuple):
    keys: tuple[bytes, ...]
    host: str
    headers: tuple[tuple[str, str], ...]


def host_of(endpoint: str) -> str:
    """Return the host that headers are for, with scheme and port. InvalidAttributeValue."""
    return str(endpoint_of(parse_endpoint_text(PUSH_ENDPOINT.name, endpoint))) if endpoint else ""


class PushSecretKeys:
    """Answers from memory; what is stored comes with the queue's attributes, or by `rotate`."""

    def __init__(
        self,
        mirror: Mirror,
        master_keys: MasterKeys,
        now_ms: Callable[[], int],
        *,
        cell_format: CellFormat,
        counted_time: CountedTime,
    ) -> None:
        self._mirror = mirror
        self._master_keys = master_keys
        self._now_ms = now_ms
        self._cell_format = cell_format
        self._time = counted_time
        self._rows: MirrorTable[PushSecretRow] = mirror.table(
            PUSH_SECRETS, row_decoder(PushSecretRow), self._on_row
        )
        self._opened: dict[str, _Opened] = {}
        self._rotated: set[str] = set()
        """Queues whose older key still signs."""

    def of(self, queue: QueueDefinition) -> PushSecrets:
        """Return a queue's secrets. NotYetKnown: the wrapping key is being asked for."""
        suffix = id_text(queue.queue_id)
        row = self._rows.get(suffix)
        if row is None:
            return NO_SECRETS
        opened = self._opened.get(suffix)
        if opened is None:
            opened = self._opened[suffix] = self._open(row)
        keys, host, headers = opened
        is_for_it = PUSH_HEADERS.name in queue.attributes and host == host_of(queue.push_endpoint)
        return PushSecrets(keys, headers if is_for_it else ())

    async def secret_with(
        self, account_id: str, name: str, changes: Mapping[str, str], *, queue_id: int = 0, endpoint: str = ""
    ) -> NewPushSecret | None:
        """Return what is to be stored together with changes of attributes; None: nothing.

        `queue_id` 0: the queue is not there yet; else it has this endpoint now. Raises InvalidAttributeValue, NotNow.
        """
        endpoint = changes.get(PUSH_ENDPOINT.name, endpoint)
        said = changes.get(PUSH_HEADERS.name)
        headers = None if not said or said == MASKED else parse_headers(PUSH_HEADERS.name, said)
        suffix = id_text(queue_id)
        row = self._rows.get(suffix) if queue_id else None
        loses_headers = said == "" or not endpoint
        if row is None and not endpoint:
            return None
        if row is not None and headers is None and not (loses_headers and row.wrapped_headers is not None):
            return None
        await self._master_keys.ready()
        if row is None:
            key = self._master_keys.wrap(push_key_purpose(account_id, name), os.urandom(KEY_BYTES))
            row = PushSecretRow(account_id, name, key, self._now_ms())
        wrapped = None
        if headers is not None:
            content = _Headers(host_of(endpoint), headers)
            text = msgspec.json.encode(content)
            wrapped = self._master_keys.wrap(push_headers_purpose(account_id, name), text)
        row = msgspec.structs.replace(row, wrapped_headers=wrapped)
        revision = self._rows.revision(suffix) if queue_id else 0
        return NewPushSecret(self._master_keys.compare().revision, revision, encode_row(row))

    async def refresh(self, queue_id: int) -> None:
        """Read again what `secret_with` rests on."""
        await self._mirror.refresh(MASTER_KEY)
        await self._mirror.refresh(PUSH_SECRETS + id_text(queue_id))

    async def has_headers(self, queue: QueueDefinition, text: str) -> bool:
        """Tell whether the headers of a queue are those that a text says; NotNow."""
        await self.refresh(queue.queue_id)
        await self._master_keys.ready()
        return dict(self.of(queue).headers) == parse_headers(PUSH_HEADERS.name, text)

    async def rotate(self, queue: QueueDefinition) -> bytes:
        """Make a new key, which signs from now on; the one of before signs as well for a day. Return the new key.

        UnsupportedOperation: the queue never had an endpoint.
        """
        self._cell_format.require(DELIVERY, PUSHED)
        suffix = id_text(queue.queue_id)
        purpose = push_key_purpose(queue.account_id, queue.name)
        for _ in range(ATTEMPTS_MAX):
            row = self._rows.get(suffix)
            if row is None:
                raise UnsupportedOperation(
                    f"The queue {queue.name} has no secret: it never had a PushEndpoint."
                )
            await self._master_keys.ready()
            since_ms = await self._time.begin_ms()
            key = os.urandom(KEY_BYTES)
            rotated = msgspec.structs.replace(
                row,
                wrapped_key=self._master_keys.wrap(purpose, key),
                wrapped_older_key=row.wrapped_key,
                rotated_counted_ms=since_ms,
            )
            try:
                await self._mirror.transact(
                    [self._master_keys.compare(), self._rows.compare(suffix)],
                    [Put(PUSH_SECRETS + suffix, encode_row(rotated))],
                )
            except RevisionMismatch:
                continue  # the master key was rotated, or the row changed: both are known now
            return key
        raise Overloaded

    async def drop_older_keys(self) -> None:
        """Let the keys sign alone that were rotated to a day ago. NotNow."""
        if not self._rotated:
            return
        now_ms = await self._time.read_ms()
        for suffix in list(self._rotated):
            row = self._rows.get(suffix)
            assert row is not None, "who is noted as rotated has a row"
            if now_ms - row.rotated_counted_ms >= BOTH_SIGN_MS:
                alone = msgspec.structs.replace(row, wrapped_older_key=None)
                with suppress(RevisionMismatch):  # it was rotated again, or is gone
                    await self._mirror.transact(
                        [self._rows.compare(suffix)], [Put(PUSH_SECRETS + suffix, encode_row(alone))]
                    )

    def _open(self, row: PushSecretRow) -> _Opened:
        unwrap, purpose = self._master_keys.unwrap, push_key_purpose(row.account_id, row.queue_name)
        keys = [unwrap(purpose, row.wrapped_key)]
        if row.wrapped_older_key is not None:
            keys.append(unwrap(purpose, row.wrapped_older_key))
        content = _Headers("", {})
        if row.wrapped_headers is not None:
            text = unwrap(push_headers_purpose(row.account_id, row.queue_name), row.wrapped_headers)
            content = msgspec.json.decode(text, type=_Headers)
        return _Opened(tuple(keys), content.host, tuple(content.headers.items()))

    def _on_row(self, suffix: str, old: PushSecretRow | None, new: PushSecretRow | None) -> None:
        self._opened.pop(suffix, None)
        if new is not None and new.wrapped_older_key is not None:
            self._rotated.add(suffix)
        else:
            self._rotated.discard(suffix)
