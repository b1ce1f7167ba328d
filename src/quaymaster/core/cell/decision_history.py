"""What all managers of a cell decided, put together: each tells of its last decisions since it was started.

told by m1  ··· c d e      what was kept of m1 before c stays: m1 may have forgotten it
told by m2  x y            the newest of all of them are kept, in their order
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from quaymaster.core.cell.decisions import DecisionTaken, ManagerDecisions, is_same_decision

KEPT_MAX: Final = 1_000


class KeptDecision(msgspec.Struct, frozen=True):
    """A decision, and the manager that took it."""

    manager: str
    taken: DecisionTaken


def merge_decisions(kept: Iterable[KeptDecision], told: Iterable[ManagerDecisions]) -> list[KeptDecision]:
    """Return the last KEPT_MAX decisions, the oldest first."""
    by_manager = {one.manager: one.decisions for one in told if one.decisions}
    merged = [one for one in kept if not _is_told(one, by_manager.get(one.manager, ()))]
    merged += [
        KeptDecision(manager, taken) for manager, all_of_it in by_manager.items() for taken in all_of_it
    ]
    return sorted(merged, key=lambda one: one.taken.at_ms)[-KEPT_MAX:]


def _is_told(kept: KeptDecision, told: tuple[DecisionTaken, ...]) -> bool:
    """Tell whether what a manager tells has a decision, which may have been repeated since."""
    if not told:
        return False
    first = told[0]
    return kept.taken.at_ms >= first.at_ms or (
        first.times > kept.taken.times and is_same_decision(kept.taken, first)
    )


def say_decision(taken: DecisionTaken) -> str:
    """Return a decision in words, as in `ReplaceMember of journal 3: broker b2, leader b1, epoch 18`."""
    decision = taken.decision
    about = "" if decision.journal is None else f" of journal {decision.journal}"
    named = (("broker", decision.broker), ("leader", decision.leader), ("epoch", decision.epoch))
    more = ", ".join(f"{name} {value}" for name, value in named if value is not None)
    result = "" if taken.result == "done" else f" – {taken.result}"
    times = "" if taken.times == 1 else f", {taken.times} times"
    return f"{decision.action}{about}{': ' if more else ''}{more}{result}{times}"


def why_decided(taken: DecisionTaken) -> str:
    """Return why, and what went wrong where something did."""
    reason = taken.decision.reason
    return reason if taken.error is None else f"{reason}; {taken.error}"
