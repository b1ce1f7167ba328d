"""Session tokens: what the server knows of temporary credentials travels with them, and is stored nowhere.

    base64url( version 1 │ purpose 1 │ key id 8 │ nonce 12 │ AES-256-GCM( MessagePack of SessionContent ) │ tag 16 )
               └──────── authenticated ────────┘

Nothing of the content can be read or changed without the key. The header is authenticated, so a token of another
purpose, or of a later version, is refused even where the keys are the same. To change the content: append fields with
defaults, or raise VERSION and keep reading the old one for as long as a session lasts.

A token has at most TOKEN_CHARS_MAX characters, which fit into a request's head (`net/http/message.HTTPLimits`) and, as
a presigned URL has it, into its target.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import InvalidClientTokenId

VERSION: Final = 1
PURPOSE: Final = 1
"""Credentials of a session. Tokens for something else get another number."""
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
HEAD_BYTES: Final = 10
TOKEN_CHARS_MAX: Final = 6_144
PACKED_POLICY_BYTES_MAX: Final = 2_048
"""Bytes of a session policy in a token, compressed."""
_POLICY_BYTES_MAX: Final = 8_192
"""Bytes of a session policy in UTF-8: 2,048 characters have fewer."""

Kind = Literal["root", "user", "session"]


class PackedPolicyIsTooLarge(Exception):
    """A session policy takes `packed_bytes`, more than PACKED_POLICY_BYTES_MAX."""

    def __init__(self, packed_bytes: int) -> None:
        super().__init__(f"a session policy packs into {packed_bytes} bytes")
        self.packed_bytes = packed_bytes


class UnknownTokenKey(Exception):
    """A token says that it is encrypted with a key that is not here: a new one, or one that never was."""

    def __init__(self, key_id: int) -> None:
        super().__init__(f"token key {key_id} is not known")
        self.key_id = key_id


class SessionContent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a token says of its session. Times are in ms.

    `kind`, `unique_id`, `name` (with its path) and `session` are those of `Requester`. `parent_id` is the long-lived
    access key that the session goes back to, as it was after its secret was changed last at `parent_rotated_ms`; ""
    where a web identity or a password got the session. `generation` is the `sessions_generation` of the user or role;
    of root its key's: it changes when all sessions are revoked. `packed_policy`: the session policy, see `pack_policy`;
    empty: there is none.
    """

    access_key_id: str
    secret: str
    account_id: str
    kind: Kind
    unique_id: str
    name: str
    session: str
    parent_id: str
    parent_rotated_ms: int
    issued_ms: int
    expires_ms: int
    generation: int = 0
    packed_policy: bytes = b""

    def __repr__(self) -> str:
        return f"SessionContent({self.access_key_id!r}, account_id={self.account_id!r}, kind={self.kind!r})"

    __str__ = __repr__

    @property
    def requester(self) -> Requester:
        """Who asks with the session's credentials."""
        return Requester(self.account_id, self.kind, self.unique_id, self.name, self.session)


class SessionTokens:
    """Mints and opens tokens with the keys of the moment. `keys` are of 32 bytes each, by their ids."""

    def __init__(self) -> None:
        self._ciphers: dict[int, AESGCM] = {}
        self._current: int | None = None

    def __repr__(self) -> str:
        return f"SessionTokens(keys={sorted(self._ciphers)}, current={self._current})"

    @property
    def current(self) -> int | None:
        """The id of the key that new tokens are encrypted with; None while there is none."""
        return self._current

    def set_keys(self, keys: Mapping[int, bytes], current: int | None) -> None:
        """Open tokens of these keys, and mint with the key `current`, which is one of them; None: with none."""
        assert current is None or current in keys, "tokens are minted with a key that opens them"
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._current = current

    def mint(self, content: SessionContent, nonce: bytes) -> str:
        """Return a token with a content. `nonce`: NONCE_BYTES random bytes, which no other token has."""
        assert len(nonce) == NONCE_BYTES, "a nonce has its length"
        key_id = self._current
        assert key_id is not None, "there is a key before tokens are asked for"
        head = bytes((VERSION, PURPOSE)) + key_id.to_bytes(8)
        sealed = self._ciphers[key_id].encrypt(nonce, _encode(content), head)
        token = _to_text(head + nonce + sealed)
        assert len(token) <= TOKEN_CHARS_MAX, "names, policies and sessions have bounds"
        return token

    def open(self, token: str) -> SessionContent:
        """Return the content of a token; whether it has expired is for the caller to judge.

        Raises:
            InvalidClientTokenId: it is damaged, foreign, or of another purpose.
            UnknownTokenKey: its key is not here.
        """
        data = _from_text(token)
        if len(data) < HEAD_BYTES + NONCE_BYTES + TAG_BYTES or data[:2] != bytes((VERSION, PURPOSE)):
            raise InvalidClientTokenId
        head = data[:HEAD_BYTES]
        key_id = int.from_bytes(head[2:])
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise UnknownTokenKey(key_id)
        nonce_end = HEAD_BYTES + NONCE_BYTES
        try:
            return _decode(cipher.decrypt(data[HEAD_BYTES:nonce_end], data[nonce_end:], head))
        except (InvalidTag, msgspec.MsgspecError):
            raise InvalidClientTokenId from None


def pack_policy(text: str) -> bytes:
    """Return a session policy as a token has it; PackedPolicyIsTooLarge."""
    packed = zlib.compress(text.encode(), 9)
    if len(packed) > PACKED_POLICY_BYTES_MAX:
        raise PackedPolicyIsTooLarge(len(packed))
    return packed


def unpack_policy(packed: bytes) -> str:
    """Return the text of a session policy that a token has."""
    return zlib.decompressobj().decompress(packed, _POLICY_BYTES_MAX).decode()


def packed_policy_percent(packed: bytes) -> int:
    """Return how much of the allowed size a packed policy takes, in percent, rounded up."""
    return -(-100 * len(packed) // PACKED_POLICY_BYTES_MAX)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(SessionContent).decode
_FROM_URL: Final = str.maketrans("-_", "+/")


def _to_text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode().translate(str.maketrans("+/", "-_")).rstrip("=")


def _from_text(token: str) -> bytes:
    if len(token) > TOKEN_CHARS_MAX:
        raise InvalidClientTokenId
    padded = token.translate(_FROM_URL) + "=" * (-len(token) % 4)
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:  # not base64, or not ASCII
        raise InvalidClientTokenId from None
