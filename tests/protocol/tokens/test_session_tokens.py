"""Session tokens: only the server reads them, and only what it wrote."""

from __future__ import annotations

import base64
import random

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import InvalidClientTokenId
from quaymaster.net.http.message import HTTPLimits
from quaymaster.protocol.tokens.session_tokens import (
    HEAD_BYTES,
    PACKED_POLICY_BYTES_MAX,
    PURPOSE,
    TOKEN_CHARS_MAX,
    VERSION,
    PackedPolicyIsTooLarge,
    SessionContent,
    SessionTokens,
    UnknownTokenKey,
    pack_policy,
    packed_policy_percent,
    unpack_policy,
)

KEY, OTHER = b"k" * 32, b"o" * 32
NONCE = b"n" * 12
CONTENT = SessionContent(
    *(
        "ASIA" + "A" * 16,
        "secret-of-the-session",
        "111122223333",
        "session",
        "AROA" + "B" * 17,
        "ops/deployer",
    ),
    *("release-7", "AKIA" + "C" * 16, 1_690_000_000_000, 1_700_000_000_000, 1_700_003_600_000),
)


def tokens(key: bytes = KEY, key_id: int = 1) -> SessionTokens:
    made = SessionTokens()
    made.set_keys({key_id: key}, key_id)
    return made


def raw(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_token_gives_back_its_content_and_who_asks() -> None:
    opened = tokens().open(tokens().mint(CONTENT, NONCE))

    assert opened == CONTENT
    assert opened.requester == Requester(
        "111122223333", "session", CONTENT.unique_id, "ops/deployer", "release-7"
    )


def test_tokens_of_one_content_differ_by_their_nonce() -> None:
    assert tokens().mint(CONTENT, NONCE) != tokens().mint(CONTENT, b"m" * 12)


def test_token_shows_nothing_of_its_content() -> None:
    data = raw(tokens().mint(CONTENT, NONCE))

    for shown in (CONTENT.secret, CONTENT.name, CONTENT.parent_id, CONTENT.account_id):
        assert shown.encode() not in data
    for described in (repr(CONTENT), str(CONTENT), repr(tokens())):
        assert CONTENT.secret not in described
        assert "kkkk" not in described


@given(st.data())
def test_a_token_with_any_byte_changed_is_refused(data: st.DataObject) -> None:
    sealed = bytearray(raw(tokens().mint(CONTENT, NONCE)))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises((InvalidClientTokenId, UnknownTokenKey)) as refused:
        tokens().open(text(bytes(sealed)))
    assert refused.type is (UnknownTokenKey if 2 <= at < HEAD_BYTES else InvalidClientTokenId)


@given(st.data())
def test_a_token_that_was_cut_or_made_longer_is_refused(data: st.DataObject) -> None:
    sealed = raw(tokens().mint(CONTENT, NONCE))
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]

    for each in (cut, sealed + b"\0"):
        with pytest.raises(InvalidClientTokenId):
            tokens().open(text(each))


@pytest.mark.parametrize(
    "token", ["", "a", "?", "\u00e9" * 100, "A" * 200, "AQ" * TOKEN_CHARS_MAX, "ab=c", "a\nb="]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidClientTokenId):
        tokens().open(token)


@given(st.text(max_size=300))
def test_any_text_is_refused(token: str) -> None:
    with pytest.raises((InvalidClientTokenId, UnknownTokenKey)):
        tokens().open(token)


def test_a_token_of_another_server_is_refused() -> None:
    with pytest.raises(InvalidClientTokenId):
        tokens(OTHER).open(tokens().mint(CONTENT, NONCE))
    with pytest.raises(UnknownTokenKey) as unknown:
        tokens(key_id=2).open(tokens().mint(CONTENT, NONCE))
    assert unknown.value.key_id == 1
    assert "1" in str(unknown.value)


@pytest.mark.parametrize("head", [(VERSION, PURPOSE + 1), (VERSION + 1, PURPOSE), (0, 0)])
def test_a_token_of_another_purpose_or_version_is_refused_though_its_key_is_known(
    head: tuple[int, int],
) -> None:
    start = bytes(head) + (1).to_bytes(8)
    sealed = AESGCM(KEY).encrypt(b"n" * 12, msgspec.msgpack.encode(CONTENT), start)

    with pytest.raises(InvalidClientTokenId):
        tokens().open(text(start + b"n" * 12 + sealed))


def test_a_whole_token_with_a_content_of_another_form_is_refused() -> None:
    start = bytes((VERSION, PURPOSE)) + (1).to_bytes(8)
    sealed = AESGCM(KEY).encrypt(b"n" * 12, msgspec.msgpack.encode(["one"]), start)

    with pytest.raises(InvalidClientTokenId):
        tokens().open(text(start + b"n" * 12 + sealed))


def test_tokens_of_an_older_key_are_opened_while_it_is_kept() -> None:
    made = tokens()
    before = made.mint(CONTENT, NONCE)

    made.set_keys({1: KEY, 2: OTHER}, 2)
    assert made.current == 2
    assert (made.open(before), made.open(made.mint(CONTENT, NONCE))) == (CONTENT, CONTENT)

    made.set_keys({2: OTHER}, 2)
    with pytest.raises(UnknownTokenKey):
        made.open(before)


def test_the_longest_token_fits_a_requests_head_and_target() -> None:
    longest = SessionContent(
        *("A" * 20, "s" * 40, "1" * 12, "session", "A" * 21, "p" * 512 + "/" + "n" * 64, "s" * 64, "A" * 20),
        *(2**52, 2**52, 2**52, 2**52, bytes(PACKED_POLICY_BYTES_MAX)),
    )
    token = tokens(key_id=2**63).mint(longest, NONCE)

    limits = HTTPLimits()
    assert len(token) <= TOKEN_CHARS_MAX <= limits.target_bytes_max // 2
    assert limits.header_bytes_max >= 4 * TOKEN_CHARS_MAX
    assert tokens(key_id=2**63).open(token) == longest


def test_policies_are_packed_and_their_size_is_told_in_percent() -> None:
    policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sqs:*","Resource":"*"}]}'
    packed = pack_policy(policy)

    assert unpack_policy(packed) == policy
    assert len(packed) < len(policy)
    assert packed_policy_percent(bytes(1)) == 1
    assert packed_policy_percent(bytes(PACKED_POLICY_BYTES_MAX)) == 100


def test_a_policy_of_2048_characters_that_repeats_little_is_too_large() -> None:
    dense = "".join(map(chr, random.Random(1).choices(range(0x20, 0x100), k=2_048)))

    with pytest.raises(PackedPolicyIsTooLarge) as refused:
        pack_policy(dense)
    assert refused.value.packed_bytes > PACKED_POLICY_BYTES_MAX
