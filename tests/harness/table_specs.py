"""Every table that the warehouse can have, wherever in the code it is declared."""

from __future__ import annotations

import importlib
import pkgutil

import quaymaster_pipeline
from quaymaster_pipeline.warehouse.schemas import TableSpec


def all_specs() -> dict[str, TableSpec]:
    """Return the tables by name, sorted."""
    found: dict[str, TableSpec] = {}
    for module in pkgutil.walk_packages(quaymaster_pipeline.__path__, "quaymaster_pipeline."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, TableSpec):
                assert found.setdefault(value.name, value) is value, f"{value.name} is declared twice"
    return dict(sorted(found.items()))
