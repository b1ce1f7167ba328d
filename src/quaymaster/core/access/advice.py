"""What is likely not meant in a policy, although it can be evaluated: statements that match nothing, or too much."""

from __future__ import annotations

from quaymaster.core.access.conditions import Comparing, Quantifier
from quaymaster.core.access.errors import shown
from quaymaster.core.access.keys import Presence, presence_of
from quaymaster.core.access.permissions import BATCH_NAMES
from quaymaster.core.access.policies import CompiledPolicy
from quaymaster.core.access.statements import CompiledStatement

SECURE_TRANSPORT = "aws:securetransport"


def advice_on(policy: CompiledPolicy) -> tuple[str, ...]:
    """Return a sentence for each thing in a policy that hardly means what its author thinks."""
    found = []
    for number, statement in enumerate(policy.statements, 1):
        name = f"Statement {shown(statement.sid) if statement.sid else number}"
        found += [f"{name}: {words}" for words in _advice_on_statement(statement)]
    return tuple(found)


def _advice_on_statement(statement: CompiledStatement) -> list[str]:
    batches = sorted(BATCH_NAMES & {pattern.literal for pattern in statement.actions})
    found = [
        f"{batch} matches nothing; a batch needs the permission of its single action." for batch in batches
    ]
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
