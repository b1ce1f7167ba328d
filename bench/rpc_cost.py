"""What a call between roles costs: echo calls of 1 KiB from one process to another.

    python -m bench.rpc_cost [--seconds 2] [--depth 1,64] [--bytes 1024] [--loop uvloop|asyncio] [--rounds 3] [--tls]

Client and server have a core each; `depth` is how many calls are under way at once. Printed are calls a second and
the CPU time of each side for a call, the medians of the rounds; beside it the same for frames without calls: a
protocol that sends each chunk back as it came, with the same bytes on the wire.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.processes import LOAD_CORE, SERVER_CORE, pin
from quaymaster.net.certificates import CertificateAuthority
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCServer
from quaymaster.net.tls import TransportSecurity
from quaymaster.protocol.rpc.frames import REPLY, REQUEST, Hello, render_call_header, render_frame

BROKER = Hello(cell="bench", role="broker", node="b1")
FRONT_END = Hello(cell="bench", role="frontend", node="f1")
DEADLINE_MS = 10_000


class BareEcho(asyncio.Protocol):
    """The least there can be between two processes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class BareLoad(asyncio.Protocol):
    """Sends as many frames again as came back."""

    def __init__(self, frame: bytes, depth: int) -> None:
        self.frame = frame
        self.depth = depth
        self.calls = 0
        self.received = 0
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.frame * self.depth)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        whole, self.received = divmod(self.received, len(self.frame))
        self.calls += whole
        if not self.is_over:
            self.transport.write(self.frame * whole)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def serve(pipe: multiprocessing.connection.Connection, security: TransportSecurity | None) -> None:
    """Serve both kinds; tell the ports, then the CPU time used whenever asked."""

    def echo(calls: list[IncomingCall]) -> None:
        for call in calls:
            call.reply(call.body)

    loop = asyncio.get_running_loop()
    bare = await loop.create_server(BareEcho, "127.0.0.1", 0)
    server = RPCServer({}, BROKER, batch_handlers={"echo": echo})
    _, port = await server.start("127.0.0.1", 0, tls=security.server_context() if security else None)
    pipe.send((port, bare.sockets[0].getsockname()[1]))
    while await loop.run_in_executor(None, pipe.recv) != "stop":
        pipe.send(cpu_s())
    bare.close()
    await server.close()


async def load_with_calls(
    port: int, body: bytes, depth: int, seconds: float, security: TransportSecurity | None
) -> int:
    client = RPCClient(("127.0.0.1", port), FRONT_END, tls=security.client_context if security else None)
    await client.ask("echo", body, DEADLINE_MS)
    calls = 0
    under_way = depth
    over_s = time.perf_counter() + seconds
    done = asyncio.Event()

    def again(result: bytes | Exception) -> None:
        nonlocal calls, under_way
        assert isinstance(result, bytes), result
        calls += 1
        if time.perf_counter() < over_s:
            client.call("echo", body, DEADLINE_MS, again)
            return
        under_way -= 1
        if not under_way:
            done.set()

    for _ in range(depth):
        client.call("echo", body, DEADLINE_MS, again)
    await done.wait()
    await client.close()
    return calls


async def load_bare(
    port: int, body: bytes, depth: int, seconds: float, security: TransportSecurity | None
) -> int:
    assert security is None, "the bare protocol has no TLS"
    frames = (
        render_frame(1, REQUEST, 1, render_call_header("echo", DEADLINE_MS, ""), body),
        render_frame(1, REPLY, 1, b"", body),
    )
    size = sum(len(piece) for frame in frames for piece in frame) // 2
    _, load = await asyncio.get_running_loop().create_connection(
        lambda: BareLoad(bytes(size), depth), "127.0.0.1", port
    )
    await asyncio.sleep(seconds)
    load.is_over = True
    load.transport.close()
    return load.calls


Load = Callable[[int, bytes, int, float, TransportSecurity | None], Coroutine[Any, Any, int]]
KINDS: dict[str, Load] = {"calls": load_with_calls, "bare": load_bare}


def run(main: Coroutine[Any, Any, Any], loop_name: str) -> Any:
    factory = uvloop.new_event_loop if loop_name == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def run_server(
    loop_name: str, pipe: multiprocessing.connection.Connection, security: TransportSecurity | None
) -> None:
    pin(SERVER_CORE)
    run(serve(pipe, security), loop_name)


@contextmanager
def certificates(wanted: bool) -> Iterator[TransportSecurity | None]:
    """Give certificates that are good for both ends, or None."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        authority = CertificateAuthority.create(Path(folder), "bench", days=2)
        yield TransportSecurity(authority.issue("n1", ["broker"], days=1).path)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="bench rpc_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--depth", default="1,64", help="calls under way at once, separated by commas")
    parser.add_argument("--bytes", type=int, default=1024, help="body of a call and of its reply")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", action="store_true", help="with mutual TLS, calls only")
    given = parser.parse_args()
    with certificates(given.tls) as security:
        measure(given, security)


def measure(given: argparse.Namespace, security: TransportSecurity | None) -> None:
    near, far = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(
        target=run_server, args=(given.loop, far, security), daemon=True
    )
    server.start()
    pin(LOAD_CORE)
    ports = dict(zip(KINDS, near.recv(), strict=True))
    loads = {"calls": load_with_calls} if security else KINDS
    body = bytes(given.bytes)
    print(f"{given.loop}, {given.bytes} bytes, {'TLS' if security else 'no TLS'}\n")
    print(f"{'':8}{'depth':>8}{'calls/s':>12}{'client µs':>12}{'server µs':>12}")
    for depth in map(int, given.depth.split(",")):
        figures: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in loads}
        for _ in range(given.rounds):
            for kind, load in loads.items():
                near.send("cpu")
                server_s, client_s, began_s = near.recv(), cpu_s(), time.perf_counter()
                calls = run(load(ports[kind], body, depth, given.seconds, security), given.loop)
                elapsed_s, client_s = time.perf_counter() - began_s, cpu_s() - client_s
                near.send("cpu")
                server_s = near.recv() - server_s
                figures[kind].append((calls / elapsed_s, client_s / calls * 1e6, server_s / calls * 1e6))
        for kind, rounds in figures.items():
            rate, client_us, server_us = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{kind:8}{depth:8}{rate:12,.0f}{client_us:12.1f}{server_us:12.1f}")
    near.send("stop")
    server.join(10)


if __name__ == "__main__":
    main()
