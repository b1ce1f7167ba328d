"""The fuzzer of both ports in its short form; `make fuzz MINUTES=120` is the long one."""

from __future__ import annotations

import os
from pathlib import Path

from process.fuzz_ports import fuzz, statuses_of

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0.1"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
MEMORY_GROWTH_MAX = 300 << 20


def test_nonsense_on_both_ports_disturbs_no_signed_client(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, seconds=MINUTES * 60, seed=SEED)

    print(outcome.report())
    assert outcome.findings == [], f"seed {SEED}"
    assert outcome.resident_max - outcome.resident_before < MEMORY_GROWTH_MAX
    assert outcome.sent > 100, "the fuzzer did too little to mean anything"
    assert outcome.acknowledged > 10, "the load did too little to mean anything"
    assert outcome.statuses[200] > 0, "some nonsense is sensible"
    assert outcome.statuses[400] > 0


def test_replies_are_found_in_a_stream() -> None:
    stream = b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\nok\r\nHTTP/1.1 500 Failed\r\n\r\n"

    assert statuses_of(stream) == [200, 500]
