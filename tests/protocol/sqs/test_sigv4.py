"""Signatures: what botocore signs is accepted, ours are its own, and nothing else gets through."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import urllib.parse
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.compat
import botocore.credentials
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.values.errors import CallerError, IncompleteSignature, SignatureDoesNotMatch
from quaymaster.protocol.sqs import sigv4
from quaymaster.protocol.sqs.canonical_requests import derive_key, render_time
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, presign, sign
from quaymaster.protocol.sqs.sigv4 import QUERY_PARAMETERS_MAX, SINGLE_HEADERS, Authorization, SigningKeys

_KEY_ID = "AKIDEXAMPLE"
_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
_REGION = "eu-central-1"
_NOW_MS = 1_790_000_000_000
_TIME = render_time(_NOW_MS)
_HOST = (b"host", b"queue.test:9324")

SIGNER = Signer(_KEY_ID, _SECRET, _REGION)

Headers = list[tuple[bytes, bytes]]


def _sign(
    headers: Headers | None = None,
    *,
    method: bytes = b"POST",
    path: bytes = b"/",
    query: bytes = b"",
    body: bytes = b"{}",
    now_ms: int = _NOW_MS,
    **signer: Any,
) -> Headers:
    given_headers = [_HOST, (b"x-amz-target", b"AmazonSQS.ListQueues")] if headers is None else headers
    request = UnsignedRequest(method, path, query, given_headers, body)
    return sign(request, SIGNER._replace(**signer), now_ms=now_ms)


def _check(
    headers: Headers,
    *,
    method: bytes = b"POST",
    path: bytes = b"/",
    query: bytes = b"",
    body: bytes = b"{}",
    secret: str = _SECRET,
    now_ms: int = _NOW_MS,
    region: str | None = None,
    keys: SigningKeys | None = None,
) -> Authorization:
    keys = keys or SigningKeys()
    authorization = keys.parse(headers, query, region=region)
    assert authorization is not None
    keys.verify(authorization, method=method, raw_path=path, body=body, secret=secret, now_ms=now_ms)
    return authorization


def _with(headers: Headers, name: bytes, value: bytes) -> Headers:
    return [(n, value if n == name else v) for n, v in headers]


def _without(headers: Headers, name: bytes) -> Headers:
    return [(n, v) for n, v in headers if n != name]


def _authorization(**parts: str) -> bytes:
    values = {
        "Credential": f"{_KEY_ID}/{_TIME[:8]}/{_REGION}/sqs/aws4_request",
        "SignedHeaders": "host;x-amz-date",
        "Signature": "0" * 64,
    } | parts
    return b"AWS4-HMAC-SHA256 " + ", ".join(f"{n}={v}" for n, v in values.items() if v != "-").encode()


@pytest.fixture
def botocore_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime.datetime.fromtimestamp(_NOW_MS // 1000, datetime.UTC)
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: moment.replace(tzinfo=None)
    )


def _botocore_request(
    auth: type[botocore.auth.BaseSigner],
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    token: str | None,
) -> Any:
    request = botocore.awsrequest.AWSRequest(method=method, url=url, headers=headers, data=body)
    credentials = botocore.credentials.Credentials(_KEY_ID, _SECRET, token)
    auth(credentials, "sqs", _REGION).add_auth(request)
    return request.prepare()


def _wire_headers(prepared: Any, host: str) -> Headers:
    headers = [
        (name.lower().encode(), value if isinstance(value, bytes) else value.encode("latin-1"))
        for name, value in prepared.headers.items()
    ]
    return [(b"host", host.encode()), *_without(headers, b"host")]


_paths = st.sampled_from(
    ["/", "/000000000000/orders", "/a/../b/./c//d", "/with%20space/x", "/trailing/", "/~a_b-c.d"]
)
_query_values = st.dictionaries(
    st.text("aZ09-._~/ +%=&:é", min_size=1, max_size=6), st.text("aZ0 ~+/=&é", max_size=6)
)
_header_values = st.text("abcXYZ019 ;,=/\"'", max_size=20).filter(lambda v: v == v.strip())
_headers = st.dictionaries(
    st.sampled_from(["X-Amz-Target", "X-Amz-Meta-A", "X-One", "Content-Type"]), _header_values
)
_tokens = st.none() | st.text("ABCdef012+/=", min_size=1, max_size=30)


# What others sign


@settings(deadline=None)
@given(_paths, _query_values, _headers, st.binary(max_size=50), _tokens, st.booleans())
def test_requests_signed_by_botocore_are_accepted(
    path: str, query: dict[str, str], headers: dict[str, str], body: bytes, token: str | None, unsigned: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        moment = datetime.datetime.fromtimestamp(_NOW_MS // 1000, datetime.UTC).replace(tzinfo=None)
        patch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: moment)
        if unsigned:
            headers = headers | {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
        encoded = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        url = f"http://queue.test:9324{path}" + (f"?{encoded}" if encoded else "")
        prepared = _botocore_request(botocore.auth.SigV4Auth, "POST", url, headers, body, token)

    split = urllib.parse.urlsplit(prepared.url)
    wire = _wire_headers(prepared, split.netloc)
    authorization = _check(
        wire,
        path=split.path.encode(),
        query=split.query.encode(),
        body=b"changed on the way" if unsigned else body,
        region=_REGION,
    )

    assert authorization.access_key_id == _KEY_ID
    assert authorization.token == token
    assert authorization.expires_s is None


@settings(deadline=None)
@given(_paths, _query_values, _tokens, st.integers(1, 604_800))
def test_urls_presigned_by_botocore_are_accepted(
    path: str, query: dict[str, str], token: str | None, expires_s: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        moment = datetime.datetime.fromtimestamp(_NOW_MS // 1000, datetime.UTC).replace(tzinfo=None)
        patch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: moment)
        encoded = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        url = f"http://queue.test:9324{path}" + (f"?{encoded}" if encoded else "")
        request = botocore.awsrequest.AWSRequest(method="GET", url=url)
        credentials = botocore.credentials.Credentials(_KEY_ID, _SECRET, token)
        botocore.auth.SigV4QueryAuth(credentials, "sqs", _REGION, expires=expires_s).add_auth(request)

    split = urllib.parse.urlsplit(request.url)
    authorization = _check(
        [(b"host", split.netloc.encode())],
        method=b"GET",
        path=split.path.encode(),
        query=split.query.encode(),
        body=b"",
        now_ms=_NOW_MS + expires_s * 1000,
    )

    assert authorization.token == token
    assert authorization.expires_s == expires_s


@pytest.mark.usefixtures("botocore_time")
@pytest.mark.parametrize("token", [None, "token/+="])
def test_our_signature_is_the_one_botocore_gives(token: str | None) -> None:
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    prepared = _botocore_request(
        botocore.auth.SigV4Auth, "POST", "http://queue.test:9324/a%20b/?z=1&a=2", headers, b"{}", token
    )

    ours = _sign(
        [_HOST, *((name.lower().encode(), value.encode()) for name, value in headers.items())],
        path=b"/a%20b/",
        query=b"z=1&a=2",
        token=token,
    )

    assert dict(ours)[b"authorization"] == dict(_wire_headers(prepared, "x"))[b"authorization"]


@pytest.mark.usefixtures("botocore_time")
@pytest.mark.parametrize("token", [None, "token/+="])
@pytest.mark.parametrize("query", ["", "Action=ListQueues&b=%C3%A9"])
def test_our_presigned_url_is_the_one_botocore_gives(token: str | None, query: str) -> None:
    url = "http://queue.test:9324/000000000000/q" + (f"?{query}" if query else "")
    request = botocore.awsrequest.AWSRequest(method="GET", url=url)
    credentials = botocore.credentials.Credentials(_KEY_ID, _SECRET, token)
    botocore.auth.SigV4QueryAuth(credentials, "sqs", _REGION, expires=60).add_auth(request)

    ours = presign(
        UnsignedRequest(b"GET", b"/000000000000/q", query.encode(), [_HOST]),
        SIGNER._replace(token=token),
        now_ms=_NOW_MS,
        expires_s=60,
    )

    theirs = urllib.parse.urlsplit(request.url).query
    assert sorted(ours.decode().split("&")) == sorted(theirs.split("&"))


# What is not what was signed


@pytest.mark.parametrize(
    "change",
    [
        {"method": b"PUT"},
        {"path": b"/other"},
        {"query": b"a=1"},
        {"body": b"{ }"},
        {"secret": _SECRET.lower()},
    ],
)
def test_a_request_changed_on_the_way_is_refused(change: dict[str, Any]) -> None:
    headers = _sign()
    _check(headers)

    with pytest.raises(SignatureDoesNotMatch) as raised:
        _check(headers, **change)

    assert raised.value.message.startswith("The request signature we calculated does not match")


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_changed_body_never_passes(body: bytes, other: bytes) -> None:
    headers = _sign(body=body)

    if body == other:
        _check(headers, body=other)
    else:
        with pytest.raises(SignatureDoesNotMatch):
            _check(headers, body=other)


def test_a_changed_or_missing_signed_header_is_refused() -> None:
    headers = _sign()

    with pytest.raises(SignatureDoesNotMatch):
        _check(_with(headers, b"x-amz-target", b"AmazonSQS.DeleteQueue"))
    with pytest.raises(SignatureDoesNotMatch):
        _check(_without(headers, b"x-amz-target"))


def test_a_target_that_was_not_signed_is_refused() -> None:
    headers = [*_sign([_HOST]), (b"x-amz-target", b"AmazonSQS.DeleteQueue")]

    with pytest.raises(SignatureDoesNotMatch) as raised:
        _check(headers)

    assert raised.value.message.endswith("which were not signed: x-amz-target")


def test_the_payload_is_not_left_out_because_an_unsigned_header_says_so() -> None:
    headers = [*_sign(), (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD")]

    with pytest.raises(SignatureDoesNotMatch):
        _check(headers, body=b"other")


def test_headers_that_nobody_signed_may_change() -> None:
    _check([*_sign(), (b"user-agent", b"any"), (b"x-forwarded-for", b"10.0.0.1")])


# Headers as they arrive


def test_blanks_around_and_inside_values_do_not_matter() -> None:
    headers = _sign([_HOST, (b"x-one", b"a b c")])

    _check(_with(headers, b"x-one", b" a  b\tc "))
    _check(_with(headers, b"x-one", b"a b c "))
    _check(_with(headers, b"x-one", b" a b c"))


def test_headers_of_one_name_are_joined() -> None:
    headers = _sign([_HOST, (b"x-one", b"a,b")])

    _check([*_without(headers, b"x-one"), (b"x-one", b"a"), (b"x-one", b" b")])


def test_the_date_header_stands_in_for_x_amz_date() -> None:
    date = (b"date", b"Mon, 21 Sep 2026 14:13:20 GMT")
    signed = _sign([_HOST, date])
    # Signed by hand over host and date alone, as the oldest clients do.
    template = dict(signed)[b"authorization"]
    scope = template.split(b"Credential=")[1].split(b",")[0]
    lines = b"\n".join([b"POST", b"/", b"", b"date:" + date[1], b"host:" + _HOST[1], b"", b"date;host"])
    request = lines + b"\n" + hashlib.sha256(b"{}").hexdigest().encode()
    to_sign = b"\n".join(
        [
            b"AWS4-HMAC-SHA256",
            _TIME.encode(),
            scope.partition(b"/")[2],
            hashlib.sha256(request).hexdigest().encode(),
        ]
    )
    key = derive_key(_SECRET, _TIME[:8], _REGION)
    signature = hmac.digest(key, to_sign, "sha256").hex().encode()
    header = b"AWS4-HMAC-SHA256 Credential=" + scope + b", SignedHeaders=date;host, Signature=" + signature

    keys = SigningKeys()
    for _ in range(2):
        _check([_HOST, date, (b"authorization", header)], keys=keys)


@pytest.mark.parametrize("value", [b"Mon, 21 Sep 2026 16:13:20 +0200", _TIME.encode()])
def test_the_date_header_is_read_in_its_forms(value: bytes) -> None:
    authorization = SigningKeys().parse(
        [_HOST, (b"date", value), (b"authorization", _authorization(SignedHeaders="host;date"))], b""
    )

    assert authorization is not None
    assert authorization.time == _TIME.encode()


def test_a_percent_sign_in_names_or_scope_is_only_text() -> None:
    headers = _sign([_HOST, (b"x-%b", b"1")], region="moon%b")

    assert _check(headers).scope.region == "moon%b"


# Times


@pytest.mark.parametrize("late_ms", [-sigv4.SKEW_MS, 0, sigv4.SKEW_MS])
def test_a_clock_may_be_wrong_by_a_quarter_of_an_hour(late_ms: int) -> None:
    _check(_sign(), now_ms=_NOW_MS + late_ms)


def test_a_request_signed_long_ago_has_expired() -> None:
    with pytest.raises(SignatureDoesNotMatch) as raised:
        _check(_sign(), now_ms=_NOW_MS + sigv4.SKEW_MS + 1_000)

    assert raised.value.message == (
        "Signature expired: 20260921T141320Z is now earlier than 20260921T141321Z (20260921T142821Z - 15 min.)"
    )


def test_a_request_signed_in_the_future_is_not_yet_current() -> None:
    with pytest.raises(SignatureDoesNotMatch) as raised:
        _check(_sign(), now_ms=_NOW_MS - sigv4.SKEW_MS - 1_000)

    assert raised.value.message == (
        "Signature not yet current: 20260921T141320Z is still later than 20260921T141319Z "
        "(20260921T135819Z + 15 min.)"
    )


@pytest.mark.parametrize("time_text", [b"20261321T141320Z", b"2026-09-21T14:13:20Z", b"2026", b"\xff"])
def test_a_time_that_is_none_is_refused(time_text: bytes) -> None:
    scope = f"{_KEY_ID}/{time_text[:8].decode('latin-1')}/{_REGION}/sqs/aws4_request"
    headers = [_HOST, (b"x-amz-date", time_text), (b"authorization", _authorization(Credential="-") + b"")]
    headers[2] = (
        b"authorization",
        b"AWS4-HMAC-SHA256 Credential=" + scope.encode("latin-1") + b", SignedHeaders=host, Signature=00",
    )

    with pytest.raises(IncompleteSignature):
        _check(headers)


# What the header claims


def test_a_request_without_any_signature_claims_nothing() -> None:
    assert SigningKeys().parse([_HOST], b"") is None
    assert SigningKeys().parse([_HOST], b"Action=ListQueues&X-Amz-Date=1") is None


@pytest.mark.parametrize(
    ("authorization", "complaint"),
    [
        (b"", "must start with the algorithm"),
        (b"AWS AKID:signature", "must start with the algorithm"),
        (b"Bearer token", "must start with the algorithm"),
        (b"AWS4-HMAC-SHA256", "'' not a valid key=value pair"),
        (b"AWS4-HMAC-SHA256 Credential", "'Credential' not a valid key=value pair (missing equal-sign)"),
        (_authorization(Credential="-"), "requires 'Credential' parameter."),
        (_authorization(Signature="-"), "requires 'Signature' parameter."),
        (_authorization(SignedHeaders=""), "requires 'SignedHeaders' parameter."),
        (_authorization(Credential="a/b"), "must have exactly 5 slash-delimited elements"),
    ],
)
def test_an_incomplete_header_is_refused_with_what_it_lacks(authorization: bytes, complaint: str) -> None:
    headers = [_HOST, (b"x-amz-date", _TIME.encode()), (b"authorization", authorization)]

    with pytest.raises(IncompleteSignature) as raised:
        SigningKeys().parse(headers, b"")

    assert complaint in raised.value.message


@pytest.mark.parametrize(
    "date",
    [
        [],
        *(
            [(b"date", value)]
            for value in (
                b"yesterday",
                b"1 Jan 99999 00:00:00 GMT",
                b"1 Jan 0001 00:00:00 GMT",
                b"99 Jan 2026 99:99:99 +9999999999",
                b"21 Sep 2026 14:13:20 +99999999999999999999999",
                b"Mon, 21 13 2026 14:13:20 GMT",
            )
        ),
    ],
)
def test_a_header_without_a_time_is_refused(date: Headers) -> None:
    with pytest.raises((IncompleteSignature, SignatureDoesNotMatch)):
        _check([_HOST, *date, (b"authorization", _authorization())])
    with pytest.raises(IncompleteSignature) as raised:
        SigningKeys().parse([_HOST, (b"authorization", _authorization(Credential="-"))], b"")
    assert "'X-Amz-Date' or a 'Date' header" in raised.value.message


@pytest.mark.parametrize(
    ("service", "region", "is_taken"),
    [
        ("sqs", _REGION, True),
        ("sts", _REGION, True),
        ("sts", "us-east-1", True),
        ("sqs", "us-east-1", False),
        ("sts", "us-west-2", False),
        ("iam", _REGION, False),
    ],
)
def test_a_scope_is_of_sqs_in_its_region_or_of_sts_there_or_in_us_east_1(
    service: str, region: str, *, is_taken: bool
) -> None:
    keys = SigningKeys()
    headers = _sign(service=service, region=region)
    if not is_taken:
        with pytest.raises(SignatureDoesNotMatch, match="scoped to"):
            keys.parse(headers, b"", region=_REGION)
        return
    for _ in range(2):  # as it is read first, and as it is remembered
        authorization = keys.parse(headers, b"", region=_REGION)
        assert authorization is not None
        assert authorization.scope.service == service
        keys.verify(authorization, method=b"POST", raw_path=b"/", body=b"{}", secret=_SECRET, now_ms=_NOW_MS)


def test_a_signature_for_one_service_is_none_for_the_other() -> None:
    headers = _sign(service="sts")
    forged = [(name, value.replace(b"/sts/", b"/sqs/")) for name, value in headers]

    with pytest.raises(SignatureDoesNotMatch):
        _check(forged)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (
            {"Credential": f"{_KEY_ID}/{_TIME[:8]}/{_REGION}/sns/aws4_request"},
            "Credential should be scoped to correct service: 'sqs'.",
        ),
        (
            {"Credential": f"{_KEY_ID}/{_TIME[:8]}/{_REGION}/sqs/aws5"},
            "Credential should be scoped with a valid terminator: 'aws4_request'.",
        ),
        (
            {"SignedHeaders": "x-amz-date"},
            "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.",
        ),
        (
            {"Credential": f"{_KEY_ID}/20200101/{_REGION}/sqs/aws4_request"},
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            "'20200101' != '20260921', from '20260921T141320Z'.",
        ),
        (
            {"Credential": f"{_KEY_ID}/{_TIME[:8]}/mars-1/sqs/aws4_request"},
            "Credential should be scoped to a valid Region, not 'mars-1'.",
        ),
    ],
)
def test_a_scope_that_is_not_ours_is_refused(parts: dict[str, str], complaint: str) -> None:
    headers = [_HOST, (b"x-amz-date", _TIME.encode()), (b"authorization", _authorization(**parts))]

    with pytest.raises(SignatureDoesNotMatch) as raised:
        SigningKeys().parse(headers, b"", region=_REGION)

    assert raised.value.message == complaint


def test_the_parts_of_the_header_may_come_in_any_order() -> None:
    headers = _sign()
    algorithm, _, rest = dict(headers)[b"authorization"].partition(b" ")
    turned = algorithm + b" " + b",".join(reversed(rest.split(b", ")))
    keys = SigningKeys()

    for _ in range(2):
        _check(_with(headers, b"authorization", turned), keys=keys)


# Presigned URLs


def _presigned(**changes: str | None) -> bytes:
    query = presign(
        UnsignedRequest(b"GET", b"/", b"Action=ListQueues", [_HOST]), SIGNER, now_ms=_NOW_MS, expires_s=60
    )
    pairs = dict(pair.split("=", 1) for pair in query.decode().split("&"))
    for name, value in changes.items():
        pairs[f"X-Amz-{name}"] = value or ""
    return "&".join(f"{name}={value}" for name, value in pairs.items()).encode()


def _check_presigned(query: bytes, now_ms: int = _NOW_MS) -> None:
    _check([_HOST], method=b"GET", query=query, body=b"", now_ms=now_ms)


def test_a_presigned_url_is_good_until_it_expires_and_not_for_another_query() -> None:
    _check_presigned(_presigned(), _NOW_MS + 60_000)

    with pytest.raises(SignatureDoesNotMatch) as raised:
        _check_presigned(_presigned(), _NOW_MS + 61_000)
    assert raised.value.message.startswith("Signature expired: 20260921T141320Z is now earlier than")
    with pytest.raises(SignatureDoesNotMatch):
        _check_presigned(_presigned().replace(b"ListQueues", b"PurgeQueue"))


def test_a_presigned_url_counts_odd_durations_in_seconds() -> None:
    keys = SigningKeys()
    query = _presigned(Expires="61")
    authorization = keys.parse([_HOST], query)
    assert authorization is not None

    with pytest.raises(SignatureDoesNotMatch) as raised:
        keys.verify(
            authorization, method=b"GET", raw_path=b"/", body=b"", secret=_SECRET, now_ms=_NOW_MS + 62_000
        )

    assert raised.value.message.endswith("- 61 s.)")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"Algorithm": "AWS4-ECDSA"}, "Unsupported AWS 'algorithm'"),
        ({"Credential": None}, "must include 'X-Amz-Credential'"),
        ({"Signature": None}, "must include 'X-Amz-Signature'"),
        ({"SignedHeaders": None}, "must include 'X-Amz-SignedHeaders'"),
        ({"Date": None}, "must include 'X-Amz-Date'"),
        ({"Expires": None}, "must include 'X-Amz-Expires'"),
        ({"Expires": "0"}, "between 1 and 604800"),
        ({"Expires": "604801"}, "between 1 and 604800"),
        ({"Expires": "9999999"}, "between 1 and 604800"),
        ({"Expires": "-1"}, "between 1 and 604800"),
        ({"Date": "yesterday"}, "ISO-8601"),
    ],
)
def test_an_incomplete_presigned_url_is_refused(changes: dict[str, str | None], complaint: str) -> None:
    with pytest.raises(IncompleteSignature) as raised:
        _check_presigned(_presigned(**changes))

    assert complaint in raised.value.message


def test_a_query_signed_as_it_was_sent_is_accepted_too() -> None:
    # Not the encoding the algorithm asks for, but what a client that signs the URL as it stands does.
    prepared = botocore.awsrequest.AWSRequest(method="GET", url="http://queue.test:9324/?b=x+y&a=(1)")
    credentials = botocore.credentials.Credentials(_KEY_ID, _SECRET)
    botocore.auth.SigV4Auth(credentials, "sqs", _REGION).add_auth(prepared)
    wire = _wire_headers(prepared.prepare(), "queue.test:9324")
    now_ms = sigv4._parse_time_ms(dict(wire)[b"x-amz-date"])

    _check(wire, method=b"GET", query=b"b=x+y&a=(1)", body=b"", now_ms=now_ms)


def test_a_query_signed_as_it_is_encoded_and_sent_otherwise_is_accepted() -> None:
    prepared = botocore.awsrequest.AWSRequest(method="GET", url="http://queue.test:9324/?a=%281%29")
    credentials = botocore.credentials.Credentials(_KEY_ID, _SECRET)
    botocore.auth.SigV4Auth(credentials, "sqs", _REGION).add_auth(prepared)
    wire = _wire_headers(prepared.prepare(), "queue.test:9324")
    now_ms = sigv4._parse_time_ms(dict(wire)[b"x-amz-date"])

    _check(wire, method=b"GET", query=b"a=(1)", body=b"", now_ms=now_ms)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (None, None),
        (b"UNSIGNED-PAYLOAD", b"UNSIGNED-PAYLOAD"),
        (b"0123456789abcdef" * 4, b"0123456789abcdef" * 4),
        (b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", None),
        (b"0123", None),
    ],
)
def test_a_head_says_what_was_signed_of_its_body_or_nothing(
    value: bytes | None, declared: bytes | None
) -> None:
    headers = {} if value is None else {b"x-amz-content-sha256": value}

    assert sigv4.declared_digest(headers) == declared


def test_a_body_that_was_hashed_as_it_came_is_not_hashed_again() -> None:
    keys = SigningKeys()
    authorization = keys.parse(_sign(), b"")
    assert authorization is not None
    digest = hashlib.sha256(b"{}").hexdigest().encode()

    def verify(body_sha256: bytes) -> None:
        keys.verify(
            authorization,
            method=b"POST",
            raw_path=b"/",
            body=b"not looked at",
            secret=_SECRET,
            now_ms=_NOW_MS,
            body_sha256=body_sha256,
        )

    verify(digest)
    with pytest.raises(SignatureDoesNotMatch):
        verify(hashlib.sha256(b"other").hexdigest().encode())


# What is remembered


def test_a_new_secret_for_a_key_is_used_at_once() -> None:
    keys = SigningKeys()
    _check(_sign(), keys=keys)

    with pytest.raises(SignatureDoesNotMatch):
        _check(_sign(), keys=keys, secret="another")
    _check(_sign(secret="another"), keys=keys, secret="another")


def test_what_is_remembered_is_bounded() -> None:
    keys = SigningKeys(capacity=4)

    for n in range(20):
        _check(_sign(access_key_id=f"AKID{n}", now_ms=_NOW_MS + n * 1000), keys=keys, now_ms=_NOW_MS)

    assert len(keys._scopes) <= 4
    assert len(keys._times_ms) <= 4


def test_an_unusually_long_header_is_checked_but_not_remembered() -> None:
    keys = SigningKeys()

    _check(_sign(access_key_id="A" * 2_000), keys=keys)

    assert not keys._scopes


def test_every_request_of_a_client_is_checked_by_itself() -> None:
    keys = SigningKeys()
    _check(_sign(), keys=keys)
    _check(_sign(body=b"second"), keys=keys, body=b"second")

    with pytest.raises(SignatureDoesNotMatch):
        _check(_sign(body=b"third"), keys=keys, body=b"fourth")
    with pytest.raises(SignatureDoesNotMatch):
        _check(_with(_sign(), b"x-amz-date", b"20260920T141320Z"), keys=keys)


# Anything at all


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"host", b"authorization", b"x-amz-date", b"date", b"x-amz-target"]), st.binary()
        ),
        max_size=6,
    ),
    st.binary(max_size=60),
    st.lists(
        st.sampled_from([b"Credential=a/b/c/sqs/aws4_request", b"Signature=", b"SignedHeaders=host", b"="])
    ),
    st.binary(max_size=20),
)
def test_any_claim_is_refused_by_an_error_of_the_caller(
    headers: Headers, query: bytes, parts: list[bytes], path: bytes
) -> None:
    keys = SigningKeys()
    header = (b"authorization", b"AWS4-HMAC-SHA256 " + b", ".join(parts))
    for claimed in (headers, [*headers, header]):
        for raw_query in (query, b"X-Amz-Algorithm=AWS4-HMAC-SHA256&" + query):
            try:
                authorization = keys.parse(claimed, raw_query)
                if authorization is not None:
                    keys.verify(
                        authorization, method=b"GET", raw_path=path, body=query, secret="s", now_ms=_NOW_MS
                    )
                    raise AssertionError("accepted")
            except CallerError:
                continue


@pytest.mark.parametrize(
    "path", [b"/" + b"a" * 200 + b"$", b"/aa" * 5_000 + b"$", b"/" + b"a" * 16_000 + b"//"]
)
def test_a_path_that_is_not_plain_is_refused_in_time_linear_in_its_length(path: bytes) -> None:
    with pytest.raises(SignatureDoesNotMatch):
        _check(_sign(), path=path)


@pytest.mark.parametrize("signed", [True, False])
def test_a_query_of_too_many_parameters_is_refused_before_it_is_sorted(signed: bool) -> None:
    query = b"&".join([b"a"] * (QUERY_PARAMETERS_MAX + 1))
    headers = _sign() if signed else [_HOST]

    with pytest.raises(SignatureDoesNotMatch, match="more than 1024 parameters"):
        SigningKeys().parse(headers, query if signed else query + b"&X-Amz-Algorithm=AWS4-HMAC-SHA256")

    few = query[2:]
    _check(_sign(query=few), query=few)


def test_a_header_that_is_named_twice_as_signed_is_refused_before_its_value_is_hashed_twice() -> None:
    headers = _sign()
    named = dict(headers)[b"authorization"].replace(b"SignedHeaders=host;", b"SignedHeaders=host;host;")

    with pytest.raises(SignatureDoesNotMatch, match="each header once"):
        _check(_with(headers, b"authorization", named))


@pytest.mark.parametrize("name", SINGLE_HEADERS)
@pytest.mark.parametrize("value", [b"", b"other"])
def test_a_header_that_says_who_asks_for_what_is_refused_when_it_is_repeated(
    name: bytes, value: bytes
) -> None:
    headers = [*_sign(), (b"date", b"Mon, 21 Sep 2026 14:13:20 GMT")]
    headers += [(b"x-amz-security-token", b"t"), (b"x-amz-content-sha256", b"0" * 64)]

    with pytest.raises(IncompleteSignature, match=f"{name.decode()} was sent more than once"):
        _check([*headers, (name, value)])


def test_other_headers_may_be_repeated() -> None:
    headers = [_HOST, (b"x-amz-target", b"AmazonSQS.ListQueues"), (b"x-a", b"1"), (b"x-a", b"2")]

    _check(_sign(headers))


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_parameter_of_a_presigned_url_is_refused_when_it_is_repeated(name: str) -> None:
    query = _presigned()

    with pytest.raises(IncompleteSignature, match=f"X-Amz-{name}' was sent more than once"):
        _check_presigned(query + f"&X-Amz-{name}=other".encode())


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        (
            {b"authorization": b"AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE123456789/20260101/x"},
            b"",
            "AKIAEXAMPLE123456789",
        ),
        ({}, b"X-Amz-Credential=AKIAEXAMPLE123456789%2F20260101", "AKIAEXAMPLE123456789"),
        ({}, b"Action=ListQueues", None),
        ({b"authorization": b"Basic xyz"}, b"X-Amz-Credential=AKIAEXAMPLE123456789%2F2", None),
        ({b"authorization": b"Credential=short/x"}, b"", None),
    ],
)
def test_a_request_names_the_key_that_it_claims(
    headers: dict[bytes, bytes], query: bytes, key: str | None
) -> None:
    assert sigv4.claimed_key(headers, query) == key
