"""Sessions that are to be deleted are found without a look at the others."""

from __future__ import annotations

import msgspec
from harness.steps import calls_of

from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS
from quaymaster.metadata.keys.sessions import ENDED_TOLD_MS, Sessions
from quaymaster.metadata.store.rows import AccessKeyRow

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def row(key_id: str, **changed: object) -> AccessKeyRow:
    found = AccessKeyRow(key_id, "000000000000", "AIDA", "", b"", True, NOW_MS, NOW_MS)
    return msgspec.structs.replace(found, **changed)


class Keys:
    """Rows of access keys as metadata has them."""

    def __init__(self) -> None:
        self.rows: dict[str, AccessKeyRow] = {}
        self.sessions = Sessions(self.rows.get)

    def put(self, new: AccessKeyRow) -> None:
        old = self.rows.get(new.access_key_id)
        self.rows[new.access_key_id] = new
        self.sessions.note(new.access_key_id, old, new)

    def drop(self, key_id: str) -> None:
        self.sessions.note(key_id, self.rows.pop(key_id), None)

    def add_session(self, number: int, parent: str = "key", **changed: object) -> None:
        given = {"parent_id": parent, "expires_ms": NOW_MS + HOUR_MS, **changed}
        self.put(row(f"session-{number}", **given))

    def over(self, now_ms: int = NOW_MS) -> set[str]:
        return {one for one in self.sessions.may_be_over(now_ms) if self.sessions.is_over(one, now_ms)}


def keys_with(sessions: int) -> Keys:
    keys = Keys()
    keys.put(row("key"))
    for number in range(sessions):
        keys.add_session(number)
    return keys


def test_sessions_are_over_an_hour_after_their_end_to_the_millisecond() -> None:
    keys = keys_with(1)
    over_ms = NOW_MS + HOUR_MS + ENDED_TOLD_MS

    assert keys.over(over_ms - 1) == set()
    assert keys.over(over_ms) == {"session-0"}


def test_sessions_that_began_far_in_the_future_are_over() -> None:
    keys = keys_with(0)
    ahead_ms = CLOCKS_DIFFER_MAX_MS + ENDED_TOLD_MS
    for number in (0, 1):
        began_ms = NOW_MS + ahead_ms + number
        keys.add_session(number, created_ms=began_ms, expires_ms=began_ms + HOUR_MS)

    assert keys.over() == {"session-0", "session-1"}
    assert keys.over(NOW_MS + 1) == {"session-1"}


def test_sessions_that_outlive_their_key_are_over() -> None:
    keys = keys_with(3)
    keys.put(row("other"))
    keys.add_session(3, "other")

    keys.put(row("key", is_enabled=False))
    keys.drop("other")
    keys.add_session(4, "never there")

    assert keys.over() == {"session-0", "session-1", "session-2", "session-3", "session-4"}
    for number in range(5):
        keys.drop(f"session-{number}")
    assert keys.over() == set()


def test_sessions_of_a_key_that_is_enabled_again_are_judged_once_and_live() -> None:
    keys = keys_with(3)
    keys.put(row("key", is_enabled=False))
    keys.put(row("key"))

    assert list(keys.sessions.may_be_over(NOW_MS)) != []
    assert keys.over() == set()
    assert list(keys.sessions.may_be_over(NOW_MS)) == []


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    keys = keys_with(3)
    keys.add_session(1, expires_ms=NOW_MS + 2 * HOUR_MS)
    for key_id in list(keys.rows):
        keys.drop(key_id)

    sessions = keys.sessions
    assert (sessions._of_key, sessions._ends._ids, sessions._starts._ids, sessions._suspects) == (
        *({}, {}, {}),
        set(),
    )


def test_a_look_for_ended_sessions_takes_as_many_steps_with_100_sessions_as_with_10000() -> None:
    steps = []
    for count in (100, 10_000):
        keys = keys_with(count)
        keys.add_session(count, expires_ms=NOW_MS - ENDED_TOLD_MS)
        found: set[str] = set()
        steps.append(calls_of(lambda keys=keys, found=found: found.update(keys.over())))  # type: ignore[misc]
        assert found == {f"session-{count}"}

    assert steps[0] == steps[1]
