"""Requests and answers of the admin API by which people sign in: keys, passwords, links that work once."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.core.values import errors
from quaymaster.protocol.admin.members import AccountId, AdminRequest, Change, Nothing, OfAccount, PathName
from quaymaster.protocol.admin.operation import NOT_THERE, AdminOperation, row

SIGN_IN_MS: Final = 12 * 3_600_000
LINK_MS: Final = 60_000
BODY_BYTES_MAX: Final = 4_096
"""Of a sign-in that is not signed."""
PASSWORD_CHARS_MIN: Final = 12
PASSWORD_CHARS_MAX: Final = 256
READ_ONLY_POLICY: Final = (
    '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Resource":"*","Action":["quaymaster:Get*",'
    '"quaymaster:List*","quaymaster:PeekMessages","sqs:Get*","sqs:List*","cloudwatch:Get*","cloudwatch:List*",'
    '"cloudwatch:Describe*"]}}'
)
"""The session policy of those who sign in to look only."""

NewPassword = Annotated[str, Meta(min_length=PASSWORD_CHARS_MIN, max_length=PASSWORD_CHARS_MAX)]


class SignInRequest(AdminRequest, frozen=True, kw_only=True):
    """Signed with a long-lived key: for that. Else an account, a user and its password, or the token of a link."""

    account_id: AccountId | None = None
    user: Annotated[str, Meta(max_length=64)] | None = None
    password: Annotated[str, Meta(max_length=PASSWORD_CHARS_MAX)] | None = None
    token: Annotated[str, Meta(max_length=128)] | None = None
    read_only: Annotated[bool, Meta(description="Temporary credentials that change nothing.")] = False


class SignedInView(Change, frozen=True, kw_only=True):
    """Who signed in, and temporary credentials."""

    account_id: str
    arn: str
    name: Annotated[str, Meta(description="For people to read: the user, or `root`.")]
    is_operator: Annotated[bool, Meta(description="It is of the default account.")]
    is_read_only: bool
    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_ms: int


class SignInLinkView(Change, frozen=True, kw_only=True):
    """A link that signs in once."""

    url: str
    token: str
    expires_ms: int


class SetPasswordRequest(OfAccount, frozen=True, kw_only=True):
    name: PathName
    password: NewPassword


class UserOfPassword(OfAccount, frozen=True, kw_only=True):
    name: PathName


class PasswordView(Change, frozen=True, kw_only=True):
    account_id: str
    name: str
    has_password: bool


def _sign_in(
    name: str, path: str, request: type[AdminRequest], answer: type[Change], says: str, *, is_unsigned: bool
) -> AdminOperation:
    method: Literal["POST"] = "POST"
    return AdminOperation(
        name=name,
        method=method,
        path=path,
        request=request,
        answer=answer,
        says=says,
        permission=None,
        errors=(errors.AccessDenied,),
        who="owner",
        is_change=True,
        is_unsigned=is_unsigned,
    )


SIGN_IN_OPERATIONS: Final = (
    _sign_in(
        "SignIn",
        "sign-in",
        SignInRequest,
        SignedInView,
        "Returns temporary credentials for 12 hours: of the key that signed the request, of a user with its password, "
        "or of a link's key. The last two need no signature.",
        is_unsigned=True,
    ),
    _sign_in(
        "CreateSignInLink",
        "sign-in-links",
        Nothing,
        SignInLinkView,
        "Makes a link to the console that signs in the caller's key once, within a minute.",
        is_unsigned=False,
    ),
    row(
        "POST",
        "users/{name}/password",
        Operation.SET_USER_PASSWORD,
        SetPasswordRequest,
        PasswordView,
        "Gives a user a password for the console, in place of the one it had. Its temporary credentials end.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "users/{name}/password",
        Operation.DELETE_USER_PASSWORD,
        UserOfPassword,
        PasswordView,
        "Takes a user's password. Its temporary credentials end.",
        errors=NOT_THERE,
        who="owner",
    ),
)
