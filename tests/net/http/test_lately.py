"""Pairs of keys and peers whose signatures held lately: how long and how many are remembered."""

from __future__ import annotations

import pytest

from quaymaster.net.http import lately
from quaymaster.net.http.lately import KEPT_MS, Lately

PEER = "10.0.0.1"


def test_a_pair_is_remembered_for_ten_minutes_after_its_last_signature() -> None:
    known = Lately()
    known.note("key", PEER, "account", 0)

    assert known.account_of("key", PEER, KEPT_MS) == "account"
    assert known.account_of("key", PEER, KEPT_MS + 1) is None
    known.note("key", PEER, "account", KEPT_MS)
    assert known.account_of("key", PEER, 2 * KEPT_MS) == "account"
    assert known.account_of("key", "10.0.0.2", KEPT_MS) is None
    assert known.account_of("other", PEER, KEPT_MS) is None


def test_a_peer_of_ipv6_is_its_network() -> None:
    known = Lately()
    known.note("key", "2001:db8:1:2::1", "account", 0)

    assert known.account_of("key", "2001:db8:1:2:3::4", 0) == "account"
    assert known.account_of("key", "2001:db8:1:3::1", 0) is None


def test_a_pair_that_is_forgotten_is_that_of_a_stranger_again() -> None:
    known = Lately()
    known.note("key", PEER, "account", 0)

    known.forget("key", PEER)
    known.forget("key", PEER)

    assert known.account_of("key", PEER, 0) is None
    assert not known._of_account


def test_the_pairs_noted_least_lately_go_and_an_account_pushes_out_its_own_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lately, "PAIRS_MAX", 5)
    monkeypatch.setattr(lately, "ACCOUNT_PAIRS_MAX", 3)
    known = Lately()
    known.note("other", PEER, "theirs", 0)
    for number in range(4):
        known.note(f"key-{number}", PEER, "ours", 0)
    assert len(known) == 4
    assert known.account_of("other", PEER, 0) == "theirs"
    assert known.account_of("key-0", PEER, 0) is None

    known.note("other", PEER, "theirs", 0)
    for number in range(2):
        known.note(f"third-{number}", PEER, "third", 0)

    assert len(known) == 5
    assert known.account_of("key-1", PEER, 0) is None
    assert known.account_of("other", PEER, 0) == "theirs"
