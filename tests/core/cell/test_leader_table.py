"""Who leads which journal, as coordination tells it piece by piece."""

from __future__ import annotations

from quaymaster.core.cell.leader_table import Leader, LeaderTable
from quaymaster.core.values.journal_configuration import JournalConfiguration

MEMBERS = ("b1@s", "b2@t", "b3@u")


def configuration(epoch: int, leader: str, *, activated: bool = True) -> JournalConfiguration:
    return JournalConfiguration(epoch, leader, MEMBERS, MEMBERS, activated)


def make_table() -> tuple[LeaderTable, list[int]]:
    table = LeaderTable()
    for name in ("b1", "b2"):
        table.set_address(name, f"{name}:1")
    changes: list[int] = []
    table.add_listener(changes.append)
    return table, changes


def test_activated_leader_is_followed() -> None:
    table, changes = make_table()

    table.set_configuration(1, configuration(4, "b1@s"))

    assert table.leader_of(1) == Leader(4, "b1", "b1:1")
    assert not table.is_electing(1)
    assert changes == [1]


def test_appointed_leader_is_not_followed_before_it_is_activated() -> None:
    table, changes = make_table()
    table.set_configuration(1, configuration(4, "b1@s"))

    table.set_configuration(1, configuration(5, "b2@t", activated=False))
    assert table.leader_of(1) == Leader(4, "b1", "b1:1")
    assert table.is_electing(1)

    table.set_configuration(1, configuration(5, "b2@t"))
    assert table.leader_of(1) == Leader(5, "b2", "b2:1")
    assert changes == [1, 1, 1]


def test_the_last_leader_is_known_by_name_until_another_is_activated() -> None:
    table = LeaderTable()
    assert (table.last_broker_of(1), table.epoch_of(1)) == (None, None)

    table.set_configuration(1, configuration(4, "b9@s"))
    table.set_configuration(1, configuration(5, "b2@t", activated=False))
    assert (table.last_broker_of(1), table.epoch_of(1)) == ("b9", 5)
    table.set_configuration(1, configuration(5, "b2@t"))

    assert (table.last_broker_of(1), table.epoch_of(1)) == ("b2", 5)


def test_what_is_known_already_is_told_to_nobody() -> None:
    table, changes = make_table()
    table.set_configuration(1, configuration(4, "b1@s"))

    table.set_configuration(1, configuration(4, "b1@s"))
    table.set_address("b1", "b1:1")

    assert changes == [1]


def test_leader_is_known_once_its_address_is() -> None:
    table, changes = make_table()
    table.set_configuration(1, configuration(4, "b3@u"))
    table.set_configuration(2, configuration(4, "b1@s"))
    assert table.leader_of(1) is None
    assert table.members_of(1) == ["b1:1", "b2:1"]

    table.set_address("b3", "b3:1")

    assert table.leader_of(1) == Leader(4, "b3", "b3:1")
    assert changes == [1, 2, 1]


def test_leader_whose_registration_ended_is_followed_until_there_is_another() -> None:
    table, _ = make_table()
    table.set_configuration(1, configuration(4, "b1@s"))

    table.set_address("b1", None)
    assert table.leader_of(1) == Leader(4, "b1", "b1:1")
    assert table.is_known("b1:1")

    table.set_configuration(1, configuration(5, "b2@t"))
    assert not table.is_known("b1:1")


def test_broker_that_leads_nothing_is_forgotten_with_its_registration() -> None:
    table, _ = make_table()

    table.set_address("b2", None)
    table.set_address("b9", None)

    assert table.address_of("b2") is None
    assert table.address_of("b1") == "b1:1"


def test_deleted_journal_has_no_leader() -> None:
    table, changes = make_table()
    table.set_configuration(1, configuration(4, "b1@s"))
    assert table.journals() == [1]

    table.set_configuration(1, None)

    assert table.journals() == []

    assert table.leader_of(1) is None
    assert not table.is_electing(1)
    assert table.members_of(1) == []
    assert changes == [1, 1]


def test_brokers_that_lead_nothing_are_known_by_their_addresses_too() -> None:
    table, _ = make_table()
    table.set_configuration(1, configuration(4, "b1@s"))

    assert table.addresses == ["b1:1", "b2:1"]
    assert all(table.is_known(address) for address in table.addresses)


def test_hint_is_an_address_or_a_name() -> None:
    table, _ = make_table()

    assert table.address_of("b2") == "b2:1"
    assert table.address_of("b2@t") == "b2:1"
    assert table.address_of("10.0.0.9:7000") == "10.0.0.9:7000"
    assert table.address_of("b9") is None


def test_brokers_of_a_journal_are_known_by_name_wherever_they_are() -> None:
    table, _ = make_table()
    table.set_configuration(1, configuration(4, "b1@s"))

    assert table.brokers_of(1) == ["b1", "b2", "b3"]
    assert table.members_of(1) == ["b1:1", "b2:1"]
    assert table.brokers_of(2) == table.members_of(2) == []
