"""What callers may say of pushing: the endpoint's URL, headers for it, and how failed messages are tried again.

    https://example.com/orders?key=...                      an endpoint; its query may be a secret
    {"Authorization": "Bearer ..."}                         headers: secrets, kept apart and shown as ***
    {"minBackoffSeconds": 10, "maxBackoffSeconds": 600}     a retry policy

Headers belong to the host that they were given for: an endpoint at another host needs them given again, so that a
caller who cannot read them cannot have them sent to a host of his own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from quaymaster.core.values.errors import InvalidAttributeValue

ENDPOINT_CHARS_MAX: Final = 2_048
PUSH_HEADERS_MAX: Final = 10
HEADER_NAME_CHARS_MAX: Final = 128
HEADER_VALUE_CHARS_MAX: Final = 2_048
BACKOFF_S_MAX: Final = 36_000
"""Ten hours: with the longest call before it, a message is hidden for less than the 12 h that SQS allows."""
MASKED: Final = "***"
"""In place of headers wherever they are shown."""
MASKED_NEW: Final = "*** new"
"""In place of headers that are given now, where only others see the request who must not see them."""
_ENDPOINT: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-~]*)?(?P<query>\?[!-~]*)?"
)
_PORTS: Final = {"http": 80, "https": 443}
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?|")
_OWN_HEADERS: Final = frozenset(
    (
        *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("accept-encoding", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    )
)
_OWN_PREFIXES: Final = ("content-", "webhook-", "ce-", "quaymaster-")


class PushEndpoint(NamedTuple):
    """Where messages are pushed to: parts of a URL. `host` is in lower case, without the brackets of IPv6."""

    scheme: str
    host: str
    port: int

    @property
    def is_encrypted(self) -> bool:
        """Whether it is called by https."""
        return self.scheme == "https"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class PushRetryPolicy(NamedTuple):
    """How long a message is hidden that was not taken: at first, and at most."""

    backoff_min_ms: int
    backoff_max_ms: int


def parse_endpoint_text(name: str, text: str) -> str:
    """Return an endpoint as it is kept; InvalidAttributeValue does not repeat it: it may hold a secret."""
    if len(text) > ENDPOINT_CHARS_MAX:
        raise InvalidAttributeValue.of(name, f"A URL has at most {ENDPOINT_CHARS_MAX:,} characters.")
    if "#" in text or "\\" in text or "@" in text.partition("://")[2].partition("/")[0].partition("?")[0]:
        raise InvalidAttributeValue.of(
            name,
            "It must be a URL without user name, password and fragment: give credentials in PushHeaders.",
        )
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 1 <= int(found["port"] or _PORTS[found["scheme"]]) <= 65_535:
        raise InvalidAttributeValue.of(
            name, "It must be an https URL of ASCII characters: write names as punycode, others as %XX."
        )
    return text


def endpoint_of(text: str) -> PushEndpoint:
    """Return the parts of an endpoint that was parsed."""
    found = _ENDPOINT.fullmatch(text)
    assert found is not None, "it was parsed when it was set"
    scheme = found["scheme"]
    return PushEndpoint(scheme, found["host"].lower().strip("[]"), int(found["port"] or _PORTS[scheme]))


def shown_endpoint(text: str) -> str:
    """Return an endpoint as logs and audit events have it: without its query. Of no endpoint they have nothing."""
    if text and _ENDPOINT.fullmatch(text) is None:
        return MASKED
    address, has_query, _ = text.partition("?")
    return address + ("?" + MASKED if has_query else "")


def parse_headers(name: str, text: str) -> dict[str, str]:
    """Return headers by name, as they are sent. InvalidAttributeValue names a header at most, never a value."""
    value = _object(text)
    if value is None or not all(isinstance(each, str) for each in value.values()):
        raise InvalidAttributeValue.of(name, "It must be a JSON object of texts.")
    if not value or len(value) > PUSH_HEADERS_MAX:
        raise InvalidAttributeValue.of(name, f"It has from 1 to {PUSH_HEADERS_MAX} headers.")
    seen: set[str] = set()
    for header, content in value.items():
        lower = header.lower()
        if _TOKEN.fullmatch(header) is None or len(header) > HEADER_NAME_CHARS_MAX:
            raise InvalidAttributeValue.of(name, "A header's name has characters that no name can have.")
        if lower in _OWN_HEADERS or lower.startswith(_OWN_PREFIXES):
            raise InvalidAttributeValue.of(name, f"The header {header} is set by the service.")
        if lower in seen:
            raise InvalidAttributeValue.of(name, f"The header {header} is there twice.")
        if _VALUE.fullmatch(content) is None or len(content) > HEADER_VALUE_CHARS_MAX:
            raise InvalidAttributeValue.of(
                name,
                f"The value of {header} must have at most {HEADER_VALUE_CHARS_MAX:,} printable ASCII characters, "
                "without spaces around them.",
            )
        seen.add(lower)
    return value


def parse_headers_text(name: str, text: str) -> str:
    """Return the one spelling in which headers are kept where others read: it says nothing of them."""
    if text not in (MASKED, MASKED_NEW):
        parse_headers(name, text)
    return MASKED


def masked_headers(name: str, text: str) -> str:
    """Return what stands for headers that a caller said, once they were parsed and kept apart."""
    if text in ("", MASKED):
        return text
    parse_headers(name, text)
    return MASKED_NEW


def parse_retry_policy_text(name: str, text: str) -> str:
    """Return a retry policy as it is kept: JSON of both times. What is left out has its default."""
    value = _object(text)
    if value is None:
        raise InvalidAttributeValue.of(name, "It must be a JSON object.")
    times = {"minBackoffSeconds": 10, "maxBackoffSeconds": 600}
    for key, seconds in value.items():
        if key not in times:
            raise InvalidAttributeValue.of(name, "It has minBackoffSeconds and maxBackoffSeconds.")
        if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= BACKOFF_S_MAX:
            raise InvalidAttributeValue.of(
                name, f"{key} must be a whole number of seconds between 1 and {BACKOFF_S_MAX}."
            )
        times[key] = seconds
    if "maxBackoffSeconds" not in value:
        times["maxBackoffSeconds"] = max(times.values())
    if "minBackoffSeconds" not in value:
        times["minBackoffSeconds"] = min(times.values())
    if times["minBackoffSeconds"] > times["maxBackoffSeconds"]:
        raise InvalidAttributeValue.of(name, "minBackoffSeconds must not be more than maxBackoffSeconds.")
    return msgspec.json.encode(times).decode()


def read_retry_policy(text: str) -> PushRetryPolicy:
    """Return what a retry policy means that was parsed."""
    times = msgspec.json.decode(text)
    return PushRetryPolicy(times["minBackoffSeconds"] * 1_000, times["maxBackoffSeconds"] * 1_000)


def check_headers_stay(
    headers_name: str, endpoint_name: str, current: Mapping[str, str], changed: Mapping[str, str], given: str
) -> None:
    """Raise InvalidAttributeValue where headers would be sent to a host that they were not given for.

    `given` is what was said of headers now: `MASKED` or "" says nothing of them.
    """
    if headers_name not in changed:
        return
    if endpoint_name not in changed:
        raise InvalidAttributeValue.of(headers_name, f"Headers need a {endpoint_name}.")
    if given not in ("", MASKED):
        return
    if headers_name not in current:
        raise InvalidAttributeValue.of(headers_name, "There are no headers that could stay as they are.")
    if endpoint_of(current[endpoint_name]) != endpoint_of(changed[endpoint_name]):
        raise InvalidAttributeValue.of(
            endpoint_name,
            f"The {headers_name} were given for another host: give them again, or take them away, in the same call.",
        )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return value if isinstance(value, dict) else None
