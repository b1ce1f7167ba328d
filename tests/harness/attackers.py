"""Clients that sign nothing, and want all they can get: run as a process of their own, until told to stop.

    python -m harness.attackers KIND PORT KEY_ID CONNECTIONS NICENESS     (with tests/ on the path; ends with its input)

They know the id of an access key, which is no secret, but not its secret.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from harness.proxied import PROXY_ADDRESS, SSL_TLV, header_v2, tlv

MIB: Final = 1 << 20
PAUSE_S: Final = 0.02
HOLD_S: Final = 30.0
CONNECTS_PER_S: Final = 1_000
LINE_BYTES_PER_S: Final = 125_000_000
"""A gigabit: what the attackers of one port send together. Without a bound they would only show what one machine can do
to itself."""
ADDRESS: Final = "127.0.0.2"
"""Where they come from: another host than the signed clients, which do not share its budgets."""

PEERS: Final = 40
PIPELINED: Final = 20

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pace:
    """Lets so many units through in a second, and those who want more wait."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._free_s = 0.0

    async def wait(self, units: int) -> None:
        """Wait until it is this one's turn."""
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s) + units / self._per_s
        await asyncio.sleep(self._free_s - now_s)


class Target:
    """Where to, and as whom. All who attack it have one line to it, of a fixed width."""

    def __init__(self, port: int, key_id: str) -> None:
        self.port = port
        self.key_id = key_id
        self._connects = Pace(CONNECTS_PER_S)

    @asynccontextmanager
    async def connected(self, address: str = ADDRESS) -> AsyncIterator[Stream]:
        """Connect from an address; the server may hang up at any time."""
        await self._connects.wait(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        try:
            yield reader, writer
        finally:
            writer.close()

    def head(self, method: str, framing: str, path: str = "/") -> bytes:
        """Return the head of a request with a signature that is not one."""
        day = datetime.now(UTC)
        return (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
            f"x-amz-date: {day:%Y%m%dT%H%M%SZ}\r\nx-amz-target: AmazonSQS.SendMessage\r\n"
            f"content-type: application/x-amz-json-1.0\r\n{framing}\r\n"
            f"authorization: AWS4-HMAC-SHA256 Credential={self.key_id}/{day:%Y%m%d}/us-east-1/sqs/aws4_request, "
            f"SignedHeaders=host;x-amz-date, Signature={'0' * 64}\r\n\r\n"
        ).encode()


_LINE: Final = Pace(LINE_BYTES_PER_S)


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send all of it; ends by an error once the server has hung up."""
    await _LINE.wait(len(data))
    writer.write(data)
    await writer.drain()
    if writer.is_closing():
        raise ConnectionError


async def read_answer(reader: asyncio.StreamReader) -> None:
    """Read an answer to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    at = head.find(b"content-length:")
    if at >= 0:
        await reader.readexactly(int(head[at + 15 :].split(b"\r\n")[0]))


async def dribble_chunks(target: Target) -> None:
    """Send a body in chunks of one byte, as many as are taken."""
    async with target.connected() as (_, writer):
        await send(writer, target.head("POST", "transfer-encoding: chunked"))
        for _ in range(64):
            await send(writer, b"1\r\nx\r\n" * 10_000)
            await asyncio.sleep(PAUSE_S)


async def dribble_bytes(target: Target) -> None:
    """Send a body byte by byte."""
    async with target.connected() as (_, writer):
        await send(writer, target.head("POST", "content-length: 1000000"))
        for _ in range(2_000):
            await send(writer, b"x")
            await asyncio.sleep(PAUSE_S)


async def stall_bodies(target: Target) -> None:
    """Send large bodies with any method, all but the last byte, and wait."""
    async with target.connected() as (reader, writer):
        method = random.choice(["GET", "PUT", "DELETE", "POST", "POST"])
        await send(writer, target.head(method, f"content-length: {8 * MIB}"))
        for _ in range(127):
            await send(writer, bytes(MIB // 16))
            await asyncio.sleep(0)
        async with asyncio.timeout(HOLD_S):
            await reader.read()


async def send_whole_bodies(target: Target) -> None:
    """Send large bodies whole, with a signature that is none."""
    async with target.connected() as (reader, writer):
        body = bytes(4 * MIB)
        for _ in range(8):
            await send(writer, target.head("POST", f"content-length: {len(body)}") + body)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(PAUSE_S)


async def sit_idle(target: Target) -> None:
    """Connect, and say nothing."""
    async with target.connected() as (reader, _), asyncio.timeout(HOLD_S):
        await reader.read()


async def dribble_heads(target: Target) -> None:
    """Send a head byte by byte."""
    async with target.connected() as (_, writer):
        for byte in target.head("POST", "content-length: 0") * 4:
            await send(writer, bytes([byte]))
            await asyncio.sleep(PAUSE_S)


async def send_lines(target: Target) -> None:
    """Send what is much to parse for its size: thousands of empty headers, and empty lines."""
    async with target.connected() as (_, writer):
        line = random.choice([b"a:\r\n", b"\r\n"])
        await send(
            writer, (b"GET / HTTP/1.1\r\nhost: q\r\n" if line[0] == 97 else b"") + line * 7_500 + b"\r\n"
        )
        await send(writer, b"\r\n" * 100_000)


async def forge_sends(target: Target) -> None:
    """Send whole requests of 256 KB, several at once, with a signature that is none."""
    async with target.connected() as (reader, writer):
        body = bytes(MIB // 4)
        request = target.head("POST", f"content-length: {len(body)}") + body
        for _ in range(20):
            await send(writer, request * 4)
            for _ in range(4):
                await reader.readuntil(b"\r\n\r\n")


async def forge_heads(target: Target) -> None:
    """Send what is much to judge for its size: queries of a thousand parameters, long paths that are not plain."""
    async with target.connected() as (reader, writer):
        for _ in range(20):
            path = random.choice(["/?" + "%61=/&" * 1_000, "/" + "a" * 2_000 + "$", "/" + "%2" * 1_000])
            await send(writer, target.head("POST", "content-length: 0", path) * 4)
            for _ in range(4):
                await reader.readuntil(b"\r\n\r\n")


async def change_agents(target: Target) -> None:
    """Ask unsigned, each time as somebody else."""
    async with target.connected() as (reader, writer):
        for _ in range(200):
            agent = f"user-agent: {random.getrandbits(128):x}"
            await send(writer, f"GET /?Action=ListQueues HTTP/1.1\r\nhost: q\r\n{agent}\r\n\r\n".encode())
            await read_answer(reader)
            await asyncio.sleep(PAUSE_S)


async def pipeline(target: Target, address: str, request: Callable[[], str]) -> None:
    """Send requests without a body 20 at a time, and read their answers."""
    async with target.connected(address) as (reader, writer):
        for _ in range(50):
            await send(writer, "".join(request() for _ in range(PIPELINED)).encode())
            for _ in range(PIPELINED):
                await read_answer(reader)


async def pipeline_preflights(target: Target) -> None:
    """Ask whether pages of one origin after the other may call, all from one address."""

    def request() -> str:
        origin = f"http://e{random.getrandbits(32):x}"
        asked = "access-control-request-method: POST"
        return f"OPTIONS / HTTP/1.1\r\nhost: q\r\norigin: {origin}\r\n{asked}\r\n\r\n"

    await pipeline(target, ADDRESS, request)


async def pipeline_agents(target: Target) -> None:
    """Ask unsigned from many addresses, each time as somebody else."""

    def request() -> str:
        agent = f"user-agent: {random.getrandbits(128):x}"
        return f"GET /?Action=ListQueues HTTP/1.1\r\nhost: q\r\n{agent}\r\n\r\n"

    await pipeline(target, f"127.0.{random.randrange(PEERS)}.3", request)


def _token(claims: int) -> str:
    """Return a web identity token that says much, and that no issuer has made."""
    parts = (
        b'{"alg":"RS256","kid":"k"}',
        b'{"iss":"https://e%x.example",%b}'
        % (random.getrandbits(32), b",".join(b'"%d":1' % number for number in range(claims))),
        bytes(256),
    )
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


async def send_web_identities(target: Target) -> None:
    """Ask for sessions of a role with tokens that are much to read, from many addresses."""
    async with target.connected(f"127.0.{random.randrange(PEERS)}.4") as (reader, writer):
        for _ in range(50):
            body = (
                "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=one"
                f"&RoleArn=arn:aws:iam::000000000000:role/worker&WebIdentityToken={_token(1_600)}"
            ).encode()
            head = (
                "POST / HTTP/1.1\r\nhost: q\r\ncontent-type: application/x-www-form-urlencoded\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            await send(writer, head.encode() + body)
            await read_answer(reader)
            await asyncio.sleep(PAUSE_S)


async def send_sign_ins(target: Target) -> None:
    """Try passwords of users that there may be, from many addresses."""
    async with target.connected(f"127.0.{random.randrange(PEERS)}.5") as (reader, writer):
        for _ in range(50):
            user, password = f"user{random.randrange(1_000)}", "p" * 256
            body = f'{{"account_id":"000000000000","user":"{user}","password":"{password}"}}'.encode()
            head = f"POST /admin/v1/sign-in HTTP/1.1\r\nhost: q\r\ncontent-length: {len(body)}\r\n\r\n"
            await send(writer, head.encode() + body)
            await read_answer(reader)
            await asyncio.sleep(PAUSE_S)


async def come_by_proxy(target: Target) -> None:
    """Connect as a proxy does for its clients: with a header, half of one, and what is none."""
    async with target.connected(PROXY_ADDRESS) as (reader, writer):
        client = f"10.0.{random.randrange(256)}.{random.randrange(256)}"
        if random.random() < 0.3:
            client = f"2001:db8:{random.getrandbits(16):x}:{random.getrandbits(16):x}::1"
        header = header_v2(client, random.choice([b"", SSL_TLV, tlv(0xE0, bytes(200))]))
        match random.randrange(4):
            case 0:
                await send(writer, header[: random.randrange(len(header))])
                async with asyncio.timeout(HOLD_S):
                    await reader.read()
            case 1:
                await send(
                    writer, random.choice([random.randbytes(200), header[:14] + b"\xff\xff" + bytes(70_000)])
                )
                await reader.read()
            case _:
                await send(writer, header)
                for _ in range(PIPELINED):
                    await send(writer, b"GET /?Action=ListQueues HTTP/1.1\r\nhost: q\r\n\r\n")
                    await read_answer(reader)


async def send_garbage(target: Target) -> None:
    """Send bytes at random, at once and in pipelines."""
    async with target.connected() as (_, writer):
        for _ in range(50):
            await send(
                writer, random.choice([b"GET / HTTP/1.1\r\nhost: q\r\n\r\n" * 50, random.randbytes(5_000)])
            )
            await asyncio.sleep(PAUSE_S)


async def read_nothing(target: Target) -> None:
    """Ask for what is large, and do not read it."""
    async with target.connected() as (_, writer):
        for _ in range(100):
            await send(writer, b"GET /metrics HTTP/1.1\r\nhost: q\r\n\r\n" * 10)
            await asyncio.sleep(PAUSE_S)


KINDS: Final[dict[str, Callable[[Target], Awaitable[None]]]] = {
    "chunks": dribble_chunks,
    "bytes": dribble_bytes,
    "stalled-bodies": stall_bodies,
    "whole-bodies": send_whole_bodies,
    "idle": sit_idle,
    "heads": dribble_heads,
    "lines": send_lines,
    "forged": forge_sends,
    "forged-heads": forge_heads,
    "agents": change_agents,
    "preflights": pipeline_preflights,
    "pipelined-agents": pipeline_agents,
    "web-identities": send_web_identities,
    "sign-ins": send_sign_ins,
    "garbage": send_garbage,
    "unread": read_nothing,
}

BY_PROXY: Final[dict[str, Callable[[Target], Awaitable[None]]]] = {"proxied": come_by_proxy}
"""On the port for proxies (`edge_listen`), with headers of the PROXY protocol."""


async def attack(kind: str, target: Target, connections: int) -> None:
    """Attack until standard input ends; whoever is thrown out comes back."""

    async def again_and_again() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await (KINDS | BY_PROXY)[kind](target)
            await asyncio.sleep(PAUSE_S)

    attackers = [asyncio.create_task(again_and_again()) for _ in range(connections)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)


@contextmanager
def attacking(kind: str, port: int, key_id: str, connections: int, *, niceness: int = 0) -> Iterator[None]:
    """Have a port attacked while the block runs."""
    numbers = [str(connections), str(niceness)]
    command = [sys.executable, "-m", "harness.attackers", kind, str(port), key_id, *numbers]
    tests = Path(__file__).parents[1]
    path = {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "src")])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | path) as child:
        try:
            yield
            assert child.poll() is None, f"the attackers ended by themselves: {kind}"
        finally:
            child.communicate()


if __name__ == "__main__":
    os.nice(int(sys.argv[5]))
    asyncio.run(attack(sys.argv[1], Target(int(sys.argv[2]), sys.argv[3]), int(sys.argv[4])))
