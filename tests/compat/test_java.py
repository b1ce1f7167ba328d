"""Java: both clients of the AWS SDK (version 2) and its batch manager, and Spring Cloud AWS on top of it.

The programs are in `java`.
"""

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

SPRING_SCENARIOS = (
    "creates the queues its listeners name",
    "hands a message to its listener and deletes it",
    "hands a batch to its listener and deletes it",
    "handles FIFO groups in their order",
    "receives again what its listener failed on, then leaves it to the dead letters",
    "receives again what was not acknowledged by hand",
    "receives at once what its listener made visible",
    "sends headers as attributes and receives them with its template",
    "sends and receives many with its template",
    "says which messages of a batch were not sent",
    "sends to a FIFO queue with its template",
    "finds a queue by its name, URL and ARN",
    "fails on a queue that does not exist when told to",
    "ends the message in hand when it is stopped and leaves the others",
)


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


def run(main: str, server: Endpoint, directory: Path) -> Outcomes:
    java, folder = program_or_skip("java"), compiled()
    classpath = os.pathsep.join([f"{folder}/classes", f"{folder}/lib/*", str(RESOURCES)])
    # For so short a life the second compiler and a parallel collector cost more than they give.
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath, f"quaymaster.{main}"]
    return run_scenarios(command, server, directory)


@pytest.fixture(scope="module")
def sdk(server_with_waits: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run("Sdk", server_with_waits, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def spring(server_with_waits: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run("Spring", server_with_waits, tmp_path_factory.mktemp("spring"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scenario", SDK_SCENARIOS)
def test_java_sdk(sdk: Outcomes, client: str, scenario: str) -> None:
    sdk.check(f"{client}: {scenario}")


@pytest.mark.parametrize("scenario", BATCH_MANAGER_SCENARIOS)
def test_java_batch_manager(sdk: Outcomes, scenario: str) -> None:
    sdk.check(f"batch manager: {scenario}")


@pytest.mark.parametrize("scenario", SPRING_SCENARIOS)
def test_spring_cloud_aws(spring: Outcomes, scenario: str) -> None:
    spring.check(scenario)


def test_every_scenario_of_the_programs_is_a_test(sdk: Outcomes, spring: Outcomes) -> None:
    assert sdk.scenarios == {
        *(f"{client}: {scenario}" for client in CLIENTS for scenario in SDK_SCENARIOS),
        *(f"batch manager: {scenario}" for scenario in BATCH_MANAGER_SCENARIOS),
    }
    assert spring.scenarios == set(SPRING_SCENARIOS)
