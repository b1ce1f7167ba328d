"""Simulated cells keep every rule under every fault, and each planted bug is caught."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quaymaster.core.queues.record_payloads import PAIR
from quaymaster.core.values.commands.decided import Taken, TakenOutcome
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import Record, RecordType, encode_batch
from sim.__main__ import main
from sim.bugs import BUGS
from sim.cell import Outcome, run_seed, tell
from sim.kernel import MS, Kernel, Violation
from sim.log_checker import DEPOSED_US, LogChecker
from sim.mutants import hunt
from sim.mutants import main as print_hunts
from sim.pinned import CAUGHT_BY
from sim.queue_checker import Delivery, QueueChecker, QueueKind
from sim.replica import Replica
from sim.store import JournalKey

BLOCKS = 9
SEEDS = int(os.environ.get("SOAK_RUNS", "0")) or 2
"""Seeds of each block. A number, not a time: what is tried must not depend on how fast the machine is."""
FRUITLESS_MAX = 4
"""In some runs no send is acknowledged. A block in which none was in any of its seeds takes so many more at most."""
MEMBERS = ("a@1", "b@2", "c@3")
QUEUE = 5
HUNTED_SEEDS = 30
"""From the kept seed on, until one catches the bug: another draw anywhere makes another run of every seed."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_cells_keep_their_rules_under_faults_and_recover_when_healed(block: int) -> None:
    acknowledged = 0

    for number, seed in enumerate(range(block, block + (SEEDS + FRUITLESS_MAX) * BLOCKS, BLOCKS)):
        if number >= SEEDS and acknowledged:
            break
        outcome = run_seed(seed)

        assert outcome.violation is None, (
            f"PYTHONPATH=tests python -m sim --seed {seed} --story: {outcome.violation}"
        )
        acknowledged += outcome.acked_sends
    assert acknowledged > 0, "nothing was tried"


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_a_planted_bug_is_caught(bug: str) -> None:
    outcome, _, _ = hunt(bug, seed0=CAUGHT_BY[bug], seeds_max=HUNTED_SEEDS, jobs=1)

    assert outcome is not None, BUGS[bug].what


def test_what_another_process_found_is_told_whole() -> None:
    outcome, _, _ = hunt("earlyack", seed0=CAUGHT_BY["earlyack"], seeds_max=HUNTED_SEEDS, jobs=1)
    assert outcome is not None
    found = outcome.violation
    assert found is not None

    told = pickle.loads(pickle.dumps(found))

    assert (str(told), told.invariant, told.offset) == (str(found), found.invariant, found.offset)


def test_a_seed_gives_the_same_run_again() -> None:
    def run() -> Outcome:
        return run_seed(16)  # a short one, with move tasks

    assert run() == run()


def test_a_story_tells_the_events_before_a_violation() -> None:
    story = tell(0, bugs=["send-on-received"], last=2)

    *events, last = story.splitlines()
    assert last.startswith("VIOLATION I7: a send is acknowledged")
    assert "about offset" in events[0]
    assert any("appends" in line for line in events)


def test_the_command_counts_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    found = main(["--seed", "1"])

    assert found == 0
    assert "1 seeds" in capsys.readouterr().out


def test_seeds_give_the_same_runs_whatever_order_sets_have() -> None:
    def run(hash_seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "sim", "--hours", "0.05", "--seed0", "102"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "tests"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        return re.findall(r"[\d,]+ (?:seeds|events|epochs|acknowledged sends|deliveries)", done.stdout)

    first, second = run("1"), run("2")

    assert first == second
    assert len(first) == 5


def test_the_command_names_the_seed_that_found_something(capsys: pytest.CaptureFixture[str]) -> None:
    found = main(["--seed", "0", "--bug", "send-on-received"])

    assert found == 1
    assert "seed 0 after" in capsys.readouterr().out


def test_the_hunt_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    missed = print_hunts(["earlyack", "--seeds-max", "20"])

    assert missed == 0
    assert "1 caught, 0 missed" in capsys.readouterr().out


def test_a_message_may_outlive_its_retention_only_while_its_leader_lets_nothing_expire() -> None:
    def received_after(age_ms: int) -> None:
        checker.delivered(
            1, [Delivery(1, 1, next(counts), 7, 1_000 + age_ms, 0)], asked_us=0, now_us=age_ms * MS
        )

    counts = itertools.count(1)
    checker = QueueChecker([QueueKind(1, "short", journal=3, retention_ms=4_000)])
    checker.send_asked(1, 1, group=0, dedup=0, delay_ms=0, now_us=0)
    checker.send_acked(1, 1, 1, 0, sent_ms=1_000)

    checker.look_at_hold(3, 7, is_held=True, before_ms=5_500, now_ms=5_600)
    received_after(5_000)
    checker.look_at_hold(3, 7, is_held=False, before_ms=6_400, now_ms=6_500)
    received_after(5_500)

    for age_ms in (4_400, 5_501):
        with pytest.raises(Violation, match=f"I21: message 1 was received {age_ms} ms after it was sent"):
            received_after(age_ms)


def test_a_receive_is_not_answered_late_when_another_broker_has_led_unless_its_record_is_committed() -> None:
    def receive(epoch: int) -> TakenOutcome:
        return TakenOutcome(epoch, [Taken(7, 1, 0, 0, 0)], [], unfinished=False)

    def lead(*epochs: tuple[int, str]) -> LogChecker:
        key = JournalKey(1)
        key.put(JournalConfiguration(1, "a@1", MEMBERS, MEMBERS, activated=True), 1)
        for epoch, leader in epochs:
            key.put(JournalConfiguration(epoch, leader, MEMBERS, MEMBERS, activated=False), 1)
            key.put(JournalConfiguration(epoch, leader, MEMBERS, MEMBERS, activated=True), 1)
        kernel = cast(Kernel, SimpleNamespace(now_us=DEPOSED_US + 1))
        return LogChecker(kernel, key, clock_error_ms=0, clock_drift=0.0, is_measured=True)

    def with_record(queue_id: int) -> Replica:
        record = Record(RecordType.RECEIVE, 0, queue_id, 0, 0, 0, 0, PAIR.pack(7, 1))
        batch = encode_batch([record], epoch=1, base_offset=0, time_ms=0, floor=0, previous_chain=0)
        return cast(
            Replica, SimpleNamespace(member="a@1", host=SimpleNamespace(resumed_us=0), batches=[batch])
        )

    a = with_record(QUEUE + 1)

    lead().on_received(a, QUEUE, receive(1))
    lead((2, "a@1")).on_received(a, QUEUE, receive(1))
    lead((2, "b@2"), (3, "a@1")).on_received(a, QUEUE, receive(3))

    for epochs in ([(2, "b@2")], [(2, "b@2"), (3, "a@1")], [(2, "a@1"), (3, "b@2")]):
        checker = lead(*epochs)
        checker.ends, checker.chains = [1], [0]
        checker.on_received(with_record(QUEUE), QUEUE, receive(1))
        for node, outcome in (
            (a, receive(1)),
            (with_record(QUEUE), TakenOutcome(1, [], [], unfinished=False)),
        ):
            with pytest.raises(Violation, match="I27: a@1 answers a receive in epoch 1, long after epoch"):
                checker.on_received(node, QUEUE, outcome)
        checker.ends, checker.chains = [], []
        with pytest.raises(Violation, match="I27"):
            checker.on_received(with_record(QUEUE), QUEUE, receive(1))
