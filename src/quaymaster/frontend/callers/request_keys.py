"""The condition keys of a request: what policies may ask about it. Each is worked out when a condition asks for it.

What a client may write at will, User-Agent and Referer, is absent where it is longer than any policy needs: a
condition's cost grows with the length of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from quaymaster.frontend.callers.principal import Principal
from quaymaster.net.http.message import HTTPRequest

HEADER_BYTES_MAX: Final = 512


class RequestKeys(NamedTuple):
    """Answers for one request on a queue of the account `owner`."""

    request: HTTPRequest
    principal: Principal
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


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _user_id(keys: RequestKeys) -> str:
    requester = keys.principal.requester
    if requester.is_root:
        return requester.account_id
    return f"{requester.unique_id}:{requester.session}" if requester.session else requester.unique_id


def _user_name(keys: RequestKeys) -> str:
    requester = keys.principal.requester
    return requester.name.rpartition("/")[2] if requester.kind == "user" else ""


def _token_issue_time(keys: RequestKeys) -> str:
    issued_ms = keys.principal.issued_ms
    return "" if issued_ms is None else _time_text(issued_ms)


_PRINCIPAL_TYPES: Final = {"root": "Account", "user": "User", "session": "AssumedRole"}
_READERS: Final[dict[str, Callable[[RequestKeys], str]]] = {
    "aws:currenttime": lambda keys: _time_text(keys.now_ms),
    "aws:epochtime": lambda keys: str(keys.now_ms // 1000),
    "aws:principalaccount": lambda keys: keys.principal.account_id,
    "aws:principalarn": lambda keys: keys.principal.requester.principal_arn,
    # Web identities have none.
    "aws:principaltype": lambda keys: _PRINCIPAL_TYPES.get(keys.principal.requester.kind, ""),
    "aws:userid": _user_id,
    "aws:username": _user_name,
    "aws:tokenissuetime": _token_issue_time,
    "aws:referer": lambda keys: keys.header(b"referer"),
    "aws:requestedregion": lambda keys: keys.region,
    "aws:resourceaccount": lambda keys: keys.owner,
    "aws:securetransport": lambda keys: "true" if keys.request.is_tls else "false",
    "aws:sourceip": lambda keys: keys.request.peer,
    "aws:useragent": lambda keys: keys.header(b"user-agent"),
}
