"""Java: both clients of the AWS SDK (version 2) and its batch manager; the program is in `java`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.sqs import Endpoint

from .foreign import SDK_SCENARIOS, Outcomes, build, cached, fetch_or_skip, program_or_skip, run_scenarios

pytestmark = pytest.mark.timeout(900)  # the first test may have to fetch packages

PROJECT = Path(__file__).parent / "java"
SOURCES = sorted(PROJECT.glob("src/main/java/**/*.java"))
RESOURCES = PROJECT / "src/main/resources"

CLIENTS = ("sync", "async")
BATCH_MANAGER_SCENARIOS = ("sends, receives and deletes many in batches",)


def compiled() -> Path:
    """Return a folder with `lib`, what the project rests on, and `classes`; from the cache if it was there before."""
    mvn, javac = program_or_skip("mvn"), program_or_skip("javac")

    def make(directory: Path) -> None:
        copy = [mvn, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={directory / 'lib'}"]
        fetch_or_skip(copy, PROJECT, faults=("Non-parseable POM", "is missing"))
        strict = ["-parameters", "-Xlint:all,-processing", "-Werror"]
        build([javac, *strict, "-cp", "lib/*", "-d", "classes", *map(str, SOURCES)], directory)

    version = build([javac, "-version"], PROJECT)
    return cached("java", [PROJECT / "pom.xml", *SOURCES, version], make)


@pytest.fixture(scope="module")
def outcomes(server_with_waits: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    java, folder = program_or_skip("java"), compiled()
    classpath = os.pathsep.join([f"{folder}/classes", f"{folder}/lib/*", str(RESOURCES)])
    # For so short a life the second compiler and a parallel collector cost more than they give.
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath, "quaymaster.Sdk"]
    return run_scenarios(command, server_with_waits, tmp_path_factory.mktemp("java"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scenario", SDK_SCENARIOS)
def test_java_sdk(outcomes: Outcomes, client: str, scenario: str) -> None:
    outcomes.check(f"{client}: {scenario}")


@pytest.mark.parametrize("scenario", BATCH_MANAGER_SCENARIOS)
def test_java_batch_manager(outcomes: Outcomes, scenario: str) -> None:
    outcomes.check(f"batch manager: {scenario}")


def test_every_scenario_of_the_program_is_a_test(outcomes: Outcomes) -> None:
    assert outcomes.scenarios == {
        *(f"{client}: {scenario}" for client in CLIENTS for scenario in SDK_SCENARIOS),
        *(f"batch manager: {scenario}" for scenario in BATCH_MANAGER_SCENARIOS),
    }
