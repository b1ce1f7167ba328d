"""AWS Signature Version 4: who sent a request, and proof that it was not changed on the way.

What is signed is in `canonical_requests`; clients sign with `request_signing`.

Checking takes two steps, because only the caller knows secrets: `SigningKeys.parse` reads what the request
claims and refuses what cannot be right with any signer; `SigningKeys.verify` is given the secret. Between a
client's requests of one day only the signature differs, so what stands before it in the Authorization header,
and the key derived from the secret, are kept in `SigningKeys`.

Source: AWS General Reference, "Create a signed AWS API request"; wordings as the service sends them.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_tz
from hashlib import sha256
from hmac import compare_digest
from operator import itemgetter
from typing import Final

import msgspec

from quaymaster.core.values.errors import IncompleteSignature, SignatureDoesNotMatch
from quaymaster.protocol.sqs.canonical_requests import (
    ALGORITHM,
    EMPTY_SHA256,
    TERMINATOR,
    Headers,
    canonical_path,
    canonical_queries,
    derive_key,
    join_duplicates,
    render_time,
)
from quaymaster.protocol.sqs.form_parameters import NAME_CHARS_SHOWN, percent_decode
from quaymaster.protocol.sqs.response import Service

SKEW_MS = 15 * 60 * 1000
PRESIGNED_EXPIRES_S_MAX = 604_800
UNSIGNED_PAYLOAD = b"UNSIGNED-PAYLOAD"
"""Stands for the digest of a body that is not signed; whether that is taken is up to the front end."""
SINGLE_HEADERS = (
    *(b"authorization", b"x-amz-target", b"x-amz-date", b"date"),
    *(b"x-amz-security-token", b"x-amz-content-sha256"),
)
QUERY_PARAMETERS_MAX = 1_024
"""Parameters of a signed query. To sort and encode them costs microseconds each, before anything is proven."""

_CLAIMED_KEY = re.compile(rb"Credential=([A-Za-z0-9]{16,128})(?:/|%2F)")
_SHA256 = re.compile(rb"[0-9a-f]{64}")
_NO_QUERY = (b"",)
# The Authorization header of a real client has about 250 bytes; a longer one is not worth remembering.
_REMEMBERED_PREFIX_BYTES_MAX = 1_024
_YEAR_10000_S = 253_402_300_800
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)


_SERVICES: Final[dict[str, Service]] = {"sqs": "sqs", "sts": "sts", "monitoring": "monitoring"}
STS_GLOBAL_REGION: Final = "us-east-1"
"""Requests to STS may be signed for this region everywhere: clients do so for its global endpoint."""


def wrong_service(service: Service) -> str:
    """Return what a request is told that is signed for another service than the one it asks."""
    return f"Credential should be scoped to correct service: '{service}'."


def refuse_repeated(headers: Headers) -> None:
    """Raise IncompleteSignature where a header that says who asks for what was sent more than once.

    A proxy that checks a request on its way may take the other one for what it says.
    """
    names = [name for name, _ in headers]
    for name in SINGLE_HEADERS:
        if names.count(name) > 1:
            raise IncompleteSignature(f"The header {name.decode()} was sent more than once.")


def declared_digest(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return what a request's head says that was signed as the SHA-256 of its body; None when it says nothing.

    With it the signature is verified before the body is read. Not all clients send it: the AWS SDK for JavaScript
    does, those for Python and Go do not for SQS.
    """
    declared = headers.get(b"x-amz-content-sha256")
    if declared is None or (declared != UNSIGNED_PAYLOAD and _SHA256.fullmatch(declared) is None):
        return None
    return declared


def claimed_key(headers: Mapping[bytes, bytes], raw_query: bytes) -> str | None:
    """Return the access key that a request claims to be signed by, as cheaply as can be; None when it names none.

    Whether the request is well formed is not looked at.
    """
    text = headers.get(b"authorization")
    found = _CLAIMED_KEY.search(raw_query if text is None else text)
    return None if found is None else found[1].decode()


class CredentialScope(msgspec.Struct):
    """What stands before the signature: one per client and day.

    The two templates are the canonical request (filled with method, path, query, the values of the signed
    headers, and the body's digest) and the string to sign (time, digest). `key_contexts` are the two halves
    of an HMAC with the key derived from `key_secret`, None until a secret was given.
    """

    access_key_id: str
    date: str
    region: str
    service: Service
    date_bytes: bytes
    signed_values: Callable[[dict[bytes, bytes]], tuple[bytes, ...]]
    signs_target: bool
    request_template: bytes
    to_sign_template: bytes
    key_secret: str | None = None
    key_contexts: tuple[hashlib._Hash, hashlib._Hash] | None = None


class Authorization(msgspec.Struct, frozen=True):
    """What a request claims about itself. Nothing in it is proven before `SigningKeys.verify`.

    `time` is the text of the time it was signed at; `expires_s` is None for the header form. `token` is the
    session token, None when the request has none.
    """

    scope: CredentialScope
    signature: bytes
    time: bytes
    expires_s: int | None
    token: str | None
    headers: dict[bytes, bytes]
    query: bytes

    @property
    def access_key_id(self) -> str:
        return self.scope.access_key_id


class SigningKeys:
    """Remembers scopes, derived keys and times; forgets all of them when `capacity` is reached.

    Owned by the caller, one per server. It never makes a decision by itself: a key is derived again when the
    secret given with it changes. Clocks may be `skew_ms` apart.
    """

    def __init__(self, capacity: int = 4_096, *, skew_ms: int = SKEW_MS) -> None:
        self.capacity = capacity
        self._skew_ms = skew_ms
        self._scopes: dict[bytes, CredentialScope] = {}
        self._times_ms: dict[bytes, int] = {}

    def parse(
        self,
        headers: Headers,
        raw_query: bytes,
        *,
        region: str | None = None,
        first: dict[bytes, bytes] | None = None,
    ) -> Authorization | None:
        """Return what the request claims, None when it is not signed at all.

        `headers` have lower-case names, and `first` the first value of each, if the caller has them already;
        `raw_query` is the part of the URL after `?`, as sent. `region`, when given, is the only one accepted;
        for STS also us-east-1.
        Raises IncompleteSignature or SignatureDoesNotMatch for what no secret can help.
        """
        joined = dict(headers) if first is None else first
        if len(joined) != len(headers):
            refuse_repeated(headers)
            joined = join_duplicates(headers)
        authorization = joined.get(b"authorization")
        if raw_query and raw_query.count(b"&") >= QUERY_PARAMETERS_MAX:
            raise SignatureDoesNotMatch(
                f"A signed query cannot have more than {QUERY_PARAMETERS_MAX} parameters."
            )
        if authorization is not None:
            return self._parse_header(authorization, joined, raw_query, region)
        if b"X-Amz-" in raw_query and b"X-Amz-Algorithm=" in raw_query:
            return self._parse_query(joined, raw_query, region)
        return None

    def verify(
        self,
        authorization: Authorization,
        *,
        method: bytes,
        raw_path: bytes,
        body: bytes,
        secret: str,
        now_ms: int,
        body_sha256: bytes | None = None,
    ) -> None:
        """Return when `secret` signed exactly this request, not too long ago.

        `body_sha256` in hex stands for the body where it is known already.
        Raises SignatureDoesNotMatch, or IncompleteSignature when the time is not one.
        """
        self._check_time(authorization, now_ms)
        scope = authorization.scope
        if scope.key_secret != secret or scope.key_contexts is None:
            scope.key_contexts = _hmac_contexts(derive_key(secret, scope.date, scope.region, scope.service))
            scope.key_secret = secret
        inner_context, outer_context = scope.key_contexts
        headers = authorization.headers
        try:
            values: Iterable[bytes] = scope.signed_values(headers)
        except KeyError:
            raise SignatureDoesNotMatch from None
        # Runs of blanks count as one, and those at the ends as none. Most values have no blank at all.
        values = [b" ".join(value.split()) if 32 in value or 9 in value else value for value in values]
        if headers.get(b"x-amz-content-sha256") == UNSIGNED_PAYLOAD:
            digest = UNSIGNED_PAYLOAD
        elif body_sha256 is not None:
            digest = body_sha256
        else:
            digest = sha256(body).hexdigest().encode() if body else EMPTY_SHA256
        path = raw_path if raw_path == b"/" else canonical_path(raw_path)
        for query in canonical_queries(authorization.query) if authorization.query else _NO_QUERY:
            request = scope.request_template % (method, path, query, *values, digest)
            to_sign = scope.to_sign_template % (authorization.time, sha256(request).hexdigest().encode())
            inner = inner_context.copy()
            inner.update(to_sign)
            outer = outer_context.copy()
            outer.update(inner.digest())
            if compare_digest(outer.hexdigest().encode(), authorization.signature):
                return
        raise SignatureDoesNotMatch

    def _parse_header(
        self, authorization: bytes, headers: dict[bytes, bytes], query: bytes, region: str | None
    ) -> Authorization:
        prefix, separator, signature = authorization.rpartition(b"Signature=")
        time_text = headers.get(b"x-amz-date")
        scope = self._scopes.get(prefix) if separator else None
        if scope is None or time_text is None:
            scope, signature, time_text = _parse_header_slowly(authorization, headers)
            if separator and prefix and len(prefix) <= _REMEMBERED_PREFIX_BYTES_MAX:
                self._remember_scope(prefix, signature, authorization, scope)
        _check_scope(scope, headers, time_text, region)
        token = headers.get(b"x-amz-security-token")
        return Authorization(
            scope,
            signature,
            time_text,
            None,
            None if token is None else token.decode("latin-1"),
            headers,
            query,
        )

    def _remember_scope(
        self, prefix: bytes, signature: bytes, authorization: bytes, scope: CredentialScope
    ) -> None:
        if prefix + b"Signature=" + signature != authorization:
            # The signature was not last, or has something around it: the prefix alone does not tell the rest.
            return
        if len(self._scopes) >= self.capacity:
            self._scopes.clear()
        self._scopes[prefix] = scope

    def _parse_query(
        self, headers: dict[bytes, bytes], raw_query: bytes, region: str | None
    ) -> Authorization:
        parameters: dict[bytes, bytes] = {}
        kept: list[bytes] = []
        for pair in raw_query.split(b"&"):
            name, _, value = pair.partition(b"=")
            if name.startswith(b"X-Amz-"):
                if name in parameters:
                    raise IncompleteSignature(
                        f"AWS query-string parameter '{name[:NAME_CHARS_SHOWN].decode('latin-1')}' was sent more "
                        "than once."
                    )
                parameters[name] = percent_decode(value)
            if name != b"X-Amz-Signature":
                kept.append(pair)
        if parameters.get(b"X-Amz-Algorithm") != ALGORITHM:
            raise IncompleteSignature("Unsupported AWS 'algorithm': only 'AWS4-HMAC-SHA256' is supported.")
        missing = [
            name.decode()
            for name in (
                b"X-Amz-Credential",
                b"X-Amz-Signature",
                b"X-Amz-SignedHeaders",
                b"X-Amz-Date",
                b"X-Amz-Expires",
            )
            if not parameters.get(name)
        ]
        if missing:
            raise IncompleteSignature(
                " ".join(f"AWS query-string parameters must include '{name}'." for name in missing)
            )
        expires = parameters[b"X-Amz-Expires"]
        if not expires.isdigit() or len(expires) > 6 or not 1 <= int(expires) <= PRESIGNED_EXPIRES_S_MAX:
            raise IncompleteSignature(
                f"X-Amz-Expires must be between 1 and {PRESIGNED_EXPIRES_S_MAX} seconds."
            )
        time_text = parameters[b"X-Amz-Date"]
        if _TIME.fullmatch(time_text.decode("latin-1")) is None:
            raise IncompleteSignature("Date must be in ISO-8601 'basic format'.")
        scope = _parse_scope(parameters[b"X-Amz-Credential"], parameters[b"X-Amz-SignedHeaders"])
        _check_scope(scope, headers, time_text, region)
        token = parameters.get(b"X-Amz-Security-Token")
        return Authorization(
            scope,
            parameters[b"X-Amz-Signature"],
            time_text,
            int(expires),
            None if token is None else token.decode("latin-1"),
            headers,
            b"&".join(kept),
        )

    def _check_time(self, authorization: Authorization, now_ms: int) -> None:
        skew_ms = self._skew_ms
        text = authorization.time
        signed_ms = self._times_ms.get(text)
        if signed_ms is None:
            signed_ms = _parse_time_ms(text)
            if len(self._times_ms) >= self.capacity:
                self._times_ms.clear()
            self._times_ms[text] = signed_ms
        valid_ms = skew_ms if authorization.expires_s is None else authorization.expires_s * 1000
        if now_ms - signed_ms > valid_ms:
            raise SignatureDoesNotMatch(
                f"Signature expired: {text.decode()} is now earlier than {render_time(now_ms - valid_ms)} "
                f"({render_time(now_ms)} - {_minutes(valid_ms)})"
            )
        if signed_ms - now_ms > skew_ms:
            raise SignatureDoesNotMatch(
                f"Signature not yet current: {text.decode()} is still later than "
                f"{render_time(now_ms + skew_ms)} "
                f"({render_time(now_ms)} + {_minutes(skew_ms)})"
            )


# Reading what a request claims


def _parse_header_slowly(
    authorization: bytes, headers: dict[bytes, bytes]
) -> tuple[CredentialScope, bytes, bytes]:
    """Return scope, signature and time of a header not seen before, or raise what is wrong with it."""
    algorithm, _, rest = authorization.strip().partition(b" ")
    if algorithm != ALGORITHM:
        raise IncompleteSignature(
            f"Authorization header must start with the algorithm 'AWS4-HMAC-SHA256'. {_hashed(authorization)}"
        )
    parameters: dict[bytes, bytes] = {}
    for part in rest.split(b","):
        name, equal_sign, value = part.strip().partition(b"=")
        if not equal_sign:
            raise IncompleteSignature(
                f"'{part.decode('latin-1').strip()}' not a valid key=value pair (missing equal-sign) in "
                f"Authorization header {_hashed(authorization)}"
            )
        parameters[name] = value
    complaints = [
        f"Authorization header requires '{name}' parameter."
        for name in ("Credential", "Signature", "SignedHeaders")
        if not parameters.get(name.encode())
    ]
    time_text = _request_time(headers)
    if time_text is None:
        complaints.append(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
        )
    if complaints or time_text is None:
        raise IncompleteSignature(" ".join([*complaints, _hashed(authorization)]))
    scope = _parse_scope(parameters[b"Credential"], parameters[b"SignedHeaders"])
    return scope, parameters[b"Signature"], time_text


def _request_time(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the time of signing in the basic format, from X-Amz-Date or else Date; None without either."""
    value = headers.get(b"x-amz-date")
    if value is None:
        value = headers.get(b"date")
        moment_ms = None if value is None else _parse_http_date_ms(value)
        if moment_ms is not None:
            return render_time(moment_ms).encode()
    return None if value is None else value.strip()


def _parse_http_date_ms(value: bytes) -> int | None:
    try:
        parsed = parsedate_tz(value.decode("latin-1"))
        if parsed is None:
            return None
        moment_s = calendar.timegm(parsed[:6]) - (parsed[9] or 0)
    except (ValueError, OverflowError):
        return None
    return moment_s * 1000 if 0 <= moment_s < _YEAR_10000_S else None


def _hashed(authorization: bytes) -> str:
    digest = base64.b64encode(sha256(authorization).digest()).decode()
    return f"(Hashed with SHA-256 and encoded with Base64) Authorization={digest}"


def _parse_scope(credential: bytes, signed_headers: bytes) -> CredentialScope:
    text = credential.decode("latin-1")
    parts = text.split("/")
    if len(parts) != 5:
        raise IncompleteSignature(
            "Credential must have exactly 5 slash-delimited elements, "
            f"e.g. keyid/date/region/service/term, got '{text}'"
        )
    access_key_id, date, region, service, terminator = parts
    complaints = []
    found = _SERVICES.get(service)
    if found is None:
        complaints.append(wrong_service("sqs"))
    if terminator != TERMINATOR:
        complaints.append(f"Credential should be scoped with a valid terminator: '{TERMINATOR}'.")
    names = tuple(name.strip() for name in signed_headers.lower().split(b";"))
    if b"host" not in names:
        complaints.append("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    if len(set(names)) < len(names):  # a long value named a thousand times would be hashed a thousand times
        complaints.append("'SignedHeaders' must name each header once.")
    if complaints or found is None:
        raise SignatureDoesNotMatch(" ".join(complaints))
    escaped_names = [name.replace(b"%", b"%%") for name in names]
    lines = [b"%b\n%b\n%b", *(name + b":%b" for name in escaped_names), b"", b";".join(escaped_names), b"%b"]
    scope_text = credential[len(access_key_id) + 1 :].replace(b"%", b"%%")
    return CredentialScope(
        access_key_id,
        date,
        region,
        found,
        date.encode("latin-1"),
        itemgetter(*names) if len(names) > 1 else lambda headers: (headers[names[0]],),
        b"x-amz-target" in names,
        b"\n".join(lines),
        b"\n".join((ALGORITHM, b"%b", scope_text, b"%b")),
    )


def _check_scope(
    scope: CredentialScope, headers: dict[bytes, bytes], time_text: bytes, region: str | None
) -> None:
    if time_text[:8] != scope.date_bytes:
        text = time_text.decode("latin-1")
        raise SignatureDoesNotMatch(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{scope.date}' != '{text[:8]}', from '{text}'."
        )
    is_global = scope.service == "sts" and scope.region == STS_GLOBAL_REGION
    if region is not None and scope.region != region and not is_global:
        raise SignatureDoesNotMatch(f"Credential should be scoped to a valid Region, not '{scope.region}'.")
    if not scope.signs_target and b"x-amz-target" in headers:
        # The header says what to do: left out of the signature, anyone on the way could change it.
        raise SignatureDoesNotMatch(
            "There were headers present in the request which were not signed: x-amz-target"
        )


def _parse_time_ms(text: bytes) -> int:
    try:
        decoded = text.decode("ascii")
        if _TIME.fullmatch(decoded) is None:
            raise ValueError(decoded)
        return calendar.timegm(time.strptime(decoded, "%Y%m%dT%H%M%SZ")) * 1000
    except ValueError as error:
        raise IncompleteSignature("Date must be in ISO-8601 'basic format'.") from error


def _minutes(duration_ms: int) -> str:
    return f"{duration_ms // 60_000} min." if duration_ms % 60_000 == 0 else f"{duration_ms // 1000} s."


def _hmac_contexts(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    """Return the inner and outer hash of an HMAC-SHA256 with `key`, of 32 bytes, each fed with its padded
    key.

    Copying these costs less than setting up an HMAC for every request.
    """
    padded = key.ljust(64, b"\0")
    return sha256(bytes(b ^ 0x36 for b in padded)), sha256(bytes(b ^ 0x5C for b in padded))
