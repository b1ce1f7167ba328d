"""The HAProxy on a front end's host, which ends TLS: its configuration, as text. Nothing is done here.

    clients ──TLS: HTTP/2, HTTP/1.1──▶ HAProxy ──HTTP/1.1, PROXY v2──▶ edge_listen of the front end
    balancers ──PROXY v2, TLS ...───────▶ │
                                          └──/health/ready──▶ its admin port

When it is to end, it is told so before (`announce_end` of `control`): each answer then closes its connection, and
balancers send no new ones. So clients that ask all the time have no idle connection that could be closed under them.

It changes no header: signatures cover them. Requests are never sent twice: clients retry, under the same id.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quaymaster.settings import UNIX_PREFIX, Address

BUFFER_BYTES: Final = 65_536
"""As large as the target and the headers that a front end takes, 48 KiB."""
HEADERS_MAX: Final = 128
"""A front end takes 100, and says so."""
CIPHERS: Final = ":".join(
    f"ECDHE-{kind}-{cipher}"
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    for kind in ("ECDSA", "RSA")
)
"""Of TLS 1.2: with forward secrecy and authenticated."""
CIPHERS_13: Final = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
SOURCES_MAX: Final = 100_000
"""Addresses whose connections are counted."""
FRONT_END: Final = "front-end"
"""The backend of all requests."""
STAYING: Final = "staying"
"""A backend to which nothing is sent. One of its two servers is taken out to say that this proxy is about to end."""
STAYING_SERVER: Final = "here"
_IS_LEAVING: Final = f"{{ nbsrv({STAYING}) lt 2 }}"
SESSION_CONNECTIONS_MAX: Final = 16
"""Idle connections to the front end that one client's connection keeps: with HTTP/2 its requests run side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProxy:
    """What one host's HAProxy is told.

    `front_end`: its `edge_listen`. `certificates`: a directory with a PEM file for each certificate and its key.
    `admin`: where health and metrics are shown; None: nowhere. `control`: of the socket that takes commands.
    `balancers`: networks whose connections begin with a PROXY header.
    """

    bind: Address
    front_end: Address | Path
    front_end_admin: Address
    certificates: Path
    admin: Address | None
    control: Path
    connections_max: int
    balancers: tuple[str, ...] = ()


def render_host(host: HostProxy) -> str:
    """Return the file."""
    return "\n".join([*_global_lines(host), _MIDDLE, *_traffic_lines(host), *_health_lines(host)]) + "\n"


def _global_lines(host: HostProxy) -> list[str]:
    return [
        "# Written by `quaymaster edge`, each time.",
        "global",
        f"    maxconn {host.connections_max}",
        f"    stats socket {_quoted(host.control)} mode 600 level admin expose-fd listeners",
        "    stats timeout 10s",
        "    # After a reload, how long connections of the process before may stay: long polls take 20 s.",
        "    hard-stop-after 60s",
        "    # A second HAProxy on the same port would take half of the connections; a reload passes its sockets on.",
        "    noreuseport",
        f"    tune.bufsize {BUFFER_BYTES}",
        f"    tune.http.maxhdr {HEADERS_MAX}",
        "    ssl-default-bind-options ssl-min-ver TLSv1.2",
        f"    ssl-default-bind-ciphers {CIPHERS}",
        f"    ssl-default-bind-ciphersuites {CIPHERS_13}",
    ]


_MIDDLE: Final = f"""
defaults
    mode http
    timeout connect 1s
    retries 3
    timeout client 75s
    # As long as a front end waits for a request's head.
    timeout http-request 10s
    timeout http-keep-alive 75s
    # A long poll's 20 s, and what the broker may take on top.
    timeout server 60s
    timeout queue 5s
    timeout check 2s
    # A front end gives clients that signed nothing a small share: by connection, so each client has its own there.
    http-reuse never
    max-session-srv-conns {SESSION_CONNECTIONS_MAX}
"""


def _traffic_lines(host: HostProxy) -> list[str]:
    place = (
        f"{UNIX_PREFIX[:-1]}@{_quoted(host.front_end)}"
        if isinstance(host.front_end, Path)
        else str(host.front_end)
    )
    admin = host.front_end_admin
    return [
        "frontend sqs",
        f"    bind {host.bind} ssl crt {_quoted(host.certificates)}/ alpn h2,http/1.1",
        *_balancer_lines(host),
        "    default_backend front-end",
        *_share_lines(host),
        "    # A process that stops closes idle connections behind their next answer, and says so there.",
        "    option idle-close-on-response",
        f"    http-after-response set-header Connection close if {_IS_LEAVING}",
        "",
        "backend front-end",
        "    option httpchk GET /health/ready",
        "    # 404: it is about to stop, or full, and still serves. After 3 s of silence clients are told, and retry.",
        "    http-check expect status 200,404",
        f"    server front-end {place} send-proxy-v2-ssl check addr {admin.host} port {admin.port}"
        " inter 500ms downinter 100ms fall 6 rise 1 on-marked-down shutdown-sessions",
        "",
        "# Nothing is sent there: it knows what the front end says.",
        "backend readiness",
        "    option httpchk GET /health/ready",
        "    http-check disable-on-404",
        f"    server front-end {admin} check inter 500ms fastinter 100ms fall 2 rise 1",
        "",
        "# Nothing is sent there either. One of them is taken out when this proxy is about to end.",
        f"backend {STAYING}",
        f"    server {STAYING_SERVER} {admin}",
        f"    server always {admin}",
    ]


def _balancer_lines(host: HostProxy) -> list[str]:
    if not host.balancers:
        return []
    # Anybody else who begins so is refused: the TLS handshake fails.
    return [
        f"    acl from-balancer src {' '.join(host.balancers)}",
        "    tcp-request connection expect-proxy layer4 if from-balancer",
    ]


def _health_lines(host: HostProxy) -> list[str]:
    if host.admin is None:
        return []
    ready = "if { path /health/ready }"
    answer = "http-request return status {} content-type text/plain string {}"
    return [
        "",
        "frontend health",
        f"    bind {host.admin}",
        "    http-request use-service prometheus-exporter if { path /metrics }",
        f"    {answer.format(404, 'takes-nothing-new')} {ready} {_IS_LEAVING} {{ nbsrv(front-end) gt 0 }}",
        f"    {answer.format(200, 'ready')} {ready} {{ nbsrv(readiness) gt 0 }} {{ nbsrv(front-end) gt 0 }}",
        f"    {answer.format(404, 'takes-nothing-new')} {ready} {{ srv_is_up(readiness/front-end) }}"
        " { nbsrv(readiness) 0 }",
        f"    {answer.format(503, 'not-ready')} {ready}",
        f"    {answer.format(200, 'alive')} if {{ path /health/live }}",
        "    stats enable",
        "    stats uri /stats",
        f"    {answer.format(404, 'not-found')} unless {{ path_beg /stats }}",
    ]


def _share_lines(host: HostProxy) -> list[str]:
    """Keep one address, or /64 network, from having all connections, also those without a handshake.

    Behind a balancer the address is the client's, which is known once the PROXY header is read.
    """
    most = max(1, host.connections_max // 2)
    unless = " unless from-balancer" if host.balancers else ""
    lines = [
        f"    stick-table type ipv6 size {SOURCES_MAX} expire 2m store conn_cur",
        f"    tcp-request connection track-sc0 src,ipmask(32,64){unless}",
        f"    tcp-request connection reject if {{ sc0_conn_cur gt {most} }}",
    ]
    if host.balancers:
        lines += [
            "    tcp-request session track-sc0 src,ipmask(32,64)",
            f"    tcp-request session reject if {{ sc0_conn_cur gt {most} }}",
        ]
    return lines


def _quoted(path: Path) -> str:
    """Return a path as a word of the configuration."""
    return "".join(f"\\{letter}" if letter in " \\#\"'$" else letter for letter in str(path))
