"""Object stores: what they say in one sentence, and what two processes do to each other's tables in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.object_store import ObjectStore, object_store
from harness.pipeline_site import InProcess, Site, expected_usage
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.jobs import Summary
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.tasks import Answers
from quaymaster_pipeline.warehouse import tables
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import CommitConflict, StoreFails
from quaymaster_pipeline.warehouse.object_stores import (
    check_conditional_writes,
    reason_of_store,
    telling_store,
)
from quaymaster_pipeline.warehouse.schemas import TABLES, USAGE_HOURLY, TableSpec
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse

SPEC = TableSpec("bronze.things", pa.schema([("number", pa.int64())]), None)
REFUSED = (
    "Kernel error -> The operation lacked the necessary privileges to complete for path warehouse/x\n"
    "          \x1b[31m\u21b3\x1b[0m Error performing GET http://store/usage/x in 51.5ms - Server returned non-2xx"
    " status code\n"
    "           \x1b[31m\u21b3\x1b[0m 403 Forbidden\n"
)
XML = (
    '            \x1b[31m\u21b3\x1b[0m <?xml version="1.0" encoding="UTF-8"?>\n'
    "<Error><Code>NoSuchBucket</Code><Message>The bucket &quot;b&quot; does not exist.</Message></Error>\n"
)


def rows(*numbers: int) -> pa.Table:
    return pa.table([list(numbers)], schema=SPEC.schema)


def numbers_in(table: Table) -> list[int]:
    return sorted(table.read(["number"]).column("number").to_pylist())


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (REFUSED + XML, 'The bucket "b" does not exist (NoSuchBucket)'),
        (REFUSED, "403 Forbidden"),
        ("x <Error><Code>SlowDown</Code></Error>", "(SlowDown)"),
        (
            "Generic S3 error\n  error sending request\n   Connection refused (os error 111)\n",
            "Connection refused (os error 111)",
        ),
        (
            "Generic S3 error\n  builder error\n   URL scheme is not allowed\n",
            "http:// is used only with --storage-option AWS_ALLOW_HTTP=true",
        ),
        ("No space left on device.", "No space left on device"),
        ("", "str"),
    ],
)
def test_what_a_store_says_is_one_line(said: str, reason: str) -> None:
    assert reason_of_store(said) == reason


def test_errors_of_a_directory_are_not_those_of_a_store() -> None:
    with pytest.raises(PermissionError), telling_store("/data/warehouse"):
        raise PermissionError("no")
    with pytest.raises(FileNotFoundError), telling_store("s3://bucket/x"):
        raise FileNotFoundError("a file that the log has")
    with (
        pytest.raises(StoreFails, match=r"^s3://bucket/x cannot be used: gone$"),
        telling_store("s3://bucket/x", tells_missing=True),
    ):
        raise FileNotFoundError("gone")


def test_a_store_that_does_not_know_the_key_is_told_by_whoever_reads_or_writes(store: ObjectStore) -> None:
    options = store.storage_options | {"AWS_ACCESS_KEY_ID": "stranger"}
    known = Warehouse("s3://bucket/w", store.storage_options).table(SPEC)
    known.commit("job", 0, known.write("a", rows(1)))
    known.place.storage_options["AWS_ACCESS_KEY_ID"] = "stranger"  # type: ignore[index]

    for use in (
        lambda: Warehouse("s3://bucket/w", options).table(SPEC),
        known.read,
        lambda: known.write("a", rows(2)),
    ):
        with pytest.raises(
            StoreFails, match=r"^s3://bucket/w/bronze/things cannot be used: .*403|nobody knows"
        ):
            use()


def test_files_that_another_process_is_about_to_commit_outlive_vacuum(store: ObjectStore) -> None:
    one, other = (Warehouse("s3://bucket/w", store.storage_options).table(SPEC) for _ in range(2))
    one.commit("one", 0, one.write("a", rows(1)))
    written = other.write("a", rows(2))
    one.vacuum(0)
    other.commit("other", 0, written)

    assert numbers_in(other) == [1, 2]


@pytest.mark.parametrize("bucket", ["silent", "mute"])
def test_a_commit_whose_answer_got_lost_is_made_once(store: ObjectStore, bucket: str) -> None:
    # Another bucket without a name of its own: the store looks at keys alone.
    made = Warehouse("s3://bucket/w", store.storage_options).table(SPEC)
    made.commit("job", 0, [])
    options = store.storage_options | {"max_retries": "1", "retry_timeout": "30s"}
    table = Warehouse(f"s3://{bucket}/w", options).table(SPEC)

    for number in (1, 2):
        assert table.commit("look", None, table.write("a", rows(number)))

    made.refresh()
    assert numbers_in(made) == [1, 2]
    assert (made.last_batch("look"), made.version) == (1, 3)


def test_files_that_others_may_have_deleted_are_not_committed(
    tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = tables._now_ms
    for warehouse in (Warehouse(tmp_path), Warehouse("s3://bucket/w", store.storage_options)):
        table = warehouse.table(SPEC)
        files = table.write("a", rows(1))
        noted = table.write("b", rows(2))
        young = DataFile.from_json(json.loads(json.dumps(files[0].to_json())))
        with monkeypatch.context() as patched:
            patched.setattr(tables, "_now_ms", lambda: now_ms() + 13 * 3_600_000)

            with pytest.raises(CommitConflict, match="13 hours ago, and may have been deleted"):
                table.commit("job", 0, [young])
            # A commit's note has it, so it was not deleted before it was committed.
            assert table.commit("job", 0, [DataFile.of_note(noted[0].to_json())])

        assert table.commit("job", 1, [young])
        assert numbers_in(table) == [1, 2]


def between_notes_and_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when the next commit has read the notes that it carries on."""
    notes = Table._notes

    def notes_and_act(table: Table) -> dict[str, Any]:
        found = notes(table)
        monkeypatch.setattr(Table, "_notes", notes)
        act()
        return found

    monkeypatch.setattr(Table, "_notes", notes_and_act)


def test_a_commit_beside_another_loses_none_of_its_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, compaction = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
    run.commit("run", 0, run.write("a", rows(1)), note={"next": 1})
    compaction.refresh()
    small = compaction.files()
    between_notes_and_commit(
        monkeypatch, lambda: run.commit("run", 1, run.write("a", rows(2)), note={"next": 2})
    )
    compaction.commit("compact", 0, compaction.write("b", rows(1)), removes=small, changes_data=False)

    found = Warehouse(tmp_path).table(SPEC)
    assert (found.last_batch("run"), found.note("run")) == (1, {"next": 2})
    assert numbers_in(found) == [1, 2]


def test_of_two_processes_that_commit_the_same_batch_the_second_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
    one.commit("run", 0, one.write("a", rows(1)))
    other.refresh()
    between_notes_and_commit(monkeypatch, lambda: one.commit("run", 1, one.write("a", rows(2))))

    with pytest.raises(CommitConflict, match=r"another process wrote to the table bronze.things"):
        other.commit("run", 1, other.write("a", rows(2)))
    assert numbers_in(Warehouse(tmp_path).table(SPEC)) == [1, 2]


def test_of_two_processes_that_follow_the_same_batch_with_different_ones_the_second_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
    # As of headers that expire for the first time: each has its own last batch.
    between_notes_and_commit(
        monkeypatch, lambda: one.commit("expiry", 5, one.write("a", rows(1)), follows=NO_BATCH)
    )

    with pytest.raises(CommitConflict, match=r"another process wrote to the table bronze.things"):
        other.commit("expiry", 6, other.write("a", rows(1, 2)), follows=NO_BATCH)

    other.refresh()
    assert (other.last_batch("expiry"), numbers_in(other)) == (5, [1])


def test_of_two_who_must_be_alone_the_one_that_saw_no_table_is_told_of_the_first_that_made_it(
    tmp_path: Path,
) -> None:
    one, other = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
    one.commit("list", None, one.write("a", rows(1)), is_alone=True)

    with pytest.raises(CommitConflict):
        other.commit("list", None, other.write("a", rows(1)), is_alone=True)


def test_a_file_that_another_process_replaced_is_not_replaced_again(tmp_path: Path) -> None:
    one, other = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
    one.commit("run", 0, one.write("a", rows(1)))
    other.refresh()
    before = other.files()
    one.commit("first", 0, one.write("b", rows(1)), removes=before)

    with pytest.raises(CommitConflict):
        other.commit("second", 0, other.write("b", rows(1)), removes=before)
    assert numbers_in(Warehouse(tmp_path).table(SPEC)) == [1]


def test_a_backfill_beside_a_run_does_not_take_its_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(50))
    site.run()
    site.ship(one.block(60))
    hourly = site.warehouse.table(USAGE_HOURLY)
    hourly.commit("vandal", 0, [], removes=hourly.files()[:1])
    between_notes_and_commit(monkeypatch, site.run)

    backfill(InProcess(), site.warehouse, 0, 1 << 62)

    assert site.usage() == expected_usage(one)
    assert site.warehouse.table(USAGE_HOURLY).note(gold.TOTALS)["rows"] == 110


def test_a_batch_beside_another_commit_adds_to_the_totals_that_there_are_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
    one.commit("run", 0, one.write("a", rows(1)), counts={"totals": {"rows": 1}})
    other.refresh()
    between_notes_and_commit(
        monkeypatch, lambda: one.commit("mend", 0, [], shared_notes={"totals": {"rows": 10, "bytes": 5}})
    )

    other.commit("run", 1, other.write("a", rows(2)), counts={"totals": {"rows": 1}})

    assert Warehouse(tmp_path).table(SPEC).note("totals") == {"rows": 11, "bytes": 5}


def test_of_two_pipelines_one_ends_and_everything_counts_once(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(50), one.block(60))

    class Overtaken(InProcess):
        def over(self, *arguments: Any) -> Answers:
            if not runs:
                runs.append(site.run())
            return super().over(*arguments)

    runs: list[Summary] = []

    second = site.pipeline(site.warehouse, workers=Overtaken())
    with pytest.raises(CommitConflict):
        second.catch_up()

    assert site.usage() == expected_usage(one)
    assert all(site.warehouse.table(spec).version < 2 for spec in TABLES)


def test_a_store_that_overwrites_what_is_to_be_new_is_refused_to_writers(store: ObjectStore) -> None:
    careless = Warehouse("s3://careless/w", store.storage_options)

    with pytest.raises(StoreFails, match="no conditional writes"), careless.ingesting():
        pass
    with Warehouse("s3://bucket/w", store.storage_options).ingesting():
        pass

    assert store.list_keys() == []


def test_such_a_store_is_refused_to_whatever_commits_however_buckets_are_named(store: ObjectStore) -> None:
    table = Warehouse("s3://careless/w", store.storage_options).table(SPEC)
    hosted = store.storage_options | {
        "AWS_ENDPOINT_URL": f"{store.storage_options['AWS_ENDPOINT_URL']}/careless",
        "aws_virtual_hosted_style_request": "true",
    }

    with pytest.raises(StoreFails, match="no conditional writes"):
        table.commit("job", 0, [])
    with pytest.raises(StoreFails, match="no conditional writes"):
        check_conditional_writes("s3://careless/w", hosted)

    assert store.list_keys() == []


def test_a_store_that_does_not_answer_what_it_is_asked_is_refused(store: ObjectStore) -> None:
    down = store.storage_options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}

    with pytest.raises(StoreFails, match=r"^s3://bucket/w cannot be used: .*refused"):
        check_conditional_writes("s3://bucket/w", down)
    with pytest.raises(StoreFails, match="its store answers 403"):
        check_conditional_writes("s3://bucket/w", store.storage_options | {"AWS_ACCESS_KEY_ID": "stranger"})

    assert store.list_keys() == []


def test_stores_that_keep_to_conditions_by_their_interface_are_not_asked(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)

    check_conditional_writes("s3://careless/w", {"AWS_REGION": "eu-west-1"})
    check_conditional_writes("az://careless/w", store.storage_options)

    assert store.list_keys() == []


def test_a_scheme_that_nobody_knows_is_not_a_place_without_tables() -> None:
    with pytest.raises(
        StoreFails, match=r"^foo://bucket/w/bronze/things cannot be used: .*no scheme that is known"
    ):
        Warehouse("foo://bucket/w").table(SPEC)
