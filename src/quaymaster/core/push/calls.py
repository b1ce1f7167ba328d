"""What goes into a call to an endpoint: the messages, and the secrets of their queue; and what comes out of it.

received messages, plan, secrets ──protocol/push──▶ PushRequest ──net/outbound──▶ answer ──protocol/push──▶ Judged
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec


class PushedMessage(msgspec.Struct, frozen=True, gc=False):
    """A received message, as receivers see it.

    `origin_id` is the id that the sender got: it is the same each time, also after a redrive. `system` has all system
    attributes of SQS that the message has, by name. `attributes` are (name, data type, value) in the order given; the
    value is a str, bytes where the type is Binary. MD5s are in hexadecimal digits.
    """

    message_id: str
    origin_id: str
    receipt_handle: str
    body: str
    body_md5: str
    sent_ms: int
    delivery_count: int
    group_id: str | None = None
    attributes: tuple[tuple[str, str, str | bytes], ...] = ()
    attributes_md5: str | None = None
    system: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"PushedMessage({self.message_id})"  # bodies never get into logs


class PushSecrets(msgspec.Struct, frozen=True, gc=False):
    """What a queue's owner and its receivers know: `keys` sign, the newest first; `headers` are added as given."""

    keys: tuple[bytes, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"PushSecrets({len(self.keys)} keys, {len(self.headers)} headers)"


NO_SECRETS = PushSecrets()


class PushRequest(msgspec.Struct, frozen=True, gc=False):
    """A POST request to the endpoint of a plan."""

    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"PushRequest({len(self.body)} bytes)"


class Deleted(NamedTuple):
    """What came of deleting messages: how many are deleted, and of them those that were gone already."""

    messages: int
    gone: int = 0


NOTHING_DELETED: Final = Deleted(0)
