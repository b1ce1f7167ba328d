"""Web identity tokens: JWTs that an OpenID Connect issuer has signed for one of its subjects. No I/O, no clock.

    token ──read_claim──▶ who says that he issued it ──▶ his keys ──verify──▶ WebIdentity

Only RS256 and ES256 are taken, with keys of the issuer's own set. What a token says of where its key is (`jku`, `x5u`,
`jwk`, `x5c`) is never read. Texts of errors hold nothing of the token but its issuer.

Source: RFC 7515, RFC 7517, RFC 7519; OpenID Connect Core 1.0, section 2.
"""

from __future__ import annotations

import json
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from quaymaster.core.values.sts_errors import ExpiredIdentityToken, IDPRejectedClaim, InvalidIdentityToken

KEYS_MAX: Final = 32
"""Keys of a set that are looked at."""
KEY_SET_CHARS_MAX: Final = 65_536
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
"""A longer key makes each verification dear."""
CLAIMS_MAX: Final = 64
CLAIM_CHARS_MAX: Final = 2_048
SUBJECT_CHARS_MAX: Final = 255
NOT_BEFORE_LEEWAY_S: Final = 60
"""So far an issuer's clock may be ahead."""
HEADER_CHARS_MAX: Final = 4_096
SCHEME: Final = "https://"
_ISSUER: Final = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9._~:/-]{0,254}", re.ASCII)
_CLAIM: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_VERIFIED: Final = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


class _Header(msgspec.Struct):
    """What is read of a token's header."""

    alg: str = ""
    kid: str = ""


class _Claims(msgspec.Struct):
    """What is read of a token's claims before its signature was verified."""

    iss: str | None = None


_decode_header: Final = msgspec.json.Decoder(_Header).decode
_decode_claims: Final = msgspec.json.Decoder(_Claims).decode


class BadKeySet(Exception):
    """A text is no set of keys, or has none that can be used; the message says why."""


class Claimed(NamedTuple):
    """What a token says of itself; nothing of it is proven. `key_id` is empty where it names none."""

    issuer: str
    algorithm: str
    key_id: str


class WebIdentity(NamedTuple):
    """A subject that an issuer vouches for. `issuer` is without its scheme, as policies name it."""

    issuer: str
    subject: str
    audience: str
    keys: Mapping[str, tuple[str, ...]]
    """Claims as condition keys, ISSUER:claim in lower case."""


class KeySet:
    """The public keys of an issuer, by algorithm and id."""

    def __init__(self, keys: Mapping[tuple[str, str], Any]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, claimed: Claimed) -> Any:
        """Return the key that a token names; of a set of one also where it names none. None: there is no such key."""
        if not claimed.key_id:
            of_algorithm = [
                key for (algorithm, _), key in self._keys.items() if algorithm == claimed.algorithm
            ]
            return of_algorithm[0] if len(of_algorithm) == 1 else None
        return self._keys.get((claimed.algorithm, claimed.key_id))


def is_issuer(text: str) -> bool:
    """Tell whether a text can be an issuer: an https URL without query, as trust policies can name it."""
    return _ISSUER.fullmatch(text) is not None


def parse_key_set(text: str) -> KeySet:
    """Return the keys of a JSON Web Key Set that can be used; others in it are skipped. BadKeySet."""
    if len(text) > KEY_SET_CHARS_MAX:
        raise BadKeySet(f"The key set has more than {KEY_SET_CHARS_MAX} characters.")
    try:
        listed = json.loads(text)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadKeySet('The key set is not a JSON object with "keys".') from None
    if not isinstance(listed, list):
        raise BadKeySet('The "keys" of the key set are not a list.')
    keys: dict[tuple[str, str], Any] = {}
    for given in listed[:KEYS_MAX]:
        found = _parse_key(given)
        if found is not None:
            algorithm, key = found
            keys[algorithm, str(given.get("kid", ""))] = key
    if not keys:
        raise BadKeySet(
            f"The key set has no key for RS256 (RSA, {RSA_BITS_MIN} to {RSA_BITS_MAX} bits) or ES256 (P-256)."
        )
    return KeySet(keys)


def _parse_key(given: Any) -> tuple[str, Any] | None:
    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    algorithm = {"RSA": "RS256", "EC": "ES256"}.get(str(given.get("kty")))
    if algorithm is None or given.get("alg", algorithm) != algorithm:
        return None
    try:
        key = jwt.PyJWK({name: given[name] for name in given if name != "d"}, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey):
        return (algorithm, key) if RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX else None
    is_p256 = isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)
    return (algorithm, key) if is_p256 else None


def read_claim(token: str) -> Claimed:
    """Return what a token says of itself; InvalidIdentityToken where it is none, or of another algorithm.

    Anyone may send one: no more of it is looked at than what is returned. One of 18 KiB costs a tenth of a millisecond.
    """
    parts = token.split(".")
    if len(parts) != 3 or len(parts[0]) > HEADER_CHARS_MAX:
        raise InvalidIdentityToken("The web identity token is no JWT.")
    try:
        header = _decode_header(_bytes_of(parts[0]))
        if header.alg not in ("RS256", "ES256"):
            raise InvalidIdentityToken("The web identity token must be signed with RS256 or ES256.")
        issuer = _decode_claims(_bytes_of(parts[1])).iss
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise InvalidIdentityToken("The web identity token is no JWT.") from None
    if not isinstance(issuer, str) or not is_issuer(issuer):
        raise InvalidIdentityToken("The web identity token has no issuer (iss) that is an https URL.")
    return Claimed(issuer, header.alg, header.kid)


def _bytes_of(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def verify(token: str, key: Any, claimed: Claimed, audiences: tuple[str, ...], now_ms: int) -> WebIdentity:
    """Return whom a token of `claimed.issuer` names, whose key `key` is.

    Raises:
        InvalidIdentityToken: that key did not sign it, it is for another audience, not valid yet, or has no end.
        IDPRejectedClaim: it names no subject that policies could ask for.
        ExpiredIdentityToken: it was valid once.
    """
    try:
        claims = jwt.decode(token, key, algorithms=[claimed.algorithm], options=_VERIFIED)  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise InvalidIdentityToken("The signature of the web identity token does not hold.") from None
    if claims.get("iss") != claimed.issuer:
        raise InvalidIdentityToken("The web identity token has more than one issuer (iss).")
    now_s = now_ms / 1_000
    ends_s = _time(claims, "exp")
    if ends_s is None:
        raise InvalidIdentityToken("The web identity token has no end (exp).")
    if ends_s <= now_s:
        raise ExpiredIdentityToken
    if "nbf" in claims and not (_time(claims, "nbf") or math.inf) <= now_s + NOT_BEFORE_LEEWAY_S:
        raise InvalidIdentityToken("The web identity token is not valid yet (nbf).")
    given = claims.get("aud")
    named = given if isinstance(given, list) else [given]
    audience = next((one for one in named if isinstance(one, str) and one in audiences), None)
    if audience is None:
        raise InvalidIdentityToken("Incorrect token audience")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS_MAX:
        raise IDPRejectedClaim(
            f"The web identity token has no subject (sub) of up to {SUBJECT_CHARS_MAX} characters."
        )
    issuer = claimed.issuer.removeprefix(SCHEME)
    return WebIdentity(issuer, subject, audience, _condition_keys(issuer, claims))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time of a token in seconds; None where it is none."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _condition_keys(issuer: str, claims: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the claims that conditions can ask for. Of two whose names differ by case alone there is neither."""
    keys: dict[str, tuple[str, ...]] = {}
    for name in sorted(claims, key=lambda name: name not in ("sub", "aud"))[:CLAIMS_MAX]:
        values = _texts(claims[name])
        if values and _CLAIM.fullmatch(name) is not None:
            key = f"{issuer}:{name}".lower()
            keys[key] = () if key in keys else values
    return {key: values for key, values in keys.items() if values}


def _texts(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    texts: list[str] = []
    for one in listed[:CLAIMS_MAX]:
        match one:
            case bool():
                texts.append("true" if one else "false")
            case str() | int() if len(str(one)) <= CLAIM_CHARS_MAX:
                texts.append(str(one))
            case _:
                return ()
    return tuple(texts)
