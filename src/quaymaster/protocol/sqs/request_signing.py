"""Signs requests, as clients do, with AWS Signature Version 4. `sigv4` checks what is signed here."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from quaymaster.protocol.sqs.canonical_requests import (
    ALGORITHM,
    EMPTY_SHA256,
    SERVICE,
    TERMINATOR,
    Headers,
    canonical_path,
    derive_key,
    encoded_query,
    join_duplicates,
    render_time,
)


class Signer(NamedTuple):
    """Whose key signs, and for where."""

    access_key_id: str
    secret: str
    region: str
    token: str | None = None
    """Of a session."""
    service: str = SERVICE


class UnsignedRequest(NamedTuple):
    """What is signed. The headers hold Host, and have names in lower case; path and query are as they are sent."""

    method: bytes
    raw_path: bytes
    raw_query: bytes
    headers: Headers
    body: bytes = b""


def sign(request: UnsignedRequest, signer: Signer, *, now_ms: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request with those that sign it added."""
    time_text = render_time(now_ms).encode()
    signed = [*request.headers, (b"x-amz-date", time_text)]
    if signer.token is not None:
        signed.append((b"x-amz-security-token", signer.token.encode("latin-1")))
    request = request._replace(headers=signed)
    signature = _signature(request, signer, time_text, sha256(request.body).hexdigest().encode())
    authorization = b"%b Credential=%b/%b, SignedHeaders=%b, Signature=%b" % (
        ALGORITHM,
        signer.access_key_id.encode(),
        _scope_text(signer, time_text),
        _names(signed),
        signature,
    )
    return [*signed, (b"authorization", authorization)]


def presign(request: UnsignedRequest, signer: Signer, *, now_ms: int, expires_s: int) -> bytes:
    """Return a request's query with the parameters that sign it added: good for `expires_s`, with an empty body."""
    time_text = render_time(now_ms).encode()
    parameters = [
        (b"X-Amz-Algorithm", ALGORITHM),
        (b"X-Amz-Credential", signer.access_key_id.encode() + b"/" + _scope_text(signer, time_text)),
        (b"X-Amz-Date", time_text),
        (b"X-Amz-Expires", str(expires_s).encode()),
        (b"X-Amz-SignedHeaders", _names(request.headers)),
    ]
    if signer.token is not None:
        parameters.append((b"X-Amz-Security-Token", signer.token.encode("latin-1")))
    added = b"&".join(name + b"=" + quote_from_bytes(value, safe="~").encode() for name, value in parameters)
    query = request.raw_query + b"&" + added if request.raw_query else added
    signature = _signature(request._replace(raw_query=query), signer, time_text, EMPTY_SHA256)
    return query + b"&X-Amz-Signature=" + signature


def _names(headers: Headers) -> bytes:
    return b";".join(sorted({name for name, _ in headers}))


def _scope_text(signer: Signer, time_text: bytes) -> bytes:
    return b"/".join((time_text[:8], signer.region.encode(), signer.service.encode(), TERMINATOR.encode()))


def _signature(request: UnsignedRequest, signer: Signer, time_text: bytes, body_sha256: bytes) -> bytes:
    joined = join_duplicates(request.headers)
    lines = [request.method, canonical_path(request.raw_path), encoded_query(request.raw_query)]
    lines += [name + b":" + b" ".join(joined[name].split()) for name in sorted(joined)]
    lines += [b"", _names(request.headers), body_sha256]
    digest = sha256(b"\n".join(lines)).hexdigest().encode()
    to_sign = b"\n".join((ALGORITHM, time_text, _scope_text(signer, time_text), digest))
    key = derive_key(signer.secret, time_text[:8].decode(), signer.region, signer.service)
    return hmac.digest(key, to_sign, "sha256").hex().encode()
