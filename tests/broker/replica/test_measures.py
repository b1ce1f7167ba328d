"""What the host of a replica counts of its commands, and how long commits take."""

from __future__ import annotations

from quaymaster.broker.replica.measures import Measures
from quaymaster.core.values.commands.messages import Delete, Done, Send
from quaymaster.core.values.errors import Overloaded


def test_commands_are_counted_by_kind_and_result() -> None:
    measures = Measures()
    for answer in (Done(), Done(), Overloaded(), Overloaded()):
        measures.answered(Send, answer)
    measures.answered(Delete, Done())
    measures.empty_receives += 3

    assert sorted(measures.commands()) == [
        ("Delete", "OK", 1),
        ("Receive", "empty", 3),
        ("Send", "OK", 2),
        ("Send", "Overloaded", 2),
    ]


def test_commit_of_each_batch_is_timed_once() -> None:
    times = iter([1.0, 1.5, 2.0, 3.0])
    measures = Measures(lambda: next(times))
    measures.wrote(10)
    measures.wrote(20)
    measures.committed(5)
    measures.committed(15)
    measures.committed(20)
    measures.committed(20)

    assert sum(measures.commits.counts) == 2
    assert measures.commits.sum_s == 1.0 + 1.5


def test_batches_of_a_deposed_leader_are_left_to_others() -> None:
    measures = Measures(lambda: 1.0)
    measures.wrote(10)
    measures.deposed()
    measures.committed(10)

    assert sum(measures.commits.counts) == 0
