"""The pods of a cell, as processes of this machine: their words and variables are those of the manifests."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import boto3
import pytest
from harness.certificates import make_certificate

from quaymaster.cli.edge.self_signed import ensure_self_signed
from quaymaster.net.certificates import CertificateAuthority
from quaymaster.node.roles import CELL_ROLES

from .containers import ContainersHere
from .manifests import KUBERNETES, containers, literals


@pytest.mark.slow
def test_pods_of_a_cell_find_each_other_and_serve_by_their_edges() -> None:
    overlay = KUBERNETES / "overlays/cell-cert-manager"
    pods = {"etcd": 3, "broker": 3, "metadata": 3, "manager": 2, "frontend": 2, "operator": 1}
    nodes = {
        f"{role}-{number}": role
        for role, count in pods.items()
        if role in CELL_ROLES
        for number in range(count)
    }
    cell = literals(overlay)["cell"]["QUAYMASTER_CELL"]
    # A short name: the socket between edge and front end is in the data directory.
    with (
        tempfile.TemporaryDirectory(prefix="qm") as directory,
        ContainersHere(Path(directory), containers(overlay, pods)) as here,
    ):
        authority = CertificateAuthority.create(here.volume("ca"), cell, days=2)
        for node, role in (nodes | {"operator": "operator"}).items():
            authority.issue(node, [role], days=1)
        ensure_self_signed(here.volume("edge-tls"), "127.0.0.1")
        of_etcd = make_certificate(here.volume("etcd"), "ca")
        certificate = make_certificate(here.volume("etcd"), "etcd", of_etcd)
        for source, target in (
            (of_etcd.certificate_file, here.volume("etcd-tls") / "ca.crt"),
            (certificate.certificate_file, here.volume("etcd-tls") / "tls.crt"),
            (certificate.key_file, here.volume("etcd-tls") / "tls.key"),
            (of_etcd.certificate_file, here.volume("ca/nodes") / "etcd-ca.crt"),
        ):
            shutil.copy(source, target)
        for name in [*(f"etcd-{number}" for number in range(3)), *nodes]:
            here.start(name)
        here.until("operator-0", "quaymaster", "cell", "status")
        known = json.loads(here.until("frontend-1", "quaymaster", "env", "--json"))
        # Kubernetes starts an edge again that ended because its front end took long to start.
        here.start("edge-1")
        here.until("edge-1", "quaymaster", "edge", "reload")
        url = f"https://127.0.0.1:{here.port('frontend-1.frontend', 9443)}"
        sqs = boto3.client(
            "sqs",
            endpoint_url=url,
            verify=str(here.volume("edge-tls") / "ca.crt"),
            region_name=known["region"],
            aws_access_key_id=known["access_key_id"],
            aws_secret_access_key=known["secret_access_key"],
        )
        queue = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=queue, MessageBody="two coffees")
        [message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
        ended = [here.stop("edge-1"), here.stop("frontend-1"), here.stop("broker-1")]

    assert queue == "https://queue.example.com/000000000000/orders"
    assert message["Body"] == "two coffees"
    assert ended == [0, 0, 0]
