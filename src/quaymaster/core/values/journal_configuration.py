"""What coordination holds of a journal: who leads it, and who its members are."""

from __future__ import annotations

import msgspec


class JournalConfiguration(msgspec.Struct, frozen=True):
    """What coordination holds of a journal; one key, changed only by compare-and-swap.

    `previous_members` are the members of the last configuration that was activated. `learners` may change within an
    epoch, everything else is the epoch's.
    """

    epoch: int
    leader: str
    members: tuple[str, ...]
    previous_members: tuple[str, ...]
    activated: bool
    learners: tuple[str, ...] = ()


def activated_members(configuration: JournalConfiguration) -> tuple[str, ...]:
    """Return the members of the last configuration that was activated; of a new journal, all members."""
    if configuration.activated:
        return configuration.members
    return configuration.previous_members or configuration.members


def named_members(configuration: JournalConfiguration) -> set[str]:
    """Return every member that a configuration still needs."""
    named = {*configuration.members, *configuration.learners}
    return named if configuration.activated else named | {*configuration.previous_members}
