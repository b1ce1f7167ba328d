"""How far a long piece of work has come, for those who watch it."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[int, int], None]
"""Is told how many steps are done, and how many there are."""


def unwatched(done: int, total: int) -> None:
    """It is not watched."""


class Steps:
    """Counts the steps of one piece of work, and tells its watcher after each, and of their number before the first."""

    def __init__(self, total: int, watch: Watch) -> None:
        self._done, self._total, self._watch = 0, total, watch
        watch(0, total)

    def take(self, count: int = 1) -> None:
        """Count steps that were done just now."""
        self._done += count
        self._watch(self._done, self._total)
