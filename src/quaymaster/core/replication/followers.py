"""What a leader knows of the other replicas of its log, and what it sends each of them next.

    probed ──the logs agree up to somewhere──▶ fed from memory ◀──what memory lacks is read──▶ reading
      ▲  ▲                                            │                                           │
      │  └────────── Mismatch, or no room ────────────┘                          gone from the disk, too
      └───────────────────────────── copied ◀── copying ◀─────────────────────────────────────────┘

A follower that is probed gets one empty message at a time, until it is known where its log and the leader's agree. How
much is on its way to one is bounded. Learners are fed like members, and count nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from quaymaster.core.replication.effects import Effects, ReadLog
from quaymaster.core.replication.log_tail import LogTail
from quaymaster.core.replication.messages import Appended, DiskPressure, Mismatch
from quaymaster.core.values.records import Batch

LEASE_MS: Final = 1_000
"""Who heard its leader less long ago lets a candidate wait."""
HEARTBEAT_MS: Final = 250
PROBE_MS: Final = 100
"""A follower that did not match is asked again after so long."""
MESSAGE_BYTES_MAX: Final = 256 * 1024
"""Batches in one message; a single batch may be larger."""
UNANSWERED_BYTES_MAX: Final = 4 << 20
"""So much is on its way to a follower at most."""


class Portion(NamedTuple):
    """What a follower is sent next: the batches behind `previous_end`, or nothing but that the leader is there."""

    member: str
    previous_end: int
    previous_chain: int
    batches: list[Batch]
    is_heartbeat: bool = False


class Follower:
    """What the leader knows of a member or learner."""

    __slots__ = (
        "durable_end",
        "heard_ms",
        "is_copying",
        "is_probing",
        "is_reading",
        "next_end",
        "received_end",
        "room",
        "sent_ms",
        "suggested",
        "unanswered",
        "unanswered_bytes",
    )

    def __init__(self, next_end: int) -> None:
        self.next_end = next_end
        """Where the next batch sent begins."""
        self.durable_end = 0
        self.received_end = 0
        self.heard_ms = -LEASE_MS
        """When the last message that it answered was sent."""
        self.sent_ms = -HEARTBEAT_MS
        self.is_probing = True
        """Whether it is unknown where its log and ours agree: one empty message at a time."""
        self.is_reading = False
        self.is_copying = False
        self.room = DiskPressure.PLENTY
        self.suggested: Mismatch | None = None
        """Where it says its log ends, until that was compared with ours on disk."""
        self.unanswered: deque[tuple[int, int]] = deque()
        self.unanswered_bytes = 0

    def hear(self, message: Appended) -> None:
        """Note what it has written, and what it has room for."""
        self.heard_ms = max(self.heard_ms, message.sent_ms)
        self.received_end = max(self.received_end, message.received_end)
        while self.unanswered and self.unanswered[0][0] <= self.received_end:
            self.unanswered_bytes -= self.unanswered.popleft()[1]
        self.room = message.room
        if self.is_probing and message.received_end >= self.next_end:
            self.is_probing = False

    def note_sent(self, batches: list[Batch], now_ms: int) -> None:
        """Note that batches are on their way to it: the next ones follow them."""
        self.sent_ms = now_ms
        if batches:
            self.next_end = batches[-1].next_offset
            size = sum([len(batch.data) for batch in batches])
            self.unanswered.append((self.next_end, size))
            self.unanswered_bytes += size

    def ask_from(self, end: int) -> None:
        """Feed it no more, but ask where its log ends, from `end` on."""
        self.forget_unanswered()
        self.is_probing = True
        self.next_end = end

    def forget_unanswered(self) -> None:
        """Count on no answer to what was sent."""
        self.unanswered.clear()
        self.unanswered_bytes = 0


class Followers:
    """The members and learners of an epoch but for its leader, `node`, whose log ends with `tail`.

    What is to be read and copied for them is added to the leader's `effects`.
    """

    __slots__ = ("_effects", "_followers", "_node", "_tail", "members")

    def __init__(
        self,
        node: str,
        tail: LogTail,
        effects: Effects,
        *,
        members: tuple[str, ...] = (),
        learners: tuple[str, ...] = (),
    ) -> None:
        self.members = members
        """Of the epoch, with the leader."""
        self._node = node
        self._tail = tail
        self._effects = effects
        end = tail.end.end
        self._followers = {
            member: Follower(end) for member in dict.fromkeys((*members, *learners)) if member != node
        }

    def __len__(self) -> int:
        return len(self._followers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._followers)

    def __getitem__(self, member: str) -> Follower:
        return self._followers[member]

    def get(self, member: str) -> Follower | None:
        """Return what is known of a member or learner, None if it is neither, or the leader."""
        return self._followers.get(member)

    def set_learners(self, learners: tuple[str, ...]) -> bool:
        """Feed these, and no others that are no members; return whether one is new."""
        is_new = False
        for member in learners:
            if member not in self._followers and member != self._node:
                self._followers[member] = Follower(self._tail.end.end)
                is_new = True
        for member in list(self._followers):
            if member not in self.members and member not in learners:
                del self._followers[member]
        return is_new

    # What they have

    def durable_on_majority(self, own_end: int) -> int:
        """Return the offset below which a majority of the members, with the leader, has all on its disks."""
        ends = sorted(
            (
                own_end if member == self._node else self._followers[member].durable_end
                for member in self.members
            ),
            reverse=True,
        )
        return ends[len(ends) // 2]

    def received_on_majority(self, own_end: int) -> int:
        """Return the offset below which a majority of the members, with the leader, has written, durable or not."""
        ends = sorted(
            (
                own_end if member == self._node else self._followers[member].received_end
                for member in self.members
            ),
            reverse=True,
        )
        return ends[len(ends) // 2]

    def lag_of(self) -> dict[str, int]:
        """Return for each how many records of the log it has not made durable."""
        end = self._tail.end.end
        return {name: end - follower.durable_end for name, follower in self._followers.items()}

    def lease_until_ms(self) -> float:
        """Return until when a majority of the members will not have promised to another leader."""
        heard = sorted(
            (
                float("inf") if member == self._node else self._followers[member].heard_ms + LEASE_MS
                for member in self.members
            ),
            reverse=True,
        )
        return heard[len(heard) // 2]

    def majority_has_room(self, now_ms: int) -> bool:
        """Tell whether a majority of the members can take sends: a leader that does itself, and whom it hears."""
        followers = [self._followers[member] for member in self.members if member != self._node]
        if all(follower.room is DiskPressure.PLENTY for follower in followers):
            return True  # who is not heard of is another matter
        short = sum(
            follower.room is not DiskPressure.PLENTY or now_ms - follower.heard_ms >= LEASE_MS
            for follower in followers
        )
        return 2 * short < len(self.members)

    # What they said

    def on_mismatch(self, sender: str, message: Mismatch, now_ms: int) -> bool:
        """Find where the logs may agree; return whether it can be fed from there now."""
        follower = self._followers.get(sender)
        if follower is None or follower.is_reading or follower.is_copying:
            return False
        follower.forget_unanswered()
        follower.is_probing = True
        position = self._tail.position_at(message.end)
        if position is not None:
            follower.next_end = message.end if position.chain == message.chain else message.commit
            follower.sent_ms = min(follower.sent_ms, now_ms - PROBE_MS)
            if follower.next_end == message.commit:
                follower.is_probing = False  # so far our logs agree for sure
            return True
        if message.end > self._tail.end.end:
            follower.next_end = message.commit
            follower.is_probing = False
            return True
        follower.suggested = message
        self._read_for(sender, follower, message.end)
        return False

    def on_copied(self, member: str) -> None:
        """A member that needed a copy has one, and will be asked where it ends."""
        follower = self._followers.get(member)
        if follower is not None:
            follower.is_copying = False
            follower.ask_from(self._tail.end.end)

    # What was read for them

    def on_read(
        self,
        member: str,
        start: int,
        previous_chain: int | None,
        batches: list[Batch],
        now_ms: int,
        *,
        is_gone: bool,
    ) -> Portion | None:
        """The log was read for one; `previous_chain` is that at `start`, None when no batch ends there.

        Returns what it is to be sent of that.
        """
        follower = self._followers.get(member)
        if follower is None or not follower.is_reading:
            return None
        follower.is_reading = False
        suggested, follower.suggested = follower.suggested, None
        if suggested is not None and start == suggested.end and previous_chain != suggested.chain:
            if suggested.commit == start:
                follower.is_copying = True  # what it has as committed is not ours: only a copy can be right
                self._effects.copies.append(member)
                return None
            follower.next_end = suggested.commit
            self._read_for(member, follower, suggested.commit)
            return None
        if is_gone or previous_chain is None:
            follower.is_copying = True
            self._effects.copies.append(member)
            return None
        follower.is_probing = False
        follower.note_sent(batches, now_ms)
        return Portion(member, start, previous_chain, batches)

    def on_read_in_vain(self, member: str) -> None:
        """What was read for one may be cut since; if it lacks that, it says so again."""
        follower = self._followers.get(member)
        if follower is not None and follower.is_reading:
            follower.is_reading = False
            follower.suggested = None
            follower.is_probing = True

    # What they are sent

    def portions(self, now_ms: int, written_end: int) -> list[Portion]:
        """Return what each lacks, as far as it takes that now, or heartbeats where it is time: they are sent."""
        portions: list[Portion] = []
        for member, follower in self._followers.items():
            if not follower.is_copying and not follower.is_reading:
                self._feed(member, follower, now_ms, written_end, portions)
        return portions

    def _feed(
        self, member: str, follower: Follower, now_ms: int, written_end: int, portions: list[Portion]
    ) -> None:
        if follower.is_probing:
            if now_ms - follower.sent_ms >= PROBE_MS:
                self._add_heartbeat(member, follower, now_ms, portions)
            return
        sent = False
        tail = self._tail
        end = tail.end.end
        while follower.next_end < end and follower.unanswered_bytes < UNANSWERED_BYTES_MAX:
            start = follower.next_end
            position = tail.position_at(start)
            batches = tail.read(start, MESSAGE_BYTES_MAX) if position is not None else None
            if batches is None or position is None:
                if start < written_end:  # else it is neither kept in memory nor on disk yet
                    self._read_for(member, follower, start)
                return
            follower.note_sent(batches, now_ms)
            portions.append(Portion(member, start, position.chain, batches))
            sent = True
        if not sent and now_ms - follower.sent_ms >= HEARTBEAT_MS:
            self._add_heartbeat(member, follower, now_ms, portions)

    def _add_heartbeat(self, member: str, follower: Follower, now_ms: int, portions: list[Portion]) -> None:
        position = self._tail.position_at(follower.next_end)
        if position is None:
            self._read_for(member, follower, follower.next_end)
            return
        follower.sent_ms = now_ms
        portions.append(Portion(member, position.end, position.chain, [], is_heartbeat=True))

    def _read_for(self, member: str, follower: Follower, start: int) -> None:
        follower.is_reading = True
        self._effects.reads.append(ReadLog(member, start))
