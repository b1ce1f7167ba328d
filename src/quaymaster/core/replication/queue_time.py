"""Queue time: a property of a journal, which each leader carries on. No I/O, no clock.

    follower ──what its leader tells, then its own monotonic clock──▶ elected ──▶ serving ──monotonic clock──▶
        ▲                                                                │
        ├── opened again in the same boot of its machine: the uptime says how long it was away
        └── opened: the last stamp, and how long it stood still is unknown: the clocks of a majority say it

Two clocks come in as numbers: `now_ms`, which does not jump (the host's own), and wall clocks, which may be wrong. The
rules:

- Queue time runs with the leader's monotonic clock. Followers hear it with each Append and carry it on themselves, so
  who is elected knows how long ago the last stamp was, whatever the wall clocks say.
- A replica that was stopped and started again knows it, too: the uptime of its machine says how long that took.
- Wall clocks are asked only when no replica of a majority knows that: the journal is empty, or all their machines were
  booted since. Then, before the first decision, queue time steps to what a majority of the members' clocks have
  reached; when those that are heard differ, others are waited for. The clock of a server alone is not believed when it
  claims more than ALONE_MAX_MS, and less than a majority's not at all when the others tell none (older programs do
  not). After a step of more than JUMP_MS messages expire only after an even hour.
- Afterwards there are no steps: queue time approaches that majority's clocks by a hundredth of the time that passes.
- While it is more than STEP_MAX_MS from them, nothing expires: until it is near again, until an operator says that the
  clocks are right, or, where queue time is behind and messages can only expire late, after an even hour.
"""

from __future__ import annotations

from typing import Final

STEP_MAX_MS: Final = 5_000
"""So far may wall clocks be from queue time before messages stop to expire."""
JUMP_MS: Final = 300_000
"""A journal that stood still for longer than this, as clocks say, holds expiry up: longer than a machine boots."""
MINUTE_MS: Final = 60_000
HOLD_MS: Final = 3_600_000
"""Expiry goes on after clocks went evenly for so long."""
ALONE_MAX_MS: Final = 4 * 86_400_000
"""No lone clock is believed that the journal stood still for longer."""
SLEW: Final = 100
"""One part in so many: how much faster or slower than the monotonic clock queue time runs to approach wall clocks."""
HEARD_MAX_MS: Final = 5_000
"""What another member said of its wall clock counts for so long."""
CLOCKS_WAIT_MS: Final = 5_000
"""An elect that must go by wall clocks which differ waits so long for others."""
FIRST_CLOCKS_WAIT_MS: Final = 15_000
"""So long for the first stamp of a journal, on which all later ones rest."""


class QueueTime:
    """The queue time of one replica. `last_stamp_ms` is its journal's, 0 when that is empty."""

    __slots__ = (
        "_clocks",
        "_doubt_gap_ms",
        "_doubt_since_ms",
        "_followed_ms",
        "_held_until_ms",
        "_last_stamp_ms",
        "_members",
        "_node",
        "_offset_ms",
        "_settled_ms",
        "_slew_rest",
        "_wall_offset_ms",
        "gap_ms",
        "is_doubtful",
        "is_known",
        "stepped_ms",
    )

    def __init__(self, last_stamp_ms: int = 0, now_ms: int = 0) -> None:
        self.is_known = False
        """Whether it was measured how much time passed since the journal's last stamp."""
        self.gap_ms = 0
        """How far wall clocks were ahead of queue time at the last look: a majority's when it leads, else its own."""
        self.is_doubtful = False
        """Whether that is so far that an operator should know."""
        self.stepped_ms = 0
        """How far it stepped when it was elected last, over time in which no replica measured any."""
        self._offset_ms = last_stamp_ms - now_ms
        self._last_stamp_ms = last_stamp_ms
        self._wall_offset_ms: int | None = None
        self._clocks: dict[str, tuple[int, int]] = {}
        """Of other members: their wall clock less the own monotonic one, and when it was heard."""
        self._node = ""
        self._members: tuple[str, ...] = ()
        """Of the epoch that it leads."""
        self._followed_ms = now_ms
        self._slew_rest = 0
        self._settled_ms = 0
        """A gap that was accepted: nothing is held for it, or for less."""
        self._doubt_gap_ms = 0
        self._doubt_since_ms = 0
        self._held_until_ms = now_ms

    # The time

    def at(self, now_ms: int) -> int:
        """Return the queue time at a moment of the monotonic clock."""
        return self._offset_ms + now_ms

    def told_ms(self, now_ms: int) -> int:
        """Return the queue time for other replicas, 0 when it is not known."""
        return self._offset_ms + now_ms if self.is_known else 0

    def wall_at(self, now_ms: int) -> int:
        """Return the host's wall clock for other replicas, 0 when it was never looked at."""
        return 0 if self._wall_offset_ms is None else self._wall_offset_ms + now_ms

    @property
    def settled_ms(self) -> int:
        """How far wall clocks may be from queue time, because that was accepted."""
        return self._settled_ms

    @property
    def expiry_is_held(self) -> bool:
        """Whether messages must not expire where it leads: queue time or the wall clocks may be wrong."""
        return bool(self._members) and (self.is_doubtful or self._followed_ms < self._held_until_ms)

    # What is heard, and what was before

    def resume(self, time_ms: int, now_ms: int) -> None:
        """The machine measured how much time passed while the process did not run."""
        self._offset_ms = max(self._offset_ms, time_ms - now_ms)
        self.is_known = True

    def settle(self, gap_ms: int) -> None:
        """This gap was accepted before the process ended."""
        self._settled_ms = gap_ms

    def note_wall(self, wall_ms: int, now_ms: int) -> None:
        """Note what the host's wall clock says."""
        self._wall_offset_ms = wall_ms - now_ms

    def hear_leader(self, time_ms: int, now_ms: int) -> None:
        """The leader told the queue time; 0 when it does not know it."""
        if time_ms:
            self._offset_ms = time_ms - now_ms
            self.is_known = True

    def hear_member(self, member: str, time_ms: int, wall_ms: int, now_ms: int) -> None:
        """A member that promised, or that follows, told its wall clock; the former the queue time, too.

        A number it does not know, or does not tell, is 0.
        """
        if wall_ms:
            self._clocks[member] = (wall_ms - now_ms, now_ms)
        if time_ms:
            offset_ms = time_ms - now_ms
            self._offset_ms = max(self._offset_ms, offset_ms) if self.is_known else offset_ms
            self.is_known = True

    # Leading

    def may_begin(self, node: str, members: tuple[str, ...], waited_ms: int, *, is_empty: bool) -> bool:
        """Tell whether an elect can carry the time on.

        It can when it knows the time, when the clocks of a majority agree, when there is no other clock to wait for,
        or when it has waited long enough.
        """
        if self.is_known or waited_ms >= (FIRST_CLOCKS_WAIT_MS if is_empty else CLOCKS_WAIT_MS):
            return True
        offsets = self._offsets(node, members, None)
        majority = len(members) // 2 + 1
        if len(offsets) == len(members):
            return True
        if len(offsets) < majority:
            return True  # of those that promised some tell no time
        spans = [
            offsets[first] - offsets[first + majority - 1] for first in range(len(offsets) - majority + 1)
        ]
        return min(spans) <= STEP_MAX_MS

    def elected(self, node: str, members: tuple[str, ...], last_stamp_ms: int, now_ms: int) -> int:
        """Carry the journal's time on: return that of the epoch's first record."""
        self._node, self._members = node, members
        self._last_stamp_ms = last_stamp_ms
        self.stepped_ms = 0
        self._offset_ms = max(self._offset_ms, last_stamp_ms - now_ms)
        self._catch_up(now_ms)
        return self.at(now_ms)

    def activated(self, now_ms: int) -> None:
        """Decisions are made from now on; more members may have told their clocks since it was elected."""
        self._catch_up(now_ms)
        self.is_known = True
        self.follow(now_ms)

    def deposed(self) -> None:
        """It leads no longer: who leads says how much time passes, and what the clocks are."""
        self._members = ()
        self._clocks.clear()

    def follow(self, now_ms: int) -> None:
        """Approach the wall clocks a little, and look whether they are far from queue time."""
        passed_ms, self._followed_ms = now_ms - self._followed_ms, now_ms
        agreed_ms = self._agreed_offset_ms(now_ms)
        if agreed_ms is None:
            return
        gap_ms = agreed_ms - self._offset_ms
        if self._members and self.is_known:
            slewed_ms = self._slew(gap_ms, passed_ms)
            gap_ms -= slewed_ms
            self._doubt_gap_ms -= slewed_ms
        self.gap_ms = gap_ms
        settled_ms = self._settled_ms = _nearer_zero(self._settled_ms, gap_ms)
        if min(0, settled_ms) - STEP_MAX_MS <= gap_ms <= max(0, settled_ms) + STEP_MAX_MS:
            self.is_doubtful = False
        elif not self.is_doubtful or abs(gap_ms - self._doubt_gap_ms) > STEP_MAX_MS:
            self.is_doubtful = True
            self._doubt_gap_ms, self._doubt_since_ms = gap_ms, now_ms
        elif gap_ms > 0 and now_ms - self._doubt_since_ms >= HOLD_MS:
            self._settled_ms = gap_ms
            self.is_doubtful = False

    def accept(self, now_ms: int) -> None:
        """An operator says that the wall clocks are right: step to them where they are ahead, hold nothing."""
        agreed_ms = self._agreed_offset_ms(now_ms)
        if agreed_ms is not None:
            if self._members:
                self._offset_ms = max(self._offset_ms, agreed_ms)
            self.gap_ms = self._settled_ms = agreed_ms - self._offset_ms
        self.is_doubtful = False
        self._held_until_ms = self._followed_ms

    # Helpers

    def _catch_up(self, now_ms: int) -> None:
        """Step over the time in which no replica measured any."""
        agreed_ms = None if self.is_known else self._agreed_offset_ms(now_ms, fewer=True)
        if agreed_ms is None:
            return
        ahead_ms = agreed_ms - self._offset_ms
        is_empty = self._last_stamp_ms == 0
        if ahead_ms <= 0 or not (is_empty or self._is_believed(ahead_ms)):
            return
        self._offset_ms = agreed_ms
        if is_empty:
            return
        self.stepped_ms += ahead_ms
        if ahead_ms > JUMP_MS:
            self._held_until_ms = now_ms + HOLD_MS

    def _agreed_offset_ms(self, now_ms: int, *, fewer: bool = False) -> int | None:
        """Return what a majority of the members' wall clocks have reached, less the monotonic one; None if unknown.

        `fewer`: of those that are known, when these are no majority (older programs tell none). A follower goes by its
        own clock.
        """
        since_ms = None if fewer else now_ms - HEARD_MAX_MS
        offsets = self._offsets(self._node, self._members, since_ms)
        majority = len(self._members) // 2 + 1
        if fewer:
            majority = min(majority, len(offsets))
        return offsets[majority - 1] if 0 < majority <= len(offsets) else None

    def _is_believed(self, ahead_ms: int) -> bool:
        """Tell whether so many clocks are known that the journal may have stood still for as long as they say."""
        if len(self._members) == 1:
            return ahead_ms <= ALONE_MAX_MS
        return len(self._offsets(self._node, self._members, None)) > len(self._members) // 2

    def _offsets(self, node: str, members: tuple[str, ...], since_ms: int | None) -> list[int]:
        """Return the members' wall clocks, the latest first, less the monotonic one; none without its own.

        `since_ms`: what was heard earlier does not count.
        """
        if self._wall_offset_ms is None:
            return []
        offsets = [self._wall_offset_ms]
        for member in members:
            heard = self._clocks.get(member)
            if member != node and heard is not None and (since_ms is None or heard[1] >= since_ms):
                offsets.append(heard[0])
        return sorted(offsets, reverse=True)

    def _slew(self, gap_ms: int, passed_ms: int) -> int:
        """Let queue time run a little faster or slower; return by how much."""
        step_ms, self._slew_rest = divmod(self._slew_rest + max(0, passed_ms), SLEW)
        step_ms = max(-step_ms, min(step_ms, gap_ms))
        self._offset_ms += step_ms
        return step_ms


def say_held(journal: int, ahead_ms: int, stepped_ms: int = 0) -> str:
    """Tell an operator that a journal holds expiry up: wall clocks are, or were, so far ahead of its queue time.

    `stepped_ms`: how far it stepped at its last start; after a long step nothing expires for an hour.
    """
    if stepped_ms > JUMP_MS and abs(ahead_ms) <= STEP_MAX_MS:
        return (
            f"nothing expires in journal {journal} for an hour: when it began to be led, its time stepped by "
            f"{stepped_ms / MINUTE_MS:,.0f} min to what a majority of clocks says. Stop its brokers if that is wrong"
        )
    seconds = ahead_ms / 1000
    return (
        f"nothing expires in journal {journal}: clocks are {abs(seconds):.1f} s "
        f"{'ahead of' if seconds > 0 else 'behind'} its time, or were lately"
    )


def _nearer_zero(settled_ms: int, gap_ms: int) -> int:
    """Return what is left of an accepted gap, now that it is `gap_ms`."""
    return max(0, min(settled_ms, gap_ms)) if settled_ms > 0 else min(0, max(settled_ms, gap_ms))
