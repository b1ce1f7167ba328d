"""What a worker is told at its start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quaymaster.node.workers.brief import (
    WorkerBrief,
    encode_brief,
    read_brief,
    settings_for_worker,
    worker_address,
)
from quaymaster.settings import Settings, load_settings


def brief(number: int, workers: int, journals: list[int], settings: Settings | None = None) -> WorkerBrief:
    settings = settings or load_settings(environment={})
    values = settings_for_worker(settings, number, workers, 9000)
    return WorkerBrief(number, workers, journals, "/run/q", f"host.{number}", True, -1, values)


@pytest.mark.parametrize(("workers", "journals"), [(2, 2), (2, 5), (3, 5), (4, 4)])
def test_each_journal_has_one_worker_and_each_worker_a_journal(workers: int, journals: int) -> None:
    shares = [brief(number, workers, list(range(journals))).own_journals for number in range(workers)]

    assert sorted(journal for share in shares for journal in share) == list(range(journals))
    assert all(shares)


def test_a_worker_has_the_settings_of_its_server_with_their_secrets_and_a_name_of_its_own(
    tmp_path: Path,
) -> None:
    given = {"master_key_source": "environment", "master_key": "ab" * 32, "node": "here", "usage": "false"}
    given["listen"] = "localhost:0"
    settings = load_settings(flags={**given, "data_directory": tmp_path}, environment={})
    reading, writing = os.pipe()
    os.write(writing, encode_brief(brief(1, 2, [0, 1], settings)) + b"d")

    found = read_brief(reading)

    told = Settings(**found.settings)
    assert told.master_key is not None
    assert told.master_key.get_secret_value() == "ab" * 32
    assert (told.node, told.listen, told.data_directory) == ("here.1", "localhost:9000", tmp_path)
    assert (told.usage, told.region) == (False, settings.region)
    assert str(found.address) == str(worker_address(Path("/run/q"), 1)) == "unix:/run/q/worker-1.sock"
    assert os.read(reading, 1) == b"d"  # what comes later is not read with it
    os.close(writing)
    with pytest.raises(EOFError):
        read_brief(reading)
    os.close(reading)
