"""Push in a cell of two pushers, with TLS between all processes: each queue has an owner, then another one."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from harness.running_cell import CELL, RunningCell
from harness.waiting import eventually
from harness.webhooks import WebhookReceiver

from process.support import CellClient, bodies
from process.test_push import Held, metric, pushed_to, state_of
from quaymaster.net.certificates import CertificateAuthority

QUEUES = [f"orders-{number}" for number in range(6)]


def test_queues_go_to_another_pusher_when_theirs_is_killed_or_stopped(
    tmp_path: Path, receiver: WebhookReceiver
) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", CELL, days=10)

    def tls(name: str, role: str) -> Path:
        directory = authority.directory / "nodes" / name
        return directory if directory.exists() else authority.issue(name, [role], days=5).path

    roles = {"broker": 1, "metadata": 1, "manager": 1, "frontend": 1, "push": 2}
    settings = {"replicas": "1", "outbound_networks": "127.0.0.0/8"}
    with RunningCell.started(tmp_path, roles, settings=settings, tls=tls) as cell:
        client = CellClient(cell)
        first, second = cell["push-1"], cell["push-2"]
        sent: list[str] = []

        def send_all() -> None:
            sent.extend(message_id for queue in QUEUES for message_id in client.send(queue, bodies(5)))

        def all_pushed() -> bool:
            return all(client.counts(queue) == 0 for queue in QUEUES)

        for queue in QUEUES:
            client.create(queue, **pushed_to(receiver, PushTimeoutSeconds="2"))
        send_all()
        eventually(all_pushed)
        assert set(receiver.ids) == set(sent)
        eventually(lambda: metric(first, "queues") + metric(second, "queues") == len(QUEUES))
        eventually(lambda: metric(first, "queues") > 0 < metric(second, "queues"))
        eventually(lambda: {state_of(client, queue) for queue in QUEUES} == {"active"})

        held = Held(receiver)
        send_all()
        eventually(lambda: len(receiver.posts) > len(sent) - len(QUEUES) * 5)
        first.kill9()  # with calls under way
        held.release()
        eventually(lambda: metric(second, "queues") == len(QUEUES))
        eventually(all_pushed)

        first.launch()
        first.wait_until_ready()
        eventually(lambda: metric(first, "queues") + metric(second, "queues") == len(QUEUES))
        held = Held(receiver)
        send_all()
        assert second.child is not None
        os.kill(second.child.pid, signal.SIGSTOP)
        eventually(lambda: metric(first, "queues") == len(QUEUES))
        threading.Event().wait(10.0)  # what it had received is visible again, and another's by then
        held.release()
        eventually(all_pushed)
        os.kill(second.child.pid, signal.SIGCONT)
        eventually(lambda: metric(first, "queues") + metric(second, "queues") == len(QUEUES))
        send_all()
        eventually(all_pushed)

        assert set(receiver.ids) == set(sent)
        assert second.is_running
