"""How an HAProxy is run before the front ends of a local cluster: its program, arguments and configuration.

Clients see one endpoint. A front end that is not ready gets nothing; one that drains (404) gets nothing new, and what
it has is answered; one that cannot be connected to is passed over without the client noticing. A request that was sent
is never sent again by HAProxy: clients do that, under its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FrontEndServer:
    """A front end as HAProxy knows it: both ports on loopback."""

    name: str
    port: int
    admin_port: int
    socket: Path | None = None
    """Where it takes connections with PROXY protocol headers, if it does."""


@dataclass(frozen=True, slots=True)
class TLSFront:
    """Where TLS is served, and the file with certificate and key."""

    port: int
    certificate: Path


def haproxy_command(program: Path, configuration: Path) -> list[str]:
    """Return the command line that runs it in the foreground."""
    return [str(program), "-db", "-f", str(configuration)]


def haproxy_configuration(
    servers: Sequence[FrontEndServer],
    *,
    port: int,
    admin_port: int,
    connections_max: int,
    tls: TLSFront | None = None,
) -> str:
    """Return the file that spreads `port` over the front ends' SQS ports, and `admin_port` over their admin ports.

    With `tls` it also serves that, over the front ends' sockets.
    """
    return f"""\
# Written by `quaymaster local up`, each time.
global
    maxconn {connections_max}
    # As large as the headers that a front end takes.
    tune.bufsize 65536
    tune.http.maxhdr 128

defaults
    mode http
    timeout connect 1s
    timeout client 75s
    # As long as a front end waits: who sends half a request does not keep others out for longer.
    timeout http-request 10s
    # A long poll's 20 s, and what the broker may take on top.
    timeout server 60s
    timeout queue 5s
    timeout http-keep-alive 75s
    timeout check 2s
    # A front end gives clients that signed nothing a small share: by connection, so each client has its own there.
    http-reuse never
    # A connection that is refused goes to another front end; with other ways to balance, after a second only.
    retries 3
    option redispatch 1
    balance roundrobin
    option httpchk GET /health/ready
    http-check disable-on-404
    default-server inter 500ms fastinter 100ms fall 2 rise 1
    default-server observe layer4 error-limit 1 on-error fastinter
    # Who waits for one that fell silent should ask another. At 404 nothing is cut off.
    default-server on-marked-down shutdown-sessions

frontend sqs
    bind 127.0.0.1:{port}
    default_backend sqs-front-ends

frontend admin
    bind 127.0.0.1:{admin_port}
    default_backend admin-front-ends

backend sqs-front-ends
{_servers((server.name, server.port, server.admin_port) for server in servers)}
backend admin-front-ends
{_servers((server.name, server.admin_port, server.admin_port) for server in servers)}{_tls(servers, tls)}"""


def _tls(servers: Sequence[FrontEndServer], tls: TLSFront | None) -> str:
    if tls is None:
        return ""
    lines = "".join(
        f"    server {server.name} unix@{server.socket} send-proxy-v2-ssl"
        f" check addr 127.0.0.1 port {server.admin_port}\n"
        for server in servers
    )
    return f"""
frontend sqs-tls
    bind 127.0.0.1:{tls.port} ssl crt {tls.certificate} alpn h2,http/1.1 ssl-min-ver TLSv1.2
    default_backend sqs-sockets

backend sqs-sockets
{lines}"""


def _servers(servers: Iterable[tuple[str, int, int]]) -> str:
    return "".join(
        f"    server {name} 127.0.0.1:{port} check port {check}\n" for name, port, check in servers
    )
