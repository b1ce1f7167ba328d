"""Bar charts as SVG, readable in light and dark: panels of bars on one axis, the value beside its bar.

The axis is logarithmic, and begins a decade below the least value so that no bar vanishes; or linear, from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LABEL_WIDTH = 150
VALUE_WIDTH = 110
BAR_HEIGHT = 18
BAR_STEP = 24
PANEL_HEAD = 30
PANEL_FOOT = 26
TITLE_HEIGHT = 54

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .panel { font-weight: 600; }
  .quiet { fill: #59636e; font-size: 12px; }
  .ours { fill: #0969da; }
  .peer { fill: #8c959f; }
  .second { opacity: 0.55; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .paper { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .quiet { fill: #9198a1; }
    .ours { fill: #4493f8; }
    .peer { fill: #6e7681; }
    .grid { stroke: #30363d; }
    .paper { fill: #0d1117; }
  }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One value; None when there is none, and `shown` says why. `is_second` bars are drawn lighter."""

    label: str
    value: float | None
    shown: str
    is_ours: bool = False
    is_second: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars that are compared with each other."""

    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Axis:
    """Where values are: `start` and `end` are values, or powers of ten when it is logarithmic."""

    start: float
    end: float
    is_linear: bool

    def share(self, value: float) -> float:
        """Return how far along the axis a value is, 0-1."""
        at = value if self.is_linear else math.log10(value)
        return (at - self.start) / (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the marked places and what they are called."""
        if self.is_linear:
            values = [self.end * part / 4 for part in range(5)]
        else:
            values = [10.0**power for power in range(int(self.start), int(self.end) + 1)]
        return [(0.0 if value == 0 else self.share(value), _short(value)) for value in values]


def axis_of(values: Sequence[float], is_linear: bool) -> Axis:
    """Return an axis that has room for all values."""
    if not values:
        return Axis(0, 1, is_linear)
    if is_linear:
        step = 10.0 ** math.floor(math.log10(max(values)))
        return Axis(0, next(step * part for part in (1, 2, 4, 8, 10) if step * part >= max(values)), True)
    return Axis(math.ceil(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))), False)


def draw(title: str, subtitle: str, panels: Sequence[Panel], is_linear: bool = False) -> str:
    """Return the chart as an SVG document."""
    axis = axis_of([bar.value for panel in panels for bar in panel.bars if bar.value], is_linear)
    height = TITLE_HEIGHT + sum(_height(panel) for panel in panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text class="quiet" x="16" y="44">{escape(subtitle)}</text>',
    ]
    top = TITLE_HEIGHT
    for panel in panels:
        parts += _draw_panel(panel, axis, top)
        top += _height(panel)
    return "\n".join([*parts, "</svg>", ""])


def _height(panel: Panel) -> int:
    return PANEL_HEAD + BAR_STEP * len(panel.bars) + PANEL_FOOT


def _draw_panel(panel: Panel, axis: Axis, top: int) -> list[str]:
    left, room = LABEL_WIDTH, WIDTH - LABEL_WIDTH - VALUE_WIDTH
    base = top + PANEL_HEAD
    below = base + BAR_STEP * len(panel.bars)
    parts = [f'<text class="panel" x="16" y="{top + 20}">{escape(panel.title)}</text>']
    for share, name in axis.ticks():
        x = left + room * share
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{base - 2}" x2="{x:.1f}" y2="{below}"/>')
        parts.append(f'<text class="quiet" x="{x:.1f}" y="{below + 12}" text-anchor="middle">{name}</text>')
    for index, bar in enumerate(panel.bars):
        y = base + BAR_STEP * index
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>')
        length = 0.0
        if bar.value:
            length = max(2.0, room * axis.share(bar.value))
            kind = "ours" if bar.is_ours else "peer"
            second = " second" if bar.is_second else ""
            parts.append(
                f'<rect class="{kind}{second}" x="{left}" y="{y}" width="{length:.1f}" '
                f'height="{BAR_HEIGHT}" rx="2"/>'
            )
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 14}">{escape(bar.shown)}</text>')
    return parts


def _short(value: float) -> str:
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
