"""Files that Prometheus's node exporter takes metrics from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from quaymaster_pipeline.warehouse.errors import telling_full_disk

Labelled = tuple[str, Mapping[str, float]]
"""A label's name, and a number for each of its values."""


def render_metrics(helps: Mapping[str, str], values: Mapping[str, float | Labelled]) -> str:
    """Return the text of a file: metrics in the order of `helps`, their help; counters are those named `_total`."""
    lines = []
    for name, text in helps.items():
        lines += [
            f"# HELP {name} {text}",
            f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}",
        ]
        found = values[name]
        if isinstance(found, tuple):
            label, numbers = found
            lines += [f'{name}{{{label}="{value}"}} {number}' for value, number in numbers.items()]
        else:
            lines.append(f"{name} {found}")
    return "\n".join(lines) + "\n"


def place_of_metrics(root: str, directory: Path, name: str) -> Path:
    """Return the file that metrics about the tables in `root` are in: among those that are in a directory.

    A node exporter reads no object store: metrics of tables there are in the data directory of who writes them.
    """
    return directory / name if "://" in root else Path(root, name)


def write_metrics(path: Path, text: str) -> None:
    """Replace a metrics file, so that half of it is never read. The directory is made, if need be."""
    part = path.with_name(f"{path.name}.part")
    with telling_full_disk(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        os.replace(part, path)
