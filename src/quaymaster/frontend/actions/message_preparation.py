"""From a message as it was sent to the message that the broker stores: sums, hashes, an id, and its content encrypted.

What is hashed here is what the broker knows a repetition by: the group, the deduplication id, and the call of an SDK
that a retry repeats.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from quaymaster.core.values.commands.messages import QUEUE_DEFAULT, NewMessage
from quaymaster.core.values.messages import (
    MessageContent,
    hash_dedup,
    hash_group,
    hash_retry,
    join_payload,
    retry_hash_prefix,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.call import Call
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.protocol.actions import message_rules, transaction_shapes
from quaymaster.protocol.sqs.canonical_requests import render_time
from quaymaster.protocol.sqs.checksums import attributes_md5, md5_digest
from quaymaster.protocol.sqs.shapes import MessageAttributeValue

MESSAGE_IDS_PER_BLOCK: Final = 256
REPLAYED_AFTER_S: Final = 2
"""A first attempt that was signed longer ago may have been seen on its way, and sent again."""
AHEAD_S: Final = 1
"""So may one that claims to be signed later than this: it will look new for longer than brokers look for all."""
_FIRST_ATTEMPT: Final = re.compile(rb"(?:^|[ ;])attempt=1(?:[ ;]|$)")
_FIRST_ATTEMPTS: Final[dict[bytes | None, bool]] = {
    None: False,
    b"attempt=1": True,
    b"attempt=1; max=3": True,
    b"attempt=1; max=4": True,
    b"attempt=1; max=5": True,
}
_VERSION_4: Final = bytes(0x40 | (byte & 0x0F) for byte in range(256))
_VARIANT: Final = bytes(0x80 | (byte & 0x3F) for byte in range(256))


SentMessage = tuple[str, message_rules.AnySend, message_rules.CheckedMessage]
"""The id of its entry, "" outside of a batch; what was sent; its body in UTF-8 and its size."""


class MessageIds:
    """Makes message ids: random UUIDs (version 4) as 16 bytes, many at a time."""

    __slots__ = ("_ready",)

    def __init__(self) -> None:
        self._ready: list[bytes] = []

    def next(self) -> bytes:
        """Return an id that was never used before."""
        if not self._ready:
            self._ready = self._make()
        return self._ready.pop()

    @staticmethod
    def _make() -> list[bytes]:
        block = bytearray(os.urandom(16 * MESSAGE_IDS_PER_BLOCK))
        block[6::16] = block[6::16].translate(_VERSION_4)
        block[8::16] = block[8::16].translate(_VARIANT)
        data = bytes(block)
        return [data[at : at + 16] for at in range(0, len(data), 16)]


class Invocation(msgspec.Struct, gc=False):
    """Which attempt of which call of an SDK a request is. `id` None: the client does not say."""

    id: str | None
    may_be_retry: bool


_NO_INVOCATION: Final = Invocation(None, True)


class Prepared(msgspec.Struct, gc=False):
    """A message ready to be sent, its entry's id, and the MD5s its sender is told."""

    entry_id: str
    message: NewMessage
    body_md5: bytes
    attributes_md5: bytes | None
    system_attributes_md5: bytes | None


class MessagePreparation:
    """Prepares the messages of a front end.

    `remembers_sends`: brokers know a repeated send by its retry hash. `now_ms` is the wall clock.
    """

    def __init__(self, cipher: MessageCipher, *, remembers_sends: bool, now_ms: Callable[[], int]) -> None:
        self._cipher = cipher
        self._remembers_sends = remembers_sends
        self._now_ms = now_ms
        self._second = 0
        self._old_before = b""
        """Dates of requests that are less than this are too old for a first attempt, in this second."""
        self._new_until = b""
        """Those that are more than this are of a clock that is ahead."""
        self._next_message_id = MessageIds().next

    def prepare(self, call: Call, definition: QueueDefinition, sent: Sequence[SentMessage]) -> list[Prepared]:
        """Return messages as the broker stores them."""
        return self._prepare(call, definition, sent, self._invocation(call))

    def prepare_staged(
        self,
        call: Call,
        definition: QueueDefinition,
        message: transaction_shapes.StagedMessageEntry,
        checked: message_rules.CheckedMessage,
        origin_id: bytes | None = None,
    ) -> NewMessage:
        """Return a message as a transaction stages it: without a retry hash, because its index does for that.

        `origin_id`: the id that it has as its OriginMessageId, None for its own.
        """
        (prepared,) = self._prepare(call, definition, [("", message, checked)], _NO_INVOCATION, origin_id)
        return prepared.message

    def prepare_output(
        self,
        call: Call,
        definition: QueueDefinition,
        message: message_rules.AnySend,
        checked: message_rules.CheckedMessage,
        message_id: bytes,
    ) -> Prepared:
        """Return a message as a completion sends it: its id is given, and it has no retry hash."""
        sent = [("", message, checked)]
        (prepared,) = self._prepare(call, definition, sent, _NO_INVOCATION, message_id=message_id)
        return prepared

    def _prepare(
        self,
        call: Call,
        definition: QueueDefinition,
        sent: Sequence[SentMessage],
        invocation: Invocation,
        origin_id: bytes | None = None,
        *,
        message_id: bytes | None = None,
    ) -> list[Prepared]:
        retry_prefix = None
        if invocation.id is not None:
            retry_prefix = retry_hash_prefix(definition.account_id, definition.queue_id, invocation.id)
        trace_of_request = _trace_header(call)
        sender_id, may_be_retry = call.principal.sender_id, invocation.may_be_retry
        is_fifo = definition.is_fifo
        id_key = self._cipher.id_key(definition) if definition.has_dedup_ids else b""
        prepared: list[Prepared] = []
        for entry_id, given, checked in sent:
            body = checked.body
            body_md5 = md5_digest(body)
            attributes: list[tuple[str, str, Any]] = []
            attributes_sum = system_sum = None
            if given.MessageAttributes:
                attributes = _stored_attributes(given.MessageAttributes)
                attributes_sum = attributes_md5(given.MessageAttributes)
            trace = trace_of_request
            if given.MessageSystemAttributes:
                system_sum = attributes_md5(given.MessageSystemAttributes)
                trace = given.MessageSystemAttributes[message_rules.TRACE_HEADER].StringValue

            group_id, dedup_id, delay_s = (
                given.MessageGroupId,
                given.MessageDeduplicationId,
                given.DelaySeconds,
            )
            group = 0 if group_id is None else hash_group(group_id)
            dedup = retry = None
            if is_fifo:
                if dedup_id is None:
                    dedup_id = sha256(body).hexdigest()
                dedup = hash_dedup(dedup_id, group_id if definition.dedup_scope_is_group else None, id_key)
                delay_s = None
            elif dedup_id is not None:
                dedup = hash_dedup(dedup_id, None, id_key)
            if retry_prefix is not None:
                rest = f"{group_id or ''}\0{dedup_id or ''}\0{'' if delay_s is None else delay_s}"
                retry = hash_retry(retry_prefix, entry_id, body_md5, attributes_sum, rest)

            content = MessageContent(
                given.MessageBody, body_md5, attributes, attributes_sum, sender_id, group_id, dedup_id, trace
            )
            its_id = message_id or self._next_message_id()
            encrypted = self._cipher.encrypt_content(content, definition, its_id, origin_id)
            flags, payload = join_payload(group, dedup, retry, encrypted)
            delay_ms = QUEUE_DEFAULT if delay_s is None else delay_s * 1000
            message = NewMessage(
                its_id, payload, flags, delay_ms, group, dedup, retry, may_be_retry, checked.size_bytes
            )
            prepared.append(Prepared(entry_id, message, body_md5, attributes_sum, system_sum))
        return prepared

    def _invocation(self, call: Call) -> Invocation:
        fields = call.request.first
        invocation_id = fields.get(b"amz-sdk-invocation-id")
        if invocation_id is None or not self._remembers_sends:
            return _NO_INVOCATION
        attempt = fields.get(b"amz-sdk-request")
        # Most requests say the same few things here.
        is_first = _FIRST_ATTEMPTS.get(attempt)
        if is_first is None:
            is_first = _FIRST_ATTEMPT.search(attempt or b"") is not None
        return Invocation(
            invocation_id.decode("latin-1"), not is_first or not self._is_of_now(fields.get(b"x-amz-date"))
        )

    def _is_of_now(self, date: bytes | None) -> bool:
        """Tell whether a request was signed when first attempts are. Brokers find what was sent in the last seconds."""
        second = self._now_ms() // 1000
        if second != self._second:
            self._second = second
            self._old_before = render_time((second - REPLAYED_AFTER_S) * 1000).encode()
            self._new_until = render_time((second + AHEAD_S) * 1000).encode()
        return date is not None and self._old_before <= date <= self._new_until


def _trace_header(call: Call) -> str | None:
    header = call.request.first.get(b"x-amzn-trace-id")
    return None if header is None else header.decode("latin-1")


def _stored_attributes(given: dict[str, MessageAttributeValue]) -> list[tuple[str, str, Any]]:
    return [
        (name, value.DataType, value.StringValue if value.BinaryValue is None else value.BinaryValue)
        for name, value in given.items()
    ]
