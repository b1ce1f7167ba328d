"""How many entries the containers hold that can be reached from something: what grows when nothing is let go."""

from __future__ import annotations

import gc
import types
from collections import Counter, deque
from typing import Any

_NOT_ENTERED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    types.CodeType,
    types.CoroutineType,
)


def held_entries(*roots: Any, besides: tuple[Any, ...] = ()) -> Counter[str]:
    """Return entries by the attribute (or type) that holds their container; `besides` and behind it is not entered."""
    seen = {id(one) for one in besides}
    found: Counter[str] = Counter()
    left: deque[tuple[Any, str]] = deque((root, type(root).__name__) for root in roots)
    while left:
        one, name = left.popleft()
        if id(one) in seen or isinstance(one, _NOT_ENTERED):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set | deque):
            found[name] += len(one)
        attributes = getattr(one, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(one, dict):
            owner = type(one).__name__
            left.extend((value, f"{owner}.{key}") for key, value in attributes.items())
            seen.add(id(attributes))
        left.extend((referent, name) for referent in gc.get_referents(one))
    return found
