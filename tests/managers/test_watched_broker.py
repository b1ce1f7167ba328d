"""For how long things have been so, by what a broker reports."""

from __future__ import annotations

import msgspec

from quaymaster.coordination.cell_keys import BrokerRegistration
from quaymaster.core.cell.cell import BrokerReport, ReplicaSeen
from quaymaster.core.cell.load import SMOOTHING_MS, BrokerLoad
from quaymaster.managers.watched_broker import WatchedBroker

LEARNER = "b@1"


def watched() -> WatchedBroker:
    return WatchedBroker(BrokerRegistration("a", "z", "a:1"), 1, 0)


def stuck_ms(broker: WatchedBroker, at_ms: int, *, end: int, lag: int, copied: int = 0) -> int:
    """Let a leader report how far a learner is, and return for how long it has got nothing."""
    replica = ReplicaSeen(
        "a@1", "leading", 1, 1, 1, end, hears_leader=True, lag={LEARNER: lag}, copied_bytes={"b": copied}
    )
    broker.take(BrokerReport({7: replica}), at_ms, at_ms)
    return broker.report.replicas[7].stuck_ms[LEARNER]


def unheard_ms(broker: WatchedBroker, at_ms: int, *, hears_leader: bool) -> int:
    broker.take(BrokerReport({7: ReplicaSeen("a@1", "follower", 1, 1, 1, 9, hears_leader)}), at_ms, at_ms)
    return broker.report.replicas[7].unheard_ms


def test_learner_is_stuck_from_when_it_got_the_last_record() -> None:
    broker = watched()

    assert stuck_ms(broker, 0, end=100, lag=100) == 0
    assert stuck_ms(broker, 1_000, end=150, lag=150) == 1_000
    assert stuck_ms(broker, 2_000, end=200, lag=199) == 0
    assert stuck_ms(broker, 3_000, end=300, lag=299) == 1_000


def test_learner_that_copies_is_not_stuck_until_the_copy_gets_no_further_than_before() -> None:
    broker = watched()

    assert stuck_ms(broker, 0, end=100, lag=100) == 0
    assert stuck_ms(broker, 1_000, end=100, lag=100, copied=50) == 0
    assert stuck_ms(broker, 2_000, end=100, lag=100) == 1_000
    assert stuck_ms(broker, 3_000, end=100, lag=100, copied=50) == 2_000
    assert stuck_ms(broker, 4_000, end=100, lag=100, copied=51) == 0


def test_learner_with_everything_is_stuck_from_when_there_was_more() -> None:
    broker = watched()

    assert stuck_ms(broker, 0, end=100, lag=0) == 0
    assert stuck_ms(broker, 60_000, end=100, lag=0) == 0
    assert stuck_ms(broker, 61_000, end=500, lag=400) == 1_000


def test_load_is_smoothed_until_the_broker_leads_other_journals() -> None:
    broker = watched()

    def load(at_ms: int, share: float, *, leads: bool) -> tuple[float, int | None]:
        replica = ReplicaSeen("a@1", "leading" if leads else "follower", 1, 1, 1, 9, hears_leader=True)
        broker.take(BrokerReport({7: replica}, load=BrokerLoad(share)), at_ms, at_ms)
        return round(broker.seen().report.load.cpu_share, 2), broker.seen().busy_since_ms

    assert load(0, 0.0, leads=True) == (0.0, None)
    assert load(SMOOTHING_MS, 1.0, leads=True) == (0.63, None)
    assert load(2 * SMOOTHING_MS, 1.0, leads=True) == (0.86, 2 * SMOOTHING_MS)
    assert load(2 * SMOOTHING_MS + 250, 0.1, leads=False) == (0.1, None)


def test_learner_that_was_given_up_begins_anew() -> None:
    broker = watched()
    stuck_ms(broker, 0, end=100, lag=100)
    broker.take(BrokerReport({}), 1_000, 1_000)

    assert stuck_ms(broker, 2_000, end=100, lag=100) == 0


def test_replica_is_unheard_from_when_it_first_said_so() -> None:
    broker = watched()

    assert unheard_ms(broker, 1_000, hears_leader=False) == 0
    assert unheard_ms(broker, 2_000, hears_leader=False) == 1_000
    assert unheard_ms(broker, 3_000, hears_leader=True) == 0
    assert unheard_ms(broker, 4_000, hears_leader=False) == 0


def test_clock_of_a_broker_is_known_as_well_as_its_answer_was_quick() -> None:
    broker = watched()
    broker.take(BrokerReport({}), 1_000, 1_300)
    untold = broker.seen().clock_ms

    broker.take(BrokerReport({}, wall_ms=900_000), 2_000, 2_040)

    assert untold is None
    assert broker.seen().clock_ms == (897_960, 898_000)


def test_report_says_something_new_when_more_than_logs_load_and_clocks_have_changed() -> None:
    broker = watched()
    replica = ReplicaSeen("a@1", "leading", 1, 1, 1, 9, hears_leader=True, lag={"b@1": 0})
    assert broker.take(BrokerReport({7: replica}), 0, 0)

    further = msgspec.structs.replace(replica, end=20, lag={"b@1": 2})
    assert not broker.take(
        BrokerReport({7: further}, disk_free_bytes=1, load=BrokerLoad(0.9), wall_ms=5), 250, 251
    )
    for change in ({"hears_leader": False}, {"role": "follower"}, {"promised_epoch": 2}, {"is_ready": False}):
        assert broker.take(BrokerReport({7: msgspec.structs.replace(further, **change)}), 500, 500)
    assert broker.take(BrokerReport({}), 750, 750)
    assert broker.take(BrokerReport({}, is_disk_low=True), 1_000, 1_000)
    assert not broker.take(BrokerReport({}, is_disk_low=True), 1_250, 1_250)
