"""Web identity tokens: only what a known issuer signed, for us, and for now."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.sts_errors import ExpiredIdentityToken, IDPRejectedClaim, InvalidIdentityToken
from quaymaster.protocol.tokens.web_identity import (
    CLAIMS_MAX,
    HEADER_CHARS_MAX,
    KEY_SET_CHARS_MAX,
    KEYS_MAX,
    BadKeySet,
    Claimed,
    WebIdentity,
    is_issuer,
    parse_key_set,
    read_claim,
    verify,
)

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1_000
ISSUER = "https://oidc.example.com/ci"
AUDIENCE = "sts.amazonaws.com"
CLAIMS = {"iss": ISSUER, "sub": "repo:quay/master", "aud": AUDIENCE, "exp": NOW_S + 600}
RSA_KEY = rsa.generate_private_key(65_537, 2_048)
OTHER_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, **more: Any) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    )
    made: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return made | more


KEYS = json.dumps({"keys": [jwk(RSA_KEY, kid="r1"), jwk(EC_KEY, kid="e1", alg="ES256", use="sig")]})


def signed(
    claims: dict[str, Any] | None = None, key: Any = RSA_KEY, alg: str = "RS256", **header: Any
) -> str:
    return jwt.encode(CLAIMS | (claims or {}), key, alg, headers={"kid": "r1", **header})


def identity(token: str, keys: str = KEYS, now_ms: int = NOW_MS) -> WebIdentity:
    claimed = read_claim(token)
    key = parse_key_set(keys).find(claimed)
    assert key is not None, "the issuer has the key"
    return verify(token, key, claimed, (AUDIENCE, "other"), now_ms)


def raw(header: dict[str, Any], claims: object, signature: bytes = b"") -> str:
    # What Python writes of an infinity is no JSON.
    parts = [json.dumps(header).encode(), json.dumps(claims).replace("Infinity", "1e999").encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@pytest.mark.parametrize("token", [signed(), signed(key=EC_KEY, alg="ES256", kid="e1")])
def test_a_subject_that_the_issuer_vouches_for_is_known(token: str) -> None:
    found = identity(token)

    name = "oidc.example.com/ci"
    assert (found.issuer, found.subject, found.audience) == (name, "repo:quay/master", AUDIENCE)
    assert found.keys[f"{name}:sub"] == ("repo:quay/master",)
    assert found.keys[f"{name}:aud"] == (AUDIENCE,)


def test_claims_are_condition_keys_in_lower_case() -> None:
    name = "oidc.example.com/ci"
    odd = {
        "nested": {"a": 1},
        "mixed": ["a", {}],
        "with space": "a",
        "long": "x" * 2_049,
        "nothing": None,
        "none": [],
    }
    more = {"Ref": "main", "admin": True, "level": 3, "groups": ["a", "b"], "SUB": "else", **odd}

    keys = identity(signed({**more, "aud": ["x", "other"]})).keys

    assert keys[f"{name}:ref"] == ("main",)
    assert keys[f"{name}:admin"] == ("true",)
    assert keys[f"{name}:level"] == ("3",)
    assert keys[f"{name}:groups"] == ("a", "b")
    assert keys[f"{name}:aud"] == ("x", "other")
    assert f"{name}:sub" not in keys  # sub and SUB
    assert not {f"{name}:{claim}" for claim in odd} & keys.keys()


def test_so_many_claims_are_condition_keys_and_those_of_oidc_among_them() -> None:
    keys = identity(signed({f"a{number:03}": "x" for number in range(500)})).keys

    assert len(keys) <= CLAIMS_MAX
    assert "oidc.example.com/ci:sub" in keys


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b.c",
        "a.b",
        "\u00e9.\u00e9.\u00e9",
        jwt.encode(CLAIMS, "", "none"),
        jwt.encode(CLAIMS, "s" * 64, "HS256"),
        jwt.encode(CLAIMS, RSA_KEY, "RS512"),
        jwt.encode(CLAIMS, RSA_KEY, "PS256"),
        jwt.encode(CLAIMS, ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        jwt.encode(CLAIMS | {"exp": float("inf")}, RSA_KEY, "RS256"),
        raw({"alg": "RS256", "x": "y" * HEADER_CHARS_MAX}, CLAIMS),
        raw({"alg": "RS256"}, ["no", "object"]),
        raw({"alg": ["RS256"]}, CLAIMS),
        raw({"alg": "RS256", "kid": 7}, {"sub": "a"}),
        signed({"iss": "http://oidc.example.com"}),
        signed({"iss": "https://oidc.example.com/?a=b"}),
        ".".join([base64.urlsafe_b64encode(b"[" * 9_000).decode()] * 3),
        raw({"alg": "RS256"}, {})[:-1] + base64.urlsafe_b64encode(b'{"a":' * 3_000).decode() + ".",
    ],
)
def test_what_is_no_token_of_a_usable_kind_is_refused(token: str) -> None:
    with pytest.raises(InvalidIdentityToken):
        read_claim(token)


@given(st.text(max_size=200))
def test_any_text_is_refused(token: str) -> None:
    with pytest.raises(InvalidIdentityToken):
        read_claim(token)


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused() -> None:
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for algorithm in ("HS256", "RS256"):
        start = raw({"alg": algorithm, "kid": "r1"}, CLAIMS).rpartition(".")[0]
        forged = hmac.digest(public, start.encode(), hashlib.sha256)
        with pytest.raises(InvalidIdentityToken):
            identity(f"{start}.{base64.urlsafe_b64encode(forged).decode().rstrip('=')}")


@pytest.mark.parametrize("header", ["jku", "x5u", "jwk", "x5c"])
def test_where_a_token_says_its_key_is_does_not_matter(header: str) -> None:
    place: Any = {"jku": "https://evil.example.com/keys", "x5u": "https://evil.example.com", "x5c": ["MIIB"]}
    value = place.get(header, jwk(OTHER_KEY, kid="r1"))
    assert identity(signed(**{header: value})).subject == "repo:quay/master"
    with pytest.raises(InvalidIdentityToken, match="signature"):
        identity(signed(key=OTHER_KEY, **{header: value}))


def test_another_key_of_the_set_or_a_changed_claim_is_refused() -> None:
    head, claims, signature = signed().split(".")
    changed = raw({}, CLAIMS | {"sub": "admin"}).split(".")[1]
    for token in (f"{head}.{changed}.{signature}", signed(key=OTHER_KEY), f"{head}.{claims}."):
        with pytest.raises(InvalidIdentityToken, match="signature"):
            identity(token)


@pytest.mark.parametrize(
    ("claims", "error", "message"),
    [
        ({"exp": NOW_S}, ExpiredIdentityToken, "expired"),
        ({"exp": 0}, ExpiredIdentityToken, "expired"),
        ({"exp": None}, InvalidIdentityToken, "exp"),
        ({"exp": "soon"}, InvalidIdentityToken, "exp"),
        ({"exp": True}, InvalidIdentityToken, "exp"),
        ({"exp": float("inf")}, InvalidIdentityToken, "exp"),
        ({"exp": 10**400}, InvalidIdentityToken, "exp"),
        ({"nbf": NOW_S + 61}, InvalidIdentityToken, "nbf"),
        ({"nbf": "now"}, InvalidIdentityToken, "nbf"),
        ({"aud": "someone else"}, InvalidIdentityToken, "audience"),
        ({"aud": None}, InvalidIdentityToken, "audience"),
        ({"aud": [7, {}]}, InvalidIdentityToken, "audience"),
        ({"sub": ""}, IDPRejectedClaim, "sub"),
        ({"sub": "x" * 256}, IDPRejectedClaim, "sub"),
        ({"sub": None}, IDPRejectedClaim, "sub"),
    ],
)
def test_a_token_that_is_not_for_now_for_us_or_for_somebody_is_refused(
    claims: dict[str, Any], error: type[Exception], message: str
) -> None:
    header = {"alg": "RS256", "kid": "r1"}
    start = raw(header, CLAIMS | claims).rpartition(".")[0]
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(start.encode(), RSA_KEY)
    with pytest.raises(error, match=message):
        identity(f"{start}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}")


def test_a_token_that_names_another_issuer_to_those_who_verify_it_is_refused() -> None:
    token = signed()
    other = read_claim(token)._replace(issuer="https://other.example.com")

    with pytest.raises(InvalidIdentityToken, match="more than one issuer"):
        verify(token, parse_key_set(KEYS).find(other), other, (AUDIENCE,), NOW_MS)


def test_a_token_without_an_end_is_refused() -> None:
    token = jwt.encode(
        {name: CLAIMS[name] for name in ("iss", "sub", "aud")}, RSA_KEY, "RS256", headers={"kid": "r1"}
    )
    with pytest.raises(InvalidIdentityToken, match="exp"):
        identity(token)


def test_a_token_may_begin_a_minute_from_now() -> None:
    assert identity(signed({"nbf": NOW_S + 60})).audience == AUDIENCE


def test_a_token_that_names_no_key_is_of_the_only_one() -> None:
    one = parse_key_set(json.dumps({"keys": [jwk(RSA_KEY), jwk(EC_KEY, kid="e1")]}))
    two = parse_key_set(json.dumps({"keys": [jwk(RSA_KEY, kid="r1"), jwk(OTHER_KEY, kid="r2")]}))
    unnamed = Claimed(ISSUER, "RS256", "")

    assert one.find(unnamed) is not None
    assert two.find(unnamed) is None
    assert two.find(Claimed(ISSUER, "RS256", "r3")) is None
    assert two.find(Claimed(ISSUER, "ES256", "r1")) is None
    assert read_claim(raw({"alg": "RS256"}, CLAIMS)).key_id == ""


def test_keys_that_cannot_be_used_are_skipped() -> None:
    short = rsa.generate_private_key(65_537, 1_024)
    p384 = ec.generate_private_key(ec.SECP384R1())
    useless: list[Any] = [
        7,
        {"kty": "oct", "k": "c2VjcmV0", "kid": "o"},
        {"kty": "RSA", "n": "?", "e": "AQAB"},
        {"kty": "RSA"},
        jwk(short, kid="short"),
        jwk(p384, kid="p384"),
        jwk(RSA_KEY, kid="enc", use="enc"),
        jwk(RSA_KEY, kid="alg", alg="RS512"),
    ]
    found = parse_key_set(json.dumps({"keys": [*useless, jwk(RSA_KEY, kid="r1")]}))
    assert len(found) == 1
    with pytest.raises(BadKeySet, match="no key for RS256"):
        parse_key_set(json.dumps({"keys": useless}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys":{}}', '{"keys":[]}', "[" * 9_000, " " * (KEY_SET_CHARS_MAX + 1)]
)
def test_what_is_no_key_set_is_refused(text: str) -> None:
    with pytest.raises(BadKeySet):
        parse_key_set(text)


def test_so_many_keys_of_a_set_are_looked_at() -> None:
    key = jwk(EC_KEY)
    found = parse_key_set(json.dumps({"keys": [key | {"kid": str(number)} for number in range(100)]}))
    assert len(found) == KEYS_MAX


def test_issuers_are_https_urls_that_policies_can_name() -> None:
    assert is_issuer(ISSUER)
    for text in (
        "http://a",
        "https://",
        "https://a?b",
        "https://a#b",
        "https://a b",
        "https://a" + "b" * 255,
        "a",
    ):
        assert not is_issuer(text)
