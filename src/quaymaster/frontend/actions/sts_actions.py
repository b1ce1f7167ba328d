"""STS on the SQS endpoint: who asks, and temporary credentials.

    GetSessionToken  ──▶ a session of the user or root key that asks
    AssumeRole       ──▶ may the principal? ──▶ a session of the role
    ... WithWebIdentity ──▶ is the token good? ──▶ may its subject? ──▶ a session of the role

A caller that may not assume a role is told the same whether there is such a role or not.

Source: AWS STS API Reference; AWS IAM User Guide, "Requesting temporary security credentials".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NoReturn, Protocol

from quaymaster.core.access.permissions import RolePermission
from quaymaster.core.access.policies import PolicyInForce
from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import AccessDenied
from quaymaster.core.values.sts_errors import InvalidIdentityToken
from quaymaster.frontend.call import Call
from quaymaster.frontend.callers.issuer_keys import IssuerInForce, IssuerKeys
from quaymaster.frontend.callers.principal import Principal
from quaymaster.protocol.sts import shapes
from quaymaster.protocol.sts.validation import RoleAsked, check_duration_of_role, session_seconds
from quaymaster.protocol.tokens.session_tokens import SessionContent, packed_policy_percent
from quaymaster.protocol.tokens.web_identity import Claimed, WebIdentity, read_claim, verify

_MS: Final = 1_000
_NO_PARENT: Final = ("", 0)
"""A web identity has no access key."""

Parent = tuple[str, int]
"""The long-lived access key that asks, and when it was changed last."""
MayAssume = Callable[
    [Call, Principal, RolePermission, PolicyInForce, str, Mapping[str, tuple[str, ...]]], bool
]
"""`RoleAuthorization.may_assume`."""


class NewSession(Protocol):
    """Temporary credentials that were just made."""

    @property
    def content(self) -> SessionContent: ...
    @property
    def token(self) -> str: ...


class RoleLimits(Protocol):
    """What a role's row says of its sessions."""

    @property
    def session_max_s(self) -> int: ...
    @property
    def sessions_generation(self) -> int: ...


class RoleInForce(Protocol):
    """A role as metadata keeps it."""

    @property
    def row(self) -> RoleLimits: ...
    @property
    def unique_id(self) -> str: ...
    @property
    def full_name(self) -> str: ...
    @property
    def trust_policy(self) -> PolicyInForce: ...


class SessionService(Protocol):
    """The part of the metadata service that makes sessions. Errors are those of `core/values/errors`."""

    def create(self, access_key_id: str, duration_ms: int, packed_policy: bytes = b"") -> NewSession: ...

    def of_caller(
        self, requester: Requester, parent: Parent, duration_ms: int, packed_policy: bytes = b""
    ) -> NewSession: ...

    def find_role(self, account_id: str, full_name: str) -> RoleInForce | None: ...

    def begin(
        self,
        requester: Requester,
        parent: Parent,
        duration_ms: int,
        generation: int,
        packed_policy: bytes = b"",
    ) -> NewSession: ...


class AudienceIssuer(IssuerInForce, Protocol):
    """An issuer of web identity tokens as metadata keeps it, with those for whom its tokens may be."""

    @property
    def audiences(self) -> tuple[str, ...]: ...


class IssuerService(Protocol):
    """The part of the metadata service that finds issuers."""

    def find(self, issuer: str) -> AudienceIssuer | None: ...


class STSActions:
    """The handlers of the actions of STS."""

    def __init__(
        self,
        sessions: SessionService,
        may_assume: MayAssume,
        *,
        issuers: IssuerService | None,
        issuer_keys: IssuerKeys,
        now_ms: Callable[[], int],
    ) -> None:
        """`issuers`: those of web identity tokens; None: none are taken. `now_ms` is the wall clock."""
        self._sessions = sessions
        self._may_assume = may_assume
        self._issuers = issuers
        self._issuer_keys = issuer_keys
        self._now_ms = now_ms

    async def get_caller_identity(
        self, call: Call, given: shapes.GetCallerIdentityRequest
    ) -> shapes.GetCallerIdentityResult:
        """Return who signed the request; no policy can deny that."""
        requester = call.principal.requester
        return shapes.GetCallerIdentityResult(
            UserId=user_id_of(requester), Account=requester.account_id, Arn=requester.arn
        )

    async def get_session_token(
        self, call: Call, given: shapes.GetSessionTokenRequest
    ) -> shapes.GetSessionTokenResult:
        """Return temporary credentials of a user or root key, with all its permissions."""
        principal = call.principal
        _check_has_key(principal)
        if principal.is_session:
            raise AccessDenied("Cannot call GetSessionToken with session credentials")
        asked_s: int | None = call.meant
        seconds = session_seconds(asked_s, is_root=principal.is_root)
        session = self._sessions.of_caller(principal.requester, _parent_of(principal), seconds * _MS)
        return shapes.GetSessionTokenResult(credentials_of(session))

    async def assume_role(self, call: Call, given: shapes.AssumeRoleRequest) -> shapes.AssumeRoleResult:
        """Return a session of a role, if its trust policy and the policies of the principal allow that."""
        asked: RoleAsked = call.meant
        principal = call.principal
        _check_has_key(principal)
        if principal.is_root:
            raise AccessDenied("Roles may not be assumed by root accounts.")
        role = self._sessions.find_role(asked.account_id, asked.path_name)
        keys: dict[str, tuple[str, ...]] = {"sts:rolesessionname": (asked.session,)}
        if asked.external_id:
            keys["sts:externalid"] = (asked.external_id,)
        permission = RolePermission.ASSUME_ROLE
        if role is None or not self._may_assume(
            call, principal, permission, role.trust_policy, asked.role_arn, keys
        ):
            raise AccessDenied(
                f"User: {principal.requester.arn} is not authorized to perform: sts:{permission} on resource: "
                f"{asked.role_arn}"
            )
        check_duration_of_role(
            asked.duration_s, role_s_max=role.row.session_max_s, is_chained=principal.is_session
        )
        session = self._begin(asked, role, _parent_of(principal))
        return shapes.AssumeRoleResult(credentials_of(session), _user_of(session), packed_percent(asked))

    def _begin(self, asked: RoleAsked, role: RoleInForce, parent: Parent) -> NewSession:
        requester = Requester(asked.account_id, "session", role.unique_id, role.full_name, asked.session)
        return self._sessions.begin(
            requester, parent, asked.duration_s * _MS, role.row.sessions_generation, asked.packed_policy
        )

    async def assume_role_with_web_identity(
        self, call: Call, given: shapes.AssumeRoleWithWebIdentityRequest
    ) -> shapes.AssumeRoleWithWebIdentityResult:
        """Return a session of a role, for a token of an issuer that operators have set."""
        asked: RoleAsked = call.meant
        claimed, identity = await self._identity_of(given.WebIdentityToken)
        permission = RolePermission.ASSUME_ROLE_WITH_WEB_IDENTITY
        role = self._sessions.find_role(asked.account_id, asked.path_name)
        keys = {**identity.keys, "sts:rolesessionname": (asked.session,)}
        requester = Requester("", "web identity", "", identity.issuer, identity.subject)
        subject = Principal("", "", "", requester, is_root=False)
        if role is None or not self._may_assume(
            call, subject, permission, role.trust_policy, asked.role_arn, keys
        ):
            raise AccessDenied(f"Not authorized to perform sts:{permission}")
        check_duration_of_role(asked.duration_s, role_s_max=role.row.session_max_s, is_chained=False)
        session = self._begin(asked, role, _NO_PARENT)
        content = session.content
        # The record of this call is of whom it made known.
        call.principal = Principal(
            asked.account_id,
            content.access_key_id,
            user_id_of(content.requester),
            content.requester,
            is_root=False,
        )
        return shapes.AssumeRoleWithWebIdentityResult(
            credentials_of(session),
            identity.subject,
            _user_of(session),
            claimed.issuer,
            identity.audience,
            packed_percent(asked),
        )

    def claimed_issuer(self, given: shapes.AssumeRoleWithWebIdentityRequest) -> str:
        """Return the issuer that a token claims to be of, if it is one that operators set; InvalidIdentityToken.

        Cheap: nothing of the token is proven.
        """
        return self._claim(given.WebIdentityToken)[0].issuer

    def _claim(self, token: str) -> tuple[Claimed, AudienceIssuer]:
        if self._issuers is None:
            raise AccessDenied("Web identity tokens are not taken here: the setting oidc_issuers is off.")
        claimed = read_claim(token)
        issuer = self._issuers.find(claimed.issuer)
        if issuer is None:
            raise InvalidIdentityToken(
                f"No OpenIDConnect provider found in your account for {claimed.issuer}"
            )
        return claimed, issuer

    async def _identity_of(self, token: str) -> tuple[Claimed, WebIdentity]:
        """Return whom a token names; InvalidIdentityToken, ExpiredIdentityToken, IDPCommunicationError."""
        claimed, issuer = self._claim(token)
        key = await self._issuer_keys.find(issuer, claimed)
        if key is None:
            raise InvalidIdentityToken("The issuer has no key of the id that the web identity token names.")
        return claimed, verify(token, key, claimed, issuer.audiences, self._now_ms())


def credentials_of(session: NewSession) -> shapes.Credentials:
    """Return a new session as answers have it."""
    content = session.content
    end = datetime.fromtimestamp(content.expires_ms // _MS, UTC)
    return shapes.Credentials(
        content.access_key_id, content.secret, session.token, end.strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def user_id_of(requester: Requester) -> str:
    """Return the id that answers and aws:userid have: the account's, the user's, or `AROA...:session`."""
    if requester.is_root:
        return requester.account_id
    return f"{requester.unique_id}:{requester.session}" if requester.session else requester.unique_id


def packed_percent(asked: RoleAsked) -> int | None:
    """Return the size of a session policy as answers have it, None without one."""
    return packed_policy_percent(asked.packed_policy) if asked.packed_policy else None


def _user_of(session: NewSession) -> shapes.AssumedRoleUser:
    requester = session.content.requester
    return shapes.AssumedRoleUser(user_id_of(requester), requester.arn)


def _parent_of(principal: Principal) -> Parent:
    return principal.parent_id, principal.parent_rotated_ms


def _check_has_key(principal: Principal) -> None:
    if not principal.access_key_id:
        _refuse_open()


def _refuse_open() -> NoReturn:
    raise AccessDenied(
        "Temporary credentials are made of access keys; with authentication = open nobody asks with one."
    )
