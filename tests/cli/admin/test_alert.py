"""Commands on alerts refuse by themselves what CloudWatch's forms cannot carry."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_threshold_that_is_no_finite_number_is_refused_by_its_name(
    run: Run, data: Path, server: PlayedServer, number: str
) -> None:
    refused = run("alert", "create", "orders-old", "--queue", "orders", "--threshold", number, "--data", data)

    assert refused.code == 2
    assert f"--threshold is a finite number, not {number}" in refused.err
    assert server.calls == []
