"""Consumes a queue over the SQS API, for pushers that run where consumers do: `quaymaster forward`.

    wait ──long poll of 20 s──▶ a message is kept ──at once──▶ receive ──▶ call ──▶ DeleteMessageBatch
                                      └── not asked for within some seconds: visible again

SQS has no call that waits and takes nothing. So a wait receives as many messages as one call has, which the next
receive hands out. Any service that speaks SQS's JSON protocol will do; one that does not know OriginMessageId is asked
without it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from quaymaster.core.push.calls import Deleted, PushedMessage
from quaymaster.core.push.queue_flow import BEGINS_WITHIN_MS, HIDDEN_MORE_MS
from quaymaster.core.values.errors import CallerError, InvalidParameterValue, NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.net.outbound.failures import OutboundError
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign
from quaymaster.push.parts import MakesCalls

LONG_POLL_S: Final = 20
ANSWER_S: Final = 10.0
"""How long an answer may take on top of a long poll."""
ORIGIN_ID: Final = "OriginMessageId"
_JSON_TYPE: Final = "application/x-amz-json-1.0"
_OK: Final = 200


class SQSAccess(NamedTuple):
    """Where a service is, and who calls it."""

    endpoint_url: str
    signer: Signer


class SQSConsumer:
    """Consumes one queue. `batch_size` messages are in a call, which has `timeout_ms` for its answer."""

    def __init__(
        self, access: SQSAccess, client: MakesCalls, queue_url: str, *, batch_size: int, timeout_ms: int
    ) -> None:
        self._access = access
        self._client = client
        self._queue_url = queue_url
        self._batch_size = batch_size
        self._hidden_ms = timeout_ms + HIDDEN_MORE_MS
        self._asked = batch_size
        """How many messages were asked for last: one while the endpoint is probed, and then a wait takes no more."""
        self._kept: list[PushedMessage] = []
        self._kept_at_s = 0.0
        self._knows_origin = True

    async def find(self, account_id: str, name: str) -> QueueDefinition | None:
        """Not asked: the queue is given."""
        raise AssertionError("the queue is given")

    async def refresh(self, queue: QueueDefinition) -> None:
        """Not asked: the queue is given."""
        raise AssertionError("the queue is given")

    async def consumed(self, queue: QueueDefinition) -> QueueDefinition:
        """Return what is consumed: the queue itself."""
        return queue

    async def receive(self, queue: QueueDefinition, count: int, hidden_ms: int) -> list[PushedMessage]:
        """Return messages, those that a wait has received first. Raises CallerError, NotNow."""
        self._asked = min(count, self._batch_size)
        kept, self._kept = self._kept, []
        if not kept:
            return await self._receive(count, hidden_ms, wait_s=0)
        age_ms = (time.monotonic() - self._kept_at_s) * 1_000
        given = kept[:count] if age_ms <= BEGINS_WITHIN_MS else []
        left = kept[len(given) :]
        # Once their time is over another consumer may have them, and would see them come back too early.
        if left and age_ms < self._hidden_ms - HIDDEN_MORE_MS:
            await self._hide(left, [0] * len(left))
        return given

    async def wait(self, queue: QueueDefinition, wait_ms: int) -> bool:
        """Return true once there is a message, false if none came. Raises CallerError, NotNow."""
        end_s = time.monotonic() + wait_ms / 1_000
        while not self._kept and time.monotonic() < end_s:
            self._kept = await self._receive(self._asked, self._hidden_ms, wait_s=LONG_POLL_S)
            self._kept_at_s = time.monotonic()
        return bool(self._kept)

    async def delete(self, queue: QueueDefinition, messages: Sequence[PushedMessage]) -> Deleted:
        """Delete messages that were received; what is gone or somebody else's is left alone."""
        entries = [
            {"Id": str(at), "ReceiptHandle": message.receipt_handle} for at, message in enumerate(messages)
        ]
        answer = await self._batch("DeleteMessageBatch", entries)
        return Deleted(len(answer.get("Successful") or ()))

    async def hide(
        self, queue: QueueDefinition, messages: Sequence[PushedMessage], timeouts_ms: Sequence[int]
    ) -> None:
        """Hide messages that were received for other times."""
        await self._hide(messages, timeouts_ms)

    async def _hide(self, messages: Sequence[PushedMessage], timeouts_ms: Sequence[int]) -> None:
        await self._batch(
            "ChangeMessageVisibilityBatch",
            [
                {
                    "Id": str(at),
                    "ReceiptHandle": message.receipt_handle,
                    "VisibilityTimeout": -(-timeout_ms // 1_000),
                }
                for at, (message, timeout_ms) in enumerate(zip(messages, timeouts_ms, strict=True))
            ],
        )

    async def close(self) -> None:
        """Let others have what a wait has received, if that can be done now."""
        kept, self._kept = self._kept, []
        if kept:
            with suppress(CallerError, NotNow):  # they come back when their time is over
                await self._hide(kept, [0] * len(kept))

    async def _receive(self, count: int, hidden_ms: int, *, wait_s: int) -> list[PushedMessage]:
        asked = {
            "QueueUrl": self._queue_url,
            "MaxNumberOfMessages": count,
            "VisibilityTimeout": -(-hidden_ms // 1_000),
            "WaitTimeSeconds": wait_s,
            "MessageAttributeNames": ["All"],
        }
        names = ["All", ORIGIN_ID] if self._knows_origin else ["All"]
        try:
            answer = await self._call(
                "ReceiveMessage", {**asked, "MessageSystemAttributeNames": names}, wait_s=wait_s
            )
        except CallerError as error:
            if not self._knows_origin or ORIGIN_ID not in error.message:
                raise
            self._knows_origin = False
            return await self._receive(count, hidden_ms, wait_s=wait_s)
        return [_message(found) for found in answer.get("Messages") or ()]

    async def _batch(self, action: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        answer = await self._call(action, {"QueueUrl": self._queue_url, "Entries": entries})
        for failed in answer.get("Failed") or ():
            if not failed.get("SenderFault", True):
                raise NotNow(str(failed.get("Message") or failed.get("Code")))
        return answer

    async def _call(self, action: str, members: Mapping[str, Any], *, wait_s: int = 0) -> dict[str, Any]:
        url = urlsplit(self._access.endpoint_url)
        body = json.dumps(members).encode()
        path = url.path.rstrip("/") + "/"
        headers = [
            (b"host", url.netloc.encode()),
            (b"content-type", _JSON_TYPE.encode()),
            (b"x-amz-target", f"AmazonSQS.{action}".encode()),
        ]
        request = UnsignedRequest(b"POST", path.encode(), b"", headers, body)
        signed = sign(request, self._access.signer, now_ms=time.time_ns() // 1_000_000)
        try:
            answer = await self._client.call(
                "POST",
                f"{url.scheme}://{url.netloc}{path}",
                headers={name.decode(): value.decode() for name, value in signed},
                body=body,
                timeout_s=wait_s + ANSWER_S,
            )
        except OutboundError as error:
            raise NotNow(f"{action}: {error}") from None
        try:
            found: dict[str, Any] = json.loads(answer.body or b"{}")
        except ValueError:
            raise NotNow(f"{action}: the answer is no JSON") from None
        if answer.status != _OK:
            message = str(found.get("message") or found.get("Message") or answer.status)
            if answer.status >= 500 or "Throttl" in str(found.get("__type")):
                raise NotNow(f"{action}: {message}")
            raise InvalidParameterValue(f"{action}: {message}")
        return found


def _message(found: Mapping[str, Any]) -> PushedMessage:
    system: dict[str, str] = dict(found.get("Attributes") or {})
    message_id = found["MessageId"]
    return PushedMessage(
        message_id=message_id,
        origin_id=system.pop(ORIGIN_ID, message_id),
        receipt_handle=found["ReceiptHandle"],
        body=found["Body"],
        body_md5=found["MD5OfBody"],
        sent_ms=int(system.get("SentTimestamp", 0)),
        delivery_count=int(system.get("ApproximateReceiveCount", 1)),
        group_id=system.get("MessageGroupId"),
        attributes=tuple(
            (name, value["DataType"], _value(value))
            for name, value in (found.get("MessageAttributes") or {}).items()
        ),
        attributes_md5=found.get("MD5OfMessageAttributes"),
        system=system,
    )


def _value(value: Mapping[str, Any]) -> str | bytes:
    binary = value.get("BinaryValue")
    return str(value.get("StringValue")) if binary is None else base64.b64decode(binary)
