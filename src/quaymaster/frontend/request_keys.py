"""The condition keys of a request: what policies may ask about it. Each is worked out when a condition asks for it.

What a client may write at will, User-Agent and Referer, is absent where it is longer than any policy needs: a
condition's cost grows with the length of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from quaymaster.core.access.principals import Requester
from quaymaster.net.http.message import HTTPRequest

HEADER_BYTES_MAX: Final = 512


class RequestKeys(NamedTuple):
    """Answers for one request on a queue of the account `owner`."""

    request: HTTPRequest
    requester: Requester
    owner: str
    region: str
    now_ms: int

    def find(self, key: str) -> tuple[str, ...]:
        """Return the values of a key in lower case, none where the request has no such key."""
        read = _READERS.get(key)
        value = "" if read is None else read(self)
        return (value,) if value else ()

    def header(self, name: bytes) -> str:
        """Return a header's value; empty where there is none, or it is too long."""
        value = self.request.header(name) or b""
        return "" if len(value) > HEADER_BYTES_MAX else value.decode("latin-1")


def _current_time(keys: RequestKeys) -> str:
    time = datetime.fromtimestamp(keys.now_ms // 1000, UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


_READERS: Final[dict[str, Callable[[RequestKeys], str]]] = {
    "aws:currenttime": _current_time,
    "aws:epochtime": lambda keys: str(keys.now_ms // 1000),
    "aws:principalaccount": lambda keys: keys.requester.account_id,
    "aws:principalarn": lambda keys: keys.requester.principal_arn,
    # Only root keys ask: see the authentication.
    "aws:principaltype": lambda keys: "Account",
    "aws:userid": lambda keys: keys.requester.account_id,
    "aws:referer": lambda keys: keys.header(b"referer"),
    "aws:requestedregion": lambda keys: keys.region,
    "aws:resourceaccount": lambda keys: keys.owner,
    # The SQS port has no TLS of its own, and what a proxy says of it is not believed.
    "aws:securetransport": lambda keys: "false",
    "aws:sourceip": lambda keys: keys.request.peer,
    "aws:useragent": lambda keys: keys.header(b"user-agent"),
}
