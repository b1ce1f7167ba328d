"""The JSON of a policy, read strictly: nothing in it may be ignored or have two meanings.

JSON parsers keep one of two members with the same name, and do not agree which. So a repeated name is an error. Numbers
stay texts, as they are written.

Source: RFC 8259, section 4; IAM User Guide, "Grammar of the IAM JSON policy language".
"""

from __future__ import annotations

import json
from typing import Any, Final

from quaymaster.core.access.errors import PolicyIsNoJSON, PolicyIsTooDeep, PolicyRepeats, PolicyValueIsWrong

DEPTH_MAX: Final = 32


class Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


def parse_document(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; PolicyIsNoJSON, PolicyIsTooDeep or PolicyRepeats."""
    _check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise PolicyIsNoJSON(f"{error.msg} at character {error.pos}") from None
    if not isinstance(value, dict):
        raise PolicyIsNoJSON("it is another value")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise PolicyIsNoJSON("it has half of a surrogate pair") from None
    return value


def texts_of(element: str, value: Any) -> tuple[str, ...]:
    """Return the texts of an element: a text stands for a list of one. PolicyValueIsWrong."""
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise PolicyValueIsWrong(element, value, "a list needs an entry")
    for text in texts:
        if not text_of(element, text):
            raise PolicyValueIsWrong(element, text, "it must not be empty")
    return tuple(texts)


def text_of(element: str, value: Any) -> str:
    """Return the text of an element, which may be empty; PolicyValueIsWrong."""
    if not isinstance(value, str) or isinstance(value, Number):
        raise PolicyValueIsWrong(element, value, "it must be a text")
    return value


def _check_depth(text: str) -> None:
    depth, is_inside, is_escaped = 0, False, False
    for character in text:
        if is_inside:
            if is_escaped:
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            elif character == '"':
                is_inside = False
        elif character == '"':
            is_inside = True
        elif character in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise PolicyIsTooDeep(DEPTH_MAX)
        elif character in "]}":
            depth -= 1


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, member in members:
        if name in value:
            raise PolicyRepeats("JSON name", name)
        value[name] = member
    return value


def _refuse_constant(name: str) -> Any:
    raise PolicyIsNoJSON(f"{name} is no JSON number")
