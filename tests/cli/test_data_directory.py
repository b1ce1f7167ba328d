"""The data directory: whose it is, and of which format."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from quaymaster.cli.data_directory import DataDirectoryUnusable, prepare_data_directory, raise_format_of
from quaymaster.core.formats import FORMAT_MAX


@pytest.mark.parametrize("left", [b"\xb1\n", b"", b"q\n", b"0\n", b"\x00" * 512, b"1\xff"])
def test_damaged_format_file_is_written_anew_and_named(
    tmp_path: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_bytes(left)

    with caplog.at_level(logging.WARNING):
        prepare_data_directory(tmp_path).release()

    assert (tmp_path / "format").read_bytes() == b"%d\n" % FORMAT_MAX
    assert "damaged file written again" in caplog.text


def test_directory_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_bytes(b"%d\n" % (FORMAT_MAX + 1))

    with pytest.raises(DataDirectoryUnusable, match="Start the version that wrote it"):
        prepare_data_directory(tmp_path)

    assert (tmp_path / "format").read_bytes() == b"%d\n" % (FORMAT_MAX + 1)


def test_the_format_of_a_directory_grows_with_what_is_written_in_it(tmp_path: Path) -> None:
    prepare_data_directory(tmp_path, 1).release()
    found = [(tmp_path / "format").read_text()]

    for number in (3, 4, 1):
        raise_format_of(tmp_path, number)
        found.append((tmp_path / "format").read_text())
    prepare_data_directory(tmp_path, 1).release()

    assert found == ["1\n", "1\n", "4\n", "4\n"]
    assert (tmp_path / "format").read_text() == "4\n"


def test_a_single_server_upgrades_the_directory_of_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "format").write_bytes(b"1\n")
    (tmp_path / "metadata.sqlite").touch()

    prepare_data_directory(tmp_path).release()

    assert (tmp_path / "format").read_text() == f"{FORMAT_MAX}\n"
