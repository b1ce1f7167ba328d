"""A whole local cluster started: ports chosen, keys made, stage after stage, until a request is served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from quaymaster.broker.storage.disk import RealDisk, write_file_durably
from quaymaster.cli.edge.certificates import read_bundles
from quaymaster.cli.edge.self_signed import ensure_self_signed
from quaymaster.cli.local.cluster import POLL_S, START_TIMEOUT_S, Cluster, Progress
from quaymaster.cli.local.plan import (
    BLOCK,
    CERTIFICATES,
    HAPROXY_CERTIFICATE,
    HOST,
    KEYS,
    START_STAGES,
    ClusterOptions,
    ClusterPlan,
    ClusterRecord,
    PlanRefused,
    Programs,
    check_options,
    choose_ports,
    plan_cluster,
)
from quaymaster.cli.local.ports import NoPorts, PortBlock
from quaymaster.cli.local.processes import is_port_free
from quaymaster.cli.local.status import are_journals_led
from quaymaster.cli.shared.client import SQSClient
from quaymaster.cli.shared.connection import ServerConnection, connection_fields, read_client_file
from quaymaster.cli.shared.failures import CommandFailed, NoServer, WrongUsage
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.net.private_files import write_private
from quaymaster.node.data.client_file import CLIENT_FILE


def plan_start(
    directory: Path,
    options: ClusterOptions,
    programs: Programs,
    known: ClusterRecord | None,
    block: PortBlock,
) -> Cluster:
    """Return the cluster as it is to be started, with ports of `block`. `known`: what was there before.

    Raises:
        WrongUsage: it cannot be as it is asked for.
    """
    before = known.ports if known is not None else {}
    if before.get(BLOCK) != block.first:
        before = {}  # ports of a block that others hold now
    try:
        check_options(options, known.options if known is not None else None)
        ports = choose_ports(options, before, block.candidates, is_port_free)
        ports = {**ports, BLOCK: block.first}
        plan_cluster(directory, options, ports, programs)
    except PlanRefused as error:
        raise WrongUsage(str(error)) from None
    return Cluster(directory, ClusterRecord(options, programs, ports))


@contextlib.contextmanager
def held_ports(known: ClusterRecord | None) -> Iterator[PortBlock]:
    """Give ports that belong to the processes started meanwhile until the last of them ends.

    Those that the cluster had before, if no other has taken them since.

    Raises:
        WrongUsage: there are none.
    """
    try:
        block = PortBlock.hold(known.ports.get(BLOCK) if known is not None else None)
    except NoPorts as error:
        raise WrongUsage(str(error)) from None
    block.share()
    try:
        yield block
    finally:
        block.close()


def start_cluster(cluster: Cluster, environment: Mapping[str, str], progress: Progress) -> ServerConnection:
    """Start what does not run; return when a request is served through the front. If that fails, all that is stopped.

    Raises:
        NoServer: a process ended, or was not ready in time.
    """
    plan = cluster.plan
    _prepare(plan)
    before = set(cluster.running)
    steps = len(plan.processes) - len(before) + 1
    done = 0
    try:
        for stage in plan.stages(START_STAGES):
            missing = [planned for planned in stage if planned.name not in before]
            for planned in missing:
                cluster.spawn(planned, environment)
            for planned in missing:
                progress(f"Starting {planned.name}", done, steps)
                cluster.wait_until_ready(planned)
                done += 1
        progress("Waiting for the first answer", done, steps)
        return _wait_until_served(plan)
    except BaseException:
        cluster.stop(lambda *_: None, but=before)
        raise


def _prepare(plan: ClusterPlan) -> None:
    """Make directories, and the master key that all front ends share."""
    disk = RealDisk()
    disk.make_directory(str(plan.directory / "logs"))
    for planned in plan.processes:
        if planned.role != "haproxy":
            disk.make_directory(str(plan.directory / planned.name))
    if plan.tls_url is not None:
        certificates = plan.directory / CERTIFICATES
        ensure_self_signed(certificates, HOST)
        (bundle,) = read_bundles(certificates).values()
        write_private(plan.directory / HAPROXY_CERTIFICATE, bundle)
    provider = FileKeyProvider(plan.directory / KEYS)
    if not provider.key_ids():
        provider.create()


def _wait_until_served(plan: ClusterPlan) -> ServerConnection:
    """Ask through the front until there is an answer; write down how, and return it."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            # The key that every front end knows, at the address before all of them.
            own = read_client_file(plan.client_directory)
            connection = own._replace(endpoint_url=plan.endpoint_url, admin_url=plan.admin_url)
            with SQSClient(connection) as client:
                client.call("ListQueues", {"MaxResults": 1})
            if not asyncio.run(are_journals_led(plan)):
                raise NoServer("Not every journal has a leader.")
        except CommandFailed as failure:
            if time.monotonic() > deadline_s:
                raise NoServer(
                    f"No request is served after {START_TIMEOUT_S:.0f} s: {failure.line} "
                    f"The logs are in {plan.directory / 'logs'}."
                ) from None
            time.sleep(POLL_S)
        else:
            text = json.dumps(connection_fields(connection), indent=2).encode() + b"\n"
            write_file_durably(RealDisk(), str(plan.directory), CLIENT_FILE, text)
            return connection
