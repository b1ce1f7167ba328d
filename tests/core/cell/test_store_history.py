"""How a directory's memory of its store and the store are compared."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quaymaster.core.cell.store_history import (
    DECISIONS_MAX,
    FORGOTTEN_AT_ONCE_MAX,
    SeenStore,
    Verdict,
    WitnessMark,
    WitnessRow,
    caught_up,
    is_due,
    judge,
    renewed,
    row_again,
    rows_to_forget,
    tell,
    with_decision,
)

MARK = WitnessMark("store", "directory", b"now", 50, ("first",))
ROW = WitnessRow(b"now", b"before", 50, "broker broker-1")
SEEN = SeenStore("store", 60, ("first",), ROW)


def row(**fields: Any) -> WitnessRow:
    return msgspec.structs.replace(ROW, **fields)


def seen(**fields: Any) -> SeenStore:
    return msgspec.structs.replace(SEEN, **fields)


@pytest.mark.parametrize(
    ("store", "verdict"),
    [
        (seen(), Verdict.FITS),
        (seen(witness=row(token=b"later", before=b"now")), Verdict.FITS),
        (seen(witness=row(token=b"before", before=b"x", generation=40)), Verdict.STORE_WENT_BACK),
        # However far it has come since, nobody else writes this row.
        (seen(generation=9_999, witness=row(token=b"old", generation=40)), Verdict.STORE_WENT_BACK),
        (seen(witness=None), Verdict.STORE_WENT_BACK),
        (seen(decisions=(), witness=row(token=b"other", generation=70)), Verdict.STORE_WENT_BACK),
        (seen(witness=row(token=b"other", before=b"x", generation=70)), Verdict.DIRECTORY_WENT_BACK),
        (seen(decisions=("first", "second"), witness=None), Verdict.DECIDED),
        (seen(decisions=("second",), witness=row(token=b"old", generation=40)), Verdict.DECIDED),
        (seen(store_id=None, witness=None), Verdict.OTHER_STORE),
        (seen(store_id=None, decisions=("second",), witness=None), Verdict.DECIDED),
        (seen(store_id="another", decisions=("second",), witness=None), Verdict.OTHER_STORE),
        # Its row was removed, with others of its generation or later ones.
        (seen(witness=None, forgotten=50), Verdict.FORGOTTEN),
        (seen(witness=None, forgotten=49), Verdict.STORE_WENT_BACK),
        (seen(witness=None, forgotten=50, decisions=()), Verdict.STORE_WENT_BACK),
        (seen(witness=row(token=b"old", generation=40), forgotten=50), Verdict.STORE_WENT_BACK),
    ],
)
def test_a_store_is_judged_by_the_directorys_own_row(store: SeenStore, verdict: Verdict) -> None:
    assert judge(MARK, store) is verdict
    assert judge(None, store) is Verdict.UNKNOWN


def test_a_row_that_is_written_again_fits_the_directory_and_is_new() -> None:
    again = row_again(MARK, seen(witness=None, forgotten=50), "broker broker-1")

    assert again.generation == SEEN.generation
    assert judge(MARK, seen(witness=again)) is Verdict.FITS


def test_the_oldest_rows_are_removed_beyond_a_number() -> None:
    written = {"b": (3, 8), "a": (3, 9), "c": (1, 20), "d": (9, 12), "e": (9, 11)}

    assert rows_to_forget(written, 5) == []
    assert rows_to_forget(written, 3) == ["c", "b"]
    assert rows_to_forget(written, 0) == ["c", "b", "a", "e", "d"]


def test_a_directory_that_begins_removes_no_more_than_some_rows() -> None:
    written = {f"{number:03}": (number, number) for number in range(200)}

    assert rows_to_forget(written, 10) == [f"{number:03}" for number in range(FORGOTTEN_AT_ONCE_MAX)]


def test_a_directory_without_decisions_is_not_missed_one() -> None:
    mark = msgspec.structs.replace(MARK, followed=())

    assert judge(mark, seen(decisions=(), witness=row(token=b"x", generation=70))) is (
        Verdict.DIRECTORY_WENT_BACK
    )


def test_a_new_generation_and_a_new_decision_are_written_down() -> None:
    assert is_due(MARK, SEEN)
    assert not is_due(MARK, seen(generation=50))
    assert is_due(MARK, seen(generation=50, decisions=("first", "second")))

    written, mark = renewed(
        MARK,
        seen(decisions=("second",)),
        store_id="store",
        directory_id="directory",
        token=b"new",
        process="p",
    )

    assert written == WitnessRow(b"new", b"now", 60, "p")
    assert mark == WitnessMark("store", "directory", b"new", 60, ("first", "second"))
    assert judge(mark, seen(decisions=("second",), witness=written)) is Verdict.FITS


def test_a_new_directory_follows_all_decisions_before_it() -> None:
    written, mark = renewed(
        None, seen(witness=None), store_id="store", directory_id="d", token=b"new", process="p"
    )

    assert (written.before, mark.followed) == (b"", ("first",))


def test_a_process_that_stopped_between_its_two_writes_takes_the_stores_token() -> None:
    store = seen(witness=row(token=b"later", before=b"now", generation=60))

    mark = caught_up(MARK, store)

    assert (mark.token, mark.generation) == (b"later", 60)


def test_the_latest_decisions_are_remembered() -> None:
    decisions = tuple(str(number) for number in range(DECISIONS_MAX))

    assert with_decision(decisions, "new") == (*decisions[1:], "new")


@pytest.mark.parametrize(
    ("verdict", "store", "words"),
    [
        (Verdict.STORE_WENT_BACK, seen(witness=None), "knows that it has seen nothing"),
        (Verdict.STORE_WENT_BACK, SEEN, "up to revision 50.*force-store"),
        (Verdict.OTHER_STORE, seen(store_id=None), "has no id.*remove /data/store.witness"),
        (Verdict.OTHER_STORE, seen(store_id="x"), "has the id x"),
        (Verdict.DIRECTORY_WENT_BACK, SEEN, "/data is an older copy, or a second one.*force-store"),
    ],
)
def test_what_was_found_is_told_with_what_decides(verdict: Verdict, store: SeenStore, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        raise ValueError(tell(verdict, MARK, store, "broker broker-1", "/data"))
