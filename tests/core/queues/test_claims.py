"""Claims: a consumer holds messages, reads them again in the same order, and settles them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness.replica_host import RETRY_WINDOW_MS, Host, arn, message, queue, replay

from quaymaster.core.partition.partition_snapshots import (
    STATE_VERSION,
    STATE_VERSION_WITHOUT_SETTLED,
    load_partition,
    snapshot_pieces,
    state_version_min,
)
from quaymaster.core.queues import claims
from quaymaster.core.structures.deliveries import CLAIMED_MS
from quaymaster.core.structures.orders.claims import CONSUMERS_MAX
from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimConsumerView,
    ClaimOutcome,
    ClaimsOutcome,
    ClaimView,
    DescribeClaims,
    ReadClaim,
    ReleaseClaims,
    ReleasedOutcome,
    Settle,
    SettledOutcome,
)
from quaymaster.core.values.commands.decided import (
    ClaimedOutcome,
    ExpireMessages,
    FetchedOffsets,
    TakenOutcome,
)
from quaymaster.core.values.commands.logs import FetchOutcome
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import (
    ClaimIsSettled,
    ClaimNotFound,
    ClaimTakenOver,
    InvalidParameterValue,
    OffsetOutOfRange,
    OverLimit,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import replace_definition

QUEUE, DEAD = 1, 2
HELD_MS = 300_000
KINDS: dict[str, dict[str, object]] = {
    "standard": {},
    "queue.fifo": {"FifoThroughputLimit": "perQueue"},
}


def host_of(count: int = 0, *, kind: str = "standard", **attributes: object) -> Host:
    host = Host()
    host.ask(SetQueue(queue(QUEUE, kind, attributes={**KINDS[kind], **attributes})))
    send(host, count)
    return host


def send(host: Host, count: int, *, group: int = 0) -> None:
    for start in range(0, count, 10):
        numbers = range(start, min(count, start + 10))
        host.ask(Send(QUEUE, 0, [message(number, group=group) for number in numbers]))


def asked(host: Host, count: int = 10, *, claim: int = 1, known: int = 0, **more: Any) -> ClaimOutcome:
    command = Claim(QUEUE, 0, "spark", "a", claim, count, known, HELD_MS)
    for name, value in more.items():
        setattr(command, name, value)
    outcome = host.ask(command)
    if isinstance(outcome, ClaimedOutcome):
        assert not outcome.dead_letters
        outcome = outcome.outcome
    assert isinstance(outcome, ClaimOutcome)
    return outcome


def hold(host: Host, *, claim: int = 1, **more: Any) -> ClaimOutcome:
    return asked(host, 0, claim=claim, **more)


def read(host: Host, claim: int = 1, start: int = 0, stop: int = 1 << 40) -> list[int]:
    outcome = host.ask(ReadClaim(QUEUE, 0, "spark", claim, start, stop, 1 << 20))
    assert isinstance(outcome, FetchedOffsets)
    assert outcome.next_sequence == start + len(outcome.sequences)
    return outcome.sequences


def settle(host: Host, claim: int = 1, **more: Any) -> SettledOutcome:
    command = Settle(QUEUE, 0, "spark", "a", claim)
    for name, value in more.items():
        setattr(command, name, value)
    outcome = host.ask(command)
    assert isinstance(outcome, SettledOutcome)
    return outcome


def receive(host: Host, count: int = 10, timeout_ms: int = 30_000) -> list[int]:
    outcome = host.ask(Receive(QUEUE, 0, count, timeout_ms))
    assert isinstance(outcome, TakenOutcome)
    return [taken.sequence for taken in outcome.taken]


def counts(host: Host) -> tuple[int, int]:
    found = host.ask(CountMessages(QUEUE))
    assert isinstance(found, QueueCounts)
    return found.visible, found.in_flight


def described(host: Host) -> list[ClaimConsumerView]:
    found = host.ask(DescribeClaims(QUEUE, 0))
    assert isinstance(found, ClaimsOutcome)
    return found.consumers


def agree(host: Host) -> None:
    """A replay of the journal has the same state, and so has a snapshot that is loaded."""
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    data = b"".join(snapshot_pieces(host.partition(QUEUE)))
    loaded = load_partition(
        data, host.partition(QUEUE).definition, 0, host.states._keeper, retry_window_ms=RETRY_WINDOW_MS
    )
    kept = host.partition(QUEUE).claims
    assert (loaded.claims is None) is (kept is None)
    if loaded.claims is not None and kept is not None:
        assert loaded.claims.content() == kept.content()
        assert loaded.claims.due_ms == kept.due_ms


@pytest.mark.parametrize("kind", KINDS)
def test_claimed_messages_are_hidden_and_read_in_order_until_they_are_settled(kind: str) -> None:
    host = host_of(kind=kind)
    for number in range(12):
        host.ask(Send(QUEUE, 0, [message(number, group=number + 1 if kind != "standard" else 0)]))

    first = asked(host, 5)
    second = asked(host, 5, known=5)

    assert (first, second) == (ClaimOutcome("growing", 5, 5), ClaimOutcome("growing", 10, 5))
    assert read(host) == list(range(1, 11)) == read(host)
    assert read(host, 1, 3, 7) == [4, 5, 6, 7]
    assert counts(host) == (2, 10)
    assert receive(host) == [11, 12]
    agree(host)

    assert settle(host) == SettledOutcome(1, 10)

    assert settle(host) == SettledOutcome(1, 0)
    assert counts(host) == (0, 2)
    assert host.partition(QUEUE).deletions == 0, "usage counts them apart from deletes"
    agree(host)


def test_claim_that_is_asked_for_again_takes_nothing_more() -> None:
    host = host_of(20)
    asked(host, 5)

    again = asked(host, 5)

    assert again == ClaimOutcome("growing", 5, 0)
    assert counts(host) == (15, 5)


def test_claim_that_was_read_grows_no_more() -> None:
    host = host_of(20)
    asked(host, 5)
    read(host)

    later = asked(host, 5, known=5)

    assert later == ClaimOutcome("held", 5, 0)
    agree(host)


def test_claim_of_nothing_is_none() -> None:
    host = host_of()

    assert asked(host) == ClaimOutcome("none", 0)
    assert hold(host) == ClaimOutcome("none", 0)
    assert described(host) == []
    assert not host.states.claiming


def test_claims_have_one_deadline_which_costs_nothing_to_extend() -> None:
    host = host_of(20)
    asked(host, 10)
    host.now_ms += 200_000
    hold(host)
    host.now_ms += 200_000

    assert receive(host, 10) == list(range(11, 21))
    assert {
        row.deadline_ms for sequence, row in host.partition(QUEUE).in_flight.items() if sequence < 11
    } == {CLAIMED_MS}
    (view,) = described(host)
    assert view == ClaimConsumerView("spark", "a", 0, [ClaimView(1, "held", 10, 100_000)])
    agree(host)


@pytest.mark.parametrize("kind", KINDS)
def test_claim_that_lapsed_is_held_again_if_nobody_received_of_it(kind: str) -> None:
    host = host_of(kind=kind)
    send(host, 10, group=7 if kind != "standard" else 0)
    asked(host, 10)
    first = read(host)
    host.now_ms += HELD_MS + 50
    assert counts(host) == (10, 0)
    assert host.partition(QUEUE).next_change_ms() is None
    assert described(host)[0].claims == [ClaimView(1, "lapsed", 10, 0)]

    assert hold(host) == ClaimOutcome("held", 10)

    assert read(host) == first
    assert counts(host) == (0, 10)
    assert receive(host) == []
    agree(host)
    assert settle(host).deleted == 10
    agree(host)


def test_lapsed_claim_of_which_another_received_is_broken_and_settling_it_deletes_nothing() -> None:
    host = host_of(10)
    asked(host, 10)
    read(host)
    host.now_ms += HELD_MS + 50
    receive(host, 1)

    assert hold(host) == ClaimOutcome("broken", 10)

    assert hold(host) == ClaimOutcome("broken", 10)
    assert read_broken(host) == ClaimOutcome("broken", 10)
    assert asked(host, 10, known=10) == ClaimOutcome("broken", 10)
    agree(host)
    assert settle(host) == SettledOutcome(1, 0)
    assert counts(host) == (9, 1)
    agree(host)


def read_broken(host: Host, claim: int = 1, start: int = 0, stop: int = 100) -> Decided:
    return host.ask(ReadClaim(QUEUE, 0, "spark", claim, start, stop, 1 << 20))


def test_settling_a_lapsed_claim_spares_what_others_received() -> None:
    host = host_of(10)
    asked(host, 10)
    read(host)
    host.now_ms += HELD_MS + 50
    theirs = receive(host, 3)

    assert settle(host) == SettledOutcome(1, 7)

    assert counts(host) == (0, 3)
    host.now_ms += 30_050
    assert receive(host, 10) == theirs
    agree(host)


def test_settling_spares_what_an_older_receipt_made_visible_and_another_received() -> None:
    host = host_of(3)
    old = host.ask(Receive(QUEUE, 0, 1, 1_000))
    assert isinstance(old, TakenOutcome)
    host.now_ms += 1_050
    asked(host, 10)
    host.ask(ChangeVisibility(QUEUE, 0, [Receipt(1, old.epoch, 1)], [0]))
    assert receive(host) == [1]

    assert settle(host) == SettledOutcome(1, 2)

    assert counts(host) == (0, 1)
    agree(host)


def test_claim_with_a_message_that_was_deleted_is_broken_when_that_is_read() -> None:
    host = host_of(5)
    old = host.ask(Receive(QUEUE, 0, 1, 1_000))
    assert isinstance(old, TakenOutcome)
    host.now_ms += 1_050
    asked(host, 5)
    claimed = read(host)
    host.ask(Delete(QUEUE, 0, [Receipt(1, old.epoch, 1)]))
    place = claimed.index(1)

    assert read(host, 1, place + 1) == claimed[place + 1 :]
    assert read_broken(host, 1, place, place + 1) == ClaimOutcome("broken", 5)

    assert hold(host) == ClaimOutcome("broken", 5)
    assert counts(host) == (4, 0)
    agree(host)


def test_purged_claim_is_broken() -> None:
    host = host_of(5)
    asked(host, 5)
    host.ask(Purge(QUEUE))
    send(host, 2)

    assert read_broken(host) == ClaimOutcome("broken", 5)
    assert settle(host) == SettledOutcome(1, 0)
    assert counts(host) == (2, 0)
    agree(host)


def test_expired_messages_break_their_claim() -> None:
    host = host_of(5, MessageRetentionPeriod=60)
    asked(host, 5)
    host.now_ms += 60_050
    host.ask(ExpireMessages(QUEUE, 0))

    assert read_broken(host) == ClaimOutcome("broken", 5)
    agree(host)


def test_claim_that_lapsed_before_it_was_read_is_broken() -> None:
    host = host_of(5)
    asked(host, 5)
    host.now_ms += HELD_MS + 50

    assert read_broken(host) == ClaimOutcome("broken", 5)
    assert receive(host) == [1, 2, 3, 4, 5]
    agree(host)


def test_claim_counts_as_a_receive_and_holding_it_again_does_not() -> None:
    host = host_of(2)
    asked(host, 2)
    host.now_ms += HELD_MS + 50
    hold(host)
    host.ask(ReleaseClaims(QUEUE, 0, "spark"))

    again = host.ask(Receive(QUEUE, 0, 10))

    assert isinstance(again, TakenOutcome)
    assert [taken.delivery_count for taken in again.taken] == [2, 2]
    agree(host)


def test_driver_that_takes_a_consumer_over_fences_the_one_before() -> None:
    host = host_of(10)
    asked(host, 5)

    assert hold(host, owner="b", takes=True) == ClaimOutcome("held", 5)

    for refused in (
        Claim(QUEUE, 0, "spark", "a", 1, 0, 0, HELD_MS),
        Claim(QUEUE, 0, "spark", "a", 2, 5, 0, HELD_MS),
        Settle(QUEUE, 0, "spark", "a", 1),
    ):
        with pytest.raises(ClaimTakenOver):
            host.ask(refused)
    assert settle(host, owner="b") == SettledOutcome(1, 5)
    assert settle(host, owner="c", takes=True) == SettledOutcome(1, 0)
    assert described(host) == [ClaimConsumerView("spark", "c", 1, [])]
    agree(host)


def test_driver_that_takes_over_a_consumer_without_the_claim_owns_it() -> None:
    host = host_of(5)
    asked(host, 5)

    assert hold(host, claim=2, owner="b", takes=True) == ClaimOutcome("none", 0)

    assert hold(host, claim=2, owner="b") == ClaimOutcome("none", 0)
    with pytest.raises(ClaimTakenOver):
        hold(host)
    agree(host)


def test_owner_of_a_broken_claim_is_noted() -> None:
    host = host_of(5)
    asked(host, 5)
    host.ask(ReleaseClaims(QUEUE, 0, "spark"))

    assert hold(host, owner="b", takes=True) == ClaimOutcome("broken", 5)

    assert described(host)[0].owner == "b"
    agree(host)


def test_consumer_that_is_new_to_the_queue_settles_what_its_checkpoint_says() -> None:
    host = host_of(5)

    assert settle(host, 7) == SettledOutcome(7, 0)

    assert asked(host, 5, claim=8).count == 5
    with pytest.raises(ClaimIsSettled) as caught:
        asked(host, 5, claim=7)
    assert caught.value.settled == 7
    with pytest.raises(ClaimIsSettled):
        read(host, 7)
    agree(host)


def test_claims_follow_each_other_and_two_are_open_at_most() -> None:
    host = host_of(20)
    asked(host, 5)
    with pytest.raises(InvalidParameterValue, match="The next claim is 2"):
        asked(host, 5, claim=3)
    asked(host, 5, claim=2)

    with pytest.raises(OverLimit, match="2 open claims"):
        asked(host, 5, claim=3)

    assert settle(host, 2) == SettledOutcome(2, 10)
    with pytest.raises(InvalidParameterValue, match="The next claim is 3"):
        asked(host, 5, claim=4)
    assert host.states.open_claims == 0
    asked(host, 5, claim=3)
    assert host.states.open_claims == 1


def test_first_claim_of_a_consumer_is_the_first() -> None:
    with pytest.raises(InvalidParameterValue, match="The next claim is 1"):
        asked(host_of(5), 5, claim=2)


def test_consumers_of_a_partition_are_bounded_until_one_is_forgotten() -> None:
    host = host_of(40)
    for number in range(CONSUMERS_MAX):
        asked(host, 1, consumer=f"c{number}")
    with pytest.raises(OverLimit, match="16 consumers"):
        asked(host, 1)
    with pytest.raises(OverLimit, match="16 consumers"):
        settle(host)

    assert host.ask(ReleaseClaims(QUEUE, 0, "c3", forgets=True)) == ReleasedOutcome(1)

    assert asked(host, 1).count == 1
    assert counts(host) == (24, 16)
    agree(host)


def test_partition_that_forgets_its_last_consumer_is_as_if_there_had_been_none() -> None:
    host = host_of(5)
    before = host.states.state_hash(host.now_ms).keys()
    asked(host, 5)
    assert state_version_min(host.partition(QUEUE)) == STATE_VERSION
    settle(host)
    assert host.states.claiming == {QUEUE << 16}

    host.ask(ReleaseClaims(QUEUE, 0, "spark", forgets=True))

    assert host.ask(ReleaseClaims(QUEUE, 0, "spark", forgets=True)) == ReleasedOutcome(0)
    assert state_version_min(host.partition(QUEUE)) < STATE_VERSION_WITHOUT_SETTLED
    assert host.states.state_hash(host.now_ms).keys() == before
    assert not host.states.claiming
    agree(host)


def test_released_claims_come_back_at_once() -> None:
    host = host_of(10)
    asked(host, 5)
    asked(host, 5, claim=2)
    read(host, 2)

    assert host.ask(ReleaseClaims(QUEUE, 0, "spark")) == ReleasedOutcome(10)

    assert host.ask(ReleaseClaims(QUEUE, 0, "spark")) == ReleasedOutcome(0)
    assert sorted(receive(host)) == list(range(1, 11))
    assert settle(host, 2) == SettledOutcome(2, 0)
    agree(host)


def test_claim_has_at_most_so_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MESSAGES_MAX", 7)
    host = host_of(10)
    asked(host, 5)

    assert asked(host, 5, known=5) == ClaimOutcome("growing", 7, 2)
    assert asked(host, 5, known=7) == ClaimOutcome("growing", 7, 0)


def test_claims_leave_room_among_messages_in_flight() -> None:
    host = host_of(10)
    host.states._in_flight_max = 6

    assert asked(host, 10).taken == 6
    assert asked(host, 10, claim=2) == ClaimOutcome("none", 0)


def test_claim_locks_the_groups_of_a_fifo_queue() -> None:
    host = host_of(kind="queue.fifo")
    send(host, 3, group=7)
    send(host, 2, group=8)
    asked(host, 2)
    assert read(host) == [1, 2]

    assert receive(host, 1) == [4], "group 7 is locked"
    assert settle(host).deleted == 2

    assert receive(host, 1) == [3]
    agree(host)


def test_dead_letters_that_a_claim_meets_are_set_aside() -> None:
    host = host_of(3)
    host.ask(SetQueue(queue(DEAD, "dead")))
    policy = f'{{"deadLetterTargetArn":"{arn("dead")}","maxReceiveCount":1}}'
    host.ask(SetQueue(queue(QUEUE, "standard", revision=2, attributes={"RedrivePolicy": policy})))
    receive(host, 1, 1_000)
    host.now_ms += 1_050

    outcome = host.ask(Claim(QUEUE, 0, "spark", "a", 1, 10, 0, HELD_MS))

    assert isinstance(outcome, ClaimedOutcome)
    assert outcome.outcome == ClaimOutcome("growing", 2, 2)
    assert [letter.sequence for letter in outcome.dead_letters] == [1]


def test_claim_with_a_message_that_is_taken_for_a_move_is_broken() -> None:
    host = host_of(3)
    host.ask(SetQueue(queue(DEAD, "dead")))
    asked(host, 3)
    host.now_ms += HELD_MS + 50
    counts(host)
    host.partition(QUEUE).moving[1] = DEAD

    assert hold(host) == ClaimOutcome("broken", 3)


def test_places_that_a_claim_has_not_are_out_of_range() -> None:
    host = host_of(3)
    asked(host, 3)

    with pytest.raises(OffsetOutOfRange):
        read(host, 1, 4)
    with pytest.raises(ClaimNotFound):
        read(host, 2)
    assert read(host, 1, 3) == []
    outcome = host.ask(ReadClaim(QUEUE, 0, "spark", 1, 1, 3, 1, with_messages=False))
    assert isinstance(outcome, FetchOutcome)
    assert (outcome.sequences, outcome.next_sequence, outcome.end) == ([2, 3], 3, 3)
    with pytest.raises(ClaimNotFound):
        host.ask(ReadClaim(QUEUE, 0, "other", 1, 0, 3, 1))


def test_logs_and_queues_that_deliver_once_have_no_claims() -> None:
    host = Host()
    host.ask(SetQueue(queue(QUEUE, "log", attributes={"RetentionMode": "Log", "RetentionBytes": 1 << 20})))
    host.ask(SetQueue(replace_definition(queue(DEAD, "log@a"), group_of=QUEUE)))
    host.ask(SetQueue(queue(3, "once", attributes={"DeliveryGuarantee": "AtMostOnce"})))

    for queue_id in (QUEUE, DEAD, 3):
        with pytest.raises(UnsupportedOperation):
            host.ask(DescribeClaims(queue_id, 0))


def test_cells_of_an_older_format_have_no_claims() -> None:
    host = host_of(3)
    host.states.cell_format = CellFormat(7)

    with pytest.raises(UnsupportedOperation, match="cell upgrade"):
        asked(host)


def test_large_claims_are_settled_and_held_again_in_slices() -> None:
    host = host_of(3_000)
    for known in (0, 1_000, 2_000):
        asked(host, 1_000, known=known)
    first = read(host)
    host.now_ms += HELD_MS + 50
    host.is_held_up = True

    token = host.propose(Claim(QUEUE, 0, "spark", "a", 1, 0, 0, HELD_MS))
    receiving = host.propose(Receive(QUEUE, 0, 10))
    while host.do_slice():
        assert token not in host.replies
        assert receiving not in host.replies, "nothing is received between two slices"

    assert host.replies.pop(token) == ClaimOutcome("held", 3_000)
    assert isinstance(taken := host.replies.pop(receiving), TakenOutcome)
    assert taken.taken == []
    assert first == read(host)
    agree(host)

    token = host.propose(Settle(QUEUE, 0, "spark", "a", 1))
    assert token not in host.replies
    while host.do_slice():
        pass
    assert host.replies.pop(token) == SettledOutcome(1, 3_000)
    assert counts(host) == (0, 0)
    agree(host)


def test_lapsed_claim_comes_back_a_part_at_a_time_and_is_the_same_for_a_later_leader() -> None:
    host = host_of(2_500)
    for known in (0, 1_000, 2_000):
        asked(host, 1_000, known=known)
    read(host)
    host.now_ms += HELD_MS + 50

    assert 0 < counts(host)[0] < 2_500
    assert host.partition(QUEUE).is_behind(host.now_ms)
    later = Host(batches=host.batches, states=host.replayed(), epoch=2, now_ms=host.now_ms)

    assert hold(host) == hold(later) == ClaimOutcome("held", 2_500)
    assert read(host) == read(later)
    assert counts(host) == counts(later) == (0, 2_500)
    agree(host)
    agree(later)


def test_broken_claim_that_is_settled_before_it_has_come_back_comes_back_whole() -> None:
    host = host_of(2_500)
    for known in (0, 1_000, 2_000):
        asked(host, 1_000, known=known)
    host.ask(ReleaseClaims(QUEUE, 0, "spark"))

    assert settle(host) == SettledOutcome(1, 0)

    assert counts(host) == (2_500, 0)
    agree(host)


def test_consumer_with_large_claims_is_forgotten_in_slices() -> None:
    host = host_of(3_000)
    for known in (0, 1_000, 2_000):
        asked(host, 1_000, known=known)
    host.is_held_up = True

    token = host.propose(ReleaseClaims(QUEUE, 0, "spark", forgets=True))
    while host.do_slice():
        assert token not in host.replies

    assert host.replies.pop(token) == ReleasedOutcome(3_000)
    assert counts(host) == (3_000, 0)
    assert not host.states.claiming
    assert not host.replayed().claiming
    agree(host)


def test_claims_survive_a_leader() -> None:
    host = host_of(10)
    asked(host, 4)
    read(host)
    asked(host, 4, claim=2)

    later = Host(batches=host.batches, states=host.replayed(), epoch=2, now_ms=host.now_ms)

    assert read(later) == [1, 2, 3, 4]
    assert asked(later, 5, claim=2, known=4) == ClaimOutcome("growing", 6, 2)
    assert settle(later, 2) == SettledOutcome(2, 10)
    agree(later)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_claims_read_identically_or_are_broken_whatever_others_do(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    host = host_of(kind=kind)
    readings: dict[int, list[int]] = {}
    broken: set[int] = set()
    gone: set[int] = set()
    receipts: list[tuple[int, int, int]] = []
    settled = 0
    owner = "a"
    for step in range(200):
        host.now_ms += rng.choice((0, 1, 50, 50, 1_000, 20_000))
        match rng.randrange(9):
            case 0 | 1:
                send(host, rng.randrange(1, 12), group=rng.randrange(1, 4) if kind != "standard" else 0)
            case 2:
                outcome = host.ask(Receive(QUEUE, 0, rng.randrange(1, 5), rng.choice((0, 1_000, 30_000))))
                assert isinstance(outcome, TakenOutcome)
                found = [(taken.sequence, outcome.epoch, taken.delivery_count) for taken in outcome.taken]
                assert gone.isdisjoint(sequence for sequence, _, _ in found), "settled rows never return"
                receipts += found
            case 3 if receipts:
                receipt = Receipt(*rng.choice(receipts))
                if rng.random() < 0.5:
                    host.ask(Delete(QUEUE, 0, [receipt]))
                else:
                    host.ask(ChangeVisibility(QUEUE, 0, [receipt], [rng.choice((0, 5_000))]))
            case 4 | 5:
                count = rng.randrange(1, 8)
                known = sum(view.count for one in described(host) for view in one.claims)
                asked(host, count, claim=settled + 1, known=known, held_ms=40_000, owner=owner)
            case 6:
                owner = rng.choice((owner, f"owner-{step}"))
                outcome = asked(host, 0, claim=settled + 1, held_ms=40_000, owner=owner, takes=True)
                if outcome.state == "broken":
                    broken.add(settled + 1)
                elif outcome.state == "held":
                    answer = host.ask(ReadClaim(QUEUE, 0, "spark", settled + 1, 0, 1 << 40, 1 << 20))
                    if isinstance(answer, FetchedOffsets):
                        assert settled + 1 not in broken
                        assert readings.setdefault(settled + 1, answer.sequences) == answer.sequences
                    else:
                        broken.add(settled + 1)
            case 7 if settled + 1 in readings or settled + 1 in broken:
                before = host.partition(QUEUE).alive
                done = settle(host, settled + 1, owner=owner)
                assert before - done.deleted == host.partition(QUEUE).alive
                if settled + 1 in broken:
                    assert done.deleted == 0
                else:
                    partition = host.partition(QUEUE)
                    gone |= {one for one in readings[settled + 1] if not partition.is_live(one)}
                settled += 1
            case _:
                agree(host)
    agree(host)


def test_snapshots_of_older_cells_cannot_hold_claims() -> None:
    host = host_of(3)
    asked(host, 3)

    with pytest.raises(AssertionError):
        list(snapshot_pieces(host.partition(QUEUE), STATE_VERSION - 1))


def test_what_a_snapshot_has_of_claims_is_not_applied_again() -> None:
    host = host_of(5)
    asked(host, 3)
    settle(host)
    asked(host, 1, claim=2)
    states = host.replayed()
    before = states.state_hash(host.now_ms)
    for partition in states.partitions.values():
        partition.applied = host.replica.end_offset

    replay(host.batches, states=states)

    assert states.state_hash(host.now_ms) == before
