"""Of which logs a front end of a cell builds blocks: those that are read through it."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import NotYetKnown
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from quaymaster.frontend.logs import recent_logs
from quaymaster.frontend.logs.recent_logs import FORGOTTEN_AFTER_S, RecentLogs


def make_log(queue_id: int, name: str) -> QueueDefinition:
    attributes = {"RetentionMode": "Log"}
    return QueueDefinition(queue_id, "1", name, "active", 1, 0, 0, attributes, {}, 1, one_partition())


class There:
    """Queues that are there, and a clock."""

    def __init__(self, *logs: QueueDefinition) -> None:
        self.queues = {log.name: log for log in logs}
        self.is_reachable = True
        self.now_s = 100.0
        self.recent = RecentLogs(self.find, monotonic_s=lambda: self.now_s)

    def find(self, account_id: str, name: str) -> QueueDefinition | None:
        if not self.is_reachable:
            raise NotYetKnown(lambda resume: None)
        return self.queues.get(name)


def test_a_log_is_known_from_its_reading_on_for_an_hour() -> None:
    log = make_log(7, "orders")
    there = There(log)
    assert there.recent.logs() == []

    there.recent.note(log)
    there.now_s += FORGOTTEN_AFTER_S
    assert there.recent.logs() == [log]
    there.recent.note(log)
    there.now_s += FORGOTTEN_AFTER_S
    assert there.recent.logs() == [log]
    there.now_s += 1
    assert there.recent.logs() == []


def test_a_log_is_given_as_it_is_now_and_not_at_all_when_it_is_gone() -> None:
    log = make_log(7, "orders")
    changed = replace_definition(log, revision=2)
    there = There(changed)
    there.recent.note(log)
    assert there.recent.logs() == [changed]

    there.is_reachable = False
    assert there.recent.logs() == [log]
    there.is_reachable = True
    there.queues["orders"] = make_log(8, "orders")
    assert there.recent.logs() == []
    del there.queues["orders"]
    there.recent.note(make_log(8, "orders"))
    assert there.recent.logs() == []


def test_the_log_that_was_read_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_logs, "LOGS_MAX", 2)
    logs = [make_log(number, f"orders-{number}") for number in range(3)]
    there = There(*logs)

    for number in (0, 1, 0, 2):
        there.recent.note(logs[number])

    assert there.recent.logs() == [logs[0], logs[2]]
