"""Which process owns a key."""

from __future__ import annotations

from quaymaster.core.structures.rendezvous import owner_of

NODES = ["md1", "md2", "md3"]
KEYS = [f"{number:012}" for number in range(3_000)]


def test_every_process_gets_about_as_many_keys_whatever_order_they_are_named_in() -> None:
    owners = [owner_of(key, NODES) for key in KEYS]

    assert owners == [owner_of(key, reversed(NODES)) for key in KEYS]
    assert all(900 < owners.count(node) < 1_100 for node in NODES)


def test_a_process_that_goes_takes_only_its_own_keys_with_it() -> None:
    left = NODES[:2]

    for key in KEYS:
        before = owner_of(key, NODES)
        assert before not in left or owner_of(key, left) == before


def test_without_processes_nothing_is_owned() -> None:
    assert owner_of("key", []) is None
