"""`quaymaster key metrics-password` tells what Prometheus is configured with, and asks no server."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run

from quaymaster.cli.shared.connection import read_client_file
from quaymaster.protocol.sqs.metrics_password import metrics_password


def test_password_is_that_of_the_access_key_in_use(run: Run, data: Path, server: PlayedServer) -> None:
    connection = read_client_file(data)

    shown = run("key", "metrics-password", "--data", data, "--json").json

    assert shown == {
        "url": f"{connection.endpoint_url}/monitoring/metrics",
        "username": connection.access_key_id,
        "password": metrics_password(connection.secret_access_key),
    }
    assert shown["password"] in run("key", "metrics-password", "--data", data).out


def test_temporary_credentials_have_none(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "ASIAXXXXXXXXXXXXXXXX")

    failed = run("key", "metrics-password", "--endpoint-url", "http://127.0.0.1:1")

    assert failed.code != 0
    assert "only long-lived access keys have a metrics password" in failed.err
