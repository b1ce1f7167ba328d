"""What HTTP itself costs: this server beside a bare httptools responder, in one run.

    python -m bench.http_limit [--requests 20000] [--connections 64] [--loop uvloop|asyncio] [--rounds 5]

Each responder runs in a process of its own and answers every request with the same few bytes; the load
comes from this process. Printed is the responder's CPU time per request (user and system), the median of the
rounds. The rounds alternate, so that a busy machine hits both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import resource
import socket
import statistics
from collections.abc import Coroutine
from typing import Any

import uvloop

from bench.bare import REPLY_BODY, REPLY_HEADERS, BareResponder
from quaymaster.net.http.server import HTTPLimits, HTTPRequest, HTTPServer, one_by_one

REQUEST_BODY = b'{"QueueUrl":"http://127.0.0.1:9324/000000000000/q","MessageBody":"%b"}' % (b"x" * 1000)
REQUEST = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:9324\r\nAccept-Encoding: identity\r\n"
    b"X-Amz-Target: AmazonSQS.SendMessage\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"User-Agent: Boto3/1.40.1 md/Botocore#1.40.1 ua/2.1 os/linux#6.1.0 md/arch#x86_64 lang/python#3.11\r\n"
    b"X-Amz-Date: 20250101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/"
    b"20250101/us-east-1/sqs/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-target, "
    b"Signature=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n"
    b"amz-sdk-invocation-id: 0b6f7a3e-55a5-4a0e-9d8f-4c33a0a3a111\r\namz-sdk-request: attempt=1\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(REQUEST_BODY), REQUEST_BODY)
)


async def serve_bare(pipe: multiprocessing.connection.Connection) -> None:
    server = await asyncio.get_running_loop().create_server(BareResponder, "127.0.0.1", 0)
    await report_cpu_time(pipe, server.sockets[0].getsockname()[1])


async def serve_ours(pipe: multiprocessing.connection.Connection, *, later: bool) -> None:
    def answer(request: HTTPRequest) -> None:
        request.respond(200, REPLY_HEADERS, REPLY_BODY)

    def answer_later(request: HTTPRequest) -> None:
        loop.call_soon(request.respond, 200, REPLY_HEADERS, REPLY_BODY)

    loop = asyncio.get_running_loop()
    server = HTTPServer(one_by_one(answer_later if later else answer), HTTPLimits(), name="bench")
    _, port = await server.start("127.0.0.1", 0)
    await report_cpu_time(pipe, port)
    await server.drain(1)


async def report_cpu_time(pipe: multiprocessing.connection.Connection, port: int) -> None:
    """Send the port, then the CPU seconds used so far whenever asked, until asked to stop."""
    loop = asyncio.get_running_loop()
    pipe.send(port)
    while await loop.run_in_executor(None, pipe.recv) != "stop":
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(used.ru_utime + used.ru_stime)


def run_responder(kind: str, loop_name: str, pipe: multiprocessing.connection.Connection) -> None:
    serving: Coroutine[Any, Any, None]
    if kind == "bare":
        serving = serve_bare(pipe)
    else:
        serving = serve_ours(pipe, later=kind == "ours, later")
    run(serving, loop_name)


def send_load(clients: list[socket.socket], requests: int) -> None:
    """Send waves of one request per connection and read the replies, the last one first.

    The responder serves a wave in the order it was sent; by waiting for the last reply we sleep through the
    wave, and the responder does not pay for waking us once per reply, which would drown what is measured.
    """
    for _ in range(requests // len(clients)):
        for client in clients:
            client.sendall(REQUEST)
        for client in reversed(clients):
            reply = client.recv(65536)
            while not reply.endswith(REPLY_BODY):
                reply += client.recv(65536)
            assert reply.startswith(b"HTTP/1.1 200 OK\r\n"), reply


def run(main: Coroutine[Any, Any, None], loop_name: str) -> None:
    factory = uvloop.new_event_loop if loop_name == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def main() -> None:
    options = argparse.ArgumentParser(description="CPU time per request: ours and a bare responder")
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--connections", type=int, default=64)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    chosen = options.parse_args()

    kinds = ("bare", "ours", "ours, later")
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, multiprocessing.connection.Connection] = {}
    ports: dict[str, int] = {}
    processes = []
    for kind in kinds:
        pipes[kind], theirs = spawn.Pipe()
        process = spawn.Process(target=run_responder, args=(kind, chosen.loop, theirs), daemon=True)
        process.start()
        processes.append(process)
        ports[kind] = pipes[kind].recv()

    clients = {
        kind: [socket.create_connection(("127.0.0.1", ports[kind])) for _ in range(chosen.connections)]
        for kind in kinds
    }
    for kind in kinds:
        send_load(clients[kind], 1000)
    costs_us: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(chosen.rounds):
        for kind in kinds:
            pipes[kind].send("time")
            before_s = pipes[kind].recv()
            send_load(clients[kind], chosen.requests)
            pipes[kind].send("time")
            costs_us[kind].append((pipes[kind].recv() - before_s) / chosen.requests * 1e6)
    for client in (client for kind in kinds for client in clients[kind]):
        client.close()
    for pipe in pipes.values():
        pipe.send("stop")
    for process in processes:
        process.join(10)

    bare_us = statistics.median(costs_us["bare"])
    for kind in kinds:
        cost_us = statistics.median(costs_us[kind])
        print(f"{kind:12} {cost_us:6.1f} us of CPU a request  {cost_us / bare_us:5.2f} x bare")


if __name__ == "__main__":
    main()
