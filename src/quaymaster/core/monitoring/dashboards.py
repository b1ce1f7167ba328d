"""Dashboards: their rows in the store, and what of CloudWatch's dashboard body is shown.

    /dashboards/ACCOUNT/NAME    DashboardRow

A body is CloudWatch's JSON, kept as it was given. Metric widgets are shown; others are kept, and their author is told.

Source: CloudWatch API Reference, "Dashboard Body Structure and Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from quaymaster.core.values.row_codec import RowCodec

DASHBOARDS: Final = "/dashboards/"
DASHBOARD_VERSION: Final = 1
BODY_BYTES_MAX: Final = 256 * 1024
DASHBOARDS_MAX: Final = 500
"""Of an account."""
WIDGETS_MAX: Final = 500
NAME_PATTERN: Final = "^[A-Za-z0-9_-]{1,255}$"


class DashboardRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A dashboard, and when it was changed last. To change it: append fields with defaults."""

    body: str
    modified_ms: int


class Finding(NamedTuple):
    """What is wrong with a body, or not shown of it. `path`: where, such as /widgets/0/type."""

    path: str
    message: str
    is_error: bool


def dashboard_key(account_id: str, name: str) -> str:
    """Return where a dashboard is kept."""
    return f"{DASHBOARDS}{account_id}/{name}"


def dashboard_arn(account_id: str, name: str) -> str:
    """Return the ARN of a dashboard, which is of no region."""
    return f"arn:aws:cloudwatch::{account_id}:dashboard/{name}"


def is_dashboard_name(name: str) -> bool:
    """Tell whether a dashboard may have this name."""
    return re.fullmatch(NAME_PATTERN, name) is not None


_codec: Final = RowCodec(DashboardRow, "a dashboard", version=DASHBOARD_VERSION)
encode_dashboard = _codec.encode
decode_dashboard = _codec.decode


def check_body(body: str) -> list[Finding]:
    """Return what is wrong with a dashboard's body, and what of it is not shown."""
    if len(body.encode()) > BODY_BYTES_MAX:
        return [Finding("/", f"The body has more than {BODY_BYTES_MAX} bytes.", is_error=True)]
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return [Finding("/", "The field DashboardBody must be a valid JSON object.", is_error=True)]
    if not isinstance(found, dict):
        return [Finding("/", "The field DashboardBody must be a valid JSON object.", is_error=True)]
    widgets = found.get("widgets", [])
    if not isinstance(widgets, list):
        return [Finding("/widgets", "Should be an array.", is_error=True)]
    if len(widgets) > WIDGETS_MAX:
        return [Finding("/widgets", f"Should have at most {WIDGETS_MAX} items.", is_error=True)]
    return [finding for number, widget in enumerate(widgets) for finding in _check_widget(number, widget)]


def _check_widget(number: int, widget: Any) -> Iterator[Finding]:
    path = f"/widgets/{number}"
    if not isinstance(widget, dict):
        yield Finding(path, "Should be an object.", is_error=True)
        return
    kind = widget.get("type")
    if not isinstance(kind, str):
        yield Finding(f"{path}/type", "Should be a text, such as metric.", is_error=True)
    elif kind != "metric":
        yield Finding(f"{path}/type", f"Widgets of type {kind} are kept and not shown.", is_error=False)
    elif not isinstance(widget.get("properties"), dict):
        yield Finding(f"{path}/properties", "Should be an object.", is_error=True)
