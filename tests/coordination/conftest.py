"""A real etcd for the tests of this folder: one member, started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.etcd import EtcdCluster


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member; each test keeps to a root of its own."""
    with EtcdCluster.started(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster
