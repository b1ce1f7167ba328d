"""Clients must not take the open files that the journal needs."""

from __future__ import annotations

import resource

import pytest

from quaymaster.node.file_limit import FILES_BESIDE_CONNECTIONS, admin_limits, connections_within, sqs_limits
from quaymaster.settings import load_settings

SETTINGS = load_settings(
    flags={"http_connections_max": 10_000, "admin_connections_max": 1_000}, environment={}
)


def test_with_enough_files_all_connections_that_are_set_are_taken() -> None:
    assert connections_within(SETTINGS, 11_000 + FILES_BESIDE_CONNECTIONS) == (10_000, 1_000)


@pytest.mark.parametrize("files_max", [12_000, 4_096, 1_024, 256, 64])
def test_with_fewer_a_part_is_left_for_everything_else(files_max: int) -> None:
    sqs, admin = connections_within(SETTINGS, files_max)

    assert sqs >= 1
    assert admin >= 1
    assert files_max - sqs - admin >= min(FILES_BESIDE_CONNECTIONS, files_max // 4)


def test_the_limits_of_the_ports_are_those_that_fit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    sqs, admin = sqs_limits(SETTINGS), admin_limits(SETTINGS)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)

    assert (sqs.connections_max, admin.connections_max) == (640, 128)
    assert "fewer connections are taken" in caplog.text
    assert (sqs_limits(SETTINGS).connections_max, admin_limits(SETTINGS).connections_max) == (10_000, 1_000)
