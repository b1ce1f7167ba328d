"""The password by which Prometheus reads an account's metrics: it cannot sign requests, and secrets are never sent.

    Authorization: Basic base64( access key id : HMAC-SHA256(secret, "metrics-v1"), hexadecimal )

Who has it cannot sign anything: the secret does not follow from it. It is good as long as the key and its secret are.
"""

from __future__ import annotations

import binascii
import hmac
import re
from typing import Final

METRICS_PATH: Final = b"/monitoring/metrics"
_PURPOSE: Final = b"metrics-v1"
_BASIC: Final = re.compile(rb"basic ([A-Za-z0-9+/=]{1,400})", re.IGNORECASE)
_CREDENTIALS: Final = re.compile(rb"([A-Za-z0-9]{16,128}):([0-9a-f]{64})")


def metrics_password(secret: str) -> str:
    """Return the password of an access key with this secret."""
    return hmac.digest(secret.encode(), _PURPOSE, "sha256").hex()


def is_metrics_password(password: str, secret: str) -> bool:
    """Tell whether a password is that of an access key with this secret, in the same time for any."""
    return hmac.compare_digest(password, metrics_password(secret))


def read_basic(authorization: bytes) -> tuple[str, str] | None:
    """Return access key id and password of an Authorization header; None where it has no such two."""
    found = _BASIC.fullmatch(authorization.strip())
    if found is None:
        return None
    try:
        text = binascii.a2b_base64(found[1], strict_mode=True)
    except ValueError:
        return None
    named = _CREDENTIALS.fullmatch(text)
    return None if named is None else (named[1].decode(), named[2].decode())
