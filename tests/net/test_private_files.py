"""Files that only their owner reads."""

from pathlib import Path

import pytest

from quaymaster.net.console_key import CONSOLE_KEY_FILE, write_console_key
from quaymaster.net.private_files import write_private


def test_file_takes_the_place_of_another_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")

    write_private(path, b"new")

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("is_link", [False, True])
def test_key_of_a_console_is_not_written_into_what_others_can_read(tmp_path: Path, is_link: bool) -> None:
    elsewhere, left = tmp_path / "elsewhere", tmp_path / f"{CONSOLE_KEY_FILE}.new"
    elsewhere.write_bytes(b"theirs")
    if is_link:
        left.symlink_to(elsewhere)
    else:
        left.write_bytes(b"half")
        left.chmod(0o644)

    write_console_key(tmp_path, bytes(32))

    assert (tmp_path / CONSOLE_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert elsewhere.read_bytes() == b"theirs"
