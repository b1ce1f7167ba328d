"""Go: the AWS SDK (version 2), and what KEDA's scaler asks through it; the program is in `go`."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.sqs import Endpoint

from .foreign import SDK_SCENARIOS, Outcomes, build, cached, fetch_or_skip, program_or_skip, run_scenarios

pytestmark = pytest.mark.timeout(900)  # the first test may have to fetch and compile packages

SOURCES = Path(__file__).parent / "go"

KEDA_SCENARIOS = (
    "counts visible messages and those in flight",
    "counts visible messages only, with scaleOnInFlight off",
    "counts delayed messages, with scaleOnDelayed on",
    "counts none in an empty queue, so that nothing runs",
    "counts a FIFO queue",
    "finds a queue by its name in place of the URL",
    "finds a queue by a URL with another host than awsEndpoint",
    "asks where AWS_ENDPOINT_URL_SQS says, without awsEndpoint",
    "is refused with another awsRegion than the server's",
    "learns that the queue does not exist",
)


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled program; packages and what is compiled of them are kept where Go keeps them."""
    go = program_or_skip("go")
    environment = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}

    def make(directory: Path) -> None:
        lock_is_wrong = ("SECURITY ERROR", "missing go.sum entry", "updates to go.mod needed")
        fetch_or_skip([go, "mod", "download"], SOURCES, environment, faults=lock_is_wrong)
        binary = str(directory / "client")
        build([go, "build", "-mod=readonly", "-buildvcs=false", "-o", binary, "."], SOURCES, environment)

    files = [*sorted(SOURCES.glob("*.go")), SOURCES / "go.mod", SOURCES / "go.sum"]
    version = build([go, "version"], SOURCES, environment)
    return cached("go", [*files, version], make) / "client"


@pytest.fixture(scope="module")
def outcomes(
    program: Path, server_with_waits: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    return run_scenarios([str(program)], server_with_waits, tmp_path_factory.mktemp("go"))


@pytest.mark.parametrize("scenario", SDK_SCENARIOS)
def test_go_sdk(outcomes: Outcomes, scenario: str) -> None:
    outcomes.check(scenario)


@pytest.mark.parametrize("scenario", KEDA_SCENARIOS)
def test_keda_scaler(outcomes: Outcomes, scenario: str) -> None:
    outcomes.check(scenario)


def test_every_scenario_of_the_program_is_a_test(outcomes: Outcomes) -> None:
    assert outcomes.scenarios == {*SDK_SCENARIOS, *KEDA_SCENARIOS}
