"""The operator's mail server, as the setting `smtp_url` names it.

    smtp://mail.example.com:587?from=alerts@example.com             STARTTLS where the server offers it
    smtps://USER:PASSWORD@mail.example.com:465?from=...             TLS from the beginning

User and password are percent-encoded.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from quaymaster.core.alerts.rules import check_mail_address
from quaymaster.core.values.errors import InvalidParameterValue

_PORTS: Final = {"smtp": 587, "smtps": 465}


class MailServer(NamedTuple):
    """A mail server, as `smtp_url` names it."""

    host: str
    port: int
    is_tls: bool
    user: str
    password: str
    sender: str

    def __repr__(self) -> str:
        return f"MailServer({self.host!r}, {self.port})"

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent to it stays on this host."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_smtp_url(url: str) -> MailServer:
    """Return the server that a URL names; ValueError, which does not repeat it."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise ValueError("smtp_url has no valid port") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(
            "smtp_url is smtp://HOST:PORT?from=ADDRESS or smtps://..., with USER:PASSWORD@ as needed"
        )
    sender = parse_qs(parts.query).get("from", [f"quaymaster@{parts.hostname}"])[0]
    try:
        check_mail_address(sender)
    except InvalidParameterValue:
        raise ValueError("the mail address behind from= in smtp_url is none") from None
    return MailServer(
        parts.hostname,
        port or _PORTS[parts.scheme],
        parts.scheme == "smtps",
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        sender,
    )
