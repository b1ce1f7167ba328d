"""What must hold of the input of an STS action before it is carried out, with STS's limits and wordings.

Source: AWS STS API Reference; the public STS service model, 2011-06-15.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from quaymaster.core.access.errors import PolicyError
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.policies import CompiledPolicy, compile_policy
from quaymaster.core.values.sts_errors import MalformedPolicyDocument, PackedPolicyTooLarge, ValidationError
from quaymaster.protocol.sts.shapes import (
    AssumeRoleRequest,
    AssumeRoleWithWebIdentityRequest,
    GetSessionTokenRequest,
)
from quaymaster.protocol.tokens.session_tokens import (
    PACKED_POLICY_BYTES_MAX,
    PackedPolicyIsTooLarge,
    pack_policy,
)

SESSION_TOKEN_S_MIN: Final = 900
SESSION_TOKEN_S_MAX: Final = 129_600
SESSION_TOKEN_S_DEFAULT: Final = 43_200
ROOT_SESSION_S_MAX: Final = 3_600
ROLE_S_MIN: Final = 900
ROLE_S_MAX: Final = 43_200
ROLE_S_DEFAULT: Final = 3_600
CHAINED_S_MAX: Final = 3_600
POLICY_CHARS_MAX: Final = 2_048
TOKEN_CHARS_MIN: Final = 4
TOKEN_CHARS_MAX: Final = 20_000
ROLE_ARN_CHARS_MIN: Final = 20
ROLE_ARN_CHARS_MAX: Final = 2_048

_NAME: Final = re.compile(r"[\w+=,.@-]*", re.ASCII)
_EXTERNAL_ID: Final = re.compile(r"[\w+=,.@:/-]*", re.ASCII)
_POLICY: Final = re.compile(r"[\u0009\u000A\u000D\u0020-\u00FF]+")
_ROLE_ARN: Final = re.compile(
    r"arn:aws(?:-cn|-us-gov)?:iam::([0-9]{12}):role/((?:[!-~]+/)?([A-Za-z0-9_+=,.@-]{1,64}))", re.ASCII
)


class RoleAsked(NamedTuple):
    """What a request for a session of a role means.

    `path_name` is the role's name with its path; `policy` the session policy, with its packed form.
    """

    role_arn: str
    account_id: str
    path_name: str
    name: str
    session: str
    duration_s: int
    policy: CompiledPolicy | None = None
    packed_policy: bytes = b""
    external_id: str = ""


def check_session_token(given: GetSessionTokenRequest) -> int | None:
    """Return how many seconds the caller wants, None: as many as usual; ValidationError."""
    if given.DurationSeconds is not None:
        _check_range("DurationSeconds", given.DurationSeconds, SESSION_TOKEN_S_MIN, SESSION_TOKEN_S_MAX)
    return given.DurationSeconds


def session_seconds(asked_s: int | None, *, is_root: bool) -> int:
    """Return how long credentials of GetSessionToken last: those of root an hour at most, as in STS."""
    wanted_s = SESSION_TOKEN_S_DEFAULT if asked_s is None else asked_s
    return min(wanted_s, ROOT_SESSION_S_MAX) if is_root else wanted_s


def check_assume_role(given: AssumeRoleRequest) -> RoleAsked:
    """Return what a request means; ValidationError, MalformedPolicyDocument, PackedPolicyTooLarge."""
    asked = _check_role(given)
    if given.ExternalId is None:
        return asked
    _check_length("ExternalId", given.ExternalId, 2, 1_224)
    _check_pattern("ExternalId", given.ExternalId, _EXTERNAL_ID)
    return asked._replace(external_id=given.ExternalId)


def check_web_identity(given: AssumeRoleWithWebIdentityRequest) -> RoleAsked:
    """Return what a request means; the errors of `check_assume_role`."""
    asked = _check_role(given)
    token = given.WebIdentityToken
    if not token:
        raise ValidationError.of("WebIdentityToken", None, "not be null")
    if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:  # its value is secret
        bound = f"length between {TOKEN_CHARS_MIN} and {TOKEN_CHARS_MAX}"
        raise ValidationError.of("WebIdentityToken", "(not shown)", f"have {bound}")
    return asked


def check_duration_of_role(duration_s: int, *, role_s_max: int, is_chained: bool) -> None:
    """Raise ValidationError unless a session of a role may last so long.

    `is_chained`: the caller has temporary credentials itself.
    """
    if duration_s > role_s_max:
        raise ValidationError(
            "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."
        )
    if is_chained and duration_s > CHAINED_S_MAX:
        raise ValidationError(
            "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining."
        )


def _check_role(given: AssumeRoleRequest | AssumeRoleWithWebIdentityRequest) -> RoleAsked:
    for member, text, least, most in (
        ("RoleArn", given.RoleArn, ROLE_ARN_CHARS_MIN, ROLE_ARN_CHARS_MAX),
        ("RoleSessionName", given.RoleSessionName, 2, 64),
    ):
        if not text:
            raise ValidationError.of(member, None, "not be null")
        _check_length(member, text, least, most)
    _check_pattern("RoleSessionName", given.RoleSessionName, _NAME)
    arn = _ROLE_ARN.fullmatch(given.RoleArn)
    if arn is None:
        raise ValidationError(f"{given.RoleArn} is invalid")
    duration_s = ROLE_S_DEFAULT
    if given.DurationSeconds is not None:
        duration_s = given.DurationSeconds
        _check_range("DurationSeconds", duration_s, ROLE_S_MIN, ROLE_S_MAX)
    policy, packed = _check_policy(given.Policy)
    return RoleAsked(given.RoleArn, arn[1], arn[2], arn[3], given.RoleSessionName, duration_s, policy, packed)


def _check_policy(text: str | None) -> tuple[CompiledPolicy | None, bytes]:
    if text is None:
        return None, b""
    _check_length("Policy", text, 1, POLICY_CHARS_MAX)
    _check_pattern("Policy", text, _POLICY)
    try:
        policy = compile_policy(text, PolicyKind.IDENTITY)
        return policy, pack_policy(text)
    except PolicyError as error:
        raise MalformedPolicyDocument(str(error)) from None
    except PackedPolicyIsTooLarge as error:
        raise PackedPolicyTooLarge(-(-100 * error.packed_bytes // PACKED_POLICY_BYTES_MAX)) from None


def _check_range(member: str, value: int, least: int, most: int) -> None:
    if value < least:
        raise ValidationError.of(member, value, f"have value greater than or equal to {least}")
    if value > most:
        raise ValidationError.of(member, value, f"have value less than or equal to {most}")


def _check_length(member: str, text: str, least: int, most: int) -> None:
    if len(text) < least:
        raise ValidationError.of(member, text, f"have length greater than or equal to {least}")
    if len(text) > most:
        raise ValidationError.of(member, f"{text[:most]}...", f"have length less than or equal to {most}")


def _check_pattern(member: str, text: str, pattern: re.Pattern[str]) -> None:
    if pattern.fullmatch(text) is None:
        raise ValidationError.of(member, text, f"satisfy regular expression pattern: {pattern.pattern}")
