"""The input and output of each STS action, with the service's own member names.

An absent member is None. Optional parameters of STS that are not here are refused: see `query`.

Source: the public STS service model, 2011-06-15; a test keeps the members equal to it.
"""

from __future__ import annotations

from quaymaster.protocol.sqs.shapes import Shape


class Credentials(Shape, frozen=True):
    """Temporary credentials; `Expiration` is in ISO 8601."""

    AccessKeyId: str
    SecretAccessKey: str
    SessionToken: str
    Expiration: str

    def __repr__(self) -> str:
        return f"Credentials({self.AccessKeyId!r})"

    __str__ = __repr__


class AssumedRoleUser(Shape, frozen=True):
    """A role session: `AROA...:session`, and its ARN."""

    AssumedRoleId: str
    Arn: str


class GetCallerIdentityRequest(Shape, frozen=True):
    """Asks who signed the request."""


class GetCallerIdentityResult(Shape, frozen=True):
    """Who that is."""

    UserId: str
    Account: str
    Arn: str


class GetSessionTokenRequest(Shape, frozen=True):
    """Asks for temporary credentials of the caller."""

    DurationSeconds: int | None = None


class GetSessionTokenResult(Shape, frozen=True):
    """Temporary credentials of the caller."""

    Credentials: Credentials


class AssumeRoleRequest(Shape, frozen=True):
    """Asks for a session of a role."""

    RoleArn: str = ""
    RoleSessionName: str = ""
    Policy: str | None = None
    DurationSeconds: int | None = None
    ExternalId: str | None = None


class AssumeRoleResult(Shape, frozen=True):
    """A session of a role. `PackedPolicySize` is in percent, None without a session policy."""

    Credentials: Credentials
    AssumedRoleUser: AssumedRoleUser
    PackedPolicySize: int | None = None


class AssumeRoleWithWebIdentityRequest(Shape, frozen=True):
    """Asks for a session of a role with a token of an identity provider."""

    RoleArn: str = ""
    RoleSessionName: str = ""
    WebIdentityToken: str = ""
    Policy: str | None = None
    DurationSeconds: int | None = None

    def __repr__(self) -> str:
        return f"AssumeRoleWithWebIdentityRequest({self.RoleArn!r}, {self.RoleSessionName!r})"

    __str__ = __repr__


class AssumeRoleWithWebIdentityResult(Shape, frozen=True):
    """A session of a role, and whom the identity provider named."""

    Credentials: Credentials
    SubjectFromWebIdentityToken: str
    AssumedRoleUser: AssumedRoleUser
    Provider: str
    Audience: str
    PackedPolicySize: int | None = None
