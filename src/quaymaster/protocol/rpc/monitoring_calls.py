"""What front ends ask a console, as it goes over the RPC: monitoring requests of clients that they know and allow.

    monitoring   MonitoringCall ─▶ MonitoringAnswer; MessagePack

A console answers each operation of a service; one that it does not know, of a newer front end, is an error of the
answer. Fields are only ever appended, with defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.cloudwatch.operations import SCRAPE

MONITORING: Final = "monitoring"

MonitoringService = Literal["cloudwatch", "admin"]
SCRAPE_METRICS: Final = SCRAPE.name
"""An operation of `cloudwatch` that CloudWatch does not have. No input; its output is `Body`, Prometheus's text."""


class MonitoringCall(msgspec.Struct, frozen=True):
    """One request, of `cloudwatch` or of the admin API.

    `input` is a map in MessagePack, its members named and shaped as the service has them. Times in it are seconds since
    1970. `principal` is the ARN of who asks; its account is `account`. What it asks for is allowed, and its shape is
    checked.
    """

    service: MonitoringService
    operation: str
    account: str
    principal: str
    region: str
    input: bytes
    request_id: str

    @property
    def given(self) -> dict[str, Any]:
        """Its input, decoded."""
        return decode_members(self.input)


class MonitoringRefusal(msgspec.Struct, frozen=True):
    """Why a request is not answered: `code` names the error, and `more` are its members besides the message."""

    code: str
    message: str
    status: int
    more: dict[str, Any] = {}


class MonitoringAnswer(msgspec.Struct, frozen=True):
    """What comes of a request: `output`, a map in MessagePack as `MonitoringCall.input`; or an error."""

    output: bytes = b""
    error: MonitoringRefusal | None = None

    @classmethod
    def of(cls, output: Mapping[str, Any] | None = None) -> MonitoringAnswer:
        """Return the answer with an operation's output; None where it has none."""
        return cls(encode_members(output or {}))

    @classmethod
    def refusing(cls, error: CloudWatchError) -> MonitoringAnswer:
        """Return the answer that tells of an error."""
        return cls(error=MonitoringRefusal(error.code, error.message, error.status, dict(error.more)))

    @property
    def returned(self) -> dict[str, Any]:
        """The output of a request that was answered, decoded."""
        return decode_members(self.output)


encode_members = msgspec.msgpack.Encoder().encode
decode_members = msgspec.msgpack.Decoder(dict[str, Any]).decode
encode_call = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(MonitoringCall).decode
encode_answer = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(MonitoringAnswer).decode
