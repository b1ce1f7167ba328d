"""Rust: the AWS SDK; the program is in `rust`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.sqs import Endpoint

from .foreign import SDK_SCENARIOS, Outcomes, build, cached, fetch_or_skip, program_or_skip, run_scenarios

pytestmark = pytest.mark.timeout(900)  # the first test may have to fetch and compile packages

PROJECT = Path(__file__).parent / "rust"

# This SDK looks at no checksum; the program computes them and compares.
SCENARIOS = (
    *(scenario for scenario in SDK_SCENARIOS if scenario != "refuses an answer with a wrong checksum"),
    "gets the checksums that SQS defines",
)


def compiled(directory: Path) -> Path:
    """Return the program, built into a directory; the packages it rests on come from the cache if they can."""
    cargo = program_or_skip("cargo")

    def compile_into(target: Path) -> None:
        # Low priority: the compilers would take all there is from whatever runs beside.
        command = ["nice", "-n", "10", cargo, "build", "--offline", "--locked", "--quiet"]
        build(command, PROJECT, {"CARGO_TARGET_DIR": str(target)})

    def make(target: Path) -> None:
        fetch_or_skip([cargo, "fetch", "--locked"], PROJECT, faults=("--locked", "checksum for"))
        compile_into(target)

    version = build([cargo, "--version"], PROJECT)
    target = cached("rust", [PROJECT / "Cargo.toml", PROJECT / "Cargo.lock", version], make)
    compile_into(target)  # what has changed since: the program itself
    return Path(shutil.copy(target / "debug/quaymaster-compat", directory))


@pytest.fixture(scope="module")
def outcomes(server_with_waits: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    directory = tmp_path_factory.mktemp("rust")
    return run_scenarios([str(compiled(directory))], server_with_waits, directory)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rust_sdk(outcomes: Outcomes, scenario: str) -> None:
    outcomes.check(scenario)


def test_every_scenario_of_the_program_is_a_test(outcomes: Outcomes) -> None:
    assert outcomes.scenarios == set(SCENARIOS)
