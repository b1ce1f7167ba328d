"""How much may wait in one place, for a leader or for the answers of a broker: no account has more than half of it.

    commands ──▶ up to commands_max, bytes_max ──┐
    long polls ─▶ up to polls_max                ├──▶ half of each for the queues of one account

Commands count for the account that owns their queue, as in the turns of brokers. Accounts are known while they have
something in the room. Commands of no account ("", such as those about a journal) have the whole room.
"""

from __future__ import annotations

import msgspec


class RoomLimits(msgspec.Struct, frozen=True):
    """What a room takes. `is_shared`: there are several accounts, each of which has half at most."""

    commands_max: int
    """Commands, long polls aside."""
    bytes_max: int
    """Bytes of those commands."""
    polls_max: int
    is_shared: bool = False

    def part(self) -> RoomLimits:
        """Return what one account may have."""
        if not self.is_shared:
            return self
        return RoomLimits(-(-self.commands_max // 2), -(-self.bytes_max // 2), -(-self.polls_max // 2))


class Occupancy(msgspec.Struct, gc=False):
    """What is in a room, of all or of one account."""

    commands: int = 0
    bytes: int = 0
    polls: int = 0

    def has_room(self, limits: RoomLimits, size: int, *, is_poll: bool) -> bool:
        """Return whether one more command of so many bytes is within the limits."""
        if is_poll:
            return self.polls < limits.polls_max
        return self.commands < limits.commands_max and self.bytes + size <= limits.bytes_max

    def change(self, by: int, size: int, *, is_poll: bool) -> None:
        """Count one command that came (1) or went (-1). The bytes of long polls are not counted."""
        if is_poll:
            self.polls += by
        else:
            self.commands += by
            self.bytes += by * size


class Room:
    """One place with what waits there."""

    __slots__ = ("_accounts", "_limits", "_part", "all")

    def __init__(self, limits: RoomLimits) -> None:
        self.all = Occupancy()
        self._limits = limits
        self._part = limits.part()
        self._accounts: dict[str, Occupancy] = {}

    def has_room(self, account_id: str, size: int, *, is_poll: bool) -> bool:
        """Return whether one more command of an account may come in."""
        if not self.all.has_room(self._limits, size, is_poll=is_poll):
            return False
        if not account_id:
            return True
        theirs = self._accounts.get(account_id, _NOTHING)
        return theirs.has_room(self._part, size, is_poll=is_poll)

    def enter(self, account_id: str, size: int, *, is_poll: bool) -> None:
        """Count a command that came in."""
        self.all.change(1, size, is_poll=is_poll)
        if account_id:
            theirs = self._accounts.get(account_id)
            if theirs is None:
                theirs = self._accounts[account_id] = Occupancy()
            theirs.change(1, size, is_poll=is_poll)

    def leave(self, account_id: str, size: int, *, is_poll: bool) -> None:
        """Count a command that left: of the account and size with which it entered."""
        self.all.change(-1, size, is_poll=is_poll)
        if account_id:
            theirs = self._accounts[account_id]
            theirs.change(-1, size, is_poll=is_poll)
            if not theirs.commands and not theirs.polls:
                del self._accounts[account_id]


_NOTHING = Occupancy()
