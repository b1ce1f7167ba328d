"""Attacks on what a request is, who sent it and to whom: on the server itself, and through HAProxy."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from harness import http2
from harness.doors import FORM, TARGET, TYPE, Answer, Headers, Way, read_answers, render
from harness.edge import EdgeProcess, edge_before
from harness.forked_programs import run_program
from harness.process import QuaymasterProcess
from harness.proxied import SSL_TLV, header_v2
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S

from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, presign, sign


@pytest.fixture(name="tmp_path")
def short_tmp_path() -> Iterator[Path]:
    """Sockets of the edge are in data directories."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuaymasterProcess]:
    process = QuaymasterProcess(tmp_path_factory.mktemp("attacked") / "data")
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def edge(server: QuaymasterProcess) -> Iterator[EdgeProcess]:
    with edge_before(server, server.data.parent) as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "edge"])
def way(request: pytest.FixtureRequest, server: QuaymasterProcess) -> Way:
    return Way(server, request.getfixturevalue("edge") if request.param == "edge" else None)


def test_well_formed_requests_are_answered(way: Way) -> None:
    assert way.ask(way.signed()).status == 200


# Where a request ends.

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: q\r\n\r\n"
FRAMED: dict[str, bytes] = {
    "CL and TE": b"POST / HTTP/1.1\r\nHost: q\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE and CL": b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\nContent-Length: 50\r\n\r\n0\r\n\r\n",
    "two CL": b"POST / HTTP/1.1\r\nHost: q\r\nContent-Length: 0\r\nContent-Length: 36\r\n\r\n",
    "two CL in one": b"POST / HTTP/1.1\r\nHost: q\r\nContent-Length: 0, 36\r\n\r\n",
    "signed CL": b"POST / HTTP/1.1\r\nHost: q\r\nContent-Length: +0\r\n\r\n",
    "two TE": b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "TE with a blank": b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "unknown TE": b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "obs-fold": b"POST / HTTP/1.1\r\nHost: q\r\nX: a\r\n Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "bare LF in the head": b"POST / HTTP/1.1\r\nHost: q\nContent-Length: 0\r\n\r\n",
    "bare LF at the end": b"POST / HTTP/1.1\r\nHost: q\r\nContent-Length: 0\n\n",
    "bare CR": b"POST / HTTP/1.1\r\nHost: q\r\nX: a\rContent-Length: 36\r\nContent-Length: 0\r\n\r\n",
    "bad chunk size": b"POST / HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "NUL in a header": b"POST / HTTP/1.1\r\nHost: q\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "two hosts": b"POST / HTTP/1.1\r\nHost: q\r\nHost: r\r\nContent-Length: 0\r\n\r\n",
    "GET with a body": b"GET / HTTP/1.1\r\nHost: q\r\nContent-Length: 36\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("sent", FRAMED.values(), ids=FRAMED.keys())
def test_server_refuses_what_can_be_framed_in_two_ways_and_reads_nothing_behind_it(
    server: QuaymasterProcess, sent: bytes
) -> None:
    answers = Way(server, None).send(sent + SMUGGLED)

    # 403: its head alone shows that it is not signed.
    assert [answer.status in (400, 403, 501) for answer in answers] == [True]


@pytest.mark.parametrize("sent", FRAMED.values(), ids=FRAMED.keys())
def test_through_an_edge_only_the_attackers_connection_is_concerned(
    server: QuaymasterProcess, edge: EdgeProcess, sent: bytes
) -> None:
    way = Way(server, edge)
    victim = way.signed().replace(b"Connection: close\r\n", b"")
    with way.connect() as other:
        other.settimeout(PATIENCE_S)
        other.sendall(victim)
        first = _read_one(other)
        with way.connect() as attacker:
            attacker.settimeout(PATIENCE_S)
            attacker.sendall(sent + SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            other.sendall(victim)
            second = _read_one(other)
            attacker.shutdown(socket.SHUT_RDWR)

    assert (first.status, second.status) == (200, 200)
    assert json.loads(second.body).keys() <= {"QueueUrls", "NextToken"}


def _read_one(connection: socket.socket) -> Answer:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65_536)
    return Answer(int(head.split()[1]), body)


H2 = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/"), (b":authority", b"q")]
DOWNGRADES: dict[str, tuple[Headers, bytes]] = {
    "TE": ([*H2, (b"transfer-encoding", b"chunked")], b"0\r\n\r\n" + SMUGGLED),
    "CL too small": ([*H2, (b"content-length", b"0")], SMUGGLED),
    "CL too large": ([*H2, (b"content-length", b"400")], SMUGGLED),
    "two CL": ([*H2, (b"content-length", b"0"), (b"content-length", b"36")], SMUGGLED),
    "CRLF in a value": ([*H2, (b"x", b"a\r\ntransfer-encoding: chunked")], b"0\r\n\r\n" + SMUGGLED),
    "LF in a value": ([*H2, (b"x", b"a\ntransfer-encoding: chunked")], b"0\r\n\r\n" + SMUGGLED),
    "CRLF in a name": ([*H2, (b"x: a\r\ncontent-length", b"0")], SMUGGLED),
    "CRLF in the path": ([*H2[:2], (b":path", b"/ HTTP/1.1\r\nHost: q\r\n\r\nGET /smuggled"), H2[3]], b""),
    "blank in the method": ([(b":method", b"GET /smuggled HTTP/1.1\r\n"), *H2[1:]], b""),
    "colon in a name": ([*H2, (b"x:y", b"a")], b""),
    "connection": ([*H2, (b"connection", b"keep-alive")], b""),
    "two paths": ([*H2, (b":path", b"/other")], b""),
}


@pytest.mark.parametrize(("headers", "body"), DOWNGRADES.values(), ids=DOWNGRADES.keys())
def test_http2_cannot_be_made_two_requests_of_http1(edge: EdgeProcess, headers: Headers, body: bytes) -> None:
    with edge.connect(alpn="h2") as connection:
        connection.settimeout(PATIENCE_S)
        answer = http2.exchange(connection, headers, body)

    # Reset, refused by HAProxy or the server; never more than one answer, which would come as another frame.
    assert answer.status in (None, 400, 403, 404)


def test_http2_requests_are_answered(server: QuaymasterProcess, edge: EdgeProcess) -> None:
    way = Way(server, edge)
    signed = sign(
        UnsignedRequest(b"POST", b"/", b"", [way.host, TARGET, TYPE], b"{}"),
        way.signer,
        now_ms=time.time_ns() // 1_000_000,
    )
    headers = [*H2[:3], (b":authority", way.host[1]), *(one for one in signed if one[0] != b"host")]

    with edge.connect(alpn="h2") as connection:
        connection.settimeout(PATIENCE_S)
        assert http2.exchange(connection, headers, b"{}").status == 200


# Who it is from.


def test_forged_forwarded_headers_are_ignored(way: Way) -> None:
    way.asks("CreateQueue", {"QueueName": "forged"})
    scheme = "http" if way.edge is None else "https"
    other = "https" if way.edge is None else "http"
    forged = [(b"x-forwarded-proto", other.encode()), (b"x-forwarded-for", b"203.0.113.9")]
    forged += [(b"forwarded", b"for=203.0.113.9;proto=" + other.encode()), (b"x-forwarded-host", b"evil")]
    body = b'{"QueueName": "forged"}'

    answer = way.ask(way.signed([(b"x-amz-target", b"AmazonSQS.GetQueueUrl"), TYPE, *forged], body=body))

    assert json.loads(answer.body)["QueueUrl"] == f"{way.base}/{way.account}/forged"
    policy = {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:SendMessage",
            "Resource": "*",
            "Condition": {"NotIpAddress": {"aws:SourceIp": "127.0.0.0/8"}},
        },
    }
    url = f"{scheme}://x/{way.account}/forged"
    way.asks("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"Policy": json.dumps(policy)}})
    body = json.dumps({"QueueUrl": url, "MessageBody": "x"}).encode()
    assert (
        way.ask(way.signed([(b"x-amz-target", b"AmazonSQS.SendMessage"), TYPE, *forged], body=body)).status
        == 200
    )


V1 = b"PROXY TCP4 203.0.113.9 127.0.0.1 1 2\r\n"
V2 = header_v2("203.0.113.9", SSL_TLV)


@pytest.mark.parametrize("header", [V1, V2, V2 + V2], ids=["v1", "v2", "v2 twice"])
def test_proxy_headers_of_clients_are_refused(way: Way, header: bytes) -> None:
    assert way.ask(header + way.signed()).status == 400


@pytest.mark.parametrize("header", [b"", V1, V2 + V2, V2 + V1], ids=["none", "v1", "v2 twice", "v2, then v1"])
def test_socket_for_proxies_takes_exactly_one_header_of_version_2(
    server: QuaymasterProcess, header: bytes
) -> None:
    way = Way(server, None)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(server.data / "run" / "edge.sock"))
        connection.sendall(header + way.signed())

        assert [answer.status for answer in read_answers(connection)] == [400]


@pytest.mark.parametrize(
    "repeated",
    [
        (b"authorization", b"AWS4-HMAC-SHA256 Credential=a"),
        (b"x-amz-target", b"AmazonSQS.PurgeQueue"),
        (b"x-amz-target", TARGET[1]),
        (b"x-amz-date", b"20260101T000000Z"),
    ],
    ids=["Authorization", "target", "same target", "date"],
)
def test_headers_that_say_who_asks_for_what_must_not_be_repeated(
    way: Way, repeated: tuple[bytes, bytes]
) -> None:
    answer = way.ask(way.signed(more=[repeated]))

    assert answer.status == 400
    assert b"more than once" in answer.body


def test_token_must_not_be_repeated(way: Way) -> None:
    token = (b"x-amz-security-token", b"t")

    answer = way.ask(way.signed((TARGET, TYPE, token), more=[token]))

    assert answer.status == 400
    assert b"more than once" in answer.body


@pytest.mark.parametrize("encoded", [b"&Action=PurgeQueue", b"&Action=ListQueues", b"&%41ction=PurgeQueue"])
def test_parameters_must_not_be_repeated(way: Way, encoded: bytes) -> None:
    signed = way.signed([FORM], body=b"Action=ListQueues" + encoded)
    split = way.signed([FORM], query=encoded[1:], body=b"Action=ListQueues")

    assert way.ask(signed).status == way.ask(split).status == 400


def test_parameters_of_a_presigned_url_must_not_be_repeated(way: Way) -> None:
    query = presign(
        UnsignedRequest(b"GET", b"/", b"Action=ListQueues", [way.host]),
        way.signer,
        now_ms=time.time_ns() // 1_000_000,
        expires_s=60,
    )

    assert way.ask(render(b"GET", b"/?" + query, [way.host], b"")).status == 200
    for more in (b"&X-Amz-Expires=604800", b"&Action=ListQueues"):
        assert way.ask(render(b"GET", b"/?" + query + more, [way.host], b"")).status in (400, 403)


def test_target_that_is_not_signed_is_refused(way: Way) -> None:
    answer = way.ask(way.signed([TYPE], more=[TARGET]))

    assert answer.status == 403  # as AWS answers
    assert b"not signed: x-amz-target" in answer.body


def test_get_with_a_body_is_refused(way: Way) -> None:
    body = b"Action=ListQueues"

    assert way.ask(way.signed([FORM], method=b"GET", body=body)).status == 400


# To whom it is.


@pytest.fixture(scope="module")
def stranger(server: QuaymasterProcess) -> Signer:
    """A key of another account, which may send to the queue `open`, and to no other of the default account."""
    way = Way(server, None)
    done = run_program(
        ["account", "create", "stranger", "--json", "--data", str(server.data)],
        environment=server._environment(),
    )
    done.check_returncode()
    made = json.loads(done.stdout)
    for name in ("open", "closed"):
        way.asks("CreateQueue", {"QueueName": name})
    policy = {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"AWS": made["account_id"]},
            "Action": "sqs:SendMessage",
            "Resource": "*",
        },
    }
    url = f"{server.endpoint_url}/{way.account}/open"
    way.asks("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"Policy": json.dumps(policy)}})
    return Signer(made["access_key_id"], made["secret_access_key"], way.signer.region)


PATHS: Sequence[Callable[[str], str]] = (
    lambda account: f"/{account}/closed",
    lambda account: f"/{account}/open/../closed",
    lambda account: f"/{account}/open/%2e%2e/closed",
    lambda account: f"/{account}/open%2f..%2fclosed",
    lambda account: f"/{account}/./closed",
    lambda account: f"//{account}//closed",
    lambda account: f"/{account}/closed/",
    lambda account: f"/{account}/clos%65d",
    lambda account: f"/queue/{account}/closed",
    lambda account: f"/queue/us-east-1/{account}/closed",
    lambda account: f"/{account}/open%00/../closed",
    lambda account: f"/{account}/closed;open",
)


@pytest.mark.parametrize("path", PATHS, ids=[path("A") for path in PATHS])
@pytest.mark.parametrize("host", ["{own}", "{account}.queue.example", "{account}.queue.example:80"])
def test_no_form_of_a_path_reaches_a_queue_that_is_not_allowed(
    way: Way, stranger: Signer, path: Callable[[str], str], host: str
) -> None:
    named = host.format(own=way.host[1].decode(), account=way.account)
    url = f"http://x{path(way.account)}"
    target = path(way.account).encode()
    by_path = [(b"host", named.encode()), FORM]
    body = b"Action=SendMessage&MessageBody=stolen"
    requests = [
        _signed_for(way, stranger, by_path, target, body),
        _signed_for(
            way, stranger, by_path, target, body + b"&QueueUrl=" + _encoded(f"http://x/{way.account}/open")
        ),
        _signed_for(way, stranger, by_path, b"/", body + b"&QueueUrl=" + _encoded(url)),
    ]

    statuses = [way.ask(request).status for request in requests]

    assert all(status in (200, 400, 403, 404) for status in statuses)
    attributes = {
        "QueueUrl": f"{way.base}/{way.account}/closed",
        "AttributeNames": ["ApproximateNumberOfMessages"],
    }
    assert way.asks("GetQueueAttributes", attributes)["Attributes"]["ApproximateNumberOfMessages"] == "0"


def test_the_allowed_queue_is_reached(way: Way, stranger: Signer) -> None:
    headers = [way.host, FORM]
    body = b"Action=SendMessage&MessageBody=allowed"

    assert way.ask(_signed_for(way, stranger, headers, f"/{way.account}/open".encode(), body)).status == 200


def _signed_for(way: Way, signer: Signer, headers: Headers, path: bytes, body: bytes) -> bytes:
    every = sign(
        UnsignedRequest(b"POST", path, b"", headers, body), signer, now_ms=time.time_ns() // 1_000_000
    )
    return render(b"POST", path, every, body)


def _encoded(text: str) -> bytes:
    from urllib.parse import quote

    return quote(text, safe="").encode()
