"""Makes the shared test helpers importable as `harness` from every test folder; takes the clock out of Hypothesis."""

import sys
from pathlib import Path

from hypothesis import settings

# On a busy machine any example may take long; a deadline would fail tests for that.
settings.register_profile("quaymaster", deadline=None)
settings.load_profile("quaymaster")

TESTS = str(Path(__file__).resolve().parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)
