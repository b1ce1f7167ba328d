"""The PROXY protocol's header: who connected, and whether they used TLS, whatever bytes come."""

from __future__ import annotations

import socket

import pytest
from harness.proxied import SSL_TLV, header_v2, tlv
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.proxy_header import (
    PAYLOAD_BYTES_MAX,
    SIGNATURE,
    MalformedProxyHeader,
    ProxyHeader,
    parse_proxy_header,
    render_proxy_header,
)

V4 = header_v2("192.0.2.7")
V6 = header_v2("2001:db8::7")
UNIX = SIGNATURE + b"\x21\x31" + (216).to_bytes(2) + b"/client".ljust(216, b"\0")


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (V4, "192.0.2.7"),
        (V6, "2001:db8::7"),
        (header_v2("::ffff:192.0.2.7"), "192.0.2.7"),
        (UNIX, None),
        (SIGNATURE + b"\x21\x00\0\0", None),
        (SIGNATURE + b"\x20\x00\0\0", None),
        (SIGNATURE + b"\x20\x11\0\x0c" + bytes(12), None),
    ],
    ids=[
        "IPv4",
        "IPv6",
        "IPv4 in IPv6",
        "Unix",
        "not told",
        "the proxy's own",
        "the proxy's own, with addresses",
    ],
)
def test_header_tells_the_clients_address(header: bytes, address: str | None) -> None:
    assert parse_proxy_header(header + b"GET") == ProxyHeader(address, False, len(header))


@pytest.mark.parametrize(("client", "is_tls"), [(0x01, True), (0x07, True), (0x00, False), (0x02, False)])
def test_ssl_tlv_tells_whether_the_client_used_tls(client: int, is_tls: bool) -> None:
    header = header_v2("192.0.2.7", tlv(0x20, bytes([client, 0, 0, 0, 0]) + tlv(0x21, b"TLSv1.3")))

    assert parse_proxy_header(header) == ProxyHeader("192.0.2.7", is_tls, len(header))


def test_other_tlvs_are_skipped() -> None:
    others = tlv(0x05, b"u" * 128) + tlv(0x04, b"") + tlv(0xEA, b"vpce-1")

    header = header_v2("192.0.2.7", others + SSL_TLV + others)

    assert parse_proxy_header(header) == ProxyHeader("192.0.2.7", True, len(header))


@given(st.integers(0, len(header_v2("192.0.2.7", SSL_TLV)) - 1))
def test_part_of_a_header_asks_for_more(size: int) -> None:
    assert parse_proxy_header(header_v2("192.0.2.7", SSL_TLV)[:size]) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "does not begin"),
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n", "does not begin"),
        (b"\r\n\r\n\0\r\nQUIT\r", "does not begin"),
        (SIGNATURE + b"\x11\x11\0\x0c" + bytes(12), "version and command"),
        (SIGNATURE + b"\x22\x11\0\x0c" + bytes(12), "version and command"),
        (SIGNATURE + b"\x21\x12\0\x0c" + bytes(12), "family and transport"),
        (SIGNATURE + b"\x21\x41\0\x0c" + bytes(12), "family and transport"),
        (SIGNATURE + b"\x21\x11\0\x0b" + bytes(11), "need 12 bytes"),
        (SIGNATURE + b"\x21\x21\0\x23" + bytes(35), "need 36 bytes"),
        (SIGNATURE + b"\x21\x31\0\xd7" + bytes(215), "need 216 bytes"),
        (SIGNATURE + b"\x21\x11" + (PAYLOAD_BYTES_MAX + 1).to_bytes(2), "over 2048 bytes"),
        (header_v2("192.0.2.7", b"\x05"), "cut off"),
        (header_v2("192.0.2.7", b"\x05\0"), "cut off"),
        (header_v2("192.0.2.7", b"\x05\0\x02a"), "cut off"),
        (header_v2("192.0.2.7", SSL_TLV + SSL_TLV), "twice"),
        (header_v2("192.0.2.7", tlv(0x20, b"\x01\0\0\0")), "too short"),
    ],
)
def test_anything_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedProxyHeader, match=reason):
        parse_proxy_header(data)


def test_largest_header_is_taken() -> None:
    room = PAYLOAD_BYTES_MAX - 12 - 3

    assert parse_proxy_header(header_v2("192.0.2.7", tlv(0x04, bytes(room)))) is not None


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda rest: SIGNATURE + rest))
def test_any_bytes_are_refused_read_or_waited_for_however_they_are_cut(data: bytes) -> None:
    try:
        whole = parse_proxy_header(data)
    except MalformedProxyHeader:
        whole = None
    else:
        for size in range(len(data)):
            part = parse_proxy_header(data[:size])
            assert part is None or part == whole
    if whole is not None:
        assert whole.size <= len(data)
        if whole.address is not None:
            family = socket.AF_INET6 if ":" in whole.address else socket.AF_INET
            assert socket.inet_pton(family, whole.address)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_a_header_that_is_written_names_the_client(address: str) -> None:
    written = render_proxy_header(address)

    assert parse_proxy_header(written + b"GET") == ProxyHeader(address, False, len(written))


def test_a_header_without_an_address_names_nobody() -> None:
    written = render_proxy_header("")

    assert parse_proxy_header(written) == ProxyHeader(None, False, len(written))
