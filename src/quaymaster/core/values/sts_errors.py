"""The errors that STS actions have besides those of every action. See `core/values/errors`.

Source: AWS STS API Reference, the errors of each action; wordings as the service sends them.
"""

from __future__ import annotations

from quaymaster.core.values.errors import CallerError


class STSError(CallerError):
    """An error that only STS actions have."""


class ValidationError(STSError):
    """A parameter is missing, not supported, or has a value that it cannot have."""

    @classmethod
    def of(cls, member: str, value: object, rule: str) -> ValidationError:
        """Return the error of one member, which breaks a rule."""
        shown = "null" if value is None else f"'{value}'"
        name = member[0].lower() + member[1:]
        return cls(
            f"1 validation error detected: Value {shown} at '{name}' failed to satisfy constraint: Member must {rule}"
        )


class MalformedPolicyDocument(STSError):
    """The session policy cannot be compiled."""


class PackedPolicyTooLarge(STSError):
    """The session policy is too large for a session token."""

    def __init__(self, percent: int) -> None:
        super().__init__(
            f"PackedPolicySize is {percent}% of the allowed size: packed policies are at most 100%."
        )


class ExpiredIdentityToken(STSError):
    """The web identity token was good once."""

    def __init__(self, message: str = "Token expired") -> None:
        super().__init__(message)


class InvalidIdentityToken(STSError):
    """The web identity token is none, or of an issuer or for an audience that is not configured."""


class IDPRejectedClaim(STSError):
    """A claim of the token cannot be used, although the identity provider vouches for it."""


class IDPCommunicationError(STSError):
    """The keys of the identity provider cannot be had now; trying again may help."""
