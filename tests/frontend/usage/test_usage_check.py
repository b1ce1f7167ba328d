"""What a look at a spool finds: nothing wrong with whole ones, and each kind of damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontend.usage.test_usage_spool import open_spool, taken
from quaymaster.cli.host.doctor import OK, PROBLEM, WARNING, check_spool
from quaymaster.frontend.usage.spool_files import SPOOL_FILE_SUFFIX
from quaymaster.frontend.usage.spool_head import SpoolUnusable
from quaymaster.frontend.usage.usage_check import examine_spool

NOW_US = 1_795_348_900_000_000


def filled(tmp_path: Path, *, seal: bool = True, user_agent: str = "a") -> Path:
    """Return a data directory whose spool has two incarnations in several files, with audit records and drops."""
    for _ in range(2):
        spool = open_spool(tmp_path, file_bytes=2048)
        spool.append(taken(30, changes=[3, 7], user_agent=user_agent))
        spool.append(taken(200, changes=[0]))
        spool.append(taken(5, overflow=4))
        spool.append(taken(6))
        if seal:
            spool.close(now_us=NOW_US)
        else:
            spool._files.close()
    return tmp_path


def spool_files(data: Path) -> list[Path]:
    return sorted((data / "usage").glob(f"*{SPOOL_FILE_SUFFIX}"))


def test_a_whole_spool_has_nothing_wrong(tmp_path: Path) -> None:
    report = examine_spool(filled(tmp_path) / "usage")

    assert (report.problems, report.remarks) == ([], [])
    assert (report.records, report.dropped) == (2 * 241, 8)
    assert list(report.incarnations.values()) == ["stopped", "stopped"]
    assert report.files == len(spool_files(tmp_path)) > 2
    (finding,) = check_spool(tmp_path)
    assert finding.result == OK
    assert "482 records" in finding.found
    assert "8 records were dropped" in finding.found


def test_a_spool_in_use_has_nothing_wrong_and_no_end_yet(tmp_path: Path) -> None:
    report = examine_spool(filled(tmp_path, seal=False) / "usage")

    assert report.problems == []
    assert list(report.incarnations.values()) == ["crashed", ""]


def test_a_torn_end_is_a_remark_for_the_next_start_to_mend(tmp_path: Path) -> None:
    last = spool_files(filled(tmp_path))[-1]
    last.write_bytes(last.read_bytes()[:-3])

    (finding,) = check_spool(tmp_path)

    assert finding.result == WARNING
    assert "are no block" in finding.found
    assert "next start mends it" in finding.advice


def test_damage_in_between_is_a_problem(tmp_path: Path) -> None:
    first = spool_files(filled(tmp_path))[0]
    data = bytearray(first.read_bytes())
    data[-20] ^= 1
    first.write_bytes(data)

    (finding,) = check_spool(tmp_path)

    assert finding.result == PROBLEM
    assert first.name in finding.found


def test_a_spool_file_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    of_incarnation = spool_files(filled(tmp_path))
    of_incarnation[1].unlink()

    report = examine_spool(tmp_path / "usage")

    assert any("does not go on from the spool file before it" in problem for problem in report.problems)


def test_blocks_of_another_spool_do_not_fit(tmp_path: Path) -> None:
    ours, theirs = (
        spool_files(filled(tmp_path / "ours")),
        spool_files(filled(tmp_path / "theirs", user_agent="b")),
    )
    # Whole by itself, and in nobody's chain: the second file of this spool in another's place.
    theirs[0].write_bytes(ours[1].read_bytes())

    report = examine_spool(tmp_path / "theirs" / "usage")

    assert report.problems


def test_a_spool_of_a_newer_program_is_said_to_be_one(tmp_path: Path) -> None:
    first = spool_files(filled(tmp_path))[0]
    first.write_bytes(b"\x09" + first.read_bytes()[1:])

    with pytest.raises(SpoolUnusable):
        examine_spool(tmp_path / "usage")
    (finding,) = check_spool(tmp_path)
    assert (finding.result, "version 9" in finding.found) == (PROBLEM, True)


def test_there_is_nothing_to_say_without_a_spool(tmp_path: Path) -> None:
    assert list(check_spool(tmp_path)) == []


def test_the_spool_of_each_worker_is_looked_at(tmp_path: Path) -> None:
    filled(tmp_path)
    for number in (0, 1):
        filled(tmp_path / "workers" / str(number))
    last = spool_files(tmp_path / "workers" / "1")[-1]
    last.write_bytes(last.read_bytes()[:-3])

    assert [finding.result for finding in check_spool(tmp_path)] == [OK, OK, WARNING]
