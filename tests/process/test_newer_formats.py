"""What a newer program wrote ends a start with a sentence and exit code 3, and nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess

from quaymaster.broker.replica.records.recovery import recover
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.values.formats import FORMAT_MAX
from quaymaster.core.values.records import Record, encode_batch
from quaymaster.node.data.stores import mark_files

from .support import Client, contents, refused_start

NEWER_TYPE = 200


def write_newer_record(data: Path) -> None:
    """Append a record of a type that there is not."""
    recovered = recover(
        RealDisk(),
        str(data / "journals"),
        journal_id=0,
        limits=JournalLimits(),
        make_queues=partial(QueueStates, retry_window_ms=0),
    )
    last = recovered.positions[-1] if recovered.positions else recovered.start
    recovered.files.append(
        [
            encode_batch(
                [Record(NEWER_TYPE, 0, 1, 0, 0, recovered.last_time_ms, 0, b"")],
                epoch=last.epoch,
                base_offset=last.end,
                time_ms=recovered.last_time_ms,
                floor=last.end,
                previous_chain=last.chain,
            )
        ]
    )
    recovered.files.sync()
    recovered.files.close()


def write_newer_definition(data: Path) -> None:
    async def write() -> None:
        store = await SQLiteCoordination.open(data / "metadata.sqlite", marks=mark_files(data))
        await store.transaction([], [Put("/queues/000000000000/newer", b"\x09")])
        await store.close()

    asyncio.run(write())


def write_newer_format(data: Path) -> None:
    (data / "format").write_text(f"{FORMAT_MAX + 1}\n")


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (write_newer_record, f"a record of type {NEWER_TYPE}"),
        (write_newer_definition, "has version 9; this program reads version 1"),
        (write_newer_format, f"has format {FORMAT_MAX + 1}"),
    ],
    ids=["record", "definition", "directory"],
)
def test_a_start_with_newer_forms_says_which_version_is_needed(
    tmp_path: Path, write: Callable[[Path], None], told: str
) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"usage": "false", "block_build_interval_s": "0"})
    process.start()
    with closing(Client(process)) as client:
        client.create("orders")
    process.stop()
    write(tmp_path / "data")
    before = {name: data for name, data in contents(tmp_path / "data").items() if name.endswith(".seg")}

    log = refused_start(process)

    assert told in log
    assert "Start the version" in log
    assert "Traceback" not in log
    after = contents(tmp_path / "data")
    assert {name: after[name] for name in before} == before
