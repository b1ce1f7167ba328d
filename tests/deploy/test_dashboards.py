"""The dashboards: made from the code, of metrics that exist, and drawn without gaps or overlaps."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from quaymaster.console.metric_text import render_queues
from quaymaster.monitoring.metric_table import METRICS

from .support import DEPLOY, ROOT

GRAFANA = DEPLOY / "grafana"
FILES = sorted(GRAFANA.glob("*.json"))
OF_THE_CLIENT = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Those of Prometheus's client library."""
OF_QUEUES = set(re.findall(r"^# TYPE (\w+)", render_queues([], 0), re.MULTILINE))
"""Those that a console gives of each queue."""
STATUS = ROOT / "src" / "quaymaster_pipeline" / "checks" / "status.py"
UNITS = {"short", "s", "bytes", "Bps", "ops", "reqps", "mps", "percentunit"}
VARIABLES = {"$instance": ".+", "$queue": ".+", "$__rate_interval": "1m"}
WIDTH = 24


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "render_dashboards", ROOT / "scripts" / "render_dashboards.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def charts(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in read(path)["panels"] if panel["type"] != "row"]


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_the_files_are_what_the_code_gives() -> None:
    made = generator()

    written = {path.name: path.read_text(encoding="utf-8") for path in FILES}
    assert written == {f"{board.name}.json": made.render(board) for board in made.BOARDS}, "run `make docs`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_grafanas_models_read_what_was_written(path: Path) -> None:
    found = read(path)

    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(found)))

    assert again == found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_every_query_can_be_evaluated_and_is_about_metrics_that_exist(path: Path) -> None:
    elsewhere = set(re.findall(r"quaymaster_pipeline_\w+", STATUS.read_text(encoding="utf-8")))
    elsewhere |= OF_QUEUES
    for chart in charts(path):
        assert chart["targets"], chart["title"]
        for target in chart["targets"]:
            parsed = str(promql_parser.parse(filled(target["expr"])))
            names = set(re.findall(r"\b(?:quaymaster|process)_\w+", parsed))
            assert names
            ours = {name.removesuffix("_bucket") for name in names - OF_THE_CLIENT - elsewhere}
            assert ours <= METRICS.keys()
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = re.search(r"by \(([^)]*)\)", target["expr"])
            by = set() if kept is None else set(kept[1].split(", ")) - {"le"}
            assert shown == by, f"{chart['title']}: lines are told apart by {by}, their names by {shown}"
            assert all(by <= {*METRICS[name].labels, "instance"} for name in ours), chart["title"]
        assert ("$queue" if path.stem == "customer" else "$instance") in chart["targets"][0]["expr"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_panels_have_numbers_titles_and_units_and_do_not_overlap(path: Path) -> None:
    found = read(path)
    panels = found["panels"]

    assert found["uid"] == f"quaymaster-{path.stem}"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["id"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for chart in charts(path):
        assert chart["fieldConfig"]["defaults"]["unit"] in UNITS
        assert chart["datasource"] == {"type": "prometheus", "uid": "${source}"}
    by_name = {variable["name"]: variable for variable in found["templating"]["list"]}
    assert by_name.keys() == {"source", "queue" if path.stem == "customer" else "instance"}
