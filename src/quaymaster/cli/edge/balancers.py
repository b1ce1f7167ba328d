"""The files of a balancer: HAProxy passes connections to hosts, keepalived holds a virtual IP while HAProxy is well.

    client ─▶ virtual IP ─▶ balancer: HAProxy, TCP ──PROXY v2──▶ proxy of a host ─▶ front end
                               ▲                                    │
      keepalived: check, 1 s   │          /health/ready ◀───────────┘  200; 404: nothing new; else: away
      other balancers ◀──VRRP──┘

A balancer that is gone is missed after three advertisements and its rank's share of one: 1.8 s. One that leaves says
so, and is followed after the share alone. TLS is not ended here, so balancers need no certificates.
"""

from __future__ import annotations

from typing import Final

from quaymaster.cli.edge.layout import Balancer, EdgeLayout

CHECK_PORT: Final = 9328
"""Of loopback, where HAProxy says whether it lives and has hosts."""
HAPROXY_FILE: Final = "haproxy.cfg"
KEEPALIVED_FILE: Final = "keepalived.conf"
CHECK_FILE: Final = "check-balancer"
MASTER_PRIORITY: Final = 200
BACKUP_PRIORITY_MAX: Final = 100
HOSTLESS_WEIGHT: Final = -150
"""A master without hosts is below all backups that have some, and above those that have none either."""

_HAPROXY: Final = """\
# Written by `quaymaster edge render balancer`, for {name}.
global
    maxconn {connections_max}
    # With fewer open files than that takes it serves fewer, rather than none.
    no strict-limits
    hard-stop-after 60s
    log stdout format raw daemon notice

defaults
    log global
    mode tcp
    timeout connect 1s
    # Longer than hosts keep a connection between requests (75 s) and than any request takes: they end first.
    timeout client 90s
    timeout server 90s
    timeout client-fin 10s
    timeout check 1s
    # A client that is gone without a word is missed after 5 s + 3 x 2 s; a host after 1 s + 3 x 1 s, or 3 s without an
    # acknowledgement of what was sent, and who waits for it should ask another.
    option clitcpka
    clitcpka-idle 5s
    clitcpka-intvl 2s
    clitcpka-cnt 3
    option srvtcpka
    srvtcpka-idle 1s
    srvtcpka-intvl 1s
    srvtcpka-cnt 3
    # A host that cannot be connected to is passed over without the client noticing.
    retries 3
    option redispatch 1

frontend sqs
    bind :{port}
    default_backend hosts

backend hosts
    balance leastconn
    option httpchk GET /health/ready
    # A host that drains gets nothing new; what it has goes on.
    http-check disable-on-404
    default-server check port {health_port} inter 500ms fastinter 250ms fall 2 rise 1
    default-server observe layer4 error-limit 1 on-error fastinter
    # Not `on-marked-down shutdown-sessions`: a proxy that was drained refuses checks too, and answers what it has.
    default-server send-proxy-v2 tcp-ut 3s
{hosts}
frontend check
    mode http
    bind 127.0.0.1:{check_port}
    timeout client 2s
    http-request return status 200 if {{ path /alive }}
    http-request return status 200 if {{ path /hosts }} {{ nbsrv(hosts) gt 0 }}
    http-request return status 503
"""

_KEEPALIVED: Final = """\
# Written by `quaymaster edge render balancer`, for {name}.
global_defs {{
    router_id {name}
    vrrp_version 3
    # As root, a script is run only if root alone could change it. As another user, `keepalived --config-test` of 2.2
    # would end itself.
    enable_script_security
    script_user root
}}

# Without HAProxy the virtual IPs go at once.
vrrp_script haproxy_alive {{
    script "{directory}/{check_file} alive"
    interval 1
    timeout 1
    fall 2
    rise 2
}}

# Without hosts they go to a balancer that has some.
vrrp_script hosts_reached {{
    script "{directory}/{check_file} hosts"
    interval 1
    timeout 1
    fall 2
    rise 2
    weight {hostless_weight}
}}
{instances}"""

_INSTANCE: Final = """
vrrp_instance {owner} {{
    state {state}
    interface {interface}
    virtual_router_id {router_id}
    priority {priority}
    advert_int 0.5
    unicast_src_ip {address}
    unicast_peer {{
{peers}    }}
    virtual_ipaddress {{
        {vip}/32 dev {interface}
    }}
    track_script {{
        haproxy_alive
        hosts_reached
    }}
}}
"""

_CHECK: Final = """\
#!/bin/bash
# Written by `quaymaster edge render balancer`. Whether HAProxy answers (alive), and whether it has a host (hosts).
exec 3<>/dev/tcp/127.0.0.1/{check_port} || exit 1
printf 'GET /%s HTTP/1.0\\r\\n\\r\\n' "$1" >&3
read -r -t 1 _ status _ <&3 && [[ $status == 200 ]]
"""


def balancer_files(layout: EdgeLayout, name: str, directory: str) -> dict[str, str]:
    """Return the files of a balancer by their names, as they are to be in `directory` there. Raises LayoutError."""
    own = layout.balancer(name)
    return {
        HAPROXY_FILE: _haproxy(layout, own),
        KEEPALIVED_FILE: _keepalived(layout, own, directory),
        CHECK_FILE: _CHECK.format(check_port=CHECK_PORT),
    }


def _haproxy(layout: EdgeLayout, own: Balancer) -> str:
    hosts = "".join(f"    server {host.name} {host.address}:{layout.port}\n" for host in layout.hosts)
    return _HAPROXY.format(
        name=own.name,
        connections_max=layout.connections_max,
        port=layout.port,
        health_port=layout.health_port,
        hosts=hosts,
        check_port=CHECK_PORT,
    )


def _keepalived(layout: EdgeLayout, own: Balancer, directory: str) -> str:
    return _KEEPALIVED.format(
        name=own.name,
        directory=directory,
        check_file=CHECK_FILE,
        hostless_weight=HOSTLESS_WEIGHT,
        instances="".join(_instance(layout, own, number) for number in range(len(layout.balancers))),
    )


def _instance(layout: EdgeLayout, own: Balancer, number: int) -> str:
    """Return one virtual IP, as this balancer has it: as its master, or as one of those who stand in, in a ring."""
    owner = layout.balancers[number]
    away = (layout.balancers.index(own) - number) % len(layout.balancers)
    peers = (balancer for balancer in layout.balancers if balancer is not own)
    return _INSTANCE.format(
        owner=f"vip_{owner.name}",
        state="BACKUP" if away else "MASTER",
        interface=own.interface,
        router_id=layout.router_id + number,
        priority=BACKUP_PRIORITY_MAX - away if away else MASTER_PRIORITY,
        address=own.address,
        peers="".join(f"        {peer.address}\n" for peer in peers),
        vip=owner.vip,
    )
