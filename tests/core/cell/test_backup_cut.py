"""Ends of journals are one moment only if no journal changed its leader, or took a message, in between."""

from __future__ import annotations

from random import Random

import pytest

from quaymaster.core.cell.backup_cut import BackupBarrier, why_no_cut
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import WriteBarrier
from quaymaster.core.values.records import RecordType

HELD = BackupBarrier(3, 1)


def test_journals_that_were_held_by_one_leader_all_the_time_are_one_moment() -> None:
    barriers = {0: HELD, 7: BackupBarrier(9, 4)}

    assert why_no_cut(barriers, barriers, barriers) is None


@pytest.mark.parametrize("changed", [0, 1, 2])
@pytest.mark.parametrize(
    ("other", "why"),
    [
        (BackupBarrier(4, 1), "journal 7 got another leader"),
        (BackupBarrier(3, 2), "journal 7 took messages of other journals meanwhile"),
        (BackupBarrier(3, 0), "journal 7 took messages of other journals meanwhile"),
    ],
)
def test_change_of_any_journal_makes_them_several(changed: int, other: BackupBarrier, why: str) -> None:
    rounds = [{0: HELD, 7: HELD} for _ in range(3)]
    rounds[changed][7] = other

    assert why_no_cut(*rounds) == why


def test_journal_that_was_never_held_is_no_part_of_a_moment() -> None:
    barriers = {0: BackupBarrier(3, 0)}

    assert why_no_cut(barriers, barriers, barriers) == "journal 0 took messages of other journals meanwhile"


def test_mark_is_a_record_that_changes_nothing_and_is_answered_when_committed() -> None:
    queues = QueueStates(MemoryChunks(), retry_window_ms=1_000)
    before = queues.state_hash(5)
    proposal = Proposal(0, 1)

    _, wait = queues.decide(WriteBarrier(), 5, proposal)

    assert wait is Wait.COMMIT
    assert [record.type for record in proposal.records] == [RecordType.BARRIER]
    assert queues.state_hash(5) == before


class Pair:
    """Two journals and the messages that move between them, in both directions, as records in order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.records: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}
        self.homes: dict[int, str] = {}
        self.is_held = {"a": False, "b": False}

    def step(self) -> None:
        """Send a message, or let one that exists get one step further on its way."""
        number = self.random.randrange(12)
        home = self.homes.get(number)
        if home is None:
            self.homes[number] = home = self.random.choice("ab")
            self.records[home].append(("send", number))
            return
        other = "b" if home == "a" else "a"
        if ("out", number) not in self.records[home]:
            self.records[home].append(("out", number))
        elif ("move", number) not in self.records[other]:
            if not self.is_held[other]:
                self.records[other].append(("move", number))
        elif ("end", number) not in self.records[home]:
            self.records[home].append(("end", number))

    def places(self, ends: dict[str, int]) -> dict[int, int]:
        """Return in how many places each message is once what is under way has arrived, if journals end there."""
        kept = {name: set(self.records[name][: ends[name]]) for name in "ab"}
        found = {}
        for number, home in self.homes.items():
            other = "b" if home == "a" else "a"
            moved = ("move", number) in kept[other]
            at_home = ("send", number) in kept[home] and ("end", number) not in kept[home]
            settles = at_home and ("out", number) in kept[home]  # it is sent again, and ends
            found[number] = int(at_home and not settles) + int(moved or settles)
        return found


def ends_of(pair: Pair, *, holds: bool) -> dict[str, int]:
    """Take the ends of both journals, a few steps apart, while messages move on."""
    for _ in range(pair.random.randrange(30)):
        pair.step()
    pair.is_held = {"a": holds, "b": holds}
    ends = {}
    for name in pair.random.sample("ab", 2):
        for _ in range(pair.random.randrange(10)):
            pair.step()
        ends[name] = len(pair.records[name])
    for _ in range(pair.random.randrange(10)):
        pair.step()
    return ends


def test_no_message_is_lost_or_doubled_while_nothing_is_taken_between_the_ends() -> None:
    for seed in range(3_000):
        pair = Pair(Random(seed))
        ends = ends_of(pair, holds=True)
        sent = {
            number for name in "ab" for kind, number in pair.records[name][: ends[name]] if kind == "send"
        }

        places = pair.places(ends)

        assert all(places[number] == 1 for number in sent), seed
        assert all(places[number] == 0 for number in places.keys() - sent), seed


def test_without_the_hold_messages_would_be_lost_and_doubled() -> None:
    seen = set()
    for seed in range(3_000):
        pair = Pair(Random(seed))
        ends = ends_of(pair, holds=False)
        kept = {
            number for name in "ab" for kind, number in pair.records[name][: ends[name]] if kind == "send"
        }
        seen |= {count for number, count in pair.places(ends).items() if number in kept}
        seen |= {-1 for number, count in pair.places(ends).items() if number not in kept and count}

    assert {0, 2} <= seen
