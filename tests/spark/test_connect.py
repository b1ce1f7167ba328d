"""The connector through Spark Connect, whose client has no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .conftest import WAIT_S
from .fake_server import FakeServer


def test_a_client_of_spark_connect_reads_and_sends(fake: FakeServer, tmp_path: Path) -> None:
    fake.make("orders", 50)
    fake.ordinary |= {"by_batch", "by_stream"}
    settings = {
        "options": fake.options,
        "log": "orders",
        "by_batch": "by_batch",
        "by_stream": "by_stream",
        "checkpoint": str(tmp_path / "checkpoint"),
    }

    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("connecting.py")), json.dumps(settings)],
        capture_output=True,
        cwd=tmp_path,
        # Its server is to have a port that it finds itself, not the one that all have.
        env=os.environ | {"SPARK_TESTING": "1"},
        timeout=WAIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr.decode(errors="replace")[-10_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"offsets": list(range(50))}
    for queue in ("by_batch", "by_stream"):
        assert [message["MessageBody"] for message in fake.sent[queue]] == [f"0/{n}" for n in range(50)]
