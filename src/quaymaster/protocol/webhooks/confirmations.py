"""Links by which people confirm that a mail address is theirs: a token that only the console can make.

    base64url( expiry in seconds 8 │ HMAC-SHA256( key, purpose, expiry, destination id ) 16 │ destination id )

The address itself is not in it. A token is good for one destination, which keeps its address for life.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

GOOD_FOR_S: Final = 3 * 86_400
_EXPIRY_BYTES: Final = 8
_TAG_BYTES: Final = 16
_PURPOSE: Final = b"quaymaster mail confirmation 1 "
TOKEN_CHARS_MAX: Final = 256


def confirmation_token(key: bytes, destination_id: str, now_s: int) -> str:
    """Return a token that confirms a destination until GOOD_FOR_S from now."""
    expiry = (now_s + GOOD_FOR_S).to_bytes(_EXPIRY_BYTES, "big")
    token = expiry + _tag(key, expiry, destination_id) + destination_id.encode()
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def confirmed_destination(key: bytes, token: str, now_s: int) -> str | None:
    """Return the id of the destination that a token confirms; None for one that is not ours, or is over."""
    if len(token) > TOKEN_CHARS_MAX:
        return None
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        destination_id = data[_EXPIRY_BYTES + _TAG_BYTES :].decode("ascii")
    except (binascii.Error, ValueError):
        return None
    expiry, tag = data[:_EXPIRY_BYTES], data[_EXPIRY_BYTES : _EXPIRY_BYTES + _TAG_BYTES]
    if not hmac.compare_digest(tag, _tag(key, expiry, destination_id)):
        return None
    return destination_id if now_s <= int.from_bytes(expiry, "big") else None


def _tag(key: bytes, expiry: bytes, destination_id: str) -> bytes:
    return hmac.digest(key, _PURPOSE + expiry + destination_id.encode(), hashlib.sha256)[:_TAG_BYTES]
