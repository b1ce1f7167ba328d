"""One statement of a policy: whom it names, which actions and resources it is about, and when it applies.

    Effect · Principal or NotPrincipal · Action or NotAction · Resource or NotResource · Condition

Source: IAM User Guide, "Grammar of the IAM JSON policy language"; Amazon SQS Developer Guide, "Limitations of custom
policies".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from quaymaster.core.access.arns import PARTITIONS, ArnPattern, one_matches, parse_arn_pattern
from quaymaster.core.access.conditions import Comparing, Condition, Quantifier, parse_conditions
from quaymaster.core.access.documents import text_of, texts_of
from quaymaster.core.access.errors import (
    PolicyElementIsUnknown,
    PolicyElementsConflict,
    PolicyLacks,
    PolicyValueIsWrong,
)
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.operations import ADMIN_SERVICE, OPERATION_NAMES
from quaymaster.core.access.patterns import FindValues, Pattern, Wildcard, parse_pattern
from quaymaster.core.access.permissions import (
    BATCH_NAMES,
    MONITORING_PERMISSION_NAMES,
    MONITORING_SERVICE,
    PERMISSION_NAMES,
    ROLE_PERMISSION_NAMES,
    ROLE_SERVICE,
    SERVICE,
)
from quaymaster.core.access.principals import Naming, Principals, Requester, parse_principals

_STATEMENT: Final = "A statement"
_ELEMENTS: Final = frozenset(
    {
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    }
)
_ACTION: Final = re.compile(r"([a-z]+):([a-z*?]+)", re.ASCII)
_KNOWN_NAMES: Final = {
    SERVICE: frozenset(PERMISSION_NAMES.values()) | BATCH_NAMES,
    ROLE_SERVICE: frozenset(ROLE_PERMISSION_NAMES.values()),
    ADMIN_SERVICE: frozenset(OPERATION_NAMES.values()),
}
"""The actions of each service. Those of CloudWatch are left out: it has more than there are here, and policies written
for it may name them all."""
_SERVICES: Final = {
    PolicyKind.QUEUE: frozenset({SERVICE}),
    PolicyKind.IDENTITY: frozenset({SERVICE, ROLE_SERVICE, MONITORING_SERVICE, ADMIN_SERVICE}),
    PolicyKind.TRUST: frozenset({ROLE_SERVICE}),
}
"""Whose actions a policy can be about."""
_ASKED_NAMES: Final = _KNOWN_NAMES | {MONITORING_SERVICE: frozenset(MONITORING_PERMISSION_NAMES.values())}
ACTIONS_OF: Final = {
    kind: frozenset(name for service in services for name in _ASKED_NAMES[service]) - BATCH_NAMES
    for kind, services in _SERVICES.items()
}
"""The actions that requests ask policies of each kind for."""
_RESOURCES_OF: Final = {
    PolicyKind.QUEUE: frozenset({SERVICE}),
    PolicyKind.IDENTITY: frozenset({SERVICE, ROLE_SERVICE, "iam", MONITORING_SERVICE, ADMIN_SERVICE}),
}
"""Whose resources. Roles are resources of IAM."""
_RESOURCES_MEANT: Final = {
    PolicyKind.QUEUE: "it must be * or the ARN of a queue",
    PolicyKind.IDENTITY: "it must be * or the ARN of a queue, a role, an alarm or a dashboard",
}
_SUBJECT: Final = ":sub"


class AccessRequest(msgspec.Struct, frozen=True, gc=False):
    """What is asked: by whom, for which action (as in `PERMISSION_NAMES` and its like), on whose resource.

    `resource` is an ARN's segments, `find` gives the values of condition keys. `can_cross`: whether the action can be
    allowed to other accounts than the owner.
    """

    requester: Requester
    action: str
    resource: tuple[str, ...]
    owner: str
    find: FindValues
    can_cross: bool = True


class ResourceCondition(NamedTuple):
    """Asks whether a resource, given by its ARN's segments, is one of those that a statement is about, or is spared."""

    resources: tuple[ArnPattern, ...]
    resource: tuple[str, ...]
    is_spared: bool

    def holds(self, find: FindValues) -> bool:
        """Tell whether it holds for a request."""
        return one_matches(self.resources, self.resource, find) != self.is_spared


Question = Condition | ResourceCondition
"""What is left to ask of a request whose requester, action and resource are known."""


@dataclass(frozen=True, slots=True)
class CompiledStatement:
    """A statement that can be asked. `principals` is None in a policy of an identity, which is about that alone."""

    sid: str
    is_denial: bool
    principals: Principals | None
    spares_principals: bool
    actions: tuple[Pattern, ...]
    spares_actions: bool
    resources: tuple[ArnPattern, ...]
    """Empty: the queue whose policy it is."""
    spares_resources: bool
    conditions: tuple[Condition, ...]

    def concerns(self, action: str) -> bool:
        """Tell whether it is about an action, which is given as in `PERMISSION_NAMES`."""
        return any(pattern.matches_always(action) for pattern in self.actions) != self.spares_actions

    def narrowed(self, request: AccessRequest) -> tuple[Naming, tuple[Question, ...]]:
        """Return how it names the requester where all these questions are answered with yes.

        `Naming.NONE` where it does not apply, whatever condition keys the request has.
        """
        naming = self._naming(request.requester, request.owner)
        if naming is Naming.NONE or not self.resources:
            return naming, self.conditions
        condition = ResourceCondition(self.resources, request.resource, self.spares_resources)
        if any(resource.has_variables for resource in self.resources):
            return naming, (condition, *self.conditions)
        return (naming if condition.holds(request.find) else Naming.NONE), self.conditions

    def _naming(self, requester: Requester, owner: str) -> Naming:
        if self.principals is None:
            return Naming.DIRECT
        if self.spares_principals:
            return Naming.NONE if self.principals.spares(requester, owner) else Naming.DIRECT
        return self.principals.naming(requester, owner)


def parse_statement(
    given: Any, kind: PolicyKind, *, has_variables: bool, unique_ids: Mapping[str, str]
) -> CompiledStatement:
    """Return the statement that a JSON value is. Raises PolicyError."""
    if not isinstance(given, dict):
        raise PolicyValueIsWrong("Statement", given, "it must be an object or a list of objects")
    for name in given:
        if name not in _ELEMENTS:
            raise PolicyElementIsUnknown(_STATEMENT, name)
    sid = text_of("Sid", given.get("Sid", ""))
    effect = given.get("Effect")
    if effect not in ("Allow", "Deny"):
        raise PolicyValueIsWrong("Effect", effect, "it must be Allow or Deny")
    is_denial = effect == "Deny"
    actions, spares_actions = _parse_actions(given, kind)
    resources, spares_resources = _parse_resources(given, kind, has_variables)
    principals, spares_principals = _parse_principals(given, kind, unique_ids)
    if spares_principals and not is_denial:
        raise PolicyValueIsWrong("Effect", effect, "NotPrincipal needs the effect Deny")
    conditions = parse_conditions(given.get("Condition", {}), kind, has_variables=has_variables)
    if principals is not None and principals.issuers and not is_denial:
        _check_subject_is_asked(conditions)
    return CompiledStatement(
        sid=sid,
        is_denial=is_denial,
        principals=principals,
        spares_principals=spares_principals,
        actions=actions,
        spares_actions=spares_actions,
        resources=resources,
        spares_resources=spares_resources,
        conditions=conditions,
    )


def _parse_principals(
    given: dict[str, Any], kind: PolicyKind, unique_ids: Mapping[str, str]
) -> tuple[Principals | None, bool]:
    if kind is PolicyKind.IDENTITY:
        for element in ("Principal", "NotPrincipal"):
            if element in given:
                raise PolicyElementIsUnknown("A statement of an identity's policy", element)
        return None, False
    element = _one_of(given, "Principal")
    return parse_principals(element, given[element], kind, unique_ids), element == "NotPrincipal"


def _check_subject_is_asked(conditions: tuple[Condition, ...]) -> None:
    """Raise PolicyLacks unless a token's subject is compared: an issuer gives tokens to more than one."""
    for condition in conditions:
        if (
            isinstance(condition, Comparing)
            and condition.key.endswith(_SUBJECT)
            and not (condition.is_negated or condition.if_exists or condition.quantifier is Quantifier.ALL)
        ):
            return
    raise PolicyLacks("A statement that allows tokens of an issuer", "a condition on ISSUER:sub")


def _parse_actions(given: dict[str, Any], kind: PolicyKind) -> tuple[tuple[Pattern, ...], bool]:
    element = _one_of(given, "Action")
    return tuple(
        _parse_action(element, text, kind) for text in texts_of(element, given[element])
    ), element == "NotAction"


def _parse_action(element: str, text: str, kind: PolicyKind) -> Pattern:
    pattern = parse_pattern(text, has_variables=False, folds_case=True)
    if text == "*":
        return pattern
    match = _ACTION.fullmatch(text.lower())
    if match is None or match[1] not in _SERVICES[kind]:
        services = ", ".join(sorted(_SERVICES[kind]))
        raise PolicyValueIsWrong(element, text, f"it must be * or an action of {services}")
    known = _KNOWN_NAMES.get(match[1])
    if known is not None and not any(pattern.matches_always(name) for name in known):
        raise PolicyValueIsWrong(element, text, "there is no such action")
    return pattern


def _parse_resources(
    given: dict[str, Any], kind: PolicyKind, has_variables: bool
) -> tuple[tuple[ArnPattern, ...], bool]:
    if kind is PolicyKind.TRUST:
        for name in ("Resource", "NotResource"):
            if name in given:
                raise PolicyElementIsUnknown("A statement of a trust policy", name)
        return (), False
    if kind is PolicyKind.QUEUE and "Resource" not in given and "NotResource" not in given:
        return (), False
    element = _one_of(given, "Resource")
    patterns = []
    for text in texts_of(element, given[element]):
        pattern = parse_arn_pattern(element, text, has_variables=has_variables, is_completed=True)
        _, partition, service, *_ = pattern.segments
        if not (_is_one_of(partition, PARTITIONS) and _is_one_of(service, _RESOURCES_OF[kind])):
            raise PolicyValueIsWrong(element, text, _RESOURCES_MEANT[kind])
        patterns.append(pattern)
    return tuple(patterns), element == "NotResource"


def _one_of(given: dict[str, Any], name: Literal["Principal", "Action", "Resource"]) -> str:
    """Return which of an element and its negation is given; one must be."""
    negated = f"Not{name}"
    if name in given and negated in given:
        raise PolicyElementsConflict(_STATEMENT, name)
    if name in given:
        return name
    if negated not in given:
        raise PolicyLacks(_STATEMENT, f"{name} or {negated}")
    return negated


def _is_one_of(pattern: Pattern, texts: frozenset[str]) -> bool:
    return pattern.parts == (Wildcard.ANY,) or pattern.literal in texts
