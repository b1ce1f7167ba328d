"""Makes the shared test helpers importable as `harness` from every test folder; takes the clock out of Hypothesis."""

import faulthandler
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# On a busy machine any example may take long; a deadline would fail tests for that. The same examples each time,
# so that a change is judged by what it changed; QUAYMASTER_HYPOTHESIS (random, long) looks for new ones.
settings.register_profile("quaymaster", deadline=None, derandomize="QUAYMASTER_HYPOTHESIS" not in os.environ)
settings.load_profile("quaymaster")

# Until all tests are collected nothing is garbage, and to look for it again and again takes a seventh of that time.
gc.disable()

TESTS = str(Path(__file__).resolve().parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

EXIT_TIMEOUT_S = 60
YOUNG_OBJECTS_MAX = 20_000
"""Garbage is looked for when there are so many more objects than before; a server's limit is of the same order."""
SLOW_FOLDERS = ("process", "nemesis", "compat")
"""Whole processes and cells, and every client against them: slow, each of their tests."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "long" not in config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
    for item in items:
        if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).parts[0] in SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Set aside all that was imported for tests: each full collection would pass through it, and find nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
    gc.enable()


class TellFailures:
    """Tells each failure when it happens: a run that is ended by its time limit never comes to its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash is not None else report.longreprtext[-500:]
            terminal.write_line(f"\nfailed in {report.when}: {report.nodeid}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Only where results come together, not in each of several processes."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TellFailures(config))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End a run whose threads do not: a thread that a failed test left would hang the process for ever."""
    if hasattr(config, "workerinput"):
        return  # A worker of pytest-xdist waits for the others, and is ended by what started it.
    faulthandler.dump_traceback_later(EXIT_TIMEOUT_S, exit=True)
