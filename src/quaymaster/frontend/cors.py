"""Which web pages may call the API: what a browser is told, and what is refused that a page of another site caused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from quaymaster.net.http.message import HTTPRequest

_LOOPBACK_ORIGIN: Final = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_LOOPBACK_HOST: Final = re.compile(r"(.+\.)?localhost|127(\.[0-9]{1,3}){3}|\[::1\]")
_PORT: Final = re.compile(r":[0-9]*\Z")
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})
"""Sec-Fetch-Site of what a page of this very origin asks, or a person by typing the address."""
_EXPOSED: Final = b"x-amzn-RequestId, x-amzn-query-error, Content-Type, Content-Length, Date"
_ALLOWED: Final = (
    b"authorization, cache-control, content-length, content-md5, content-type, location, x-amz-target, "
    b"x-amz-date, x-amz-content-sha256, x-amz-security-token, x-amz-user-agent, x-amzn-trace-id, "
    b"x-amzn-query-mode, x-amz-api-version, amz-sdk-invocation-id, amz-sdk-request"
)
_PREFLIGHT_MAX_AGE_S: Final = 3600


class CORS:
    """Which web pages may call the API.

    `origins` is the setting `cors_origins`. Signed requests prove who sends them, so `*` is safe there. With
    open authentication everybody on this machine is let in, and a web page must not borrow that: `*` then
    means pages of this machine, and what any other page makes a browser send is refused, not only left
    unreadable. Origin alone does not show such requests: a browser leaves it out when a page loads an image
    or follows a link, and a name that an attacker points at this machine makes his page same-origin. So
    requests that a page of another site caused (Sec-Fetch-Site), and those of a browser that reached us by a
    name that is neither this machine's nor in `hosts`, are refused as well, unless `is_forced`: other
    machines may then call by any name. Programs that are no browsers may use any name.

    Source: Fetch Metadata Request Headers (W3C); RFC 6454.
    """

    def __init__(
        self, origins: str, *, is_open: bool, is_forced: bool = False, hosts: Iterable[str] = ()
    ) -> None:
        listed = [origin.strip() for origin in origins.split(",") if origin.strip()]
        self._any = "*" in listed
        self._listed = frozenset(listed) - {"*"}
        self.is_open = is_open
        self._is_forced = is_forced
        self._hosts = frozenset(host.lower() for host in hosts)

    def allows(self, origin: str) -> bool:
        """Tell whether a page from `origin` may call the API."""
        if origin in self._listed:
            return True
        return self._any and (not self.is_open or _LOOPBACK_ORIGIN.fullmatch(origin) is not None)

    def why_refused(self, request: HTTPRequest) -> str | None:
        """Return why a request must not be carried out: a web page may have caused it. None when it may."""
        if not self.is_open:
            return None
        origin = request.header(b"origin")
        if origin is not None and not self.allows(origin.decode("latin-1")):
            return "Web pages from this origin may not call this service (see cors_origins)."
        site = request.header(b"sec-fetch-site")
        if origin is None and site is not None and site not in _OWN_SITES:
            return "Web pages of other sites may not call this service (see cors_origins)."
        if self._is_forced:  # then any name may be this service's
            return None
        if (origin is not None or site is not None or _is_of_browser(request)) and not self._is_ours(
            request.header(b"host")
        ):
            return "Web browsers may call this service only as localhost or by its public_url."
        return None

    def _is_ours(self, host: bytes | None) -> bool:
        if host is None:
            return False
        name = _PORT.sub("", host.decode("latin-1").lower())
        return name in self._hosts or _LOOPBACK_HOST.fullmatch(name) is not None

    def headers(self, origin: str) -> bytes:
        """Return the header lines of a reply to a page from `origin`; none when it may not read it."""
        if not self.allows(origin):
            return b""
        allowed = b"*" if self._any and not self.is_open else origin.encode("latin-1")
        lines = b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\n" % (
            allowed,
            _EXPOSED,
        )
        return lines if allowed == b"*" else lines + b"Vary: Origin\r\n"

    def preflight(self, request: HTTPRequest, origin: str) -> bytes:
        """Return the header lines that answer a browser's question."""
        asked = request.header(b"access-control-request-headers")
        return self.headers(origin) + (
            b"Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
            b"Access-Control-Allow-Headers: %b\r\n"
            b"Access-Control-Max-Age: %d\r\n"
        ) % (asked or _ALLOWED, _PREFLIGHT_MAX_AGE_S)


def host_of(url: str) -> str:
    """Return the host of a URL that ends with it, without its port."""
    return _PORT.sub("", url.partition("://")[2])


def _is_of_browser(request: HTTPRequest) -> bool:
    """Tell whether a request without Origin and Sec-Fetch-Site looks like a browser's all the same.

    Browsers keep Sec-Fetch-* from hosts they do not trust, which is any name over plain HTTP but localhost. A
    page can change User-Agent and Accept-Language there, but cannot leave the latter out. Node's fetch sends
    it too, with a Sec-Fetch-Mode and no Sec-Fetch-Site, which no browser does and no page can set.
    """
    if (request.header(b"user-agent") or b"").startswith(b"Mozilla/"):
        return True
    return request.header(b"accept-language") is not None and request.header(b"sec-fetch-mode") is None
