"""The in-cluster manager over coordination in memory, with brokers that do as they are told, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from harness.managed_cell import FakeCell
from harness.waiting import PATIENCE_S

from quaymaster.coordination.cell_keys import (
    BROKERS,
    BrokerRegistration,
    configuration_key,
    decode_registration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import Put
from quaymaster.coordination.presence import Presence, PresenceRow
from quaymaster.core.cell.cell import CellSeen, PlacementSettings, Plan, broker_of, home_of
from quaymaster.core.cell.placement import plan
from quaymaster.core.values.errors import ResourceNotFound
from quaymaster.managers import in_cluster
from quaymaster.managers.stand_in import StandIn
from quaymaster.monitoring.metrics import Sample

GRACE_MS = 300_000


def run(cell: FakeCell, scenario: Callable[[FakeCell], Awaitable[None]], *managers: str) -> None:
    """Run a scenario in a cell with these managers, one unless told otherwise."""

    async def main() -> None:
        async with cell.running(*managers):
            await scenario(cell)

    asyncio.run(main())


def test_first_brokers_get_a_journal_each() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")

        assert len(cell.world.journals) == 3
        assert all(cell.world.members(number) == {"a", "b", "c"} for number in cell.world.journals)

    run(FakeCell("a", "b", "c"), scenario)


def test_too_few_brokers_are_told_of_and_left_alone() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until(lambda: bool(cell.managers["m1"].status().problems))

        assert cell.world.journals == {}
        assert "2 of the 3 brokers that replicas=3 needs are there" in cell.managers["m1"].status().problems

    run(FakeCell("a", "b"), scenario)


def test_journal_of_a_killed_broker_is_led_by_another() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")

        began_ms = cell.now_ms()
        cell.kill("a")
        await cell.until_led("b", "c")

        assert cell.now_ms() - began_ms < cell.settings.suspicion_ms

    run(FakeCell("a", "b", "c"), scenario)


def test_silent_broker_whose_followers_hear_it_keeps_its_journal() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        epochs = {number: cell.world.configuration(number).epoch for number in cell.world.journals}

        cell.silent.add("a")
        await cell.pass_ms(10_000)

        assert "broker a cannot be reached" in cell.managers["m1"].status().problems
        assert {number: cell.world.configuration(number).epoch for number in cell.world.journals} == epochs

    run(FakeCell("a", "b", "c"), scenario)


def test_busy_broker_gives_a_journal_away_and_standbys_know_since_when_it_is_at_home_there() -> None:
    settings = PlacementSettings(journals_per_broker=2, busy_ms=2_000, settle_ms=2_000)
    hot, warm = 0, 3  # the first broker's

    async def scenario(cell: FakeCell) -> None:
        cell.world.demand = {hot: 0.4, warm: 0.38}
        await cell.until(lambda: len(cell.world.leaders()) == 6 and cell.world.leaders()[hot] == "a")

        await cell.until(lambda: cell.world.leaders().get(hot, "a") != "a")

        target = cell.world.leaders()[hot]
        for manager in cell.managers.values():
            await cell.until(lambda: manager._journals[hot].homed_ms is not None)  # noqa: B023 -- in its turn
            assert home_of(manager._journals[hot].configuration) == target
            assert manager._journals[warm].homed_ms is None
        decisions = [
            one.decision for name in cell.acting() for one in cell.managers[name].decisions().decisions
        ]
        assert [one.leader for one in decisions if one.reason.startswith("broker a is busy")] == [target]

    run(FakeCell("a", "b", "c", settings=settings), scenario, "m1", "m2")


def test_reports_that_say_the_same_are_no_reason_to_plan_in_a_quiet_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = 0

    def counted(seen: CellSeen) -> Plan:
        nonlocal plans
        plans += 1
        return plan(seen)

    monkeypatch.setattr(in_cluster, "plan", counted)
    monkeypatch.setattr(in_cluster, "QUIET_POLLS", 1_000)

    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        manager = cell.managers["m1"]
        await cell.until(lambda: manager._is_quiet)

        before, heard = plans, set[tuple[str, int | None]]()

        def are_many_reports() -> bool:
            heard.update((name, broker.heard_ms) for name, broker in manager._brokers.items())
            return len(heard) >= 60

        await cell.until(are_many_reports)
        assert plans - before < len(heard) // 4

        cell.silent.add("a")
        await cell.until(lambda: "broker a cannot be reached" in manager.status().problems)
        assert not manager._is_quiet

    run(FakeCell("a", "b", "c"), scenario)


def test_two_managers_race_without_harm() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        for manager in cell.managers.values():
            # A clock that stands: each believes that it is its turn.
            manager.leadership._until_ms = 1 << 60

        cell.kill("a")
        await cell.until_led("b", "c")
        await cell.pass_ms(1_000)

        assert len(cell.world.journals) == 3
        assert all(cell.world.configuration(number).activated for number in cell.world.journals)

    run(FakeCell("a", "b", "c"), scenario, "m1", "m2")


def test_one_of_two_managers_acts_and_the_other_takes_over() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        (acting,) = cell.acting()
        (other,) = cell.managers.keys() - {acting}
        assert cell.managers[other].status().acting_manager == acting

        await cell.managers.pop(acting).close()
        await cell.until(lambda: cell.acting() == [other])
        cell.kill("b")
        await cell.until_led("a", "c")

    run(FakeCell("a", "b", "c"), scenario, "m1", "m2")


def lost_with_its_manager(cell: FakeCell, broker: str) -> str:
    """Kill a broker and the acting manager, whose lease outlasts the test, as if the store elected its leaders."""

    async def stand_by() -> None:
        """Find that another one holds the key."""

    (acting,) = cell.acting()
    (other,) = cell.managers.keys() - {acting}
    cell.managers[other].leadership._step = stand_by  # type: ignore[method-assign]
    cell.kill_manager(acting)
    cell.kill(broker)
    return other


def test_leaders_that_were_lost_with_the_acting_manager_are_replaced_before_its_lease_ends() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")

        other = lost_with_its_manager(cell, "b")
        await cell.until_led("a", "c")

        assert cell.acting() == []
        done = cell.managers[other]._actions_done
        assert done == {("Appoint", "done"): 1}

    run(FakeCell("a", "b", "c"), scenario, "m1", "m2")


def test_leaders_that_were_lost_with_the_zone_of_the_acting_manager_are_replaced_without_patience() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        for manager in cell.managers.values():
            manager._stand_in = StandIn(1 << 60)
        (acting,) = cell.acting()
        row = PresenceRow("manager", acting, "1", zone="b")
        await Presence(cell.store, row).register()
        await cell.until(
            lambda: all("b" in manager._manager_zones.values() for manager in cell.managers.values())
        )

        lost_with_its_manager(cell, "b")

        await cell.until_led("a", "c")

    run(FakeCell("a", "b", "c"), scenario, "m1", "m2")


def test_a_manager_that_stands_by_only_appoints_and_moves_nothing() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")

        other = lost_with_its_manager(cell, "b")
        await cell.until_led("a", "c")
        cell.world.start("b")
        await cell.pass_ms(20_000)

        # Its home would be brought back by a manager that acts.
        assert set(cell.world.leaders().values()) == {"a", "c"}
        assert {action for action, _ in cell.managers[other]._actions_done} == {"Appoint"}

    run(FakeCell("a", "b", "c"), scenario, "m1", "m2")


@pytest.mark.parametrize("call", ["transfer", "prepare", "drop"])
def test_standby_goes_on_where_the_acting_manager_was_killed(call: str) -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c", "d")
        (acting,) = cell.acting()
        (standby,) = cell.managers.keys() - {acting}
        cell.kills_after = call
        await cell.managers[standby].set_broker_state("a", "draining")

        async with asyncio.timeout(PATIENCE_S):
            while await cell.store.get(registration_key("a")) is not None:
                await cell.pass_ms(1_000)
        await cell.until_led("b", "c", "d")

        assert not cell.kills_after
        assert list(cell.managers) == cell.acting() == [standby]
        assert all(cell.world.members(number) == {"b", "c", "d"} for number in cell.world.journals)
        assert cell.world.hosts["a"].replicas == {}

    run(FakeCell("a", "b", "c", "d"), scenario, "m1", "m2")


def test_manager_that_hears_no_majority_gives_way() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        (acting,) = cell.acting()
        links = [link for link in cell.links if link.on_closed in _wakers(cell, acting)]
        assert len(links) == 3

        for link in links[:2]:
            link._name = "nobody"
        await cell.until(lambda: cell.acting() == [name for name in cell.managers if name != acting])

    run(FakeCell("a", "b", "c"), scenario, "m1", "m2")


def _wakers(cell: FakeCell, name: str) -> list[Callable[[], None]]:
    return [broker.poll_now.set for broker in cell.managers[name]._brokers.values()]


def test_lone_manager_acts_again_when_its_brokers_return() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        for name in "abc":
            cell.kill(name)
        await cell.pass_ms(10_000)
        assert cell.acting() == []

        for name in "abc":
            cell.world.start(name)
        began_ms = cell.now_ms()
        await cell.until_led("a", "b", "c")

        assert cell.now_ms() - began_ms < 20_000

    run(FakeCell("a", "b", "c"), scenario)


def test_coordination_that_is_away_stops_appointments_and_nothing_else() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        cell.store.is_away = True
        await cell.pass_ms(5_000)
        cell.kill("a")
        await cell.pass_ms(5_000)
        assert set(cell.world.leaders().values()) == {"b", "c"}
        assert len(cell.world.leaders()) == 2
        await cell.until(lambda: cell.acting() == [])

        cell.store.is_away = False
        await cell.until_led("b", "c")

        assert len(cell.world.leaders()) == 3

    run(FakeCell("a", "b", "c"), scenario)


def test_what_changed_while_coordination_was_away_is_known_when_it_is_back() -> None:
    async def scenario(cell: FakeCell) -> None:
        gone = BrokerRegistration("z", "z", "z:9340")
        await cell.store.transaction([], [Put(registration_key("z"), encode_registration(gone))])
        await cell.until_led("a", "b", "c")
        manager = cell.managers["m1"]
        assert [broker.name for broker in manager.status().brokers] == ["a", "b", "c", "z"]

        cell.store.is_away = True
        moved = encode_registration(BrokerRegistration("a", "a", "elsewhere:1"))
        cell.store.change_while_away([Put(registration_key("a"), moved)], [registration_key("z")])
        await cell.until(lambda: cell.acting() == [])
        assert manager.status().brokers[0].address == "a:9340"
        cell.store.is_away = False
        await cell.until(lambda: manager.status().brokers[0].address == "elsewhere:1")

        assert [broker.name for broker in manager.status().brokers] == ["a", "b", "c"]

    run(FakeCell("a", "b", "c"), scenario)


def test_outcome_that_is_unknown_is_read_again() -> None:
    async def scenario(cell: FakeCell) -> None:
        cell.store.loses_answers = 4
        await cell.until_led("a", "b", "c")
        cell.store.loses_answers = 2
        cell.kill("a")
        await cell.until_led("b", "c")

        results = {sample.labels for sample in _samples(cell, "quaymaster_manager_actions_total")}
        assert ("Appoint", "unknown") in results
        assert len(cell.world.journals) == 3

    run(FakeCell("a", "b", "c"), scenario)


def test_dead_member_is_replaced_after_the_grace_time() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c", "d")
        cell.kill("a")
        await cell.until_led("b", "c", "d")

        await cell.pass_ms(GRACE_MS + 30_000, real_s=0.001)
        await cell.until(lambda: all("a" not in cell.world.members(number) for number in cell.world.journals))

        assert all(len(cell.world.members(number)) == 3 for number in cell.world.journals)

    run(FakeCell("a", "b", "c", "d"), scenario)


def test_drained_broker_is_emptied_and_leaves() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c", "d")

        await cell.managers["m1"].set_broker_state("a", "draining")
        await cell.until_led("b", "c", "d")
        await cell.until(lambda: all("a" not in cell.world.members(number) for number in cell.world.journals))
        await cell.pass_ms(90_000)
        items, _ = await cell.store.list_all(BROKERS)

        assert [item.key for item in items] == [registration_key(name) for name in "bcd"]
        assert [broker.name for broker in cell.managers["m1"].status().brokers] == ["b", "c", "d"]

    run(FakeCell("a", "b", "c", "d"), scenario)


def test_state_of_a_broker_is_set_once_and_only_of_one_that_exists() -> None:
    async def scenario(cell: FakeCell) -> None:
        manager = cell.managers["m1"]
        await manager.set_broker_state("a", "stopping")
        await manager.set_broker_state("a", "stopping")
        found = await cell.store.get(registration_key("a"))
        assert found is not None
        assert decode_registration(found.value).state == "stopping"

        with pytest.raises(ResourceNotFound, match="no broker z"):
            await manager.set_broker_state("z", "draining")

    run(FakeCell("a", "b", "c"), scenario)


def test_move_that_fails_is_tried_again_after_a_rest() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        cell.stubborn.add("a")
        await cell.managers["m1"].set_broker_state("a", "stopping")
        await cell.pass_ms(12_000)
        failed = _count(cell, ("Transfer", "failed"))
        assert 1 <= failed <= 4
        assert "a" in cell.world.leaders().values()

        cell.stubborn.clear()
        await cell.until_led("b", "c")

    run(FakeCell("a", "b", "c"), scenario)


def test_broker_that_did_not_lead_what_was_handed_over_is_spared_it_for_longer_each_time() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        cell.kill("a")
        await cell.until_led("b", "c")

        cell.blind.add("a")
        cell.world.start("a")
        await cell.until(lambda: _count(cell, ("Transfer", "done")) == 1)
        await cell.until_led("b", "c")
        await cell.pass_ms(50_000)
        assert _count(cell, ("Transfer", "done")) == 1
        await cell.until(lambda: _count(cell, ("Transfer", "done")) == 2)
        await cell.until_led("b", "c")
        await cell.pass_ms(100_000)
        assert _count(cell, ("Transfer", "done")) == 2

        cell.blind.clear()
        await cell.pass_ms(20_000)
        await cell.until_led("a", "b", "c")

    run(FakeCell("a", "b", "c"), scenario)


def test_manager_that_was_stopped_while_a_broker_handed_over_does_not_appoint_whom_it_had_chosen() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        cell.kill("a")
        await cell.until_led("b", "c")

        cell.stops_after = "transfer"
        cell.world.start("a")
        await cell.until(lambda: cell.stops_after is None)
        await cell.until(lambda: _count(cell, ("Transfer", "failed")) == 1)
        assert _count(cell, ("Transfer", "done")) == 0

        await cell.until_led("a", "b", "c")

    run(FakeCell("a", "b", "c"), scenario)


def test_broker_that_prepares_nothing_does_not_get_a_journal_and_harms_none() -> None:
    async def scenario(cell: FakeCell) -> None:
        cell.stubborn.add("c")
        await cell.pass_ms(2_000)
        assert cell.world.journals == {}

        cell.stubborn.clear()
        await cell.until_led("a", "b", "c")

    run(FakeCell("a", "b", "c"), scenario)


def test_lost_disk_is_replaced_by_a_learner_in_the_same_broker() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        old = {
            member for number in cell.world.journals for member in cell.world.configuration(number).members
        }

        cell.world.wipe("c")
        await cell.until(
            lambda: all(
                not set(cell.world.configuration(number).members) & {m for m in old if broker_of(m) == "c"}
                for number in cell.world.journals
            )
        )
        await cell.until_led("a", "b", "c")

        assert all(cell.world.members(number) == {"a", "b", "c"} for number in cell.world.journals)

    run(FakeCell("a", "b", "c"), scenario)


def test_tainted_disk_that_was_not_made_anew_is_not_added_again() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        number = next(number for number, leader in cell.world.leaders().items() if leader != "c")
        (member,) = [
            member for member in cell.world.configuration(number).members if broker_of(member) == "c"
        ]
        prepare = cell.world.prepare
        cell.world.prepare = lambda name, number: member  # type: ignore[method-assign]
        cell.world.set(number, member, is_tainted=True)
        await cell.until(lambda: _count(cell, ("ReplaceMember", "failed")) >= 1)
        assert cell.world.configuration(number).learners == ()

        cell.world.prepare = prepare  # type: ignore[method-assign]
        await cell.until(lambda: member not in cell.world.configuration(number).members)

    run(FakeCell("a", "b", "c"), scenario)


def test_broker_that_moved_is_found_at_its_new_address() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        found = await cell.store.get(registration_key("a"))
        assert found is not None
        moved = msgspec.structs.replace(decode_registration(found.value), address="elsewhere:1")

        await cell.store.transaction([], [Put(registration_key("a"), encode_registration(moved))])
        await cell.until(lambda: len(cell.links) == 4)
        await cell.pass_ms(3_000)

        assert cell.managers["m1"].status().brokers[0].address == "elsewhere:1"
        assert cell.managers["m1"].status().problems == ()

    run(FakeCell("a", "b", "c"), scenario)


def test_registration_that_cannot_be_read_stops_plans_rather_than_moving_everything() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        await cell.store.transaction([], [Put(registration_key("a"), b"\xc1")])
        await cell.pass_ms(3_000)
        assert cell.managers["m1"].status().problems == ()

        fresh = cell.start_manager("m2")
        await cell.until(lambda: bool(fresh.status().problems))
        await cell.managers.pop("m1").close()
        await cell.until(lambda: cell.acting() == ["m2"])
        await cell.pass_ms(5_000)

        assert "brokers/a in coordination cannot be read" in fresh.status().problems
        assert all(cell.world.members(number) == {"a", "b", "c"} for number in cell.world.journals)

    run(FakeCell("a", "b", "c"), scenario)


def test_configuration_that_cannot_be_read_is_left_alone() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.store.transaction([], [Put(configuration_key(0), b"\xc1"), Put("journals/x", b"")])
        await cell.pass_ms(2_000)

        found = await cell.store.get(configuration_key(0))
        assert found is not None
        assert found.value == b"\xc1"
        assert "journals/0 in coordination cannot be read" in cell.managers["m1"].status().problems

        await cell.store.transaction([], deletes=[configuration_key(0)])
        await cell.until(
            lambda: "journals/0 in coordination cannot be read" not in cell.managers["m1"].status().problems
        )

    # Its brokers cannot read it either.
    cell = FakeCell("a", "b", "c")
    cell.is_deaf = True
    run(cell, scenario)


def test_status_tells_who_leads_and_how_far_the_others_are() -> None:
    async def scenario(cell: FakeCell) -> None:
        await cell.until_led("a", "b", "c")
        await cell.until(
            lambda: all(
                member.lag_records == 0
                for journal in cell.managers["m1"].status().journals
                for member in journal.members
            )
        )
        status = cell.managers["m1"].status()

        assert status.manager == status.acting_manager == "m1"
        assert status.is_acting
        assert [(broker.name, broker.leads, broker.replicas) for broker in status.brokers] == [
            ("a", 1, 3),
            ("b", 1, 3),
            ("c", 1, 3),
        ]
        assert {journal.leader for journal in status.journals} == {"a", "b", "c"}
        assert {member.role for member in status.journals[0].members} == {"leading", "follower"}
        assert msgspec.json.decode(msgspec.json.encode(status), type=type(status)) == status

        cell.silent.add("a")
        await cell.pass_ms(2_000)
        silent = cell.managers["m1"].status()
        assert [journal.leader for journal in silent.journals].count(None) == 1
        assert _value(cell, "quaymaster_cell_brokers", "suspect") == 1
        assert _value(cell, "quaymaster_cell_journals", "leaderless") == 1
        assert _value(cell, "quaymaster_manager_acting") == 1

    run(FakeCell("a", "b", "c"), scenario)


def test_clocks_that_differ_without_a_majority_are_told_in_status_metrics_and_health() -> None:
    async def scenario(cell: FakeCell) -> None:
        for host in cell.world.hosts.values():
            host.clock_ahead_ms = 0
        await cell.until_led("a", "b", "c")
        manager = cell.managers["m1"]
        quiet = (manager.clock_notices(), _value(cell, "quaymaster_cell_clock_disagreement_seconds"))

        cell.world.hosts["b"].clock_ahead_ms = 60_000
        await cell.until(lambda: bool(manager.clock_notices()))
        known = (manager.clock_notices(), _value(cell, "quaymaster_cell_clock_disagreement_seconds"))
        cell.kill("a")
        await cell.until(lambda: any("no majority" in problem for problem in manager.status().problems))

        assert quiet == ([], 0.0)
        assert [told.startswith("the clock of broker b is ") for told in known[0]] == [True]
        assert known[1] == 0.0
        assert [told for told in manager.clock_notices() if "that of b is" in told]
        assert 59 < _value(cell, "quaymaster_cell_clock_disagreement_seconds") <= 60
        assert {broker.clock_ahead_ms for broker in manager.status().brokers} == {None}

    run(FakeCell("a", "b", "c"), scenario)


def _samples(cell: FakeCell, name: str) -> list[Sample]:
    return [
        sample for manager in cell.managers.values() for sample in manager.samples() if sample.name == name
    ]


def _value(cell: FakeCell, name: str, *labels: str) -> float:
    return sum(sample.value for sample in _samples(cell, name) if sample.labels == labels)


def _count(cell: FakeCell, labels: tuple[str, str]) -> float:
    return _value(cell, "quaymaster_manager_actions_total", *labels)
