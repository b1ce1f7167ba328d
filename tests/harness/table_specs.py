"""Every table that the warehouse can have, wherever in the code it is declared."""

from __future__ import annotations

import importlib
import pkgutil

from quaymaster import pipeline
from quaymaster.pipeline.schemas import TableSpec


def all_specs() -> dict[str, TableSpec]:
    """Return the tables by name, sorted."""
    found: dict[str, TableSpec] = {}
    for module in pkgutil.walk_packages(pipeline.__path__, f"{pipeline.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, TableSpec):
                assert found.setdefault(value.name, value) is value, f"{value.name} is declared twice"
    return dict(sorted(found.items()))
