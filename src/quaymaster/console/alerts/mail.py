"""Mails of alerts, by the operator's mail server.

A user name and password are sent over TLS, or to loopback, and never else.
"""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Callable
from email.message import EmailMessage
from typing import Final
from urllib.parse import quote

from quaymaster.core.alerts.alerts import Destination
from quaymaster.core.alerts.mail_servers import MailServer
from quaymaster.core.values.errors import NotNow
from quaymaster.protocol.webhooks.attempts import Outcome
from quaymaster.protocol.webhooks.confirmations import GOOD_FOR_S, confirmation_token

TIMEOUT_S: Final = 20.0
AT_ONCE_MAX: Final = 4
DAY_S: Final = 86_400
CONFIRM_PATH: Final = "/alerts/confirm"


class AlertMails:
    """Sends mails, each in a thread, a few at once."""

    def __init__(
        self,
        server: MailServer | None,
        *,
        console_url: str,
        key: bytes,
        now_ms: Callable[[], int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`server` None: no mails are sent. `tls` is for tests."""
        self._server = server
        self._console_url = console_url
        self._key = key
        self._now_ms = now_ms
        self._tls = tls
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)

    @property
    def why_not(self) -> str:
        """Why no mail can be sent, empty where it can."""
        return "" if self._server is not None else "This service sends no mails: it has no smtp_url."

    async def send_confirmation(self, destination: Destination) -> None:
        """Send the mail whose link confirms an address; NotNow."""
        token = confirmation_token(self._key, destination.id, self._now_ms() // 1_000)
        link = f"{self._console_url}{CONFIRM_PATH}?token={quote(token)}"
        text = (
            f"The account {destination.account_id} of Quaymaster wants to send alerts to this address, as "
            f"{destination.name}.\n\n"
            f"If you want them, open this page within {GOOD_FOR_S // DAY_S} days and confirm:\n\n{link}\n\n"
            "If you do not, do nothing: you will get none.\n"
        )
        outcome = await self.send(destination.target, "Confirm your address for alerts", text, destination.id)
        if outcome != "delivered":
            raise NotNow("The mail server did not take the confirmation mail. Ask for it again later.")

    async def send(self, address: str, subject: str, text: str, message_id: str) -> Outcome:
        """Send a mail; with the same `message_id` receivers can tell that it came before."""
        if self._server is None:
            return "failed"
        message = EmailMessage()
        message["From"] = f"Quaymaster <{self._server.sender}>"
        message["To"] = address
        message["Subject"] = subject
        message["Message-ID"] = f"<{message_id}@{self._server.sender.partition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        async with self._turns:
            return await asyncio.to_thread(_send, self._server, message, self._tls)


def _send(server: MailServer, message: EmailMessage, tls: ssl.SSLContext | None) -> Outcome:
    context = tls or ssl.create_default_context()
    try:
        connection: smtplib.SMTP
        if server.is_tls:
            connection = smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
        else:
            connection = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
        with connection:
            is_private = server.is_tls or server.is_loopback
            connection.ehlo()
            if not server.is_tls and connection.has_extn("starttls"):
                connection.starttls(context=context)
                connection.ehlo()
                is_private = True
            if server.user:
                if not is_private:
                    return "retry"  # an operator has to change the server, or smtp_url
                connection.login(server.user, server.password)
            connection.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        return "failed" if all(code >= 500 for code in codes) else "retry"
    except (smtplib.SMTPException, OSError):
        return "retry"
    return "delivered"
