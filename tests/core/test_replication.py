"""Replicas of one log: promises, elections, appends, commit, members that come and go."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from harness.log_cluster import LogCluster

from quaymaster.core.log_tail import Position
from quaymaster.core.replication import LEASE_MS, LogReplica
from quaymaster.core.replication_messages import Append, Appended, Prepare, Promise, Stale


@pytest.fixture
def cluster() -> LogCluster:
    """Three replicas; the first leads."""
    cluster = LogCluster("a", "b", "c")
    cluster.appoint("a")
    cluster.settle()
    return cluster


def committed(cluster: LogCluster) -> int:
    """The leader's commit index, after followers had time to hear of it."""
    cluster.settle()
    return cluster.leader.commit


def test_first_leader_is_elected_and_activated() -> None:
    cluster = LogCluster("a", "b", "c")

    cluster.appoint("a")
    cluster.settle()

    assert cluster.leader.node == "a"
    assert cluster.leader.commit == 1
    assert cluster.configuration.activated
    assert [store.promised_epoch for store in cluster.stores.values()] == [1, 1, 1]


def test_lone_replica_leads_without_waiting() -> None:
    cluster = LogCluster("a")
    cluster.stores["a"].promised_epoch = 4
    cluster.start("a")

    cluster.appoint("a", epoch=5)
    cluster.settle()

    assert cluster.leader.is_leading
    end = cluster.propose(cluster.leader)
    assert committed(cluster) == end


def test_batch_is_committed_when_a_majority_has_it_durable(cluster: LogCluster) -> None:
    cluster.crash("c")
    cluster.is_slow = True
    end = cluster.propose(cluster.leader)
    cluster.settle()
    assert cluster.leader.commit < end
    assert cluster.leader.received_on_majority < end

    cluster.fsync("a")
    cluster.settle()
    assert cluster.leader.commit < end
    cluster.fsync("b")

    assert committed(cluster) == end


def test_followers_say_at_once_what_they_wrote_when_somebody_waits_for_that(cluster: LogCluster) -> None:
    cluster.is_slow = True

    end = cluster.propose(cluster.leader, tell_received=True)
    cluster.settle()

    assert cluster.leader.received_on_majority == end
    assert cluster.leader.commit < end


def test_followers_learn_what_is_committed(cluster: LogCluster) -> None:
    end = cluster.propose(cluster.leader)
    cluster.settle()

    cluster.pass_time(500)

    assert {replica.commit for replica in cluster.replicas.values()} == {end}


def test_leader_that_lost_its_followers_commits_nothing(cluster: LogCluster) -> None:
    cluster.crash("b")
    cluster.crash("c")

    end = cluster.propose(cluster.leader)
    cluster.pass_time(2_000)

    assert cluster.leader.commit < end
    assert not cluster.leader.hears_leader(cluster.now_ms)


def test_follower_takes_over_with_everything_that_was_committed(cluster: LogCluster) -> None:
    ends = [cluster.propose(cluster.leader) for _ in range(5)]
    cluster.settle()
    cluster.crash("a")

    cluster.appoint("b")
    cluster.pass_time(LEASE_MS + 300)

    assert cluster.leader.node == "b"
    assert cluster.leader.commit > ends[-1]
    cluster.start("a")
    cluster.pass_time(1_000)
    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")


def test_closed_connection_of_the_leader_spares_the_wait(cluster: LogCluster) -> None:
    cluster.crash("a")
    cluster.appoint("b")
    cluster.settle()
    assert cluster.replicas["b"].role == "follower"

    for name in ("b", "c"):
        cluster.replicas[name].on_connection_closed("a")
    cluster.settle()

    assert cluster.leader.node == "b"


def test_candidate_waits_for_a_follower_that_hears_its_leader(cluster: LogCluster) -> None:
    cluster.replicas["c"].on_message("b", Prepare(7), cluster.now_ms)
    cluster.settle()
    assert cluster.stores["c"].promised_epoch == 1
    cluster.replicas["c"].on_connection_closed("a")
    cluster.settle()

    assert cluster.stores["c"].promised_epoch == 7


def test_leader_stops_when_a_follower_promised_a_higher_epoch(cluster: LogCluster) -> None:
    follower = cluster.replicas["b"]
    follower.on_connection_closed("a")
    follower.on_message("c", Prepare(9), cluster.now_ms)
    leader = cluster.leader

    cluster.propose(leader)
    cluster.settle()

    assert leader.role == "follower"
    assert cluster.stores["b"].promised_epoch == 9


def test_what_a_deposed_leader_wrote_alone_is_cut(cluster: LogCluster) -> None:
    old = cluster.leader
    cluster.cut = {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}
    for _ in range(3):
        cluster.propose(old)
    cluster.settle()
    cluster.appoint("b")
    cluster.pass_time(LEASE_MS + 300)
    end = cluster.propose(cluster.leader)
    cluster.settle()

    cluster.cut = set()
    cluster.pass_time(1_000)

    assert old.role == "follower"
    assert old.truncated_to == 1
    assert cluster.log_of("a") == cluster.log_of("b")
    assert old.commit == end
    assert [after.base_offset for after in old.accepted] == [1, 2]


def test_elected_replica_fetches_what_it_lacks_from_the_longest_log(cluster: LogCluster) -> None:
    cluster.cut = {("a", "b")}
    for _ in range(5):
        cluster.propose(cluster.leader)
    cluster.settle()
    cluster.crash("a")

    cluster.cut = set()
    cluster.appoint("b")
    cluster.pass_time(LEASE_MS + 500)

    assert cluster.leader.node == "b"
    assert cluster.log_of("b") == cluster.log_of("c")
    assert len(cluster.log_of("b")) == 7


def test_restarted_leader_does_not_lead_its_epoch_again(cluster: LogCluster) -> None:
    cluster.crash("a")
    replica = cluster.start("a")

    replica.on_configuration(cluster.configuration, cluster.now_ms)
    cluster.pass_time(2_000)

    assert replica.role == "follower"
    cluster.appoint("a")
    cluster.pass_time(1_500)
    assert cluster.leader is replica


def test_leader_that_is_appointed_again_keeps_what_it_wrote(cluster: LogCluster) -> None:
    cluster.is_slow = True
    end = cluster.propose(cluster.leader)
    cluster.settle()
    cluster.is_slow = False

    cluster.appoint("a")
    cluster.pass_time(1_500)

    assert cluster.leader.epoch == 2
    assert cluster.leader.commit == end + 1


def test_member_is_replaced_by_a_learner_in_one_step(cluster: LogCluster) -> None:
    for _ in range(20):
        cluster.propose(cluster.leader)
    cluster.crash("c")
    cluster.start("d")
    cluster.learn("d")
    cluster.pass_time(500)
    assert cluster.log_of("d") == cluster.log_of("a")
    assert cluster.leader.lag_of()["d"] == 0

    cluster.appoint("a", members=("a", "b", "d"))
    cluster.pass_time(1_500)

    assert cluster.leader.is_leading
    cluster.crash("b")
    end = cluster.propose(cluster.leader)
    assert committed(cluster) == end


def test_learner_has_no_vote(cluster: LogCluster) -> None:
    cluster.start("d")
    cluster.learn("d")
    cluster.settle()
    cluster.crash("b")
    cluster.crash("c")

    end = cluster.propose(cluster.leader)

    assert committed(cluster) < end
    cluster.learn()
    assert "d" not in cluster.leader.lag_of()


def test_planned_transfer_moves_the_leadership_without_a_wait(cluster: LogCluster) -> None:
    old = cluster.leader
    end = cluster.propose(old)
    assert not old.transfer("a")
    assert not old.transfer("x")

    assert old.transfer("b")
    assert not old.is_leading
    cluster.settle()
    assert old.role == "follower"
    cluster.appoint("b")
    cluster.settle()

    assert cluster.leader.node == "b"
    assert cluster.leader.commit == end + 1


def test_transfer_that_does_not_come_about_is_given_up(cluster: LogCluster) -> None:
    cluster.crash("b")
    cluster.propose(cluster.leader)
    leader = cluster.leader

    leader.transfer("b")
    cluster.pass_time(500)
    assert (leader.role, leader.is_leading) == ("leading", False)
    leader.end_transfer()

    assert leader.is_leading


def test_member_whose_missing_part_is_no_longer_kept_needs_a_copy(cluster: LogCluster) -> None:
    for _ in range(300):
        cluster.propose(cluster.leader)
        cluster.settle()
    store = cluster.stores["a"]
    store.gone_below = 200
    cluster.stores["d"] = type(store)()
    cluster.start("d")
    leader = LogReplica(
        "a",
        promised_epoch=1,
        start=Position(250, 1, store.batches[249].chain),
        positions=[Position(b.next_offset, b.epoch, b.chain) for b in store.batches[250:]],
        now_ms=cluster.now_ms,
        tail_bytes_max=0,
    )
    cluster.replicas["a"] = leader
    cluster.pass_time(LEASE_MS)
    cluster.appoint("a")
    cluster.pass_time(500)

    cluster.learn("d")
    cluster.pass_time(500)
    assert cluster.copies == ["d"]

    cluster.stores["d"].start = Position(250, 1, store.batches[249].chain)
    cluster.start("d")
    cluster.leader.on_copied("d")
    cluster.pass_time(500)
    assert cluster.log_of("d") == cluster.log_of("a")[250:]


def test_member_that_is_far_behind_is_fed_from_the_disk(cluster: LogCluster) -> None:
    cluster.crash("c")
    for _ in range(300):
        cluster.propose(cluster.leader)
        cluster.settle()
    cluster.crash("a")
    cluster.start("a")
    replica = cluster.replicas["a"]
    replica.tail = type(replica.tail)(
        Position(290, 1, cluster.stores["a"].batches[289].chain),
        cluster.stores["a"].positions()[290:],
        bytes_max=0,
    )
    replica.commit = 290
    cluster.pass_time(LEASE_MS)
    cluster.appoint("a")
    cluster.pass_time(500)

    cluster.start("c")
    cluster.pass_time(2_000)

    assert cluster.log_of("c") == cluster.log_of("a")


def test_promise_waits_until_the_whole_log_is_durable(cluster: LogCluster) -> None:
    cluster.is_slow = True
    cluster.propose(cluster.leader)
    cluster.settle()
    follower = cluster.replicas["b"]
    follower.on_connection_closed("a")
    follower.on_message("c", Prepare(2), cluster.now_ms)

    effects = follower.take()
    assert not any(isinstance(envelope.message, Promise) for envelope in effects.messages)
    follower.on_durable(2)
    follower.on_promise_durable(2)

    (envelope,) = follower.take().messages
    assert envelope.message == Promise(2, 1, 2)


def test_stale_messages_change_nothing(cluster: LogCluster) -> None:
    leader, follower = cluster.leader, cluster.replicas["b"]
    before = (leader.commit, leader.role, follower.commit, follower.role)

    follower.on_message("c", Append(0, 0, 0, [], 9, 0), cluster.now_ms)
    follower.on_message("c", Prepare(0), cluster.now_ms)
    assert [envelope.message for envelope in follower.take().messages] == [Stale(1), Stale(1)]
    leader.on_message("b", Appended(0, 9, 9, 0), cluster.now_ms)
    leader.on_message("x", Appended(1, 9, 9, 0), cluster.now_ms)
    leader.on_message("b", Stale(1), cluster.now_ms)
    leader.on_durable(50, truncations=3)
    leader.on_written(50, truncations=3)

    assert (leader.commit, leader.role, follower.commit, follower.role) == before


@pytest.mark.parametrize("seed", range(100))
def test_no_acknowledged_batch_is_lost_whatever_happens(seed: int) -> None:
    """Random crashes, cuts, appointments and member swaps; then all is healed, and what was committed is there."""
    choose = random.Random(seed)
    names = ("a", "b", "c", "d")
    cluster = LogCluster(*names)
    cluster.configuration = type(cluster.configuration)(0, "", names[:3], names[:3], True)
    cluster.appoint("a")
    known: dict[int, int] = {}

    def look() -> None:
        for replica in cluster.replicas.values():
            position = replica.tail.position_at(replica.commit)
            assert position is not None, "the commit index is where a batch ends"
            assert known.setdefault(position.end, position.chain) == position.chain

    for _ in range(800):
        what = choose.random()
        up = list(cluster.replicas)
        if what < 0.45:
            if cluster.net and choose.random() < 0.1:
                cluster.net.rotate(choose.randrange(len(cluster.net)))
            if cluster.net and choose.random() < 0.05:
                cluster.net.popleft()
            cluster.deliver()
        elif what < 0.65 and up:
            cluster.carry_out(choose.choice(up))
        elif what < 0.75 and up:
            cluster.is_slow = True
            cluster.fsync(choose.choice(up))
        elif what < 0.85:
            for replica in cluster.replicas.values():
                if replica.is_leading:
                    cluster.propose(replica)
        elif what < 0.93:
            cluster.now_ms += choose.choice((10, 100, 400))
            for replica in cluster.replicas.values():
                replica.on_tick(cluster.now_ms)
        elif what < 0.95 and up:
            name = choose.choice(up)
            store = cluster.stores[name]
            cluster.crash(name, keep=choose.randint(store.durable, len(store.batches)))
        elif what < 0.97:
            for name in names:
                if name not in cluster.replicas:
                    cluster.start(name)
        elif what < 0.985:
            chosen = list(cluster.configuration.members)
            if choose.random() < 0.4:
                spare = next(name for name in names if name not in chosen)
                chosen[choose.randrange(3)] = spare
            cluster.appoint(choose.choice(chosen), members=tuple(chosen))
        look()

    cluster.is_slow = False
    for name in names:
        if name not in cluster.replicas:
            cluster.start(name)
    for _ in range(8):
        members = cluster.configuration.members
        if not any(
            replica.is_leading and replica.epoch == cluster.configuration.epoch
            for replica in cluster.replicas.values()
        ):
            highest = max(replica.promised_epoch for replica in cluster.replicas.values())
            cluster.appoint(members[0], epoch=max(highest, cluster.configuration.epoch) + 1)
            for replica in cluster.replicas.values():  # everybody watches coordination, a deposed leader too
                replica.on_configuration(cluster.configuration, cluster.now_ms)
        cluster.pass_time(1_500)
        look()
    end = cluster.propose(cluster.leader)
    cluster.pass_time(1_000)
    assert cluster.leader.commit == end
    chains = {batch.next_offset: batch.chain for batch in cluster.stores[cluster.leader.node].batches}
    for offset, chain in known.items():
        assert chains.get(offset, 0) == chain
    for member in cluster.configuration.members:
        assert cluster.log_of(member) == cluster.log_of(cluster.leader.node)
    assert all(before < after for before, after in pairwise(sorted(chains)))


def test_leader_that_is_appointed_again_knows_of_nobody_who_received_more_than_is_committed(
    cluster: LogCluster,
) -> None:
    leader = cluster.leader
    cluster.propose(leader, tell_received=True)

    cluster.appoint("a")
    leader.on_configuration(cluster.configuration, cluster.now_ms)

    assert leader.role == "preparing"
    assert leader.received_on_majority == leader.commit
