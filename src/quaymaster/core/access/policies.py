"""Policies, compiled: read once, checked in full, and asked for each request.

    text ──parse_document──▶ JSON ──▶ statements ──▶ by action: statements that deny, statements that allow
    one requester, action, resource ──narrowed──▶ only conditions are left to ask, for each request

A policy in force is a CompiledPolicy or an UnreadablePolicy: a stored text that does not compile, which denies
everybody but the owner's root.

Source: IAM User Guide, "Grammar of the IAM JSON policy language"; Amazon SQS Developer Guide, "Quotas related to
policies".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from quaymaster.core.access.documents import parse_document, text_of
from quaymaster.core.access.errors import (
    PolicyElementIsUnknown,
    PolicyError,
    PolicyIsTooLarge,
    PolicyLacks,
    PolicyRepeats,
    PolicyValueIsWrong,
)
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.patterns import FindValues
from quaymaster.core.access.principals import Naming
from quaymaster.core.access.statements import (
    ACTIONS_OF,
    AccessRequest,
    CompiledStatement,
    Question,
    parse_statement,
)

QUEUE_POLICY_BYTES_MAX: Final = 8_192
QUEUE_POLICY_STATEMENTS_MAX: Final = 20
QUEUE_POLICY_PRINCIPALS_MAX: Final = 50
QUEUE_POLICY_CONDITIONS_MAX: Final = 10
IDENTITY_POLICY_BYTES_MAX: Final = 6_144
TRUST_POLICY_BYTES_MAX: Final = 2_048
SESSION_POLICY_CHARS_MAX: Final = 2_048
OLD_VERSION: Final = "2008-10-17"
"""The default. It has no variables."""
NEW_VERSION: Final = "2012-10-17"
_ELEMENTS: Final = frozenset({"Version", "Id", "Statement"})


class Outcome(Enum):
    """What a policy says of a request."""

    DENIES = "denies"
    NOTHING = "nothing"
    ALLOWS_INDIRECTLY = "allows the account or role"
    ALLOWS = "allows"


class Narrowed(NamedTuple):
    """What a policy says of one requester's action on one resource: only questions about condition keys are left.

    Each entry stands for a statement, which applies if all its questions are answered with yes.
    """

    denying: tuple[tuple[Question, ...], ...] = ()
    allowing: tuple[tuple[Question, ...], ...] = ()
    allowing_indirectly: tuple[tuple[Question, ...], ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing left to ask."""
        return not (any(self.denying) or any(self.allowing) or any(self.allowing_indirectly))

    def outcome(self, find: FindValues) -> Outcome:
        """Return what it says of a request with these values of condition keys."""
        denying, allowing, indirectly = self
        if denying and _one_applies(denying, find):
            return Outcome.DENIES
        if allowing and _one_applies(allowing, find):
            return Outcome.ALLOWS
        if indirectly and _one_applies(indirectly, find):
            return Outcome.ALLOWS_INDIRECTLY
        return Outcome.NOTHING


NOTHING_SAID: Final = Narrowed()
_ALWAYS: Final[tuple[tuple[Question, ...], ...]] = ((),)


def _one_applies(statements: tuple[tuple[Question, ...], ...], find: FindValues) -> bool:
    for questions in statements:
        for question in questions:
            if not question.holds(find):
                break
        else:
            return True
    return False


class _Statements(NamedTuple):
    denying: tuple[CompiledStatement, ...]
    allowing: tuple[CompiledStatement, ...]


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """A policy that can be asked. Two are equal if their JSON says the same."""

    document: dict[str, Any]
    statements: tuple[CompiledStatement, ...] = field(compare=False, repr=False)
    _actions: frozenset[str] = field(compare=False, repr=False)
    """The actions that it can be about."""
    _by_action: dict[str, _Statements] = field(compare=False, repr=False, default_factory=dict)
    """The statements about each of them that was asked for."""

    def outcome(self, request: AccessRequest) -> Outcome:
        """Return what it says of a request."""
        return self.narrowed(request).outcome(request.find)

    def narrowed(self, request: AccessRequest) -> Narrowed:
        """Return what it says of all requests of this requester for this action on this resource."""
        statements = self._by_action.get(request.action)
        if statements is None:
            if request.action not in self._actions:
                return NOTHING_SAID
            statements = self._by_action[request.action] = _of_action(self.statements, request.action)
        denying = [statement.narrowed(request) for statement in statements.denying]
        allowing = [statement.narrowed(request) for statement in statements.allowing]
        return Narrowed(
            tuple(questions for naming, questions in denying if naming),
            tuple(questions for naming, questions in allowing if naming is Naming.DIRECT),
            tuple(questions for naming, questions in allowing if naming is Naming.INDIRECT),
        )

    @property
    def identities(self) -> tuple[str, ...]:
        """The ARNs of users, roles and sessions that it names, in order."""
        named = [each.principals for each in self.statements if each.principals is not None]
        return tuple(arn for principals in named for arn in principals.identities)


class UnreadablePolicy(NamedTuple):
    """A stored policy that does not compile, and why: it denies everybody but the owner's root."""

    why: PolicyError

    def outcome(self, request: AccessRequest) -> Outcome:
        """Return what it says of a request."""
        return self.narrowed(request).outcome(request.find)

    def narrowed(self, request: AccessRequest) -> Narrowed:
        """Return what it says of all requests of this requester for this action on this resource."""
        requester = request.requester
        is_owner = requester.is_root and requester.account_id == request.owner
        return NOTHING_SAID if is_owner else Narrowed(denying=_ALWAYS)


PolicyInForce = CompiledPolicy | UnreadablePolicy


def compile_policy(
    text: str, kind: PolicyKind = PolicyKind.QUEUE, unique_ids: Mapping[str, str] | None = None
) -> CompiledPolicy:
    """Return the policy in a text. `unique_ids`: of the users, roles and sessions that it names, by ARN.

    Raises:
        PolicyError: it is wrong. Its size is not checked: see `check_queue_policy_size`.
    """
    document = parse_document(text)
    for name in document:
        if name not in _ELEMENTS:
            raise PolicyElementIsUnknown("A policy", name)
    version = document.get("Version", OLD_VERSION)
    if version not in (OLD_VERSION, NEW_VERSION):
        raise PolicyValueIsWrong("Version", version, f"it must be {OLD_VERSION} or {NEW_VERSION}")
    text_of("Id", document.get("Id", ""))
    given = document.get("Statement")
    listed = given if isinstance(given, list) else [given]
    if given is None or not listed:
        raise PolicyLacks("A policy", "a Statement")
    statements = tuple(
        parse_statement(statement, kind, has_variables=version == NEW_VERSION, unique_ids=unique_ids or {})
        for statement in listed
    )
    _check_sids(statements)
    return CompiledPolicy(document, statements, ACTIONS_OF[kind])


def read_policy(
    text: str, kind: PolicyKind = PolicyKind.QUEUE, unique_ids: Mapping[str, str] | None = None
) -> PolicyInForce:
    """Return the policy in force whose stored text this is."""
    try:
        return compile_policy(text, kind, unique_ids)
    except PolicyError as error:
        return UnreadablePolicy(error)


def check_queue_policy_size(text: str, policy: CompiledPolicy) -> None:
    """Raise PolicyIsTooLarge unless a queue may be given a policy of this size."""
    statements = policy.statements
    principals = sum(each.principals.count for each in statements if each.principals is not None)
    for what, count, count_max in (
        ("bytes", len(text.encode()), QUEUE_POLICY_BYTES_MAX),
        ("statements", len(statements), QUEUE_POLICY_STATEMENTS_MAX),
        ("principals", principals, QUEUE_POLICY_PRINCIPALS_MAX),
        ("conditions", sum(len(each.conditions) for each in statements), QUEUE_POLICY_CONDITIONS_MAX),
    ):
        if count > count_max:
            raise PolicyIsTooLarge(what, count, count_max)


def check_policy_bytes(text: str, bytes_max: int) -> None:
    """Raise PolicyIsTooLarge unless a policy's text is small enough."""
    count = len(text.encode())
    if count > bytes_max:
        raise PolicyIsTooLarge("bytes", count, bytes_max)


def _of_action(statements: tuple[CompiledStatement, ...], action: str) -> _Statements:
    concerned = [statement for statement in statements if statement.concerns(action)]
    return _Statements(
        tuple(statement for statement in concerned if statement.is_denial),
        tuple(statement for statement in concerned if not statement.is_denial),
    )


def _check_sids(statements: tuple[CompiledStatement, ...]) -> None:
    known: set[str] = set()
    for statement in statements:
        if statement.sid in known:
            raise PolicyRepeats("Sid", statement.sid)
        if statement.sid:
            known.add(statement.sid)
