"""URLs that are called: what their text may be. Pure.

aiohttp sends a URL as it was parsed here, by the same parser, so that what is checked is what is called.
"""

from __future__ import annotations

from typing import Final

from yarl import URL

URL_CHARS_MAX: Final = 2_048


class BadURL(ValueError):
    """A URL that is not called; the message says why, and does not repeat it: it may hold a secret."""


def parse_url(text: str) -> URL:
    """Return an absolute http or https URL without user name, password and fragment; else raise BadURL."""
    if len(text) > URL_CHARS_MAX:
        raise BadURL(f"a URL of more than {URL_CHARS_MAX} characters")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise BadURL("a URL with characters that must be encoded: write names as punycode, others as %XX")
    try:
        url = URL(text, encoded=True)
        scheme, host, port = url.scheme, url.host, url.port
    except ValueError:
        raise BadURL("not a URL") from None
    if scheme not in ("http", "https"):
        raise BadURL("a URL that does not begin with http:// or https://")
    if not host or port == 0:
        raise BadURL("a URL without a host, or with port 0")
    if "@" in url.raw_authority:
        raise BadURL("a URL with a user name or password: give credentials in headers")
    if "#" in text:
        raise BadURL("a URL with a fragment")
    return url
