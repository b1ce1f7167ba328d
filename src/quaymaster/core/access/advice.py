"""What is likely not meant in a policy, although it can be evaluated: statements that match nothing, or too much."""

from __future__ import annotations

from typing import Final

from quaymaster.core.access.conditions import Comparing, Quantifier
from quaymaster.core.access.errors import shown
from quaymaster.core.access.keys import Presence, presence_of
from quaymaster.core.access.patterns import Pattern
from quaymaster.core.access.permissions import (
    BATCH_NAMES,
    NEVER_ASKED,
    PERMISSION_NAMES,
    ROLE_PERMISSION_NAMES,
)
from quaymaster.core.access.policies import CompiledPolicy
from quaymaster.core.access.statements import CompiledStatement

SECURE_TRANSPORT = "aws:securetransport"
_NAMES: Final = (*PERMISSION_NAMES.values(), *ROLE_PERMISSION_NAMES.values(), *BATCH_NAMES)


def advice_on(policy: CompiledPolicy) -> tuple[str, ...]:
    """Return a sentence for each thing in a policy that hardly means what its author thinks."""
    found = []
    for number, statement in enumerate(policy.statements, 1):
        name = f"Statement {shown(statement.sid) if statement.sid else number}"
        found += [f"{name}: {words}" for words in _advice_on_statement(statement)]
    return tuple(found)


def _advice_on_statement(statement: CompiledStatement) -> list[str]:
    found = []
    for pattern in sorted(statement.actions, key=_text_of):
        names = frozenset(filter(pattern.matches_always, _NAMES))
        if names and names <= BATCH_NAMES:
            found.append(
                f"{pattern.text} matches nothing; a batch needs the permission of its single action."
            )
        if names and names <= NEVER_ASKED and statement.is_denial and not statement.spares_actions:
            found.append(f"{pattern.text} cannot be denied; policies are not asked for it.")
    for condition in statement.conditions:
        if presence_of(condition.key) is Presence.NEVER:
            found.append(f"requests never have the key {condition.key}.")
        elif condition.key == SECURE_TRANSPORT:
            found.append(
                "aws:securetransport is true only for requests that came over TLS (`quaymaster edge`)."
            )
        is_for_all = isinstance(condition, Comparing) and condition.quantifier is Quantifier.ALL
        if is_for_all and not statement.is_denial:
            found.append(f"ForAllValues also allows requests without the key {condition.key}.")
    return found


def _text_of(pattern: Pattern) -> str:
    return pattern.text
