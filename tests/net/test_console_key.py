"""The secret of a console, and the keys that follow from it."""

from pathlib import Path

import pytest

from quaymaster.net.console_key import (
    CONSOLE_KEY_BYTES,
    CONSOLE_KEY_FILE,
    ConsoleKeyUnusable,
    derive_key,
    make_console_key,
    read_console_key,
)


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    made = make_console_key(tmp_path)

    assert len(made) == CONSOLE_KEY_BYTES
    assert make_console_key(tmp_path) == read_console_key(tmp_path) == made
    assert (tmp_path / CONSOLE_KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_key_that_is_missing_or_cut_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConsoleKeyUnusable, match=r"console\.key cannot be read .*quaymaster ca issue"):
        read_console_key(tmp_path)
    (tmp_path / CONSOLE_KEY_FILE).write_bytes(b"short")
    with pytest.raises(ConsoleKeyUnusable, match=r"has 5 bytes"):
        make_console_key(tmp_path)


def test_each_purpose_has_a_key_of_its_own() -> None:
    key = bytes(range(32))

    assert derive_key(key, "cookies") == derive_key(key, "cookies")
    assert (
        len({derive_key(key, "cookies"), derive_key(key, "webhooks"), derive_key(key[::-1], "cookies")}) == 3
    )
