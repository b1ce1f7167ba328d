"""Passwords for metrics follow from a key's secret, and are read from Basic authentication."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from quaymaster.protocol.sqs.metrics_password import is_metrics_password, metrics_password, read_basic

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEY_ID = "AKIAIOSFODNN7EXAMPLE"


def header(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


def test_password_is_a_digest_of_its_purpose_with_the_secret() -> None:
    assert metrics_password(SECRET) == hmac.new(SECRET.encode(), b"metrics-v1", hashlib.sha256).hexdigest()
    assert is_metrics_password(metrics_password(SECRET), SECRET)
    assert not is_metrics_password(metrics_password("other"), SECRET)


@pytest.mark.parametrize("scheme", [b"Basic ", b"basic ", b"BASIC "])
def test_key_and_password_are_read(scheme: bytes) -> None:
    password = metrics_password(SECRET)

    assert read_basic(scheme + header(f"{KEY_ID}:{password}")[6:]) == (KEY_ID, password)


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"Basic",
        b"Basic =",
        b"Basic a",
        b"Bearer abc",
        b"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261128/eu/sqs/aws4_request",
        header(KEY_ID),
        header(f"{KEY_ID}:{SECRET}"),
        header(f"short:{'0' * 64}"),
        header(f"{KEY_ID}:{'0' * 64}:"),
        b"Basic " + b"A" * 500,
    ],
)
def test_anything_else_is_neither(given: bytes) -> None:
    assert read_basic(given) is None
