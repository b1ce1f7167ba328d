"""What was revoked ends within five seconds everywhere, also at a front end that is cut off from metadata.

A success is late if its answer came more than five seconds after the revocation was answered, and a little more for the
answer's own way. Of requests that were asked before only polls count: what a front end had done when it was paused it
may tell when it goes on. What is asked of it meanwhile it must refuse then.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandFailed, told_at_the_end

from .cell import ADMIN_PORTS, Cell
from .victims import USES_OF_EACH, WAYS, Uses, Victim

LATE_S = 5.0
"""After so long nothing succeeds any more."""
ON_ITS_WAY_S = 1.0
"""So long an answer may take to its client on a busy machine."""
WATCHED_S = 9.0
"""So long credentials are used after they were revoked."""
BEFORE_S = 1.5
AT_ONCE = 10
REVOCATIONS = int(os.environ.get("REVOCATIONS", "10"))
SEED = int(os.environ.get("REVOCATIONS_SEED", str(time.time_ns() % 1_000_000)))

pytestmark = pytest.mark.privileged


@contextmanager
def operated(cell: Cell, front_end: str = "frontend-2") -> Iterator[AdminClient]:
    """Give the admin API of a front end."""
    environment = cell.environment()
    host = cell.hosts.address(cell.member(front_end).host)
    connection = ServerConnection(
        "", environment.region, environment.access_key_id, environment.secret_access_key
    )
    with AdminClient(connection, f"http://{host}:{ADMIN_PORTS['frontend']}") as admin:
        yield admin
    told_at_the_end.clear()


def new_victim(cell: Cell, name: str, way: str) -> Victim:
    """Return a victim; while the cell recovers from the last fault, it is tried with another name."""
    deadline = time.monotonic() + PATIENCE_S
    for attempt in count():
        try:
            with operated(cell) as admin:
                return Victim(cell.environment(), f"{name}-{attempt}", way, admin, cell.addresses[1])
        except (CommandFailed, OSError, HTTPException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    raise AssertionError("it is tried again and again")


def revoke_by_itself(cell: Cell, victim: Victim) -> tuple[float, bool] | None:
    """Return when it was answered that it is revoked, and whether front ends were behind; None: it may not be."""
    try:
        with operated(cell) as admin:
            answer = victim.revoke(admin)
    except CommandFailed:
        return None
    return time.monotonic(), "behind" in answer


@pytest.mark.timeout(300)
def test_a_front_end_without_metadata_serves_until_something_is_revoked_and_then_nothing(
    tmp_path: Path,
) -> None:
    with Cell.started(tmp_path) as cell:
        cut_off, healthy = cell.addresses
        ada, bob = new_victim(cell, "ada", "key disabled"), new_victim(cell, "bob", "key deleted")
        operations: tuple[Any, ...] = ("send", "get url", "poll")
        uses = [Uses(one, cut_off, "key", operation) for one in (ada, bob) for operation in operations]
        assuming = Uses(bob, cut_off, "key", "assume")
        fine = [Uses(bob, healthy, "key", operation) for operation in ("send", "assume")]
        until(lambda: all(use.succeeded for use in (*uses, assuming, *fine) if use.operation != "poll"))
        cut_off_front_end(cell)
        # Nothing was revoked. But what is made of old permissions would be good elsewhere, for long.
        until(lambda: time.monotonic() - assuming.succeeded[-1][1] > LATE_S)
        assert assuming.failed
        served_s = time.monotonic()
        until(lambda: all(use.later_than(served_s) for use in (*uses, *fine) if use.operation != "poll"))

        with operated(cell) as admin:
            answer = ada.revoke(admin)
        late_s = time.monotonic() + LATE_S
        assert "frontend-1" in answer["behind"]
        time.sleep(WATCHED_S)

        # Nothing is answered there, to others either: it cannot be known what else it does not know.
        assert [str(use) for use in (*uses, assuming) if use.later_than(late_s)] == []
        assert all(use.later_than(late_s) for use in fine)

        cell.heal("cut off from metadata")
        until(lambda: all(use.later_than(late_s) for use in (uses[3], uses[4], assuming)))
        assert [str(use) for use in uses[:3] if use.later_than(late_s)] == []
        with operated(cell) as admin:
            assert "behind" not in bob.revoke(admin)
        for use in (*uses, assuming, *fine):
            use.stop()
        for use in (*uses, assuming, *fine):
            use.join()


@pytest.mark.timeout(0)
def test_nothing_works_five_seconds_after_it_was_revoked_whatever_goes_wrong(tmp_path: Path) -> None:
    rng = Random(SEED)
    late: list[str] = []
    counts: Counter[str] = Counter()
    names = list(FAULTS)
    rng.shuffle(names)
    done = 0
    with Cell.started(tmp_path) as cell:
        try:
            while done < REVOCATIONS:
                name = names[done // AT_ONCE % len(names)]
                found = one_batch(cell, name, done, rng, counts)
                late += found
                done += AT_ONCE
                print(f"{done} {name}: {found or 'nothing late'}", flush=True)
        finally:
            counts["processes that ended by themselves"] = sum(cell.ends.values())
            told = "\n".join(f"{number:5} {what}" for what, number in sorted(counts.items()))
            print(f"seed {SEED}, {done} revocations\n{told}\nlate: {late}", flush=True)
        assert not cell.ends, cell.ends
    assert not late, f"seed {SEED}: {late}"


def one_batch(cell: Cell, fault: str, number: int, rng: Random, counts: Counter[str]) -> list[str]:
    """Revoke a batch during a fault; return the uses that succeeded late."""
    ways = [rng.choice(list(WAYS)) for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        victims = list(
            pool.map(partial(new_victim, cell), [f"v-{number + at}" for at in range(AT_ONCE)], ways)
        )
        uses = [
            Uses.chosen(victim, cell.addresses[at % 2], rng)
            for victim in victims
            for at in range(USES_OF_EACH)
        ]
        until(lambda: all(use.succeeded for use in uses if use.operation != "poll"))
        time.sleep(BEFORE_S)
        FAULTS[fault].begin(cell)
        answers = list(pool.map(partial(revoke_by_itself, cell), victims))
        uses += [Uses.chosen(victim, rng.choice(cell.addresses), rng) for victim in victims]
    revoked = {victim: answer[0] for victim, answer in zip(victims, answers, strict=True) if answer}
    time.sleep(FAULTS[fault].end_s)
    FAULTS[fault].end(cell)
    time.sleep(WATCHED_S - FAULTS[fault].end_s)
    for use in uses:
        use.stop()
    for member in cell.members:
        member.resume()
    cell.hosts.heal()
    late: list[str] = []
    for use in uses:
        use.join()
        at_s = revoked.get(use.victim)
        if at_s is None:
            continue
        counts[f"use: {use.operation} with {use.signs}"] += 1
        times = [
            times
            for times in use.later_than(at_s + LATE_S + ON_ITS_WAY_S)
            if use.operation == "poll" or times[0] > at_s
        ]
        if times:
            late.append(
                f"{fault}, {use}: asked and answered {[round(one - at_s, 1) for one in times[0]]} s after"
            )
    counts[f"fault: {fault}"] += 1
    counts["with front ends behind"] += sum(answer[1] for answer in answers if answer)
    counts["not answered"] += answers.count(None)
    counts.update(f"way: {victim.way}" for victim in revoked)
    cell.heal(fault)
    cell.wait_until_ready()
    with operated(cell) as admin:
        for victim in victims:
            victim.delete(admin)
    return late


class Fault(NamedTuple):
    """What goes wrong from before the revocations on, and what ends while they are watched."""

    begin: Callable[[Cell], None]
    end: Callable[[Cell], None] = lambda cell: None
    end_s: float = 6.5
    """So long after the revocations."""


def _kill(*members: str) -> Callable[[Cell], None]:
    def kill(cell: Cell) -> None:
        for member in members:
            cell.member(member).kill9()

    return kill


def _pause(*members: str) -> Callable[[Cell], None]:
    def pause(cell: Cell) -> None:
        for member in members:
            cell.member(member).pause()

    return pause


def _resume(cell: Cell) -> None:
    for member in cell.members:
        member.resume()


def _restart(*members: str) -> Callable[[Cell], None]:
    def restart(cell: Cell) -> None:
        for member in members:
            cell.member(member).kill9()
            cell.member(member).launch()

    return restart


def cut_off_front_end(cell: Cell) -> None:
    """The first front end has no metadata node left."""
    cell.member("metadata-1").pause()
    cell.hosts.cut("services-1", "services-2")


def isolate_front_end(cell: Cell) -> None:
    """It reaches no broker and no etcd either."""
    cut_off_front_end(cell)
    for member in cell.members:
        if member.role in ("broker", "etcd"):
            cell.hosts.cut("services-1", member.host)


def _both(*each: Callable[[Cell], None]) -> Callable[[Cell], None]:
    def begin(cell: Cell) -> None:
        for one in each:
            one(cell)

    return begin


BROKERS = ("broker-1", "broker-2", "broker-3")
FAULTS: dict[str, Fault] = {
    "nothing": Fault(lambda cell: None),
    "metadata killed": Fault(_kill("metadata-1")),
    "metadata paused": Fault(_pause("metadata-1"), _resume),
    "broker killed": Fault(_kill("broker-2")),
    "broker paused": Fault(_pause("broker-2"), _resume),
    "front end killed": Fault(_restart("frontend-1")),
    "front end paused": Fault(_pause("frontend-1"), _resume),
    "front end cut off": Fault(cut_off_front_end),
    "front end isolated": Fault(isolate_front_end),
    "front end cut off, a broker restarted": Fault(_both(cut_off_front_end, _restart("broker-2"))),
    "front end cut off, all brokers restarted": Fault(cut_off_front_end, _restart(*BROKERS), end_s=2.5),
    "front end cut off, a broker paused": Fault(
        _both(cut_off_front_end, _pause("broker-2")), lambda cell: cell.member("broker-2").resume()
    ),
    "front end cut off and paused": Fault(
        _both(cut_off_front_end, _pause("frontend-1")), lambda cell: cell.member("frontend-1").resume()
    ),
    "metadata killed, a broker paused": Fault(_both(_kill("metadata-1"), _pause("broker-2")), _resume),
}


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
