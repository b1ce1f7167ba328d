"""compose.yaml: judged by Compose's schema, compared with the program, and its cell run as processes."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest
from harness.etcd import etcd_or_skip

from quaymaster.cli.tools import find_haproxy
from quaymaster.net.certificates import ROLES

from .composed import COMPOSE, SERVICES, ComposedCell, command, variables, volumes
from .support import DEPLOY, TOOLS, check_command, check_settings, instructions, lint

STAGES = {stage for stage, _, _ in instructions((DEPLOY / "Containerfile").read_text(encoding="utf-8"))}
ROLE_SERVICES = [name for name, service in SERVICES.items() if command(service)[:2] == ["quaymaster", "run"]]


def test_the_file_is_what_compose_takes() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


@pytest.mark.parametrize("name", SERVICES)
def test_commands_and_settings_of_a_service_exist(name: str) -> None:
    service = SERVICES[name]
    words = command(service)

    if service["build"]["target"] != "etcd":
        check_settings(variables(service))
    if words[0] == "quaymaster":
        check_command(words[1:])
    else:
        assert words[0] in {"/bin/sh", "etcd", "haproxy"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_built_here_and_keeps_to_its_volumes(name: str) -> None:
    service = SERVICES[name]

    assert service["build"]["target"] in STAGES
    assert service["build"]["dockerfile"] == "deploy/Containerfile"
    assert set(volumes(service).values()) <= set(COMPOSE["volumes"])
    assert service.get("read_only") or name == "certificates"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", ROLE_SERVICES)
def test_a_process_of_the_cell_has_its_name_its_certificate_and_its_own_data(name: str) -> None:
    settings = check_settings(variables(SERVICES[name]))
    mounts = volumes(SERVICES[name])
    role, _, number = name.partition("-")

    assert settings.node == name
    assert settings.zone == f"zone-{number}"
    assert command(SERVICES[name]) == ["quaymaster", "run", role]
    assert mounts[str(settings.data_directory)] == name
    assert mounts[str(settings.tls_directory)] == f"tls-{name}"
    if role == "frontend":
        assert mounts[str(settings.keys_directory)] == "keys"
        assert all(address.host in SERVICES for address in settings.metadata_node_list)
    if role == "broker":
        assert settings.broker_advertise == f"{name}:{settings.broker_listen_address.port}"


def test_there_are_as_many_processes_as_a_cell_needs() -> None:
    roles = [name.partition("-")[0] for name in ROLE_SERVICES]

    assert {role: roles.count(role) for role in ROLES} == {
        "broker": 3,
        "metadata": 2,
        "manager": 2,
        "frontend": 2,
        "operator": 0,
    }


@pytest.mark.slow
def test_the_cell_carries_messages_and_outlives_a_broker(tmp_path: Path) -> None:
    haproxy = find_haproxy()
    if haproxy is None:
        pytest.skip(
            "there is no HAProxy: the balancer of compose.yaml is not tested (scripts/haproxy gets one)"
        )
    programs = {"etcd": etcd_or_skip(), "haproxy": haproxy}
    with ComposedCell.started(tmp_path, programs) as cell:
        status = [str(TOOLS / "quaymaster"), *command(SERVICES["operator"])[1:]]
        cell.until("operator", *status)
        known = json.loads(cell.until("frontend-1", "quaymaster", "env", "--json"))
        sqs = boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{cell.port('balancer', 9324)}",
            region_name=known["region"],
            aws_access_key_id=known["access_key_id"],
            aws_secret_access_key=known["secret_access_key"],
        )
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="two coffees")
        again = cell.run("certificates", *command(SERVICES["certificates"]))
        ended = [cell.stop("broker-1"), cell.stop("frontend-1"), cell.stop("manager-1")]
        [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        cell.start("broker-1")
        cell.start("manager-1")
        cell.until("operator", *status)

    assert message["Body"] == "two coffees"
    assert "No certificate expires so soon." in again.stderr, "none is made a second time"
    assert again.returncode == 0
    assert ended == [0, 0, 0]
