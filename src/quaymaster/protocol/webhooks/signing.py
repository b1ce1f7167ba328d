"""How a webhook's request is signed, so that its receiver can tell who sent it, and that it is not an old one again.

    webhook-id: msg_2KWPBgLlAfxdpx2AI54p   the same each time that it is sent; receivers drop what they have seen
    webhook-timestamp: 1674087231          when this attempt was made, in seconds; receivers refuse old ones
    webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=
                       HMAC-SHA256(secret, id "." timestamp "." body); one for each secret, with a space between
                   or: v1a,  and the Ed25519 signature of the same, by a private key that is made from the secret

A secret is 24 to 64 bytes; people see `whsec_` and its base64, or of the public key `whpk_` and base64. Pure: the time
comes in.

Source: the Standard Webhooks specification, 1.0.0, symmetric and asymmetric signatures.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quaymaster.core.values.errors import InvalidParameterValue

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 -- what all secrets begin with
PUBLIC_KEY_PREFIX: Final = "whpk_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
_ID_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def secret_text(secret: bytes) -> str:
    """Return a secret as people copy it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def parse_secret(text: str) -> bytes:
    """Return the secret that a text says; InvalidParameterValue, which does not repeat it."""
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParameterValue(f"A secret is {SECRET_PREFIX} and base64.") from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise InvalidParameterValue(f"A secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes.")
    return secret


def derived_secret(key: bytes, target_id: str) -> bytes:
    """Return the secret of a target, made from a key that only its servers have: nothing is to be kept.

    `target_id` must never be used again for another target. RFC 5869's extract is done: the key is for this alone.
    """
    return hmac.digest(key, b"webhook " + target_id.encode(), hashlib.sha256)


def public_key_text(secret: bytes) -> str:
    """Return the public key by which the asymmetric signatures of a secret are verified, as people copy it."""
    public = _private_key(secret).public_key().public_bytes_raw()
    return PUBLIC_KEY_PREFIX + base64.b64encode(public).decode()


def signature(secret: bytes, content: bytes) -> str:
    """Return the signature that those who have the secret can verify, and make."""
    return "v1," + base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()


def asymmetric_signature(secret: bytes, content: bytes) -> str:
    """Return the signature that all who have the public key can verify."""
    return "v1a," + base64.b64encode(_private_key(secret).sign(content)).decode()


@lru_cache(maxsize=1_024)
def _private_key(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, b"Ed25519", hashlib.sha256))


def signed_headers(
    secrets: Sequence[bytes],
    message_id: str,
    at_s: int,
    body: bytes,
    *,
    sign: Callable[[bytes, bytes], str] = signature,
) -> dict[str, str]:
    """Return the headers that sign a body with each secret: the newest, and while it is exchanged the old one."""
    assert _ID_LETTERS.issuperset(message_id), "an id has no dot, which separates what is signed"
    content = f"{message_id}.{at_s}.".encode() + body
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(at_s),
        SIGNATURE_HEADER: " ".join(sign(secret, content) for secret in secrets),
    }
