"""JavaScript: the AWS SDK (version 3), and sqs-consumer on top of it; the program is in `javascript`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.sqs import Endpoint

from .foreign import SDK_SCENARIOS, Outcomes, build, cached, fetch_or_skip, program_or_skip, run_scenarios

pytestmark = pytest.mark.timeout(900)  # the first test may have to fetch packages

SOURCES = Path(__file__).parent / "javascript"

CONSUMER_SCENARIOS = (
    "handles messages and deletes them",
    "handles batches and deletes what the handler returned",
    "receives again what its handler did not return",
    "keeps a slow message hidden by its heartbeat",
    "makes a message visible when its handler fails",
    "loses a message that always fails to the dead-letter queue",
    "handles a FIFO group in its order",
    "says by its code that the queue does not exist",
    "ends the message in hand when it is stopped",
    "takes nothing more when it is stopped in a long poll",
)


def node_modules(node: str) -> Path:
    """Return the packages of the lock file, installed; from the cache if they were before."""
    npm = program_or_skip("npm")
    files = [SOURCES / name for name in ("package.json", "package-lock.json", ".npmrc")]

    def install(directory: Path) -> None:
        for file in files:
            shutil.copy(file, directory)
        fetch_or_skip([npm, "ci", "--ignore-scripts"], directory, faults=("EUSAGE", "EINTEGRITY"))

    version = build([node, "--version"], SOURCES)
    return cached("javascript", [*files, version], install) / "node_modules"


@pytest.fixture(scope="module")
def outcomes(server_with_waits: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    node = program_or_skip("node")
    packages = node_modules(node)
    # Node looks for packages beside the program, so the program goes to where they can be shown to be.
    directory = tmp_path_factory.mktemp("javascript")
    for source in SOURCES.glob("*.mjs"):
        shutil.copy(source, directory)
    (directory / "node_modules").symlink_to(packages)
    return run_scenarios([node, "main.mjs"], server_with_waits, directory)


@pytest.mark.parametrize("scenario", SDK_SCENARIOS)
def test_javascript_sdk(outcomes: Outcomes, scenario: str) -> None:
    outcomes.check(scenario)


@pytest.mark.parametrize("scenario", CONSUMER_SCENARIOS)
def test_sqs_consumer(outcomes: Outcomes, scenario: str) -> None:
    outcomes.check(scenario)


def test_every_scenario_of_the_program_is_a_test(outcomes: Outcomes) -> None:
    assert outcomes.scenarios == {*SDK_SCENARIOS, *CONSUMER_SCENARIOS}
