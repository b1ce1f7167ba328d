"""The mail server as a setting names it."""

from __future__ import annotations

import pytest

from quaymaster.core.alerts.mail_servers import MailServer, parse_smtp_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "smtp://mail.example.com",
            MailServer("mail.example.com", 587, False, "", "", "quaymaster@mail.example.com"),
        ),
        (
            "smtps://u%40x:p%2F@mail:99/?from=a@b.c",
            MailServer("mail", 99, True, "u@x", "p/", "a@b.c"),
        ),
    ],
)
def test_a_mail_server_is_named_by_a_url(url: str, expected: MailServer) -> None:
    assert parse_smtp_url(url) == expected
    assert "p/" not in repr(expected)
    assert not expected.is_loopback
    assert MailServer("127.0.0.2", 25, False, "", "", "").is_loopback
    assert MailServer("localhost", 25, False, "", "", "").is_loopback


@pytest.mark.parametrize(
    "url", ["mail:25", "http://mail", "smtp://", "smtp://mail:x", "smtp://mail/a", "smtp://mail?from=a"]
)
def test_other_urls_are_no_mail_servers(url: str) -> None:
    with pytest.raises(ValueError, match="smtp_url"):
        parse_smtp_url(url)
