"""Blocks of ports: each has one holder, in this process or another, and is free when its last holder has ended."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.process import free_port
from harness.waiting import PATIENCE_S

from quaymaster.cli.local import ports as local_ports
from quaymaster.cli.local.ports import (
    BLOCK_PORTS,
    EPHEMERAL_USUAL,
    FIRST,
    NoPorts,
    PortBlock,
    block_starts,
    ephemeral_ports,
    ports_of_this_process,
)

HOLDS_A_BLOCK = """
import sys
from quaymaster.cli.local.ports import PortBlock
block = PortBlock.hold()
print(*block.free(), flush=True)
sys.stdin.read()
"""
WAITS = "import sys; print('here', flush=True); sys.stdin.read()"


@pytest.fixture
def block() -> Iterator[PortBlock]:
    held = PortBlock.hold()
    yield held
    held.close()


def holdable(block: PortBlock) -> list[int]:
    """Return ports of a block that blocks within it can begin with: ended connections keep some for a minute."""
    inner = [PortBlock.join(port) for port in block.candidates]
    for held in inner:
        if held is not None:
            held.close()
    return [held.first for held in inner if held is not None]


def child(program: str, **options: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        close_fds=options.get("close_fds", True),
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_processes_that_ask_at_once_are_given_different_ports() -> None:
    holders = [child(HOLDS_A_BLOCK) for _ in range(6)]
    try:
        given = [list(map(int, first_line(one).split())) for one in holders]
    finally:
        for one in holders:
            end(one)

    assert all(given)
    assert len({port for ports in given for port in ports}) == sum(map(len, given))


def test_a_block_is_held_until_the_last_process_that_shares_it_has_ended(block: PortBlock) -> None:
    # Within a block that is ours, so that nobody else takes it in between.
    first = holdable(block)[0]
    inner = PortBlock.join(first)
    assert inner is not None
    before = child(WAITS, close_fds=False)
    inner.share()
    after = child(WAITS, close_fds=False)
    assert [first_line(before), first_line(after)] == ["here\n", "here\n"]

    inner.close()
    while_shared = PortBlock.join(first)
    end(after)
    when_ended = PortBlock.join(first)
    end(before)

    assert while_shared is None
    assert when_ended is not None
    when_ended.close()


def test_a_block_that_was_had_before_is_waited_for(block: PortBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = holdable(block)[:2]
    monkeypatch.setattr(local_ports, "block_starts", lambda ephemeral: ours)
    monkeypatch.setattr(local_ports, "OWN_PATIENCE_S", PATIENCE_S)
    before = PortBlock.join(ours[1])
    assert before is not None
    # As the last child of a process that was stopped: it lets go a moment later.
    ends = threading.Timer(0.1, before.close)
    ends.start()

    again = PortBlock.hold(ours[1])

    ends.join()
    assert again.first == ours[1]
    again.close()


def test_the_same_block_is_given_again_while_nobody_has_it(
    block: PortBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = holdable(block)[:3]
    monkeypatch.setattr(local_ports, "block_starts", lambda ephemeral: ours)
    monkeypatch.setattr(local_ports, "OWN_PATIENCE_S", 0.01)

    one = PortBlock.hold(ours[1])
    two = PortBlock.hold(ours[1])
    three = PortBlock.hold(12)
    with pytest.raises(NoPorts, match="All 3 blocks of ports from"):
        PortBlock.hold()
    one.close()
    again = PortBlock.hold(ours[1])

    assert one.candidates[0] == ours[1] + 1
    assert sorted([two.first, three.first]) == [ours[0], ours[2]]
    assert again.first == ours[1]
    for held in (two, three, again):
        held.close()


def test_a_port_with_a_listener_is_left_out(block: PortBlock) -> None:
    taken = block.candidates[1]

    with socket.create_server(("127.0.0.1", taken)):
        free = list(block.free())

    assert taken not in free
    assert {block.candidates[0], block.candidates[2]} <= set(free)


def test_a_process_is_given_each_port_once_over_as_many_blocks_as_it_needs() -> None:
    given = ports_of_this_process()

    ports = list(itertools.islice(given, 2 * BLOCK_PORTS))
    given.close()

    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("ephemeral", [EPHEMERAL_USUAL, range(15_050, 40_000), range(1_024, 30_000)])
def test_no_block_reaches_into_the_ports_of_outgoing_connections(ephemeral: range) -> None:
    starts = block_starts(ephemeral)

    ports = {port for start in starts for port in range(start, start + BLOCK_PORTS)}
    assert len(starts) >= 50
    assert len(ports) == len(starts) * BLOCK_PORTS
    assert ports.isdisjoint(ephemeral)
    assert min(ports) >= FIRST
    assert max(ports) < 65_536


def test_where_outgoing_connections_have_all_ports_blocks_are_among_them() -> None:
    assert block_starts(range(1, 65_536)) == block_starts(range(1, 2))


def test_the_system_says_which_ports_outgoing_connections_get(tmp_path: Path) -> None:
    said = tmp_path / "range"
    said.write_text("20000\t30000\n")

    assert ephemeral_ports(said) == range(20_000, 30_001)
    assert ephemeral_ports(tmp_path / "none") == EPHEMERAL_USUAL
    said.write_text("?")
    assert ephemeral_ports(said) == EPHEMERAL_USUAL


def test_threads_that_ask_at_once_get_different_ports() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: free_port(), range(300)))

    assert len(set(found)) == 300
