"""The canonical form of a request, which its signature covers, and the key that signs it (AWS Signature Version 4).

    canonical request = method \\n path \\n query \\n name:value\\n... \\n names \\n SHA-256 of the body
    string to sign    = AWS4-HMAC-SHA256 \\n time \\n date/region/service/aws4_request \\n SHA-256 of that
    signing key       = HMAC(HMAC(HMAC(HMAC("AWS4" + secret, date), region), service), "aws4_request")

Source: AWS General Reference, "Create a signed AWS API request".
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from urllib.parse import quote_from_bytes

from quaymaster.protocol.sqs.form_parameters import percent_decode

ALGORITHM = b"AWS4-HMAC-SHA256"
SERVICE = "sqs"
TERMINATOR = "aws4_request"
EMPTY_SHA256 = sha256(b"").hexdigest().encode()

_ENCODED = [
    bytes([byte])
    if byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    else b"%%%02X" % byte
    for byte in range(256)
]
# Each segment begins with the slash before it, so there is one way to match a path: time is linear in its length.
_PLAIN_PATH = re.compile(rb"(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+/?")

Headers = Sequence[tuple[bytes, bytes]]


def join_duplicates(headers: Headers) -> dict[bytes, bytes]:
    """Return headers by name; one that was sent more than once has all its values."""
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        value = value.strip()
        joined[name] = joined[name] + b"," + value if name in joined else value
    return joined


def canonical_path(raw_path: bytes) -> bytes:
    """Return the path as it was signed: dots resolved, then encoded again (so an escape is escaped twice)."""
    if _PLAIN_PATH.fullmatch(raw_path) is not None:
        return raw_path
    segments: list[bytes] = []
    for segment in raw_path.split(b"/"):
        if segment == b"..":
            del segments[-1:]
        elif segment not in (b"", b"."):
            segments.append(segment)
    path = b"/" + b"/".join(segments)
    if segments and raw_path.endswith(b"/"):
        path += b"/"
    return quote_from_bytes(path, safe="/~").encode()


def canonical_queries(raw_query: bytes) -> Iterator[bytes]:
    """Give the canonical forms the query may have been signed in: sorted as sent, and with its texts encoded again.

    They differ only for a query that was not encoded the way the algorithm asks for; clients sign what they
    send.
    """
    as_sent = b"&".join(sorted_pairs(_split_query(raw_query)))
    yield as_sent
    encoded = encoded_query(raw_query)
    if encoded != as_sent:
        yield encoded


def encoded_query(raw_query: bytes) -> bytes:
    """Return a query sorted, with its texts encoded again."""
    return b"&".join(sorted_pairs((_encode(name), _encode(value)) for name, value in _split_query(raw_query)))


def _split_query(raw_query: bytes) -> Iterator[tuple[bytes, bytes]]:
    for pair in raw_query.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            yield name, value


def sorted_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return `name=value` texts in the order in which they are signed."""
    return [name + b"=" + value for name, value in sorted(pairs)]


def _encode(text: bytes) -> bytes:
    return b"".join(map(_ENCODED.__getitem__, percent_decode(text)))


def derive_key(secret: str, date: str, region: str, service: str = SERVICE) -> bytes:
    """Return the key that signs one day's requests to one region."""
    key = hmac.digest(b"AWS4" + secret.encode(), date.encode("latin-1"), "sha256")
    key = hmac.digest(key, region.encode("latin-1"), "sha256")
    key = hmac.digest(key, service.encode(), "sha256")
    return hmac.digest(key, TERMINATOR.encode(), "sha256")


def render_time(time_ms: int) -> str:
    """Return a time in the basic format of ISO 8601, as `X-Amz-Date` has it: 20260131T235959Z."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time_ms // 1000))
