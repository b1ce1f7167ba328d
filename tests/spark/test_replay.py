"""Replays: what was asked for is sent, each message once, whatever was interrupted."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_quaymaster.client import Client
from pyspark_quaymaster.options import parse_source_options
from quaymaster_pipeline.archive import job, replay
from quaymaster_pipeline.archive.job import ArchiveJob, Policy
from quaymaster_pipeline.archive.live_logs import LiveLogs
from quaymaster_pipeline.archive.replay import (
    CannotReplay,
    FilterIsInvalid,
    How,
    Replay,
    ReplayDiffers,
    parse_filter,
)
from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.tables import Warehouse

from .fake_server import START_MS, FakeServer

ROWS = 40


class Killed(BaseException):
    """The process ends here; nothing catches it."""


class Site:
    """A log whose beginning is in the archive only, and a queue to replay to."""

    def __init__(self, fake: FakeServer, root: Path) -> None:
        self.fake, self.root = fake, root
        self.warehouse = Warehouse(root / "warehouse")
        self.client = Client(fake.endpoint)
        log = fake.make("orders", ROWS, 5)
        fake.ordinary |= {"again", "again.fifo"}
        clock = datetime.datetime.fromtimestamp(START_MS / 1000 + 1, datetime.UTC)
        ArchiveJob(self.warehouse, LiveLogs(self.client), Policy(0, 10**12, 0), lambda: clock).run(["orders"])
        log.earliest = [25, 5]

    def replay(self, *filters: str, to: str = "again", name: str = "one", **options: str) -> Replay:
        given = {
            **self.fake.options,
            "queue": "orders",
            "archive": self.warehouse.place(MESSAGES).uri,
            **options,
        }
        return Replay(
            self.client,
            parse_source_options(given, is_stream=False),
            self.fake.url(to),
            filters,
            name=name,
            directory=self.root,
            batch_messages_max=7,
        )

    def bodies(self, queue: str = "again") -> list[str]:
        return [entry["MessageBody"] for entry in self.fake.sent.get(queue, [])]


@pytest.fixture
def site(fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(job, "STRETCH_ROWS_MAX", 16)
    made = Site(fake, tmp_path)
    yield made
    made.client.close()


ALL = [f"0/{number}" for number in range(ROWS)] + [f"1/{number}" for number in range(5)]


def test_all_of_archive_and_queue_is_sent_with_its_source(site: Site) -> None:
    done = site.replay().run(How())

    assert site.bodies() == ALL
    assert (done.read, done.matched, done.is_done) == (45, 45, True)
    last = site.fake.sent["again"][-1]["MessageAttributes"]
    assert last["replay.source"] == {"DataType": "String", "StringValue": "orders/1/4"}
    odd = site.fake.sent["again"][1]
    assert odd["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "1"}
    assert odd["MessageAttributes"]["b"] == {"DataType": "Binary", "BinaryValue": "/wA="}
    assert odd["MessageGroupId"] == "g1"


def test_the_same_replay_is_not_done_twice_and_another_name_is_another_one(site: Site) -> None:
    site.replay().run(How())
    site.replay().run(How())
    assert len(site.bodies()) == 45

    site.replay(name="two").run(How())
    assert len(site.bodies()) == 90
    with pytest.raises(ReplayDiffers, match="give this one another name"):
        site.replay("key=g1")


def test_filters_times_and_a_dry_run(site: Site) -> None:
    def count(*filters: str, **options: str) -> int:
        return site.replay(*filters, **options).run(How(is_dry_run=True)).matched

    assert count() == 45
    assert count("body=0/7") == 1
    assert count("body~^1/") == 5
    assert count("key=g1", "body!=0/1") == sum(n % 3 == 1 for n in [*range(2, 40), *range(5)])
    assert count("key=") == sum(n % 3 == 0 for n in [*range(40), *range(5)])
    assert count("attribute.n=3") == 2
    assert (
        count("sender_id=AIDA", startingTimestamp=str(START_MS + 20), endingTimestamp=str(START_MS + 30))
        == 10
    )
    assert site.bodies() == []
    for wrong in ("colour=red", "body", "body~("):
        with pytest.raises(FilterIsInvalid):
            parse_filter(wrong)
    with pytest.raises(FilterIsInvalid):
        site.replay(name="a/b")


@pytest.mark.parametrize("step", ["StageMessages", "CommitTransaction", "save"])
@pytest.mark.parametrize("is_after", [False, True])
def test_each_process_lives_for_one_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: str, is_after: bool
) -> None:
    save, ask = Replay._save, Client._ask
    left = [0]

    def killed_at(name: str, act: Any) -> Any:
        if name != step:
            return act()
        left[0] -= 1
        if left[0] == 0 and not is_after:
            raise Killed
        value = act()
        if left[0] == 0:
            raise Killed
        return value

    monkeypatch.setattr(Replay, "_save", lambda self: killed_at("save", lambda: save(self)))
    monkeypatch.setattr(
        Client,
        "_ask",
        lambda self, target, fields: killed_at(target.partition(".")[2], lambda: ask(self, target, fields)),
    )
    chance = random.Random(6)
    for _ in range(40):
        left[0] = chance.randrange(2, 5)
        try:
            done = site.replay().run(How())
        except Killed:
            continue
        break
    else:
        raise AssertionError("no end")

    assert site.bodies() == ALL
    assert (done.matched, done.batches) == (45, 7)


def test_what_comes_after_the_first_start_is_not_part_of_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Replay, "_send", lambda *a: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            site.replay().run(How())
    site.fake.logs["orders"].partitions[0].append(b"later")

    site.replay().run(How())

    assert site.bodies() == ALL


def test_a_fifo_queue_gets_groups_and_one_deduplication_id_per_message(site: Site) -> None:
    site.replay(to="again.fifo").run(How())

    entries = site.fake.sent["again.fifo"]
    assert [entry["MessageGroupId"] for entry in entries[:3]] == ["replay", "g1", "g2"]
    assert len({entry["MessageDeduplicationId"] for entry in entries}) == 45


def test_a_rate_is_kept(site: Site) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    site.replay().run(How(rate=9.0, now_s=lambda: now[0], sleep=sleep))

    assert sum(slept) == pytest.approx(45 / 9)


def test_a_server_without_transactions_is_told_and_at_least_once_is_possible(site: Site) -> None:
    site.fake.has_transactions = False
    with pytest.raises(CannotReplay, match="--at-least-once"):
        site.replay().run(How())
    assert site.bodies() == []

    site.replay().run(How(at_least_once=True))
    assert site.bodies() == ALL


def test_a_message_without_room_for_its_source_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "ATTRIBUTES_MAX", 2)
    with pytest.raises(CannotReplay, match="orders/0/1 has no room"):
        site.replay().run(How())

    site.replay(name="two").run(How(marks_source=False))
    assert site.bodies() == ALL
