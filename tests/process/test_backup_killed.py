"""A server that is killed while it writes a backup: what is left is refused, or whole, and the next backup works."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from harness.process import QuaymasterProcess
from harness.waiting import eventually

from .support import Client, bodies, running
from .test_stores_that_went_back import command

MESSAGES = 300


def test_what_is_left_of_a_backup_whose_server_was_killed_never_looks_whole(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    half, whole = tmp_path / "half", tmp_path / "whole"
    keys = str(process.data / "keys")
    with running(process):
        with closing(Client(process)) as client:
            client.create("orders")
            client.send("orders", bodies(MESSAGES, "m" * 20_000))
        backing_up = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "quaymaster"),
                "backup",
                str(half),
                "--data",
                str(process.data),
            ],
            stderr=subprocess.PIPE,
        )
        eventually(half.exists, interval_s=0.001)
        process.kill9()
        backing_up.communicate()
        is_whole = (half / "backup.json").exists()
        restored = command("restore", str(half), "--data", str(tmp_path / "from-half"), "--keys", keys)
        assert (restored.returncode == 0) is is_whole, restored
        assert is_whole or "cut short" in restored.stderr
        assert (tmp_path / "from-half").exists() is is_whole

        process.start()
        refused = command("backup", str(half), "--data", str(process.data))
        assert refused.returncode == 1
        assert "exists already" in refused.stderr
        done = command("backup", str(whole), "--data", str(process.data))
        assert done.returncode == 0, done
        process.stop()

    done = command("restore", str(whole), "--data", str(tmp_path / "again"), "--keys", keys)
    assert done.returncode == 0, done
    with running(QuaymasterProcess(tmp_path / "again")) as again, closing(Client(again)) as client:
        assert client.take_all("orders") == bodies(MESSAGES, "m" * 20_000)
