"""How long the operations of a store take, whatever comes of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from quaymaster.monitoring.metrics import Histogram, HistogramSample

Given = ParamSpec("Given")
Result = TypeVar("Result")


class HasDurations(Protocol):
    """A store."""

    @property
    def durations(self) -> dict[str, Histogram]:
        """How long its operations took, by their names."""
        ...


Store = TypeVar("Store", bound=HasDurations)


def timed(
    operation: Callable[Concatenate[Store, Given], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Store, Given], Coroutine[Any, Any, Result]]:
    """Have a store's operation counted by its name."""
    name = operation.__name__

    @functools.wraps(operation)
    async def timed_operation(store: Store, /, *given: Given.args, **named: Given.kwargs) -> Result:
        began_s = time.perf_counter()
        try:
            return await operation(store, *given, **named)
        finally:
            durations = store.durations
            histogram = durations.get(name)
            if histogram is None:
                histogram = durations[name] = Histogram()
            histogram.observe(time.perf_counter() - began_s)

    return timed_operation


def coordination_histograms(store: HasDurations) -> Iterator[HistogramSample]:
    """A source of durations for `Metrics`."""
    for name, durations in store.durations.items():
        yield HistogramSample("quaymaster_coordination_duration_seconds", durations, (name,))
