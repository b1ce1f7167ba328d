"""What is counted of a replica's elections, from the roles it goes through."""

from __future__ import annotations

import pytest

from quaymaster.broker.replica.elections import Elections
from quaymaster.core.replication.replication import Role


def after(*roles: tuple[Role, float]) -> Elections:
    elections = Elections()
    for role, at_s in roles:
        elections.on_role(role, at_s)
    return elections


def durations(elections: Elections) -> dict[str, tuple[int, object]]:
    return {
        phase: (sum(histogram.counts), pytest.approx(histogram.sum_s))
        for phase, histogram in elections.durations.items()
    }


def test_each_phase_of_an_election_is_timed() -> None:
    elections = after(
        ("preparing", 1.0), ("fetching", 1.5), ("elected", 3.5), ("activating", 3.75), ("leading", 4.5)
    )

    assert elections.begun == 1
    assert durations(elections) == {"promise": (1, 0.5), "fetch": (1, 2.0), "activation": (1, 1.0)}


def test_an_election_that_came_to_nothing_is_counted_and_its_last_phase_is_not_timed() -> None:
    elections = after(("preparing", 1.0), ("fetching", 2.0), ("follower", 60.0), ("preparing", 70.0))

    assert elections.begun == 2
    assert durations(elections) == {"promise": (1, 1.0), "fetch": (0, 0.0), "activation": (0, 0.0)}


def test_one_that_leads_at_once_has_won_an_election_without_phases() -> None:
    elections = after(("leading", 1.0), ("follower", 2.0), ("leading", 3.0), ("stopped", 4.0))

    assert elections.begun == 2
    assert durations(elections) == {"promise": (0, 0.0), "fetch": (0, 0.0), "activation": (0, 0.0)}
