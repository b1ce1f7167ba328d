"""The state file of an import: what was committed, and what nobody knows the end of."""

from __future__ import annotations

from pathlib import Path

import pytest

from quaymaster.cli.imports.ledger import Known, Ledger
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage

ONE, TWO = b"1" * 16, b"2" * 16


def open_ledger(path: Path, **given: str) -> Ledger:
    return Ledger(path, **{"source": "there", "target": "here", **given})


def begin(ledger: Ledger, *identities: bytes) -> int:
    return ledger.begin("orders", "sink", identities, [each.hex() for each in identities], 17)


def test_a_new_message_is_its_receivers_until_it_is_released(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "state") as ledger:
        assert ledger.claim(ONE) is Known.NEW
        assert ledger.claim(ONE) is Known.HELD
        assert ledger.claim(TWO) is Known.NEW

        ledger.release([ONE])

        assert ledger.claim(ONE) is Known.NEW


def test_a_committed_message_is_known_for_good(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "state") as ledger:
        ledger.claim(ONE)
        ledger.settle(begin(ledger, ONE), [ONE], is_committed=True)
        assert ledger.claim(ONE) is Known.COMMITTED
        begin(ledger, TWO)
        assert ledger.claim(ONE) is Known.COMMITTED
        assert ledger.committed() == 1

    with open_ledger(tmp_path / "state") as ledger:
        assert ledger.claim(ONE) is Known.COMMITTED
        assert ledger.claim(TWO) is Known.NEW


def test_messages_of_a_batch_that_was_not_committed_stay_held_until_they_are_released(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "state") as ledger:
        ledger.claim(ONE)
        ledger.settle(begin(ledger, ONE), [ONE], is_committed=False)

        assert ledger.claim(ONE) is Known.HELD
        ledger.release([ONE])
        assert ledger.claim(ONE) is Known.NEW


def test_a_batch_that_was_not_settled_is_there_at_the_next_start(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "state") as ledger:
        settled = begin(ledger, TWO)
        batch = begin(ledger, ONE, TWO)
        ledger.settle(settled, [TWO], is_committed=True)

    with open_ledger(tmp_path / "state") as ledger:
        (left,) = ledger.unsettled()
        assert (left.id, left.queue, left.sink, left.begun_ms) == (batch, "orders", "sink", 17)
        assert (left.identities, left.message_ids) == ([ONE, TWO], [ONE.hex(), TWO.hex()])
        assert ledger.claim(ONE) is Known.HELD
        ledger.settle(left.id, left.identities, is_committed=True)

    with open_ledger(tmp_path / "state") as ledger:
        assert ledger.unsettled() == []
        assert ledger.claim(ONE) is Known.COMMITTED
        assert begin(ledger, ONE) > batch


def test_what_was_settled_is_asked_for_again_where_its_note_is_lost(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "state")
    batch = begin(ledger, ONE)
    ledger.settle(batch, [ONE], is_committed=True)
    ledger._lock_file.close()  # as the end of its process does

    with open_ledger(tmp_path / "state") as again:
        assert [left.id for left in again.unsettled()] == [batch]
    ledger._database.close()


def test_one_import_at_a_time_uses_a_state_file(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "state"), pytest.raises(CommandRefused, match="Another import uses"):
        open_ledger(tmp_path / "state")

    with open_ledger(tmp_path / "state"):
        pass


@pytest.mark.parametrize("other", [{"source": "elsewhere"}, {"target": "elsewhere"}])
def test_a_state_file_is_of_one_source_and_one_target(tmp_path: Path, other: dict[str, str]) -> None:
    with open_ledger(tmp_path / "state"):
        pass

    with pytest.raises(CommandRefused, match="is the state of another import"):
        open_ledger(tmp_path / "state", **other)

    with open_ledger(tmp_path / "state"):
        pass


def test_another_file_is_no_state_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("something else\n" * 100)

    with pytest.raises(WrongUsage, match="cannot be used as a state file"):
        open_ledger(tmp_path / "state")
    with pytest.raises(WrongUsage, match="cannot be written"):
        open_ledger(tmp_path / "absent" / "state")
