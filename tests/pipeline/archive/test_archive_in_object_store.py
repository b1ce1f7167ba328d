"""The archive in an object store: written, read, conflicts found, erased, with nothing on this machine's disk."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness.object_store import ObjectStore, object_store
from spark.fake_server import START_MS, FakeServer, fake_server

from pyspark_quaymaster import DefaultSource
from pyspark_quaymaster.client import Client
from pyspark_quaymaster.schema import SCHEMA
from pyspark_quaymaster.source import BatchReader
from quaymaster_pipeline.archive import job
from quaymaster_pipeline.archive.erasure import Erasure, ErasureScope
from quaymaster_pipeline.archive.job import ArchiveJob, Policy
from quaymaster_pipeline.archive.ledger import APP, Ledger, LedgerConflict, compact_ledger
from quaymaster_pipeline.archive.live_logs import LiveLogs
from quaymaster_pipeline.archive.tables import LEDGER, MESSAGES
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

ROOT = "s3://bucket/warehouse"
NOW = datetime.datetime.fromtimestamp(START_MS / 1000, datetime.UTC) + datetime.timedelta(days=1)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(job, "STRETCH_ROWS_MAX", 10)
    with fake_server() as server:
        server.make("orders", 25)
        yield server


def archive(fake: FakeServer, store: ObjectStore, policy: Policy) -> None:
    with Client(fake.endpoint) as client:
        ArchiveJob(Warehouse(ROOT, store.storage_options), LiveLogs(client), policy, lambda: NOW).run(
            ["orders"]
        )


def data_files(store: ObjectStore) -> list[str]:
    return sorted(key for key in store.list_keys() if "/archive/" in key and key.endswith(".parquet"))


def test_a_log_is_archived_read_by_the_source_and_let_go(fake: FakeServer, store: ObjectStore) -> None:
    archive(fake, store, Policy(0, 10**12, 0))
    fake.logs["orders"].earliest = [20]

    options = {
        **fake.options,
        "queue": "orders",
        "archive": Warehouse(ROOT).place(MESSAGES).uri,
        "archiveStorageOptions": json.dumps(store.storage_options),
    }
    reader = DefaultSource(options).reader(SCHEMA)
    assert isinstance(reader, BatchReader)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    archive(fake, store, Policy(0, 0, 0))

    assert [row["value"] for batch in batches for row in batch.to_pylist()] == [
        b"0/%d" % n for n in range(25)
    ]
    assert len(data_files(store)) == 3
    assert fake.committed == {"orders@archive": {0: 25}}


def test_of_two_jobs_one_finds_that_the_other_was_first(fake: FakeServer, store: ObjectStore) -> None:
    archive(fake, store, Policy(0, 10**12, 0))
    one, other = (Ledger(Warehouse(ROOT, store.storage_options), lambda: NOW) for _ in range(2))

    one.record(one.stretches()[0], "expiring")
    with pytest.raises(LedgerConflict):
        other.record(other.stretches()[1], "expiring")
    states = [one.state for one in Ledger(Warehouse(ROOT, store.storage_options), lambda: NOW).stretches()]
    assert states == ["expiring", "archived", "archived"]


def test_compaction_spares_what_a_job_beside_it_is_about_to_commit(
    fake: FakeServer, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(fake, store, Policy(0, 10**12, 0))
    job_ledger = Ledger(Warehouse(ROOT, store.storage_options), lambda: NOW)
    write = Table.write

    def write_and_compact(*arguments: Any) -> list[DataFile]:
        monkeypatch.setattr(Table, "write", write)
        written = write(*arguments)
        assert arguments[1] == APP
        assert compact_ledger(Warehouse(ROOT, store.storage_options), 0) == (6, 1)
        return written

    monkeypatch.setattr(Table, "write", write_and_compact)
    job_ledger.record(job_ledger.stretches()[0], "expiring")

    after = Warehouse(ROOT, store.storage_options)
    states = [one.state for one in Ledger(after, lambda: NOW).stretches()]
    assert states == ["expiring", "archived", "archived"]
    assert len(after.table(LEDGER).files()) == 2


def test_what_is_erased_is_in_no_object(fake: FakeServer, store: ObjectStore) -> None:
    archive(fake, store, Policy(0, 10**12, 0))
    before = data_files(store)
    warehouse = Warehouse(ROOT, store.storage_options)
    scope = ErasureScope((str(fake.logs["orders"].queue_id),), keys=("g1",))

    done = Erasure(warehouse, Ledger(warehouse, lambda: NOW)).run(scope, "a request")

    assert done.messages == 8
    assert len(data_files(store)) == 3
    assert not set(data_files(store)) & set(before)
