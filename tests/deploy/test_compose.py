"""compose.yaml: judged by Compose's schema, compared with the program, and its cell run as processes."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest

from quaymaster.net.certificates import ROLES

from .composed import COMPOSE, SERVICES, command, containers, variables, volumes
from .containers import ContainersHere
from .support import DEPLOY, check_command, check_settings, instructions, lint

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
    if role in ("frontend", "push"):
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
        "console": 2,
        "frontend": 2,
        "push": 2,
        "operator": 0,
    }


@pytest.mark.slow
def test_the_cell_carries_messages_and_outlives_one_process_of_each_role(tmp_path: Path) -> None:
    found = containers()
    status = ["quaymaster", *command(SERVICES["operator"])[1:]]
    with ContainersHere(tmp_path, found) as cell:
        made = cell.run("certificates", *found["certificates"].words)
        for name, service in SERVICES.items():
            if service["profiles"] == ["cell"] and name != "certificates":
                cell.start(name)
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
        again = cell.run("certificates", *found["certificates"].words)
        ended = [cell.stop(f"{role}-1") for role in ("broker", "frontend", "manager", "metadata")]
        [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        for role in ("broker", "manager", "metadata"):
            cell.start(f"{role}-1")
        cell.until("operator", *status)

    assert made.returncode == 0, made.stderr
    assert again.returncode == 0, again.stderr
    assert "No certificate expires so soon." in again.stderr, "none is made a second time"
    assert message["Body"] == "two coffees"
    assert ended == [0, 0, 0, 0]
