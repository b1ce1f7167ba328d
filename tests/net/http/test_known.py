"""Connections of signed clients, by account and access key: the bookkeeping, without sockets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.steps import calls_of, forbid_walks
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.net.http.known import IDLE_MS_MIN, LOOKS_MAX, Known
from quaymaster.net.http.message import HTTPLimits

LIMITS = replace(
    HTTPLimits(), connections_max=10, account_connections_percent=100, key_connections_percent=50
)


class Connection:
    """Idle for as long as it is told."""

    def __init__(self, known: Known, key: str, idle_ms: float = 0, account: str = "") -> None:
        self.key: str | None = None
        self.idle_for_ms = idle_ms
        self.has_input = False
        self.is_closed = False
        self.gives_way = False
        self._known = known
        self.was_taken = known.add(self, key, account)

    def read(self, requests_max: int) -> int:
        return 0

    def abort(self) -> None:
        self.is_closed = True

    def idle_ms(self) -> float:
        return self.idle_for_ms

    def unchanged_ms(self) -> float:
        return self.idle_for_ms

    def give_way(self) -> None:
        assert not self.gives_way
        self.gives_way = True

    def close_idle(self) -> bool:
        if self.has_input:
            return False
        self.is_closed = True
        self._known.remove(self)
        return True


def test_a_key_above_its_share_closes_its_longest_idle_and_none_of_others() -> None:
    known = Known(LIMITS)
    other = Connection(known, "b", IDLE_MS_MIN + 9)
    first, longest, *_ = [Connection(known, "a", IDLE_MS_MIN + number) for number in (0, 2, 1, 0, 1)]

    one_more = Connection(known, "a")

    assert (one_more.was_taken, longest.is_closed, first.is_closed, other.is_closed) == (
        True,
        True,
        False,
        False,
    )


def test_a_key_above_its_share_gets_no_more_while_all_of_its_connections_are_in_use() -> None:
    known = Known(LIMITS)
    own = [Connection(known, "a", IDLE_MS_MIN - 1) for _ in range(5)]

    one_more = Connection(known, "a")
    own[3].idle_for_ms = IDLE_MS_MIN
    at_once = Connection(known, "a")
    known.forgive()
    after_a_sweep = Connection(known, "a")

    assert [one_more.was_taken, at_once.was_taken, after_a_sweep.was_taken] == [False, False, True]
    assert [one.is_closed for one in own] == [False, False, False, True, False]
    assert Connection(known, "b").was_taken


def test_an_account_has_at_most_half_however_many_keys_and_sessions_it_has() -> None:
    known = Known(replace(HTTPLimits(), connections_max=10))
    own = [Connection(known, f"session-{number}", account="one") for number in range(5)]

    refused = Connection(known, "session-5", account="one")
    others = [Connection(known, f"key-{number}", account="two") for number in range(5)]
    known.forgive()
    own[2].idle_for_ms = IDLE_MS_MIN
    at_last = Connection(known, "session-6", account="one")

    assert not refused.was_taken
    assert all(one.was_taken for one in others)
    assert at_last.was_taken
    assert [one.is_closed for one in own] == [False, False, True, False, False]


def test_a_key_leaves_some_of_what_its_account_has_to_the_others_of_it() -> None:
    known = Known(replace(HTTPLimits(), connections_max=40))
    by_url = [Connection(known, "presigned", account="one") for _ in range(20)]

    assert sum(one.was_taken for one in by_url) == 18
    assert Connection(known, "another", account="one").was_taken


def test_when_the_server_is_full_the_longest_idle_of_the_account_that_has_most_is_closed() -> None:
    known = Known(LIMITS)
    few = [Connection(known, "few", IDLE_MS_MIN + 100) for _ in range(2)]
    many = [Connection(known, f"key-{number}", IDLE_MS_MIN + number, "many") for number in (1, 3, 2)]

    assert known.can_make_room()
    assert known.make_room()

    assert [one.is_closed for one in (*few, *many)] == [False, False, False, True, False]


def test_one_whose_client_has_just_sent_something_is_not_closed() -> None:
    known = Known(LIMITS)
    asking, idle = Connection(known, "a", IDLE_MS_MIN + 5), Connection(known, "a", IDLE_MS_MIN)
    asking.has_input = True

    assert known.make_room()
    known.forgive()
    assert not known.make_room()

    assert (asking.is_closed, idle.is_closed) == (False, True)


def test_the_busy_ones_do_not_hide_an_idle_one_for_ever() -> None:
    known = Known(replace(LIMITS, connections_max=10_000))
    for _ in range(LOOKS_MAX):
        Connection(known, "a")
    idle = Connection(known, "a", IDLE_MS_MIN)

    assert not known.make_room()
    known.forgive()
    assert known.make_room()

    assert idle.is_closed


def test_there_is_no_room_to_make_where_none_is_known() -> None:
    known = Known(LIMITS)

    assert not known.can_make_room()
    assert not known.make_room()


def test_open_authentication_has_no_keys_and_so_no_shares() -> None:
    known = Known(LIMITS)

    assert all(Connection(known, "").was_taken for _ in range(10))


def test_a_connection_that_another_key_uses_counts_for_that_one() -> None:
    known = Known(LIMITS)
    lent = Connection(known, "a", IDLE_MS_MIN)

    assert known.add(lent, "b")
    for _ in range(5):
        Connection(known, "a")

    assert lent.key == "b"
    assert not Connection(known, "a").was_taken
    assert not lent.is_closed


@given(st.lists(st.tuples(st.sampled_from("arif"), st.integers(0, 7), st.sampled_from("xyz")), max_size=80))
@settings(deadline=None)
def test_each_key_has_at_most_its_share_whatever_happens(steps: list[tuple[str, int, str]]) -> None:
    known = Known(LIMITS)
    connections: list[Connection] = []
    for what, which, key in steps:
        if what == "a":
            connections.append(Connection(known, key))
        elif what == "f":
            known.forgive()
        elif connections:
            chosen = connections[which % len(connections)]
            if what == "r":
                known.remove(chosen)
            else:
                chosen.idle_for_ms = IDLE_MS_MIN

        counts = Counter(one.key for one in connections if one.key is not None)
        assert max(counts.values(), default=0) <= 5
        largest = known._with_most.find()
        assert (len(largest.connections) if largest else None) == max(counts.values(), default=None)


def test_room_is_made_in_as_many_steps_with_10_keys_as_with_1000() -> None:
    steps = []
    for count in (10, 10, 1_000):
        known = Known(replace(LIMITS, connections_max=10_000))
        all_ = [Connection(known, f"key-{number}", IDLE_MS_MIN) for number in range(count)]
        Connection(known, "key-5", IDLE_MS_MIN + 1)
        forbid_walks(known, entries_min=1_000)

        steps.append(calls_of(lambda known=known: known.can_make_room() and known.make_room()))  # type: ignore[misc]

        assert sum(one.is_closed for one in all_) == 0
        assert len(known._keys["key-5"].connections) == 1
    assert abs(steps[2] - steps[1]) <= 20  # what watches takes some


def test_accounts_that_keep_all_connections_busy_leave_another_as_many_as_they_have() -> None:
    known = Known(replace(HTTPLimits(), connections_max=12))
    greedy = [Connection(known, key, number) for number in range(6) for key in "ab"]
    full = known._count_of_all

    others = []
    for _ in range(5):
        others.append(Connection(known, "c"))
        for gone in [one for one in greedy if one.gives_way and one.key]:
            known.remove(gone)

    assert full == known._count_of_all == 12
    assert [one.was_taken for one in others] == [True, True, True, True, False]
    assert Counter(one.key for one in (*greedy, *others)) == {None: 5, "a": 4, "b": 4, "c": 4}
    assert [one.idle_for_ms for one in greedy if one.gives_way] == [4, 4, 5, 5]
    assert not any(one.is_closed for one in greedy)


def test_a_client_that_comes_and_goes_costs_others_one_connection_at_a_time() -> None:
    limits = replace(
        HTTPLimits(), connections_max=12, account_connections_percent=100, key_connections_percent=100
    )
    known = Known(limits)
    greedy = [Connection(known, "a") for _ in range(12)]

    for _ in range(20):
        other = Connection(known, "b")
        assert other.was_taken
        known.remove(other)

    assert sum(one.gives_way for one in greedy) == 1
    for gone in [one for one in greedy if one.gives_way]:
        known.remove(gone)
    assert [Connection(known, "b").was_taken for _ in range(2)] == [True, True]
    assert known._giving_way == 1


def test_an_account_that_has_as_many_as_any_only_gives_its_own_idle_ones_for_more() -> None:
    known = Known(replace(LIMITS, connections_max=7))
    most = [Connection(known, f"key-{number}", 1, "a") for number in range(4)]
    own = [Connection(known, f"key-{number}", 1, "b") for number in range(4, 7)]

    refused = Connection(known, "key-7", account="b")
    own[1].idle_for_ms = IDLE_MS_MIN
    known.forgive()
    taken = Connection(known, "key-8", account="b")

    assert (refused.was_taken, taken.was_taken) == (False, True)
    assert [one.is_closed for one in own] == [False, True, False]
    assert not any(one.gives_way for one in (*most, *own))


def test_no_more_are_taken_while_all_that_are_looked_at_give_way_already() -> None:
    known = Known(replace(HTTPLimits(), connections_max=4, account_connections_percent=100))
    all_ = [Connection(known, "a") for _ in range(4)]

    taken = [Connection(known, key).was_taken for key in "bcdef"]

    assert taken == [True] * 4 + [False]
    assert all(one.gives_way for one in all_)


def test_connections_wait_for_the_turn_of_their_account_whatever_key_they_have() -> None:
    known = Known(LIMITS)
    first, second, other = Connection(known, "a"), Connection(known, "b"), Connection(known, "c")
    for connection, key in ((first, "a"), (second, "b"), (other, "c")):
        known.add(connection, key, "theirs" if key == "c" else "ours")
        known.wait_for_turn(connection)

    assert list(known.flows.begin_turn()) == [first, second]
    known.flows.begin_turn().popleft()
    known.flows.end_turn()
    assert list(known.flows.begin_turn()) == [other]
    known.flows.begin_turn().popleft()
    known.flows.end_turn()
    assert list(known.flows.begin_turn()) == [second]
    known.flows.begin_turn().popleft()
    known.flows.end_turn()
    assert not known.flows


def test_accounts_without_connections_are_forgotten() -> None:
    known = Known(LIMITS)
    connections = [Connection(known, key) for key in ("a", "b")]

    for connection in connections:
        known.remove(connection)

    assert not known._keys
    assert not known._account_of
    assert not known._accounts
