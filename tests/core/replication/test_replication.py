"""Replicas of one log: promises, elections, appends, commit, members that come and go."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from harness.log_cluster import LogCluster

from quaymaster.core.replication.candidate import FETCH_TIMEOUT_MS, RETRY_MS
from quaymaster.core.replication.copy_verdicts import judge_copy
from quaymaster.core.replication.effects import (
    PersistPromise,
    ReadLog,
    Truncate,
    Write,
)
from quaymaster.core.replication.followers import (
    HEARTBEAT_MS,
    LEASE_MS,
    PROBE_MS,
    UNANSWERED_BYTES_MAX,
)
from quaymaster.core.replication.log_tail import LOG_START, Position
from quaymaster.core.replication.messages import (
    Append,
    Appended,
    DiskPressure,
    Envelope,
    FetchBatches,
    Message,
    Mismatch,
    Prepare,
    Promise,
    Resign,
    Stale,
    Tail,
)
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import Batch, Record, RecordType, encode_batch


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


def test_leader_that_gave_a_transfer_up_leads_again_once_all_that_it_has_is_committed(
    cluster: LogCluster,
) -> None:
    leader = cluster.leader
    cluster.cut = {("b", "a"), ("c", "a")}
    end = cluster.propose(leader)
    assert leader.transfer("b")
    cluster.settle()

    leader.end_transfer()

    assert (leader.role, leader.is_leading) == ("leading", False)
    cluster.cut = set()
    cluster.pass_time(500)
    assert (leader.commit, leader.is_leading) == (end, True)


def test_transfer_that_was_given_up_is_not_given_up_again(cluster: LogCluster) -> None:
    cluster.crash("b")
    cluster.propose(cluster.leader)
    leader = cluster.leader
    leader.transfer("b")
    cluster.settle()
    leader.end_transfer()
    assert cluster.propose(leader) > leader.commit

    leader.end_transfer()

    assert leader.is_leading


def test_leader_that_lost_what_it_had_when_it_gave_a_transfer_up_leads_again_when_it_is_elected(
    cluster: LogCluster,
) -> None:
    old = cluster.leader
    cluster.cut = {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}
    for _ in range(9):
        lost = cluster.propose(old)
    old.transfer("b")
    old.end_transfer()
    cluster.pass_time(2 * LEASE_MS)
    cluster.appoint("b")
    cluster.settle()
    cluster.cut = set()
    cluster.pass_time(2 * LEASE_MS)
    assert (old.role, cluster.leader.node) == ("follower", "b")

    assert cluster.leader.transfer("a")
    cluster.settle()
    cluster.appoint("a")
    cluster.settle()

    assert old.end.end < lost
    assert old.is_leading


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
        tail_memory=SharedBytes(0),
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
        memory=SharedBytes(0),
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


# One replica alone, told everything by the test

NOW_MS = 50_000


def batches_of(epoch: int, *, behind: Position = LOG_START, count: int = 1, size: int = 10) -> list[Batch]:
    """Batches of one record each, one behind the other."""
    found: list[Batch] = []
    for number in range(count):
        record = Record(RecordType.SEND, 0, 1, 0, number, 0, 0, bytes(size))
        batch = encode_batch(
            [record],
            epoch=epoch,
            base_offset=behind.end,
            time_ms=epoch,
            floor=0,
            previous_chain=behind.chain,
        )
        behind = Position(batch.next_offset, epoch, batch.chain)
        found.append(batch)
    return found


def positions_of(batches: list[Batch]) -> list[Position]:
    return [Position(batch.next_offset, batch.epoch, batch.chain) for batch in batches]


def recovered(
    *batches: Batch, start: Position = LOG_START, promised_epoch: int = 0, tail_bytes_max: int = 16 << 20
) -> LogReplica:
    """A replica that has started over a log; it hears no leader."""
    replica = LogReplica(
        "b",
        promised_epoch=promised_epoch,
        start=start,
        positions=positions_of(list(batches)),
        now_ms=NOW_MS - LEASE_MS,
        tail_memory=SharedBytes(tail_bytes_max),
    )
    replica.on_tick(NOW_MS)
    return replica


def elect(epoch: int, members: tuple[str, ...] = ("a", "b", "c")) -> JournalConfiguration:
    return JournalConfiguration(epoch, "b", members, members, False)


def leading(
    *batches: Batch, start: Position = LOG_START, epoch: int = 5, tail_bytes_max: int = 16 << 20
) -> tuple[LogReplica, Batch]:
    """A replica that leads the members a, b and c, and its barrier; a has everything, c was not heard yet."""
    replica = recovered(*batches, start=start, tail_bytes_max=tail_bytes_max)
    replica.on_configuration(elect(epoch), NOW_MS)
    replica.on_promise_durable(epoch)
    replica.on_message("a", Promise(epoch, 0, 0), NOW_MS)
    (barrier,) = batches_of(epoch, behind=replica.end)
    replica.append(barrier)
    replica.take()
    replica.on_durable(barrier.next_offset)
    replica.on_message("a", Appended(epoch, replica.end.end, replica.end.end, NOW_MS), NOW_MS)
    assert replica.take().activate == epoch
    replica.on_activated(epoch)
    replica.take()
    return replica, barrier


def said(replica: LogReplica, receiver: str) -> list[Message]:
    """What it says to somebody now; whatever else is to be done counts as done."""
    return [envelope.message for envelope in replica.take().messages if envelope.receiver == receiver]


def appended(epoch: int, behind: Position, batches: list[Batch], commit: int = 0) -> Append:
    return Append(epoch, behind.end, behind.chain, batches, commit, NOW_MS)


def test_follower_tells_whether_it_hears_its_leader() -> None:
    follower = recovered()
    assert not follower.hears_leader(NOW_MS)

    follower.on_message("a", appended(1, LOG_START, []), NOW_MS)

    assert follower.hears_leader(NOW_MS + LEASE_MS - 1)
    assert not follower.hears_leader(NOW_MS + LEASE_MS)


def test_elect_compares_its_log_with_the_better_one_from_its_commit_on() -> None:
    """It followed another leader up to 4 before: what it has there is not what the longest log has."""
    old = batches_of(1, count=4)
    better = batches_of(2, count=5)
    found = recovered()
    found.on_message("a", appended(1, LOG_START, old), NOW_MS)
    found.on_promise_durable(1)
    found.on_durable(4)
    found.on_connection_closed("a")
    found.on_configuration(elect(3), NOW_MS)
    found.take()
    found.on_promise_durable(3)

    found.on_message("c", Promise(3, 2, 5), NOW_MS)

    assert said(found, "c") == [FetchBatches(3, 4)]
    found.on_message("c", Tail(3, 4, better[4:]), NOW_MS)
    assert found.end == positions_of(old)[-1], "they do not agree there"
    assert said(found, "c") == [FetchBatches(3, 0)]
    found.on_message("c", Tail(3, 0, better[:2]), NOW_MS)
    assert said(found, "c") == [FetchBatches(3, 2)]
    found.on_message("c", Tail(3, 2, better[2:]), NOW_MS)
    assert found.role == "elected"
    assert found.end == positions_of(better)[-1]
    assert found.truncated_to == 0


@pytest.mark.parametrize("is_compacted_below", [False, True])
def test_elect_fetches_from_where_its_log_ends_if_the_better_one_agrees_there(
    is_compacted_below: bool,
) -> None:
    """It was restarted and does not know what is committed: what is compacted below is of no use to it."""
    better = batches_of(1, count=6)
    found = recovered(*better[:4], promised_epoch=1)
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 1, 6), NOW_MS)

    if is_compacted_below:
        found.on_message("c", Tail(3, 0, [], is_gone=True), NOW_MS)
    found.on_message("c", Tail(3, 4, better[4:]), NOW_MS)

    assert found.role == "elected"
    assert found.truncated_to is None
    assert found.take().operations[-1] == Write(better[4:])


def test_elect_whose_log_is_longer_than_the_better_one_fetches_from_its_commit_on() -> None:
    better = batches_of(2, count=2)
    found = recovered(*batches_of(1, count=4), promised_epoch=1)
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 2, 2), NOW_MS)
    found.take()

    found.on_message("c", Tail(3, 4, [], is_gone=True), NOW_MS)

    assert said(found, "c") == [FetchBatches(3, 0)]
    found.on_message("c", Tail(3, 0, better), NOW_MS)
    assert (found.role, found.end) == ("elected", positions_of(better)[-1])


def test_only_the_tail_that_was_asked_for_is_taken() -> None:
    better = batches_of(2, count=4)
    found = recovered()
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 2, 4), NOW_MS)
    found.on_message("c", Tail(3, 0, better[:2]), NOW_MS)

    for sender, tail in (
        ("c", Tail(3, 0, better[:2])),
        ("c", Tail(2, 2, better[2:])),
        ("a", Tail(3, 2, better[2:])),
        ("c", Tail(3, 3, better[3:])),
    ):
        found.on_message(sender, tail, NOW_MS)

    assert found.end.end == 2
    found.on_message("c", Tail(3, 2, better[2:]), NOW_MS)
    assert found.role == "elected"
    found.on_message("c", Tail(3, 4, []), NOW_MS)
    assert found.role == "elected"


@pytest.mark.parametrize("why", ["silent", "another", "shorter"])
def test_who_promised_a_log_and_does_not_give_it_is_asked_again(why: str) -> None:
    better = batches_of(2, count=4)
    found = recovered()
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 2, 4), NOW_MS)
    found.on_message("c", Tail(3, 0, better[:2]), NOW_MS)
    found.take()

    if why == "silent":
        found.on_tick(NOW_MS + FETCH_TIMEOUT_MS - 1)
        assert said(found, "c") == [FetchBatches(3, 2)]
        found.on_tick(NOW_MS + FETCH_TIMEOUT_MS)
    else:
        another = batches_of(2, count=2, behind=Position(2, 2, 4711))
        found.on_message("c", Tail(3, 2, another if why == "another" else []), NOW_MS)

    effects = found.take()
    assert effects.operations == [PersistPromise(3)], "what was written counts when it is durable"
    assert Envelope("b", "c", Prepare(3)) in effects.messages
    found.on_message("a", Promise(3, 0, 0), NOW_MS)
    assert not found.wants_barrier
    found.on_durable(2)
    found.on_promise_durable(3)
    assert found.role == "elected"
    assert found.end.end == 2


def test_elect_whose_source_fails_counts_its_own_log_at_once_when_it_is_durable() -> None:
    found = recovered()
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 2, 4), NOW_MS)
    found.take()

    found.on_message("c", Tail(3, 0, []), NOW_MS)

    assert found.take().operations == []
    found.on_message("a", Promise(3, 0, 0), NOW_MS)
    assert found.role == "elected"


def test_elect_that_heard_clocks_that_differ_asks_all_again_until_a_majority_agrees() -> None:
    found = recovered()
    found.time.note_wall(NOW_MS, NOW_MS)
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 0, 0, 0, NOW_MS + 400_000), NOW_MS)
    assert found.role == "elected"
    assert not found.wants_barrier
    found.take()

    found.on_tick(NOW_MS + RETRY_MS - 1)
    assert said(found, "a") == []
    found.on_tick(NOW_MS + RETRY_MS)

    assert Prepare(3) in said(found, "a"), "its clock may be near one of the two"
    found.on_message("a", Promise(3, 0, 0, 0, NOW_MS + RETRY_MS), NOW_MS + RETRY_MS)
    assert found.wants_barrier


def test_elect_that_lacks_what_is_compacted_gives_the_epoch_up_for_whoever_has_the_log() -> None:
    found = recovered()
    found.on_configuration(elect(3), NOW_MS)
    found.on_promise_durable(3)
    found.on_message("c", Promise(3, 2, 4), NOW_MS)

    found.on_message("c", Tail(3, 0, [], is_gone=True), NOW_MS)

    assert (found.role, found.promised_epoch) == ("follower", 3)
    found.on_configuration(elect(3), NOW_MS)
    found.on_tick(NOW_MS + 10 * LEASE_MS)
    assert found.role == "follower", "no epoch is led by whoever gave it up"
    found.on_configuration(elect(4), NOW_MS)
    assert found.epoch == 4


def test_tail_is_given_only_to_whom_the_epoch_was_promised() -> None:
    own = batches_of(1, count=3)
    found = recovered(*own, promised_epoch=1, tail_bytes_max=0)
    found.on_message("a", Prepare(4), NOW_MS)
    found.on_promise_durable(4)
    found.take()

    for epoch in (3, 5):
        found.on_message("a", FetchBatches(epoch, 0), NOW_MS)
        assert found.take().reads == []
    found.on_message("a", FetchBatches(4, 1), NOW_MS)
    assert found.take().reads == [ReadLog("a", 1)]
    found.on_read("a", 1, own[0].chain, own[1:], is_gone=False, truncations=0)
    assert said(found, "a") == [Tail(4, 1, own[1:])]


def test_tail_is_given_from_memory_when_it_is_there() -> None:
    batches = batches_of(1, count=3)
    found = recovered()
    found.on_message("a", appended(1, LOG_START, batches), NOW_MS)
    found.on_promise_durable(1)
    found.on_durable(3)
    found.on_connection_closed("a")
    found.on_message("c", Prepare(2), NOW_MS)
    found.on_promise_durable(2)
    found.take()

    found.on_message("c", FetchBatches(2, 1), NOW_MS)
    assert said(found, "c") == [Tail(2, 1, batches[1:])]
    found.on_message("c", FetchBatches(2, 9), NOW_MS)
    assert found.take().reads == [ReadLog("c", 9)]


def test_what_was_read_before_a_cut_is_not_passed_on() -> None:
    """The read of a slow disk may return batches of a leader of before, which nobody acknowledged."""
    old = batches_of(1, count=4)
    found = recovered(tail_bytes_max=0)
    found.on_message("a", appended(1, LOG_START, old), NOW_MS)
    found.on_promise_durable(1)
    found.on_durable(4)
    found.on_message("c", appended(2, LOG_START, batches_of(2, count=4)), NOW_MS)
    found.on_promise_durable(2)
    found.on_durable(4, truncations=1)
    found.on_connection_closed("c")
    found.on_message("a", Prepare(3), NOW_MS)
    found.on_promise_durable(3)
    found.take()

    found.on_read("a", 1, old[0].chain, old[1:], is_gone=False, truncations=0)

    assert found.take().messages == []


def test_leader_asks_again_after_a_read_that_a_cut_has_overtaken() -> None:
    start = Position(100, 1, 7)
    leader, _ = leading(start=start, tail_bytes_max=0)
    leader.on_message("c", Mismatch(5, 40, 4, 30), NOW_MS)
    assert leader.take().reads == [ReadLog("c", 40)]

    leader.on_read("c", 40, 4, batches_of(1, behind=Position(40, 1, 4)), is_gone=False, truncations=3)

    assert said(leader, "c") == []
    leader.on_tick(NOW_MS + PROBE_MS)
    (probe,) = said(leader, "c")
    assert isinstance(probe, Append)
    assert (probe.previous_end, probe.batches) == (100, [])
    leader.on_read("x", 40, 4, [], is_gone=False, truncations=3)
    assert leader.take().messages == []


def test_member_is_compared_on_disk_where_it_says_its_log_ends() -> None:
    start = Position(100, 1, 7)
    leader, _ = leading(start=start)
    known = batches_of(1, behind=Position(40, 1, 4), count=2)
    leader.on_message("c", Mismatch(5, 40, 4, 30), NOW_MS)
    leader.take()

    leader.on_read("c", 40, 4, known, is_gone=False, truncations=0)

    (append,) = said(leader, "c")
    assert append == Append(5, 40, 4, known, leader.commit, NOW_MS, time_ms=leader.time.told_ms(NOW_MS))


def test_member_whose_log_differs_on_disk_is_fed_from_its_commit_on() -> None:
    leader, _ = leading(start=Position(100, 1, 7))
    leader.on_message("c", Mismatch(5, 40, 4, 30), NOW_MS)
    leader.take()

    leader.on_read("c", 40, 99, [], is_gone=False, truncations=0)
    assert leader.take().reads == [ReadLog("c", 30)]
    leader.on_message("c", Mismatch(5, 41, 4, 30), NOW_MS)
    assert leader.take().reads == [], "it is being read already"
    leader.on_read("c", 30, 3, [], is_gone=False, truncations=0)

    (append,) = said(leader, "c")
    assert isinstance(append, Append)
    assert (append.previous_end, append.previous_chain, append.batches) == (30, 3, [])


@pytest.mark.parametrize("why", ["gone", "no batch ends there", "committed and not ours"])
def test_member_that_cannot_be_fed_gets_a_copy_and_nothing_else_meanwhile(why: str) -> None:
    leader, barrier = leading(start=Position(100, 1, 7))
    commit = 40 if why == "committed and not ours" else 30
    leader.on_message("c", Mismatch(5, 40, 4, commit), NOW_MS)
    leader.take()
    if why == "gone":
        leader.on_read("c", 40, 4, [], is_gone=True, truncations=0)
    elif why == "no batch ends there":
        leader.on_read("c", 40, None, [], is_gone=False, truncations=0)
        assert leader.take().reads == [ReadLog("c", 30)]
        leader.on_read("c", 30, None, [], is_gone=False, truncations=0)
    else:
        leader.on_read("c", 40, 99, [], is_gone=False, truncations=0)

    assert leader.take().copies == ["c"]
    leader.on_message("c", Appended(5, 40, 40, NOW_MS), NOW_MS)
    leader.on_message("c", Mismatch(5, 40, 4, commit), NOW_MS)
    leader.on_tick(NOW_MS + HEARTBEAT_MS)
    effects = leader.take()
    assert [envelope.receiver for envelope in effects.messages] == ["a"]
    assert (effects.copies, effects.reads) == ([], [])
    leader.on_copied("c")
    leader.on_copied("nobody that is fed")
    leader.on_tick(NOW_MS + 2 * HEARTBEAT_MS)
    (probe,) = said(leader, "c")
    assert isinstance(probe, Append)
    assert probe.previous_end == barrier.next_offset


def test_read_that_nobody_waits_for_changes_nothing() -> None:
    leader, _ = leading()

    leader.on_read("c", 0, 0, [], is_gone=True, truncations=0)
    leader.on_read("x", 0, 0, [], is_gone=True, truncations=0)

    assert leader.take().copies == []


def test_member_whose_log_is_longer_is_fed_from_its_commit_on() -> None:
    leader, barrier = leading()

    leader.on_message("c", Mismatch(5, 9, 99, 0), NOW_MS)

    (append,) = said(leader, "c")
    assert isinstance(append, Append)
    assert (append.previous_end, append.batches) == (0, [barrier])


def test_member_that_agrees_where_its_log_ends_is_fed_from_there() -> None:
    own = batches_of(1, count=3)
    leader, barrier = leading(*own)

    leader.on_message("c", Mismatch(5, 2, own[1].chain, 1), NOW_MS)
    (probe,) = said(leader, "c")
    assert isinstance(probe, Append)
    assert (probe.previous_end, probe.batches) == (2, [])
    leader.on_message("c", Appended(5, 2, 2, NOW_MS), NOW_MS)
    assert leader.take().reads == [ReadLog("c", 2)], "these bytes were never in memory"
    leader.on_read("c", 2, own[1].chain, own[2:], is_gone=False, truncations=0)
    leader.on_message("c", Appended(5, 3, 3, NOW_MS), NOW_MS)
    appends = [message for message in said(leader, "c") if isinstance(message, Append)]
    assert [batch for append in appends for batch in append.batches] == [own[2], barrier]


def test_member_that_differs_where_its_log_ends_is_fed_from_its_commit_on() -> None:
    leader, barrier = leading()

    leader.on_message("c", Mismatch(5, 1, 99, 0), NOW_MS)

    (append,) = said(leader, "c")
    assert isinstance(append, Append)
    assert (append.previous_end, append.batches) == (0, [barrier])


def test_member_gets_no_more_than_so_much_before_it_answers() -> None:
    leader, barrier = leading()
    leader.on_message("c", Appended(5, barrier.next_offset, barrier.next_offset, NOW_MS), NOW_MS)
    leader.take()
    large = batches_of(5, behind=leader.end, count=8, size=1 << 20)
    for batch in large:
        leader.append(batch)

    first = [message for message in said(leader, "c") if isinstance(message, Append)]
    sent = sum(len(batch.data) for append in first for batch in append.batches)
    assert UNANSWERED_BYTES_MAX <= sent < UNANSWERED_BYTES_MAX + (2 << 20)
    leader.on_message("c", Appended(5, first[0].batches[-1].next_offset, 0, NOW_MS), NOW_MS)

    (following,) = [message for message in said(leader, "c") if isinstance(message, Append)]
    assert following.batches == [large[len(first)]]


def test_batch_that_is_neither_in_memory_nor_on_disk_yet_is_sent_when_it_is_written() -> None:
    leader, barrier = leading(tail_bytes_max=0)
    leader.on_read("a", 0, 0, [barrier], is_gone=False, truncations=0)
    (batch,) = batches_of(5, behind=leader.end)
    leader.append(batch)

    assert leader.take().reads == []
    leader.on_written(batch.next_offset)
    leader.on_tick(NOW_MS + 1)

    assert leader.take().reads == [ReadLog("a", barrier.next_offset)]


def test_member_that_slept_is_asked_for_where_its_log_ends_by_what_is_on_disk() -> None:
    leader, barrier = leading(tail_bytes_max=0)
    for _ in range(600):
        (batch,) = batches_of(5, behind=leader.end)
        leader.append(batch)
    end = leader.end.end
    leader.on_durable(end)
    leader.take()
    leader.on_message("a", Appended(5, end, end, NOW_MS), NOW_MS)
    assert leader.tail.start.end > barrier.next_offset
    leader.take()

    leader.on_tick(NOW_MS + HEARTBEAT_MS)

    assert ReadLog("c", 0) in leader.take().reads


def test_elected_replica_says_nothing_before_it_has_its_barrier() -> None:
    found = recovered()
    found.on_configuration(elect(5), NOW_MS)
    found.on_promise_durable(5)
    found.on_message("a", Promise(5, 0, 0), NOW_MS)
    found.take()

    found.on_tick(NOW_MS + HEARTBEAT_MS)

    assert (found.role, found.take().messages) == ("elected", [])


def test_learners_are_taken_from_the_configuration_once_it_is_elected() -> None:
    found = recovered()
    learning = JournalConfiguration(5, "b", ("a", "b", "c"), ("a", "b", "c"), False, ("d", "b"))
    found.on_configuration(elect(5), NOW_MS)
    found.on_configuration(learning, NOW_MS)
    found.on_promise_durable(5)

    found.on_message("a", Promise(5, 0, 0), NOW_MS)

    assert set(found.lag_of()) == {"a", "c", "d"}
    found.on_configuration(learning, NOW_MS)
    assert set(found.lag_of()) == {"a", "c", "d"}


def test_old_news_of_coordination_changes_nothing() -> None:
    leader, _ = leading()

    leader.on_configuration(JournalConfiguration(4, "a", ("a", "b", "c"), (), True, ("d",)), NOW_MS)

    assert leader.is_leading
    assert set(leader.lag_of()) == {"a", "c"}


def test_leader_steps_down_when_coordination_names_another() -> None:
    leader, _ = leading()

    leader.on_configuration(JournalConfiguration(6, "a", ("a", "b", "c"), (), False), NOW_MS)

    assert leader.role == "follower"
    assert leader.take().activate is None


def test_activation_of_another_epoch_activates_nothing() -> None:
    found = recovered()
    found.on_configuration(elect(5), NOW_MS)
    found.on_promise_durable(5)
    found.on_message("a", Promise(5, 0, 0), NOW_MS)
    (barrier,) = batches_of(5)
    found.append(barrier)

    found.on_activated(4)

    assert (found.role, found.commit) == ("activating", 0)


def test_leader_refuses_to_follow_anybody_in_its_own_epoch() -> None:
    leader, barrier = leading()

    leader.on_message("c", appended(5, LOG_START, batches_of(5, count=3)), NOW_MS)
    leader.on_message("c", Prepare(5), NOW_MS)

    assert leader.is_leading
    assert leader.end.end == barrier.next_offset
    assert leader.take().operations == []


def test_follower_promises_its_epoch_to_nobody_but_its_leader() -> None:
    found = recovered()
    found.on_message("a", appended(5, LOG_START, []), NOW_MS)
    found.on_promise_durable(5)
    found.take()

    found.on_message("c", Prepare(5), NOW_MS)
    assert found.take().messages == []
    found.on_message("a", Prepare(5), NOW_MS)
    assert said(found, "a") == [Promise(5, 0, 0)]


def test_promise_is_not_repeated_while_the_log_it_tells_of_is_not_durable() -> None:
    found = recovered()
    found.on_message("a", appended(5, LOG_START, batches_of(5)), NOW_MS)
    found.on_promise_durable(5)
    found.take()

    found.on_message("a", Prepare(5), NOW_MS)

    assert not any(isinstance(message, Promise) for message in said(found, "a"))


def test_leaders_resignation_lifts_the_wait_and_nobody_elses() -> None:
    found = recovered()
    found.on_message("a", appended(5, LOG_START, []), NOW_MS)
    found.on_message("c", Prepare(6), NOW_MS)
    assert found.promised_epoch == 5

    for sender, epoch in (("c", 5), ("a", 4)):
        found.on_message(sender, Resign(epoch), NOW_MS)
    found.on_connection_closed("c")
    assert found.promised_epoch == 5
    found.on_message("a", Resign(5), NOW_MS)

    assert found.promised_epoch == 6


def test_leader_that_is_heard_by_a_majority_promises_to_nobody_else() -> None:
    leader, _ = leading()

    leader.on_message("c", Prepare(6), NOW_MS)
    assert leader.is_leading
    leader.on_tick(NOW_MS + LEASE_MS)
    leader.on_message("c", Prepare(6), NOW_MS + LEASE_MS)

    assert (leader.role, leader.promised_epoch) == ("follower", 6)


def test_heartbeat_below_what_is_committed_acknowledges_nothing() -> None:
    batches = batches_of(1, count=3)
    found = recovered()
    found.on_message("a", appended(1, LOG_START, batches, commit=3), NOW_MS)
    found.on_promise_durable(1)
    found.on_durable(3)
    found.take()
    assert found.commit == 3

    found.on_message("a", appended(1, Position(1, 1, 999), []), NOW_MS)

    assert said(found, "a") == [Mismatch(1, 3, batches[-1].chain, 3)]


def test_batches_that_are_committed_are_passed_over_and_what_is_behind_is_taken() -> None:
    batches = batches_of(1, count=4)
    found = recovered()
    found.on_message("a", appended(1, LOG_START, batches[:2], commit=2), NOW_MS)
    found.take()

    found.on_message("a", appended(1, LOG_START, batches), NOW_MS)

    assert found.take().operations == [Write(batches[2:])]
    assert found.end.end == 4


def test_batches_that_are_there_already_are_acknowledged_and_not_written_again() -> None:
    batches = batches_of(1, count=3)
    found = recovered(*batches, promised_epoch=1)
    found.on_message("a", appended(2, LOG_START, batches), NOW_MS)
    assert found.take().operations == [PersistPromise(2)]

    found.on_promise_durable(2)

    assert said(found, "a") == [Appended(2, 3, 3, NOW_MS)]


def test_nothing_that_was_acknowledged_under_an_epoch_is_cut_in_it() -> None:
    batches = batches_of(1, count=3)
    found = recovered()
    found.on_message("a", appended(1, LOG_START, batches), NOW_MS)

    with pytest.raises(AssertionError, match="below 3, acknowledged"):
        found.on_message("a", appended(1, LOG_START, batches_of(1, count=3, size=11)), NOW_MS)


def test_nothing_that_is_committed_is_cut() -> None:
    batches = batches_of(1, count=3)
    found = recovered()
    found.on_message("a", appended(1, LOG_START, batches, commit=2), NOW_MS)

    with pytest.raises(AssertionError, match="below its commit index"):
        found._truncate(1)


def test_write_that_somebody_waits_for_is_told_of_when_it_joins_another() -> None:
    leader, _ = leading()
    first, second = batches_of(5, behind=leader.end, count=2)

    leader.append(first)
    leader.append(second, tell_received=True)

    assert leader.take().operations == [Write([first, second], True)]


def test_batch_of_another_epoch_is_not_appended() -> None:
    leader, _ = leading()
    follower = recovered()

    with pytest.raises(AssertionError, match="a batch of epoch 4 in epoch 5"):
        leader.append(batches_of(4, behind=leader.end)[0])
    with pytest.raises(AssertionError, match="a follower replica appends nothing"):
        follower.append(batches_of(0)[0])


def test_report_of_a_cut_that_is_not_carried_out_yet_is_not_believed() -> None:
    """The disk still has what was cut, and other batches come to its place."""
    found = recovered()
    found.on_message("a", appended(1, LOG_START, batches_of(1, count=3)), NOW_MS)
    found.on_promise_durable(1)
    found.on_message("c", appended(2, LOG_START, batches_of(2, count=3)), NOW_MS)
    found.on_promise_durable(2)
    operations = found.take().operations
    assert [type(operation) for operation in operations][-3:] == [PersistPromise, Truncate, Write]

    found.on_durable(3, truncations=0)
    assert found.durable_end == 0
    found.on_durable(3, truncations=1)
    assert found.durable_end == 3


def test_stopped_replica_takes_part_no_longer() -> None:
    leader, _ = leading()
    end = leader.end

    leader.stop()
    leader.on_message("a", appended(9, LOG_START, []), NOW_MS)
    leader.on_tick(NOW_MS + 10 * HEARTBEAT_MS)
    leader.on_configuration(elect(9), NOW_MS)

    effects = leader.take()
    assert (effects.messages, effects.operations) == ([], [])
    assert (leader.role, leader.end, leader.promised_epoch) == ("stopped", end, 5)


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
        elif up:
            cluster.replicas[choose.choice(up)].room = choose.choice(list(DiskPressure))
        look()

    cluster.is_slow = False
    for replica in cluster.replicas.values():
        replica.room = DiskPressure.PLENTY
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


def test_followers_do_not_wait_for_a_leader_that_speaks_and_hears_nobody(cluster: LogCluster) -> None:
    cluster.cut = {("b", "a"), ("c", "a")}
    cluster.pass_time(2 * LEASE_MS)
    assert cluster.replicas["a"].role == "leading"
    end = cluster.propose(cluster.replicas["a"])

    cluster.pass_time(LEASE_MS)

    assert not any(replica.hears_leader(cluster.now_ms) for replica in cluster.replicas.values())
    cluster.appoint("b")
    cluster.settle()
    assert cluster.leader.node == "b"
    assert cluster.leader.end.end > end, "it is followed as long as there is no other"


def test_leader_that_is_heard_again_is_waited_for_again(cluster: LogCluster) -> None:
    cluster.cut = {("b", "a"), ("c", "a")}
    cluster.pass_time(3 * LEASE_MS)

    cluster.cut = set()
    cluster.pass_time(2 * HEARTBEAT_MS)

    assert all(replica.hears_leader(cluster.now_ms) for replica in cluster.replicas.values())


@pytest.mark.parametrize(
    ("end", "copy_end", "verdict"),
    [
        (Position(80, 3, 1), Position(100, 5, 2), "take"),
        (Position(120, 3, 1), Position(100, 5, 2), "take"),  # what is behind was never committed
        (Position(90, 5, 1), Position(100, 5, 2), "take"),
        (Position(100, 5, 2), Position(100, 5, 2), "keep"),
        (Position(110, 5, 1), Position(100, 5, 2), "keep"),
        (Position(80, 4, 1), Position(100, 3, 2), "wait"),  # the leader has fetched more than it has durable
        (Position(110, 3, 1), Position(100, 3, 2), "wait"),
    ],
)
def test_copy_takes_the_place_of_a_log_that_holds_nothing_committed_beyond_it(
    end: Position, copy_end: Position, verdict: str
) -> None:
    judged = judge_copy(promised_epoch=5, end=end, leader_epoch=5, copy_end=copy_end)

    assert judged == verdict


def test_copy_is_not_made_in_vain_when_a_higher_epoch_was_promised_meanwhile() -> None:
    judged = judge_copy(promised_epoch=6, end=Position(1, 1, 1), leader_epoch=5, copy_end=Position(100, 5, 2))

    assert judged == "take"


@pytest.mark.parametrize(("promised_epoch", "end"), [(4, Position(1, 1, 1)), (6, Position(90, 6, 1))])
def test_copy_of_a_leader_that_is_not_followed_is_not_taken(promised_epoch: int, end: Position) -> None:
    judged = judge_copy(promised_epoch=promised_epoch, end=end, leader_epoch=5, copy_end=Position(100, 5, 2))

    assert judged == "wait"
