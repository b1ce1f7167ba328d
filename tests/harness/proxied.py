"""What a proxy sends before a client's bytes: headers of the PROXY protocol, version 2."""

from __future__ import annotations

import ipaddress
from typing import Final

from quaymaster.protocol.proxy_header import SIGNATURE

PROXY_ADDRESS: Final = "127.0.0.9"
"""Where a proxy on this machine connects from."""


def edge_settings(port: int) -> dict[str, str]:
    """Return the settings of a server that takes such headers at a port."""
    return {"edge_listen": f"127.0.0.1:{port}", "trusted_proxies": PROXY_ADDRESS}


def tlv(kind: int, value: bytes) -> bytes:
    """Return one TLV."""
    return bytes([kind]) + len(value).to_bytes(2) + value


SSL_TLV = tlv(0x20, b"\x01\0\0\0\0" + tlv(0x21, b"TLSv1.3"))
"""Says that the client used TLS."""


def header_v2(client: str, tlvs: bytes = b"") -> bytes:
    """Return the header of a client's TCP connection."""
    address = ipaddress.ip_address(client)
    addresses = address.packed + bytes(len(address.packed)) + (40_000).to_bytes(2) + (443).to_bytes(2)
    family = 0x11 if address.version == 4 else 0x21
    payload = addresses + tlvs
    return SIGNATURE + bytes([0x21, family]) + len(payload).to_bytes(2) + payload
