"""Cookies that hold all that the console knows of a browser: it keeps no sessions.

    base64url( version 1 │ purpose 1 │ nonce 12 │ AES-256-GCM( MessagePack of the content ) │ tag 16 )
               └── authenticated ──┘

The key is derived from `console.key` for this purpose alone. So another server of the same host, to which browsers send
the same cookies, learns nothing of them, and a console after a restart, or another one of the cell, opens them. To
change a content: append fields with defaults; a cookie that is not understood is as good as none.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quaymaster.console.site import Credentials

VERSION: Final = 1
SESSION_COOKIE: Final = "quaymaster-session"
VISIT_COOKIE: Final = "quaymaster-visit"
"""Of a browser that has not signed in: it protects the sign-in form."""
COOKIE_CHARS_MAX: Final = 3_900
"""Browsers keep cookies of up to 4,096 bytes, with their names."""
CONSOLE_KEY_BYTES: Final = 32
_PURPOSES: Final = {SESSION_COOKIE: 1, VISIT_COOKIE: 2}
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_HEAD_BYTES: Final = 2


class Visit(msgspec.Struct, frozen=True, array_like=True):
    """A browser before it signs in. `csrf` is the token that its form must have."""

    csrf: str


class Session(msgspec.Struct, frozen=True, array_like=True):
    """Who signed in, with the credentials that pages act with."""

    csrf: str
    access_key_id: str
    secret: str
    session_token: str
    account: str
    arn: str
    name: str
    is_operator: bool
    expires_ms: int
    is_read_only: bool = False

    def __repr__(self) -> str:
        return f"Session({self.arn!r})"

    @property
    def credentials(self) -> Credentials:
        """The session's temporary credentials."""
        return Credentials(self.access_key_id, self.secret, self.session_token)


Content = TypeVar("Content", Visit, Session)


class Cookies:
    """Encrypts and opens cookies with a key derived from `console.key` (32 bytes)."""

    def __init__(self, console_key: bytes) -> None:
        assert len(console_key) == CONSOLE_KEY_BYTES, "console.key has 32 bytes"
        derived = HKDF(SHA256(), length=32, salt=None, info=b"quaymaster console cookies 1")
        self._cipher = AESGCM(derived.derive(console_key))

    def seal(self, name: str, content: Visit | Session) -> str:
        """Return a cookie's value."""
        head = bytes((VERSION, _PURPOSES[name]))
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = self._cipher.encrypt(nonce, msgspec.msgpack.encode(content), head)
        return (
            binascii.b2a_base64(head + nonce + encrypted, newline=False)
            .decode()
            .translate(_TO_URL)
            .rstrip("=")
        )

    def open(self, name: str, value: str | None, kind: type[Content]) -> Content | None:
        """Return what a cookie holds; None: there is none, it is damaged, foreign, or was another cookie's."""
        if not value or len(value) > COOKIE_CHARS_MAX:
            return None
        try:
            data = binascii.a2b_base64(value.translate(_FROM_URL) + "=" * (-len(value) % 4), strict_mode=True)
        except ValueError:  # not base64, or not ASCII
            return None
        head, nonce = data[:_HEAD_BYTES], data[_HEAD_BYTES : _HEAD_BYTES + _NONCE_BYTES]
        encrypted = data[_HEAD_BYTES + _NONCE_BYTES :]
        if head != bytes((VERSION, _PURPOSES[name])) or len(encrypted) < _TAG_BYTES:
            return None
        try:
            return msgspec.msgpack.decode(self._cipher.decrypt(nonce, encrypted, head), type=kind)
        except (InvalidTag, msgspec.MsgspecError):
            return None


def cookie_name(name: str, *, is_secure: bool) -> str:
    """Return a cookie's name in the browser. With `__Host-` no other host can have set it."""
    return f"__Host-{name}" if is_secure else name


def read_cookie(cookies: Mapping[str, str], name: str, *, is_secure: bool) -> str | None:
    """Return a cookie's value as the browser sent it."""
    return cookies.get(cookie_name(name, is_secure=is_secure))


_FROM_URL: Final = str.maketrans("-_", "+/")
_TO_URL: Final = str.maketrans("+/", "-_")
