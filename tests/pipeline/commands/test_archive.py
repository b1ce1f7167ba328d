"""`quaymaster archive run`, `status`, `erase` and `replay`: what they do, say, and refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.command_line import Result, Run
from harness.object_store import object_store
from spark.fake_server import KEY_ID, SECRET, FakeServer, fake_server

from quaymaster_pipeline.archive.ledger import archive_lock
from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.tables import Warehouse


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with fake_server() as server:
        server.make("orders", 25)
        server.ordinary.add("again")
        yield server


class Site:
    """Commands on one data directory and one server."""

    def __init__(self, run: Run, fake: FakeServer, data: Path) -> None:
        self._run, self._fake, self.data = run, fake, data

    def command(self, name: str, *options: object, shows_bars: bool = False) -> Result:
        server = ("--data", self.data, "--endpoint-url", self._fake.endpoint.url)
        return self._run("archive", name, *server, *options, shows_bars=shows_bars)

    def archive(self, *options: object, shows_bars: bool = False) -> Result:
        words = ("--once", "--queue", "orders", "--close-after", "0", *options)
        return self.command("run", *words, shows_bars=shows_bars)


@pytest.fixture
def site(run: Run, fake: FakeServer, tmp_path: Path) -> Site:
    return Site(run, fake, tmp_path)


def test_a_log_is_archived_shown_and_let_go(site: Site, run: Run, fake: FakeServer) -> None:
    first = site.archive("--after", "1000000", "--json").json
    shown = run("archive", "status", "--data", site.data, "--json").json
    table = run("archive", "status", "--data", site.data).out
    site.archive("--after", "0", "--grace", "0")

    assert (first["archived"], first["messages"], first["lost"], first["behind"]) == (1, 25, 0, 0)
    assert (shown[0]["queue"], shown[0]["messages"], shown[0]["archived"]) == ("orders", 25, 1)
    assert table.startswith("orders\t0\t0\t25\t25\t")
    assert fake.committed == {"orders@archive": {0: 25}}
    metrics = (site.data / "warehouse" / "archive.prom").read_text()
    assert 'quaymaster_archive_files{state="expiring"} 1' in metrics


def test_metrics_of_an_archive_in_an_object_store_are_in_the_data_directory(site: Site) -> None:
    with object_store() as store:
        options = [f"--storage-option={name}={value}" for name, value in store.storage_options.items()]
        done = site.archive("--after", "1000000", "--warehouse", "s3://bucket/warehouse", *options)

    assert done.code == 0, done.err
    assert 'quaymaster_archive_files{state="archived"} 1' in (site.data / "archive.prom").read_text()


def test_metrics_that_cannot_be_written_are_noted_and_the_archive_goes_on(site: Site) -> None:
    (site.data / "warehouse" / "archive.prom").mkdir(parents=True)

    done = site.archive("--after", "1000000")

    assert done.code == 0, done.err
    assert "archive.prom cannot be written: Is a directory." in done.err
    assert done.out.startswith("25 messages in 1 files")


def test_a_terminal_shows_how_far_archiving_erasing_and_replaying_are(site: Site) -> None:
    replay = ("replay", "--from", "orders", "--queue", "again", "--filter", "key=none")

    archived = site.archive("--after", "1000000", shows_bars=True)
    erasing = site.command("erase", "--queue", "orders", shows_bars=True)
    as_json = site.command("erase", "--queue", "orders", "--json", shows_bars=True)
    replayed = site.command(*replay, shows_bars=True)

    assert "Archiving: messages" in archived.err
    assert "25/25" in archived.err
    assert "archived orders partition 0: 0 to 25" in archived.err
    assert "Erasing: files" in erasing.err
    assert "1/1" in erasing.err
    assert "Replaying: messages" in replayed.err
    assert "25/25" in replayed.err
    assert as_json.err == ""
    assert "Archiving" not in archived.out


def test_erasing_counts_first_and_is_confirmed(site: Site, fake: FakeServer) -> None:
    site.archive("--after", "1000000")
    words = ("--queue", "orders", "--key", "g1", "--json")

    counted = site.command("erase", *words).json
    wrong = site.command("erase", *words, "--confirm", "other")
    done = site.command("erase", *words, "--confirm", "orders").json
    fake.logs["orders"].attributes["LegalHold"] = "true"
    held = site.command("erase", *words, "--confirm", "orders")

    assert (counted["messages"], counted["dry_run"]) == (8, True)
    assert (wrong.code, held.code) == (2, 1)
    assert "legal hold" in json.loads(held.err)["error"]["message"]
    assert (done["messages"], done["dry_run"]) == (8, False)
    rows = Warehouse(site.data / "warehouse").table(MESSAGES).read(["value"]).to_pylist()
    assert sum(row["value"] is None for row in rows) == 8


def test_a_replay_is_counted_sent_and_not_sent_again(site: Site, fake: FakeServer) -> None:
    site.archive("--after", "1000000")
    fake.logs["orders"].earliest = [20]
    words = ("--from", "orders", "--queue", "again", "--filter", "key=g1")

    counted = site.command("replay", *words, "--dry-run")
    sent = site.command("replay", *words, "--json").json
    again = site.command("replay", *words)

    assert counted.out.startswith("8 of 25 messages would be sent")
    assert sent["matched"] == len(fake.sent["again"]) == 8
    assert "were sent before" in again.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "--once", "--queue", "nothing"), 1, "there is no queue nothing"),
        (("run", "--once", "--storage-option", "x"), 2, "KEY=VALUE"),
        (("erase",), 2, "either --queue or --account"),
        (("erase", "--queue", "a", "--account", "b"), 2, "either --queue or --account"),
        (("replay", "--from", "orders", "--queue", "again", "--since", "noon"), 2, "--since takes a time"),
        (("replay", "--from", "orders", "--queue", "again", "--filter", "x"), 2, "a filter is"),
        (("replay", "--from", "orders", "--queue", "nothing"), 1, "there is no queue nothing"),
        (("replay", "--from", "again", "--queue", "orders"), 1, "DescribeLog of again: "),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    site: Site, words: tuple[str, ...], code: int, message: str
) -> None:
    done = site.command(*words, "--json")

    assert done.code == code, done.err
    assert message in json.loads(done.err)["error"]["message"]


def test_what_the_server_refused_is_told_with_one_code_and_one_full_stop(site: Site) -> None:
    words = ("replay", "--from", "again", "--queue", "orders")

    told = site.command(*words).err
    as_json = json.loads(site.command(*words, "--json").err)["error"]

    assert told.count("UnsupportedOperation") == 1
    assert ".." not in told
    assert as_json["code"] == "UnsupportedOperation"
    assert told == f"quaymaster: {as_json['message']} (UnsupportedOperation)\n"


def test_what_was_lost_and_a_second_job_are_told(site: Site, fake: FakeServer) -> None:
    site.archive("--after", "1000000")
    fake.logs["orders"].partitions[0] += [b"x"] * 10
    fake.logs["orders"].earliest = [30]

    with archive_lock(Warehouse(site.data / "warehouse")):
        busy = site.archive()
    lost = site.archive()
    accepted = site.archive("--accept-loss", "--json").json

    assert (busy.code, lost.code) == (1, 1)
    assert "another process writes the archive" in busy.err
    assert "--accept-loss" in lost.err
    assert (accepted["lost"], accepted["messages"]) == (5, 5)
