"""What each request must pass before a page sees it, and the headers that each reply gets.

    request ──▶ Host known? ──421──▶ size ──411, 413──▶ change: same Origin? ──403──▶ pages

A page of another site can make a browser send requests here, or give this address its own name (DNS rebinding). Such
requests are refused by Host and Origin, before anything of them is read. The CSRF token of a form is checked in
`page_calls`, which reads forms.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORM_BYTES_MAX: Final = 4 * 1024 * 1024
"""A message of 1 MiB with each byte encoded as three characters fits."""
READING: Final = frozenset(("GET", "HEAD"))
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # Other sites get no referrer. With no-referrer browsers would send changes with `Origin: null`, too.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
HSTS: Final = "max-age=31536000"


class BadConsoleURL(ValueError):
    """`console_url` is no https URL of a host alone, nor an http URL of this machine."""


class Doors:
    """The names by which browsers reach the console: that of `console_url`, and those of this machine itself."""

    def __init__(self, console_url: str) -> None:
        """Take a URL such as https://console.example.com; "": this machine only. BadConsoleURL."""
        self._host = ""
        self._origin = ""
        if not console_url:
            return
        parts = urlsplit(console_url)
        is_plain = parts.scheme == "http" and is_loopback(parts.netloc)
        if not parts.netloc or parts.path not in ("", "/") or not (parts.scheme == "https" or is_plain):
            raise BadConsoleURL(
                f"console_url is {console_url!r}; it must be https://HOST, or http://HOST with a loopback name."
            )
        self._host = parts.netloc.lower()
        self._origin = f"{parts.scheme}://{self._host}"

    def knows(self, host: str) -> bool:
        """Tell whether a request for this Host is meant for the console."""
        return bool(host) and (host.lower() == self._host or is_loopback(host))

    def is_secure(self, host: str) -> bool:
        """Tell whether a browser reached this Host by TLS: it did not if that is this machine's own name."""
        return self._origin.startswith("https:") if host.lower() == self._host else False

    def is_same_origin(self, host: str, origin: str) -> bool:
        """Tell whether an Origin is the console's own, as the browser sees it."""
        if host.lower() == self._host:
            return origin.lower() == self._origin
        return origin.lower() == f"http://{host.lower()}"


def is_loopback(netloc: str) -> bool:
    """Tell whether a host, with or without a port, names this machine in each browser."""
    try:
        name = urlsplit(f"//{netloc}").hostname
    except ValueError:
        return False
    if name is None or "@" in netloc:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guards:
    """The ASGI application around the pages that refuses what is not for them."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the pages answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                replied = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    replied[name] = value
                replied.setdefault("Cache-Control", "no-store")
                if self._doors.is_secure(host):
                    replied["Strict-Transport-Security"] = HSTS
            await send(message)

        refusal = self._refusal(scope["method"], host, headers)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, method: str, host: str, headers: Headers) -> PlainTextResponse | None:
        if not self._doors.knows(host):
            return PlainTextResponse("This console has another name: see the setting console_url.\n", 421)
        if method in READING:
            return None
        length = headers.get("content-length", "")
        if not length.isdigit():
            return PlainTextResponse("A form needs its length.\n", 411)
        if int(length) > FORM_BYTES_MAX:
            return PlainTextResponse(f"A form has at most {FORM_BYTES_MAX} bytes.\n", 413)
        if not self._doors.is_same_origin(host, headers.get("origin", "")):
            return PlainTextResponse("Changes are taken only from pages of this console.\n", 403)
        return None
