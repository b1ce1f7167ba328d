"""The comparisons of `pipeline reconcile`, with tasks in this process."""

from __future__ import annotations

from harness.pipeline_site import InProcess
from quaymaster_pipeline.checks import reconciliation
from quaymaster_pipeline.checks.reconciliation import LayerComparison
from quaymaster_pipeline.warehouse.steps import Watch, unwatched
from quaymaster_pipeline.warehouse.tables import Warehouse


def compare_rows(warehouse: Warehouse, watch: Watch = unwatched) -> list[LayerComparison]:
    """Compare sums over the rows of all tables."""
    return reconciliation.compare_rows(InProcess(), warehouse, watch)


def compare_sums(warehouse: Warehouse) -> list[LayerComparison]:
    """Compare days and counts of latencies with hours."""
    return reconciliation.compare_sums(InProcess(), warehouse)
