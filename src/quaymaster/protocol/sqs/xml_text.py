"""Text inside XML elements: what must be escaped, and what XML 1.0 cannot hold at all."""

from __future__ import annotations

import re

# A parser turns a bare carriage return into a line feed, so it is escaped like the markup characters.
_MARKUP = re.compile('[&<>"\r]')
_REFERENCES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"})
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Return `text` as it may stand inside an element. `text` holds only characters of XML 1.0."""
    if _MARKUP.search(text) is None:
        return text
    return text.translate(_REFERENCES)


def escape_anything(text: str) -> str:
    """Return `text` escaped, with U+FFFD for what XML cannot hold: for text that echoes unchecked input."""
    return escape(_NOT_XML.sub("\ufffd", text))
