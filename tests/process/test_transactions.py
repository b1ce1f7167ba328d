"""Transactions of real clients: the server, or the leader of a cell's journal, is killed between any two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.running_cell import RunningCell

from pyspark_quaymaster.client import Client as SinkClient
from pyspark_quaymaster.client import Patience, TransactionKey
from pyspark_quaymaster.credentials import Endpoint
from pyspark_quaymaster.errors import RequestRefused

from .support import CellClient, Client, bodies, kill_leaders

COUNT = 1_200
CALL = 300
PATIENCE = Patience(request_timeout_s=20.0, deadline_s=200.0)


class Sink:
    """Writes batches to a queue as a sink of Spark does, through requests that are tried again."""

    def __init__(self, env: Any, queue: str) -> None:
        endpoint = Endpoint(env.endpoint_url, env.region, env.access_key_id, env.secret_access_key)
        self.client = SinkClient(endpoint, PATIENCE)
        self.url = f"{env.endpoint_url}/{env.account_id}/{queue}"

    def stage(self, batch: int, name: str, all_bodies: list[str], start: int = 0) -> None:
        """Stage all messages from an index on."""
        for first in range(start, len(all_bodies), CALL):
            entries = [{"MessageBody": body} for body in all_bodies[first : first + CALL]]
            staged, is_done = self.client.stage_messages(
                self.url, TransactionKey("sink", batch), name, first, entries
            )
            assert (staged, is_done) == (first + len(entries), False)

    def commit(self, batch: int, *stages: tuple[str, int]) -> tuple[int, bool]:
        """Commit these stages."""
        return self.client.commit_transaction(self.url, TransactionKey("sink", batch), stages)

    def abort(self, batch: int) -> bool:
        """Give a batch up."""
        return self.client.abort_transaction(self.url, TransactionKey("sink", batch))


@pytest.mark.timeout(600)
def test_what_is_committed_is_there_once_though_the_server_is_killed_between_any_two_steps(
    tmp_path: Path,
) -> None:
    settings = {"snapshot_interval_s": "1", "segment_bytes_max": "1048576"}
    process = QuaymasterProcess(tmp_path / "data", settings=settings)
    process.start()

    sinks: list[Sink] = []

    def connected() -> Sink:
        sinks.append(Sink(process.env(), "orders"))
        return sinks[-1]

    def killed() -> Sink:
        process.kill9()
        process.start()
        return connected()

    def received() -> list[str]:
        client = Client(process)
        try:
            return client.take_all("orders")
        finally:
            client.close()

    try:
        client = Client(process)
        client.create("orders")
        client.close()
        first, second, third = (bodies(COUNT, text) for text in "abc")
        sink = connected()
        sink.stage(1, "task-0", first[:CALL])
        sink = killed()
        sink.stage(1, "task-0", first)  # from the beginning: what is there stays
        sink.stage(1, "task-1", second)
        sink.stage(1, "speculative", second[:CALL])
        sink.stage(2, "aborted", third)
        sink = killed()
        assert received() == []

        with pytest.raises(RequestRefused) as refused:
            sink.commit(1, ("task-0", COUNT), ("task-1", COUNT + 1))
        assert refused.value.code == "StageNotFound"
        assert sink.commit(1, ("task-0", COUNT), ("task-1", COUNT)) == (2 * COUNT, False)
        sink = killed()
        assert sink.commit(1, ("task-0", COUNT), ("task-1", COUNT)) == (2 * COUNT, True)
        assert not sink.abort(1)
        assert sink.abort(2)
        sink = killed()
        with pytest.raises(RequestRefused):
            sink.commit(2, ("aborted", COUNT))
        sink.stage(2, "task-0", third)
        assert sink.commit(2, ("task-0", COUNT)) == (COUNT, False)
        killed()

        assert received() == first + second + third
        killed()
        assert received() == []
    finally:
        for sink in sinks:
            sink.client.close()
        process.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.long)])
def test_what_is_committed_is_there_once_though_leaders_are_killed_between_any_two_steps(
    tmp_path: Path, count: int
) -> None:
    roles = {"manager": 1, "metadata": 1, "broker": 3, "frontend": 1}
    with RunningCell.started(tmp_path, roles, settings={"snapshot_interval_s": "1"}) as cell:
        cell.wait_until_whole()
        client = CellClient(cell)
        client.create("orders")
        client.close()
        sink = Sink(cell.environment("frontend-1"), "orders")
        batches = [bodies(CALL, text) for text in "abcde"[:count]]

        for number, batch in enumerate(batches):
            sink.stage(number, "task-0", batch)
            kill_leaders(cell)
            assert sink.commit(number, ("task-0", CALL))[0] == CALL
            kill_leaders(cell)
            assert sink.commit(number, ("task-0", CALL)) == (CALL, True)

        cell.wait_until_whole()
        client = CellClient(cell)
        assert client.take_all("orders") == [body for batch in batches for body in batch]
        client.close()
        sink.client.close()
