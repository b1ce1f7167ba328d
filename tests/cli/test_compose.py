"""The data directory: whose it is, and of which format."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from quaymaster.cli.compose import DATA_FORMAT, DataDirectoryUnusable, prepare_data_directory


@pytest.mark.parametrize("left", [b"\xb1\n", b"", b"q\n", b"0\n", b"\x00" * 512, b"1\xff"])
def test_damaged_format_file_is_written_anew_and_named(
    tmp_path: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_bytes(left)

    with caplog.at_level(logging.WARNING):
        prepare_data_directory(tmp_path).release()

    assert (tmp_path / "format").read_bytes() == b"%d\n" % DATA_FORMAT
    assert "damaged file written anew" in caplog.text


def test_directory_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    prepare_data_directory(tmp_path).release()
    (tmp_path / "format").write_bytes(b"%d\n" % (DATA_FORMAT + 1))

    with pytest.raises(DataDirectoryUnusable, match="Start the version that wrote it"):
        prepare_data_directory(tmp_path)

    assert (tmp_path / "format").read_bytes() == b"%d\n" % (DATA_FORMAT + 1)
