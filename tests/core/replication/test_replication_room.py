"""Replicas whose disks are full: followers that take nothing and lose nothing, leaders that know of it."""

from __future__ import annotations

import pytest
from harness.log_cluster import LogCluster

from quaymaster.core.replication.followers import LEASE_MS
from quaymaster.core.replication.messages import Append, Appended, DiskPressure

FULL = [DiskPressure.RESERVE, DiskPressure.NONE]


@pytest.fixture
def cluster() -> LogCluster:
    """Three replicas; the first leads."""
    cluster = LogCluster("a", "b", "c")
    cluster.appoint("a")
    cluster.settle()
    return cluster


def batches_sent(cluster: LogCluster, receiver: str) -> int:
    """Let a second pass; return how many batches were sent to a replica meanwhile."""
    sent = 0
    for _ in range(20):
        cluster.now_ms += 50
        for name, replica in cluster.replicas.items():
            replica.on_tick(cluster.now_ms)
            cluster.carry_out(name)
        sent += sum(
            len(envelope.message.batches)
            for envelope in cluster.net
            if isinstance(envelope.message, Append) and envelope.receiver == receiver
        )
        cluster.settle()
    return sent


@pytest.mark.parametrize("room", FULL)
def test_full_follower_takes_nothing_and_the_others_commit_without_it(
    cluster: LogCluster, room: DiskPressure
) -> None:
    cluster.replicas["c"].room = room
    before = cluster.log_of("c")

    end = cluster.propose(cluster.leader)
    cluster.pass_time(1_000)

    assert cluster.leader.commit == end
    assert cluster.log_of("c") == before
    assert not cluster.leader.refuses_sends
    assert cluster.leader.has_lease


@pytest.mark.parametrize("room", FULL)
def test_full_follower_goes_on_where_it_was_as_soon_as_there_is_room(
    cluster: LogCluster, room: DiskPressure
) -> None:
    cluster.replicas["c"].room = room
    for _ in range(5):
        cluster.propose(cluster.leader)
        cluster.pass_time(300)

    cluster.replicas["c"].room = DiskPressure.PLENTY
    cluster.pass_time(500)

    assert cluster.log_of("c") == cluster.log_of("a")
    assert cluster.leader.lag_of() == {"b": 0, "c": 0}


def test_full_follower_is_asked_now_and_then_and_sent_nothing(cluster: LogCluster) -> None:
    cluster.replicas["c"].room = DiskPressure.NONE
    cluster.propose(cluster.leader)
    cluster.settle()

    for _ in range(5):
        cluster.propose(cluster.leader)
        assert batches_sent(cluster, "c") == 0

    assert cluster.leader.lag_of() == {"b": 0, "c": 6}


@pytest.mark.parametrize("room", FULL)
def test_full_follower_promises_and_votes_with_what_it_has(cluster: LogCluster, room: DiskPressure) -> None:
    end = cluster.propose(cluster.leader)
    cluster.settle()
    cluster.replicas["c"].room = room
    cluster.crash("a")
    cluster.pass_time(LEASE_MS)

    cluster.appoint("b")
    cluster.pass_time(500)

    replica = cluster.replicas["b"]
    assert (replica.role, replica.epoch) == ("activating" if room is DiskPressure.NONE else "leading", 2)
    assert cluster.stores["c"].promised_epoch == 2
    cluster.replicas["c"].room = DiskPressure.PLENTY
    cluster.pass_time(500)
    assert cluster.leader.commit > end


@pytest.mark.parametrize("room", [DiskPressure.LOW, *FULL])
def test_sends_are_refused_while_no_majority_has_room(cluster: LogCluster, room: DiskPressure) -> None:
    leader = cluster.leader
    seen: list[tuple[bool, bool]] = []

    for name, its_room in (("b", room), ("c", room), ("b", DiskPressure.PLENTY)):
        cluster.replicas[name].room = its_room
        cluster.pass_time(500)
        seen.append((leader.majority_has_room, leader.refuses_sends))

    assert seen == [(True, False), (False, True), (True, False)]


def test_follower_that_is_not_heard_of_has_no_room_when_another_is_full(cluster: LogCluster) -> None:
    cluster.crash("b")
    cluster.pass_time(LEASE_MS)
    before = cluster.leader.refuses_sends

    cluster.replicas["c"].room = DiskPressure.LOW
    cluster.pass_time(500)

    assert (before, cluster.leader.refuses_sends) == (False, True)
    assert cluster.leader.has_lease


def test_leader_whose_own_disk_is_low_refuses_sends_whatever_the_others_have(cluster: LogCluster) -> None:
    cluster.leader.room = DiskPressure.LOW

    assert cluster.leader.refuses_sends
    assert cluster.leader.majority_has_room


@pytest.mark.parametrize("short", ["a", "b"])
def test_reserve_is_for_what_comes_while_sends_are_refused(cluster: LogCluster, short: str) -> None:
    cluster.replicas["c"].room = DiskPressure.RESERVE
    cluster.propose(cluster.leader)
    cluster.pass_time(500)
    assert cluster.leader.lag_of()["c"] == 1

    cluster.replicas[short].room = DiskPressure.RESERVE
    end = cluster.propose(cluster.leader)
    cluster.pass_time(500)

    assert cluster.leader.lag_of() == {"b": 0, "c": 0}
    assert cluster.leader.commit == end


def test_learner_that_is_full_is_nobody_whose_room_counts(cluster: LogCluster) -> None:
    cluster.start("d")
    cluster.replicas["d"].room = DiskPressure.NONE
    cluster.replicas["b"].room = DiskPressure.LOW
    cluster.learn("d")

    cluster.pass_time(500)

    assert not cluster.leader.refuses_sends


def test_full_follower_says_how_far_it_is_and_that_it_is_full(cluster: LogCluster) -> None:
    end = cluster.propose(cluster.leader)
    cluster.settle()
    follower = cluster.replicas["c"]
    follower.room = DiskPressure.NONE

    follower.on_message("a", Append(1, end + 7, 123, [], 0, 17), cluster.now_ms)

    (said,) = follower.take().messages
    assert said.message == Appended(1, end, end, 17, DiskPressure.NONE)
