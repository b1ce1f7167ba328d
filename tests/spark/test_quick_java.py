"""The Java that tests give Spark is the usual one, with or without an archive of classes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from harness import quick_java


@pytest.mark.parametrize("content", [None, b"", b"no archive" * 1000], ids=["none", "empty", "damaged"])
def test_an_archive_that_cannot_be_used_is_passed_over_in_silence(
    tmp_path: Path, content: bytes | None
) -> None:
    java = shutil.which("java")
    assert java, "Spark needs Java"
    archive = tmp_path / "classes.jsa"
    if content is not None:
        archive.write_bytes(content)
    home = quick_java.program(tmp_path / "home", java, archive)

    usual, quick = (
        subprocess.run([one, "-version"], capture_output=True, check=True)
        for one in (java, home / "bin" / "java")
    )

    assert quick.stdout == usual.stdout == b""
    # It tells of sharing whether it uses an archive.
    assert quick.stderr.replace(b", sharing", b"") == usual.stderr.replace(b", sharing", b"")
