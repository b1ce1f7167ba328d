"""Memory of bulk reads is kept by the process, which then has fewer page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quaymaster.frontend.logs.kept_memory import keep_freed_memory

ROUNDS = 20
SCRIPT = f"""
import resource, sys
from quaymaster.frontend.logs.kept_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    return [bytearray(b"x") * (4 << 20) for _ in range(4)]
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_a_process_that_keeps_freed_memory_does_not_fault_it_in_again() -> None:
    pages_a_round = 4 * (4 << 20) // 4096

    assert faults("leave") > ROUNDS * pages_a_round // 2
    assert faults("keep") < ROUNDS * pages_a_round // 10


def test_it_can_be_asked_for_again_and_again() -> None:
    assert keep_freed_memory() == keep_freed_memory()
