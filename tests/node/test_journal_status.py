"""What operators see of several journals of one server."""

from __future__ import annotations

from typing import Any

from quaymaster.node.journal_status import SUMMED, TRUE_OF_ANY, add_up_journals


def figures(number: int, each: int, **others: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(SUMMED, each),
        **dict.fromkeys(TRUE_OF_ANY, False),
        "journal": number,
        "clock_ahead_ms": 0,
        "recovery_s": 0.5,
        "stopped": None,
        **others,
    }


def test_the_only_journal_is_shown_as_it_is() -> None:
    only = figures(0, 7, end_offset=12)

    assert add_up_journals([only]) is only


def test_several_journals_are_added_up_and_each_is_shown_in_order() -> None:
    second = figures(1, 2, disk_low=True, clock_ahead_ms=-900, stopped="the disk is gone", recovery_s=0.7)
    first = figures(0, 7, clock_ahead_ms=30)

    shown = add_up_journals([second, first])

    assert shown["messages"] == 9
    assert (shown["disk_low"], shown["expiry_held"]) == (True, False)
    assert (shown["clock_ahead_ms"], shown["recovery_s"]) == (-900, 0.7)
    assert shown["stopped"] == "the disk is gone"
    assert [journal["journal"] for journal in shown["journals"]] == [0, 1]
