"""A batch of silver is what its first commit decided, whichever program commits the rest of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.killed_jobs import killed_before
from harness.pipeline_site import NOW, InProcess, Site
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd, context_of

from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs.jobs import BronzeJob, RefineJob, Summary
from quaymaster_pipeline.usage import rules, silver
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.silver_commits import complete_batch
from quaymaster_pipeline.usage.tasks import Answers
from quaymaster_pipeline.warehouse.errors import CommitConflict, SumsDiffer
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    LATENCY_HOURLY,
    QUARANTINE,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table

Place = tuple[str, int, int]
IsBroken = Callable[[Any], Any]
COMMON = rules.RULES


def are_sent(rows: Any) -> Any:
    """Return which requests the old program's rule does not let pass, as a mask."""
    of_two = pc.equal(rows.column("account_id"), "000000000002")
    is_created = pc.and_(pc.equal(rows.column("action"), "CreateQueue"), of_two)
    return pc.or_(pc.equal(rows.column("action"), "SendMessage"), is_created)


def are_received(rows: Any) -> Any:
    """Return which requests the new program's rule does not let pass, as a mask."""
    of_one = pc.equal(rows.column("account_id"), "000000000001")
    is_created = pc.and_(pc.equal(rows.column("action"), "CreateQueue"), of_one)
    return pc.or_(pc.equal(rows.column("action"), "ReceiveMessage"), is_created)


@contextmanager
def program(is_broken: IsBroken) -> Iterator[None]:
    """Be a program that has one more rule than all have."""
    more = COMMON[0]._replace(name="more", is_broken=lambda rows, now_us: is_broken(rows))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rules, "RULES", (*COMMON, more))
        yield


def places_in(site: Site, spec: TableSpec) -> list[Place]:
    """Return which requests a table has; of quarantine those alone that broke the one rule more."""
    table = site.warehouse.table(spec).read()
    if spec is QUARANTINE:
        table = table.filter(pc.equal(table.column("rule"), "more"))
    names = ("front_end", "epoch", "sequence")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def broken(records: list[UsageRecord], is_broken: IsBroken) -> set[Place]:
    """Return the places of those requests that a rule does not let pass."""
    names = ("account_id", "action", "sequence")
    rows = pa.table({name: [getattr(record, name) for record in records] for name in names})
    return {
        (record.front_end, record.incarnation, record.sequence)
        for record, is_one in zip(records, is_broken(rows).to_pylist(), strict=True)
        if is_one
    }


def check(site: Site, decided: Mapping[IsBroken, list[UsageRecord]]) -> None:
    """Check that each request is in usage or quarantine, once, by the rules that its batch was decided by."""
    records = [record for mine in decided.values() for record in mine]
    everyone = {(record.front_end, record.incarnation, record.sequence) for record in records}
    left_out = {place for is_broken, mine in decided.items() for place in broken(mine, is_broken)}
    assert left_out
    assert Counter(places_in(site, QUARANTINE)) == Counter(left_out)
    assert Counter(places_in(site, USAGE_EVENTS)) == Counter(everyone - left_out)
    created = {
        (record.front_end, record.incarnation, record.sequence)
        for record in records
        if record.action == "CreateQueue"
    }
    assert Counter(places_in(site, AUDIT_EVENTS)) == Counter(created - left_out)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)
    assert compare_sums(site.warehouse) == []
    assert verify_chains(InProcess(), site.warehouse).breaks == []


def front_end(name: str) -> FrontEnd:
    return FrontEnd(name, seed=1, besides=(context_of("CreateQueue", 1), context_of("CreateQueue", 0)))


@pytest.mark.parametrize(
    "spec", [QUARANTINE, AUDIT_EVENTS, USAGE_EVENTS, USAGE_HOURLY, LATENCY_HOURLY, USAGE_DAILY]
)
def test_a_batch_that_one_program_began_and_another_ends_is_by_the_rules_of_the_one_that_decided(
    tmp_path: Path, spec: TableSpec
) -> None:
    site, one, two = Site(tmp_path), front_end("a"), front_end("b")
    first = [one.block(60), two.block(50)]
    of_first = one.records + two.records
    twin = front_end("a")
    longer = [
        twin.block(60),
        twin.block(60),
    ]  # a copy of the disk that went on: same block, and other content
    site.ship(*first, first[1], longer[0])

    with program(are_sent), killed_before(spec):
        site.run()
    later = [one.block(70), two.block(40)]
    of_later = [record for record in one.records + two.records if record not in of_first]
    site.ship(*later, first[0], longer[1])
    with program(are_received):
        site.run()
        site.run()

    decided = are_received if spec is QUARANTINE else are_sent
    if decided is are_received:
        check(site, {are_received: of_first + of_later})
    else:
        check(site, {are_sent: of_first, are_received: of_later})


def left_by_a_kill(site: Site, one: FrontEnd) -> None:
    """Let a batch be decided, and its files not be committed to usage_events."""
    site.ship(one.block(200))
    with program(are_sent), killed_before(USAGE_EVENTS):
        site.run()


def files_gone(site: Site) -> None:
    for path in (site.root / "silver" / "usage_events").rglob("*.parquet"):
        path.unlink()


def noted_by_an_earlier_program(site: Site) -> None:
    table = site.warehouse.table(QUARANTINE)
    totals = table.note(silver.APP)["totals"]
    table.commit("test", 0, [], shared_notes={silver.APP: {"totals": totals}})


LOST = pytest.mark.parametrize("lose", [files_gone, noted_by_an_earlier_program])


@LOST
def test_what_was_decided_is_made_again_where_its_files_are_not_known(
    tmp_path: Path, lose: Callable[[Site], None]
) -> None:
    site, one = Site(tmp_path), front_end("a")
    left_by_a_kill(site, one)
    lose(site)

    with program(are_sent):
        site.run()

    check(site, {are_sent: one.records})


@LOST
def test_by_other_rules_nothing_is_made_again_and_that_is_told(
    tmp_path: Path, lose: Callable[[Site], None]
) -> None:
    site, one = Site(tmp_path), front_end("a")
    left_by_a_kill(site, one)
    lose(site)

    with (
        program(are_received),
        pytest.raises(SumsDiffer, match=r"batch 0 was decided by .*usage.rows \d+ and not"),
    ):
        site.run()
    has = site.warehouse.table(USAGE_EVENTS).last_batch(silver.APP)
    with program(are_sent):
        site.run()

    assert has == -1
    check(site, {are_sent: one.records})


def test_as_many_other_requests_in_quarantine_are_not_those_that_were_decided(tmp_path: Path) -> None:
    site, one = Site(tmp_path), front_end("a")
    site.ship(one.block(200))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for record in one.records:
        if record.category == "data":
            key = (record.message_count, record.payload_bytes, record.http_status)
            alike.setdefault(key, []).append(record.sequence)
    this, other, *_ = next(found for found in alike.values() if len(found) > 1)
    with program(lambda rows: pc.equal(rows.column("sequence"), this)), killed_before(USAGE_EVENTS):
        site.run()
    files_gone(site)

    with (
        program(lambda rows: pc.equal(rows.column("sequence"), other)),
        pytest.raises(SumsDiffer, match=r"other requests would go to silver\.quarantine: nothing more"),
    ):
        site.run()

    assert site.warehouse.table(USAGE_EVENTS).rows == 0


class Overtaken(InProcess):
    """After the tasks of its first job, and before what follows is committed, something else happens."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._acts = [act]

    def over(self, *arguments: Any) -> Answers:
        answers = super().over(*arguments)
        if self._acts:
            self._acts.pop()()
        return answers


def test_of_two_programs_that_refine_the_same_batch_one_decides_and_the_other_ends_it(tmp_path: Path) -> None:
    site, one = Site(tmp_path), front_end("a")
    site.ship(one.block(100))
    BronzeJob(InProcess(), site.warehouse, FileFeed(site.feed), clock=lambda: NOW).take(Summary())

    def decide() -> None:
        with program(are_sent), killed_before(AUDIT_EVENTS):
            silver.refine_batches(InProcess(), site.warehouse)

    with program(are_received):
        job = RefineJob(Overtaken(decide), site.warehouse, FileFeed(site.feed), clock=lambda: NOW)
        with pytest.raises(CommitConflict):
            job.refine(Summary())
        nothing = site.warehouse.table(AUDIT_EVENTS).rows
        job.reload()
        job.refine(Summary())

    assert nothing == 0
    check(site, {are_sent: one.records})


def test_a_run_goes_on_if_another_process_ends_the_batch_that_it_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), front_end("a")
    site.ship(one.block(100))
    commit, completed = Table.commit, list[None]()

    def overtaken(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is AUDIT_EVENTS and not completed:
            completed.append(None)
            assert complete_batch(site.warehouse) is not None
        return commit(table, *arguments, **named)

    monkeypatch.setattr(Table, "commit", overtaken)
    with program(are_sent):
        site.run()

    check(site, {are_sent: one.records})
