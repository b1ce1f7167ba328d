"""The depth bar: how many messages a queue has, and in which state, the same on each page.

    visible solid │ in flight striped │ delayed dotted          length: 1 message 1/8, 10 million all of it

The length grows with the logarithm of the number, so that queues of all sizes can be compared on one page; the parts
share it as the messages do. It is drawn as SVG, whose sizes are attributes: the pages' policy allows no inline styles.
"""

from __future__ import annotations

import math
from typing import Final

from markupsafe import Markup

from quaymaster.console.web.views.words import count

FULL_AT: Final = 10_000_000
_PARTS: Final = (("visible", "visible"), ("in-flight", "in flight"), ("delayed", "delayed"))


def bar_length(total: int) -> float:
    """Return how much of the bar so many messages fill, 0 to 1; any message is seen."""
    if total <= 0:
        return 0.0
    return min(1.0, (1 + math.log10(total)) / (1 + math.log10(FULL_AT)))


def depth_bar(visible: int | None, in_flight: int | None, delayed: int | None) -> Markup:
    """Return the bar as SVG with its numbers as its name; dashed and empty where they are not known."""
    if visible is None or in_flight is None or delayed is None:
        return Markup(
            '<svg class="depth unknown" role="img" aria-label="messages not known" width="100%" height="12">'
            '<rect class="ground" width="100%" height="100%" rx="2"/></svg>'
        )
    numbers = (visible, in_flight, delayed)
    total = sum(numbers)
    told = ", ".join(f"{count(number)} {name}" for number, (_, name) in zip(numbers, _PARTS, strict=True))
    length = 100 * bar_length(total)
    begin = 0.0
    parts = []
    for number, (kind, _) in zip(numbers, _PARTS, strict=True):
        if number > 0:
            width = length * number / total
            parts.append(
                f'<rect class="{kind}" x="{begin:.2f}%" width="{width:.2f}%" height="100%"{_FILLS[kind]}/>'
            )
            begin += width
    return Markup(  # noqa: S704 -- made of numbers and constants alone
        f'<svg class="depth" role="img" aria-label="{told}" width="100%" height="12"><title>{told}</title>'
        f'<rect class="ground" width="100%" height="100%" rx="2"/>{"".join(parts)}</svg>'
    )


_FILLS: Final = {"visible": "", "in-flight": ' fill="url(#stripes)"', "delayed": ' fill="url(#dots)"'}
