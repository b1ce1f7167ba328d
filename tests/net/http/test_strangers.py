"""What connections get before a signature of theirs was verified: the bookkeeping, without sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.net.http.message import HTTPLimits
from quaymaster.net.http.strangers import (
    KNOWN_FOR_S,
    LATE_REST,
    LOOKS_MAX,
    NEWCOMER_REST,
    REPLACED_MAX,
    REST_MAX_S,
    PeerShare,
    Strangers,
    UnsignedTime,
    network_name,
    peer_name,
)

LIMITS = replace(
    HTTPLimits(), unsigned_bytes_max=100, unsigned_peer_bytes_max=60, unsigned_peer_connections_max=3
)


class Connection:
    """Notes what it is asked to do, and does it."""

    def __init__(self, strangers: Strangers, peer: str = "1.1.1.1") -> None:
        self.share: PeerShare | None = None
        self.counted_bytes = 0
        self.is_answered = True
        self.is_late = False
        self.ended = ""
        self._strangers = strangers
        strangers.add(self, peer)

    @property
    def has_much(self) -> bool:
        return self.counted_bytes > 0

    def read(self, requests_max: int) -> int:
        return 0

    def abort(self) -> None: ...

    def can_be_closed(self) -> bool:
        return self.is_answered

    def close_for_others(self) -> None:
        self.ended = "closed"
        self._strangers.remove(self)

    def give_memory_back(self) -> None:
        self.ended = "gave"


def test_one_more_of_a_peer_closes_its_oldest_and_none_of_others() -> None:
    strangers = Strangers(LIMITS)
    other = Connection(strangers, "2.2.2.2")
    first, second, _ = (Connection(strangers) for _ in range(3))

    assert strangers.make_room_for("1.1.1.1")

    assert (first.ended, second.ended, other.ended) == ("closed", "", "")
    assert len(strangers) == 3
    assert strangers.make_room_for("3.3.3.3")


def test_a_connection_whose_request_waits_for_an_answer_is_not_closed_for_others() -> None:
    strangers = Strangers(LIMITS)
    waiting, idle, _ = (Connection(strangers) for _ in range(3))
    waiting.is_answered = False

    assert strangers.make_room_for("1.1.1.1")

    assert (waiting.ended, idle.ended) == ("", "closed")


def test_a_peer_all_of_whose_connections_wait_gets_no_more() -> None:
    strangers = Strangers(LIMITS)
    for _ in range(3):
        Connection(strangers).is_answered = False

    assert not strangers.make_room_for("1.1.1.1")
    assert not strangers.make_room("3.3.3.3")
    assert not strangers.can_make_room()


def test_the_search_for_one_to_close_has_an_end() -> None:
    strangers = Strangers(replace(LIMITS, unsigned_peer_connections_max=10_000))
    for _ in range(LOOKS_MAX):
        Connection(strangers).is_answered = False
    Connection(strangers)

    assert not strangers.make_room("3.3.3.3")


def test_a_known_connection_takes_nothing_of_the_strangers_share() -> None:
    strangers = Strangers(LIMITS)
    connection = Connection(strangers)
    strangers.keep(connection, 50)

    strangers.remove(connection)
    strangers.keep(connection, 50)
    strangers.remove(connection)

    assert (len(strangers), strangers.kept_bytes, connection.share) == (0, 0, None)


def test_the_one_heard_least_lately_gives_its_memory_back_when_its_peer_has_too_much() -> None:
    strangers = Strangers(LIMITS)
    stalled, lively, other = Connection(strangers), Connection(strangers), Connection(strangers, "2.2.2.2")
    strangers.keep(other, 30)
    strangers.keep(lively, 20)
    strangers.keep(stalled, 20)
    strangers.keep(lively, 30)

    strangers.keep(lively, 50)

    assert (stalled.ended, lively.ended, other.ended) == ("gave", "", "")
    assert strangers.kept_bytes == 80


def test_of_all_peers_the_one_heard_least_lately_gives_its_memory_back() -> None:
    strangers = Strangers(LIMITS)
    connections = [Connection(strangers, f"1.1.1.{number}") for number in range(4)]

    for connection in connections:
        strangers.keep(connection, 30)

    assert [connection.ended for connection in connections] == ["gave", "", "", ""]
    assert strangers.kept_bytes == 90


def test_where_all_hold_too_much_the_peer_that_holds_most_gives_it_back_though_it_was_heard_last() -> None:
    strangers = Strangers(LIMITS)
    slow = Connection(strangers, "2.2.2.2")
    strangers.keep(slow, 20)
    first, second = Connection(strangers), Connection(strangers)
    other = Connection(strangers, "3.3.3.3")
    strangers.keep(first, 30)
    strangers.keep(second, 25)

    strangers.keep(other, 40)

    assert [connection.ended for connection in (slow, first, second, other)] == ["", "gave", "", ""]
    assert strangers.kept_bytes == 85


def test_the_search_for_the_peer_that_holds_most_has_an_end() -> None:
    strangers = Strangers(replace(LIMITS, unsigned_bytes_max=LOOKS_MAX + 10, unsigned_peer_bytes_max=60))
    small = [Connection(strangers, f"1.1.{number}.1") for number in range(LOOKS_MAX)]
    for connection in small:
        strangers.keep(connection, 1)
    large = Connection(strangers, "2.2.2.2")

    strangers.keep(large, 11)

    assert (small[0].ended, large.ended) == ("gave", "")


def test_one_that_has_too_much_alone_gives_it_back_itself() -> None:
    strangers = Strangers(LIMITS)
    connection = Connection(strangers)

    strangers.keep(connection, 61)

    assert (connection.ended, strangers.kept_bytes) == ("gave", 0)


@pytest.mark.parametrize("is_late", [False, True], ids=["newcomers", "late"])
def test_peers_take_turns_however_many_connections_each_has(is_late: bool) -> None:
    strangers = Strangers(LIMITS)
    many = [Connection(strangers) for _ in range(4)]
    one = Connection(strangers, "2.2.2.2")
    for connection in (*many, one):
        connection.is_late = is_late
        strangers.wait_for_turn(connection)

    turns = [strangers.next_turn(is_late=is_late) for _ in range(6)]

    assert turns == [many[0], one, many[1], many[2], many[3], None]
    assert not strangers.is_waiting(is_late=is_late)


def test_connections_that_sent_much_do_not_keep_those_waiting_that_sent_little() -> None:
    strangers = Strangers(LIMITS)
    heavy = [Connection(strangers) for _ in range(3)]
    light = [Connection(strangers) for _ in range(2)]
    for connection in heavy:
        strangers.keep(connection, 1)
    for connection in (*heavy, *light):
        strangers.wait_for_turn(connection)

    turns = [strangers.next_turn(is_late=False) for _ in range(5)]

    assert turns == [light[0], heavy[0], light[1], heavy[1], heavy[2]]


def test_those_answered_unsigned_keep_no_newcomers_waiting() -> None:
    strangers = Strangers(LIMITS)
    late = [Connection(strangers) for _ in range(3)]
    newcomer = Connection(strangers)
    for connection in late:
        connection.is_late = True
    for connection in (*late, newcomer):
        strangers.wait_for_turn(connection)

    assert strangers.next_turn(is_late=False) is newcomer
    assert strangers.next_turn(is_late=False) is None
    assert [strangers.next_turn(is_late=True) for _ in range(4)] == [*late, None]


@pytest.mark.parametrize(("is_late", "times"), [(False, NEWCOMER_REST), (True, LATE_REST)])
def test_strangers_rest_for_several_times_what_they_used_while_the_known_are_served(
    is_late: bool, times: int
) -> None:
    unsigned_time = UnsignedTime()

    unsigned_time.charge(0.001, 100.0, is_late=is_late)
    assert unsigned_time.rest_s(100.0, is_late=is_late) <= 0, "nobody else needs the time"

    unsigned_time.note_known(100.0)
    unsigned_time.charge(0.001, 100.0, is_late=is_late)

    assert unsigned_time.rest_s(100.0, is_late=is_late) == pytest.approx(times * 0.001)
    assert unsigned_time.rest_s(100.0, is_late=not is_late) <= 0
    assert unsigned_time.rest_s(100.0 + times * 0.001, is_late=is_late) == pytest.approx(0)


@pytest.mark.parametrize("is_late", [False, True], ids=["newcomers", "late"])
def test_no_rest_is_longer_than_its_bound_and_none_begins_when_the_known_are_gone(is_late: bool) -> None:
    unsigned_time = UnsignedTime()
    unsigned_time.note_known(100.0)

    unsigned_time.charge(5.0, 100.0, is_late=is_late)
    assert unsigned_time.rest_s(100.0, is_late=is_late) == pytest.approx(REST_MAX_S)

    later_s = 101.0 + KNOWN_FOR_S
    unsigned_time.charge(5.0, later_s, is_late=is_late)
    assert unsigned_time.rest_s(later_s, is_late=is_late) <= 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.2.3.4", "1.2.3.5", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
    ],
)
def test_a_peer_is_an_address_or_a_network_that_one_client_has(one: str, other: str, same: bool) -> None:
    assert (peer_name(one) == peer_name(other)) is same


@given(st.lists(st.tuples(st.sampled_from("aklrwt"), st.integers(0, 5), st.integers(0, 80)), max_size=60))
@settings(deadline=None)
def test_sums_are_those_of_the_connections_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    strangers = Strangers(LIMITS)
    connections: list[Connection] = []
    for what, which, kept_bytes in steps:
        if what == "a":
            if strangers.make_room_for(f"1.1.1.{which % 2}"):
                connections.append(Connection(strangers, f"1.1.1.{which % 2}"))
            continue
        if not connections:
            continue
        connection = connections[which % len(connections)]
        if what == "k":
            strangers.keep(connection, kept_bytes)
        elif what == "r":
            strangers.remove(connection)
        elif what == "w" and connection.share is not None:
            strangers.wait_for_turn(connection)
        elif what == "l":
            connection.is_late = True
        elif what == "t":
            strangers.next_turn(is_late=bool(kept_bytes % 2))

        left = [connection for connection in connections if connection.share is not None]
        shares = {id(connection.share): connection.share for connection in left}
        assert len(strangers) == len(left)
        assert strangers.kept_bytes == sum(connection.counted_bytes for connection in left)
        assert strangers.kept_bytes <= LIMITS.unsigned_bytes_max
        for share in shares.values():
            assert share is not None
            assert share.kept_bytes == sum(holder.counted_bytes for holder in share.holders)
            assert share.kept_bytes <= LIMITS.unsigned_peer_bytes_max
            assert len(share.connections) <= LIMITS.unsigned_peer_connections_max


def test_a_peer_that_keeps_connecting_is_kept_out_until_the_next_sweep() -> None:
    strangers = Strangers(LIMITS)
    for _ in range(3 + REPLACED_MAX):
        assert strangers.may_connect("1.1.1.1")
        assert strangers.make_room_for("1.1.1.1")
        Connection(strangers)

    assert not strangers.may_connect("1.1.1.1")
    assert strangers.may_connect("2.2.2.2")
    strangers.forgive()
    assert strangers.may_connect("1.1.1.1")


def test_where_all_are_too_many_a_peer_with_more_than_others_closes_its_own() -> None:
    strangers = Strangers(replace(LIMITS, unsigned_connections_max=6, unsigned_peer_connections_max=5))
    slow = Connection(strangers, "2.2.2.2")
    many = [Connection(strangers) for _ in range(4)]
    Connection(strangers, "3.3.3.3")

    assert strangers.make_room_for("1.1.1.1")
    Connection(strangers)
    assert (slow.ended, many[0].ended) == ("", "closed")

    assert strangers.make_room_for("4.4.4.4")
    assert slow.ended == "closed"


def test_what_strangers_use_while_they_rest_makes_the_rest_longer() -> None:
    time = UnsignedTime()
    time.note_known(10.0)
    time.charge(0.001, 10.0, is_late=True)
    time.charge(0.001, 10.0, is_late=True)
    time.charge(0.0, 10.0, is_late=True)

    assert time.rest_s(10.0, is_late=True) == pytest.approx(2 * LATE_REST * 0.001)
    time.charge(9.0, 10.0, is_late=True)
    assert time.rest_s(10.0, is_late=True) == pytest.approx(REST_MAX_S)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::", "2001:db8:1::/48"),
    ],
)
def test_a_network_of_ipv6_has_48_bits(address: str, network: str) -> None:
    assert network_name(address) == network
