"""A small mail server on loopback, for tests of mails: with TLS, STARTTLS or neither; it takes any password."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

from harness.waiting import PATIENCE_S


@dataclass
class ReceivedMail:
    """A mail as it came: to whom, and what it says."""

    recipients: list[str]
    message: EmailMessage

    @property
    def text(self) -> str:
        """Its text."""
        return str(self.message.get_content()).replace("\r\n", "\n")


@dataclass
class MailPost:
    """A server that runs, the mails that came, and how it answers: `refuses` is a reply to recipients, as 550."""

    port: int = 0
    mails: list[ReceivedMail] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    refuses: str = ""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for(self, count: int) -> None:
        """Return when so many mails have come."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.mails) < count:
                self.came.clear()
                await self.came.wait()


@asynccontextmanager
async def mail_server(
    *, starttls: ssl.SSLContext | None = None, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[MailPost]:
    """Take mails until the block ends."""
    post = MailPost()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _session(post, reader, writer, starttls)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    post.port = server.sockets[0].getsockname()[1]
    async with server:
        yield post


async def _session(
    post: MailPost,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    starttls: ssl.SSLContext | None,
) -> None:
    recipients: list[str] = []

    async def say(line: str) -> None:
        writer.write(f"{line}\r\n".encode())
        await writer.drain()

    await say("220 test ESMTP")
    while line := (await reader.readline()).decode().strip():
        verb, _, rest = line.partition(" ")
        match verb.upper():
            case "EHLO":
                offers = ["test", "AUTH PLAIN", *([] if starttls is None else ["STARTTLS"])]
                for offer in offers[:-1]:
                    await say(f"250-{offer}")
                await say(f"250 {offers[-1]}")
            case "STARTTLS":
                assert starttls is not None
                await say("220 go ahead")
                await writer.start_tls(starttls)
                starttls = None
            case "AUTH":
                _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                post.logins.append((user, password))
                await say("235 welcome")
            case "RCPT":
                if post.refuses:
                    await say(f"{post.refuses} no")
                else:
                    recipients.append(rest.partition("<")[2].partition(">")[0])
                    await say("250 yes")
            case "DATA":
                await say("354 go on")
                content = await reader.readuntil(b"\r\n.\r\n")
                message = message_from_bytes(content[:-5], policy=policy.default)
                post.mails.append(ReceivedMail(recipients, message))
                recipients = []
                post.came.set()
                await say("250 taken")
            case "QUIT":
                await say("221 bye")
                return
            case _:
                await say("250 yes")
