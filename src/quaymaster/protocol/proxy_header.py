"""The header of the PROXY protocol, version 2, in which a proxy says who connected to it.

```
    signature      12 bytes   0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A
    version        4 bits     2
    command        4 bits     0: LOCAL, the proxy's own connection   1: PROXY, a client's
    family         4 bits     0: not told   1: IPv4   2: IPv6   3: Unix
    transport      4 bits     0: not told   1: stream (datagrams are refused)
    length         2 bytes    of all that follows, ≤ PAYLOAD_BYTES_MAX here
    addresses      of client and proxy, then their ports: 12, 36 or 216 bytes
    TLVs           type (1 byte), length (2 bytes), value
```

Of the TLVs only PP2_TYPE_SSL is read: whether the client used TLS. The others are skipped, but have to be whole.

Public: `parse_proxy_header`, `ProxyHeader`, `MalformedProxyHeader`.

Source: HAProxy, doc/proxy-protocol.txt, section 2.2.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES: Final = 16
"""What stands before the addresses."""
PAYLOAD_BYTES_MAX: Final = 2048
"""Addresses of Unix sockets take 216 bytes, a unique id 131; what proxies of clouds add is a few hundred bytes."""

_LOCAL, _PROXY = 0x20, 0x21
_UNKNOWN, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_ADDRESS_BYTES: Final = {_UNKNOWN: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}
_TLV_BYTES: Final = 3
_TYPE_SSL: Final = 0x20
_SSL_BYTES_MIN: Final = 5
_CLIENT_SSL: Final = 0x01


class MalformedProxyHeader(Exception):
    """These bytes do not begin with a header of version 2; the message says why."""


class ProxyHeader(NamedTuple):
    """What a proxy says of a connection.

    `address`: the client's; None where it has none that is an IP address (Unix sockets), or the proxy does not tell:
    then the connection's own counts. `is_tls`: the client used TLS. `size`: of the header, in bytes.
    """

    address: str | None
    is_tls: bool
    size: int


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header at the beginning of `data`, None when more bytes are needed.

    Raises:
        MalformedProxyHeader: there is none, or it is not as version 2 has it.
    """
    if not data.startswith(SIGNATURE[: len(data)]):
        raise MalformedProxyHeader("The connection does not begin with a PROXY protocol header of version 2.")
    if len(data) < FIXED_BYTES:
        return None
    command, family = data[12], data[13]
    if command not in (_LOCAL, _PROXY):
        raise MalformedProxyHeader(f"{command:#04x} is no version and command of the PROXY protocol here.")
    size = FIXED_BYTES + int.from_bytes(data[14:FIXED_BYTES])
    if size > FIXED_BYTES + PAYLOAD_BYTES_MAX:
        raise MalformedProxyHeader(f"The PROXY protocol header has over {PAYLOAD_BYTES_MAX} bytes.")
    if len(data) < size:
        return None
    if command == _LOCAL:
        return ProxyHeader(None, False, size)
    address_bytes = _ADDRESS_BYTES.get(family)
    if address_bytes is None:
        raise MalformedProxyHeader(f"{family:#04x} is no family and transport of the PROXY protocol here.")
    payload = data[FIXED_BYTES:size]
    if len(payload) < address_bytes:
        raise MalformedProxyHeader(f"The addresses in the PROXY protocol header need {address_bytes} bytes.")
    return ProxyHeader(_address(family, payload), _used_tls(payload[address_bytes:]), size)


def render_proxy_header(address: str) -> bytes:
    """Return a header that names a client by its IP address; any other text: none is named."""
    try:
        client = ip_address(address)
    except ValueError:
        return SIGNATURE + bytes([_LOCAL, 0, 0, 0])
    family, nobody = (_TCP4, bytes(4)) if client.version == 4 else (_TCP6, bytes(16))
    payload = client.packed + nobody + bytes(4)  # two ports
    return SIGNATURE + bytes([_PROXY, family]) + len(payload).to_bytes(2) + payload


def _address(family: int, payload: bytes) -> str | None:
    if family == _TCP4:
        return str(IPv4Address(payload[:4]))
    if family == _TCP6:
        address = IPv6Address(payload[:16])
        return str(address.ipv4_mapped or address)
    return None


def _used_tls(tlvs: bytes) -> bool:
    """Return whether the client used TLS; all TLVs are looked at."""
    found: bytes | None = None
    position = 0
    while position < len(tlvs):
        start = position + _TLV_BYTES
        end = start + int.from_bytes(tlvs[position + 1 : start])
        if start > len(tlvs) or end > len(tlvs):
            raise MalformedProxyHeader("A TLV of the PROXY protocol header is cut off.")
        if tlvs[position] == _TYPE_SSL:
            if found is not None:
                raise MalformedProxyHeader("The PROXY protocol header says twice whether TLS was used.")
            found = tlvs[start:end]
        position = end
    if found is None:
        return False
    if len(found) < _SSL_BYTES_MIN:
        raise MalformedProxyHeader("The TLV on TLS of the PROXY protocol header is too short.")
    return bool(found[0] & _CLIENT_SSL)
