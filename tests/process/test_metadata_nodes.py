"""The real `quaymaster run metadata`, killed while front ends ask it."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path

from harness.etcd import EtcdCluster
from harness.forked_programs import Program, start_program
from harness.process import free_port
from harness.waiting import PATIENCE_S

from quaymaster.core.values.errors import NotNow
from quaymaster.metadata.keys.accounts import AccessKey
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.metadata.service import MetadataService
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.node.cell.metadata_roles import start_remote_metadata
from quaymaster.node.cell.transport import Transport
from quaymaster.settings import load_settings

ACCOUNT = "000000000000"
START_TIMEOUT_S = PATIENCE_S


class MetadataProcess:
    """A metadata node in a process of its own."""

    def __init__(self, directory: Path, name: str, etcd: EtcdCluster) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self._log = directory / f"{name}.log"
        self._words = [
            *("run", "metadata"),
            *("--data", str(directory / name), "--admin", f"127.0.0.1:{self.admin_port}"),
            *("--set", "coordination=etcd", "--set", f"etcd_endpoints={','.join(etcd.endpoints)}"),
            *("--set", f"node={name}", "--set", f"metadata_listen=127.0.0.1:{self.port}"),
        ]
        self.child: Program | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.child = start_program(self._words, environment=os.environ, out=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            assert self.child.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def end(self, signal_number: int) -> int:
        assert self.child is not None
        self.child.send_signal(signal_number)
        with suppress(ProcessLookupError):
            return self.child.wait(timeout=PATIENCE_S)
        return 0


@contextmanager
def metadata_nodes(directory: Path) -> Iterator[list[MetadataProcess]]:
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster.started(directory))
        nodes = [MetadataProcess(directory, name, etcd) for name in ("one", "two")]
        for node in nodes:
            node.start()
            stack.callback(node.end, signal.SIGKILL)
        yield nodes


def test_front_end_goes_on_whichever_node_is_killed_or_stopped(tmp_path: Path) -> None:
    async def scenario(nodes: list[MetadataProcess]) -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            settings = load_settings(
                flags={
                    "node": "a",
                    "metadata_nodes": ",".join(f"127.0.0.1:{node.port}" for node in nodes),
                    "metadata_timeout_ms": 4_000,
                },
                environment={},
            )
            provider = FileKeyProvider(tmp_path / "keys")
            front_end = await start_remote_metadata(Transport(settings, "frontend"), stack, provider)
            made = []
            for node in nodes:
                await asyncio.to_thread(node.end, signal.SIGKILL)
                made.append(await create_key(front_end))
                await asyncio.to_thread(node.start)
            assert nodes[0].child is not None
            nodes[0].child.send_signal(signal.SIGSTOP)  # takes requests, answers nothing
            made.append(await create_key(front_end))
            nodes[0].child.send_signal(signal.SIGCONT)

            for key in made:
                assert front_end.access_key(key.access_key_id) == key
            stored = {key.access_key_id for key in front_end.accounts.list_access_keys(ACCOUNT)}
            assert stored >= {key.access_key_id for key in made}

    with metadata_nodes(tmp_path) as nodes:
        asyncio.run(scenario(nodes))
        assert nodes[1].end(signal.SIGTERM) == 0


async def create_key(front_end: MetadataService) -> AccessKey:
    """Create an access key as an operator does, who tries again after a 503."""
    while True:
        with suppress(NotNow):
            return await front_end.accounts.create_access_key(ACCOUNT, "app")
        await asyncio.sleep(0.1)


def test_key_created_at_one_front_end_is_known_at_once_at_another_that_asks_another_node(
    tmp_path: Path,
) -> None:
    async def scenario(nodes: list[MetadataProcess]) -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            provider = FileKeyProvider(tmp_path / "keys")
            one, two = [
                await start_remote_metadata(
                    Transport(
                        load_settings(
                            flags={"node": f"f{node.port}", "metadata_nodes": f"127.0.0.1:{node.port}"},
                            environment={},
                        ),
                        "frontend",
                    ),
                    stack,
                    provider,
                )
                for node in nodes
            ]
            for number in range(100):
                maker, user = (one, two) if number % 2 else (two, one)
                key = await maker.accounts.create_access_key(ACCOUNT, f"app-{number}")

                assert await when_known(lambda user=user, key=key: user.access_key(key.access_key_id)) == key  # type: ignore[misc]

    with metadata_nodes(tmp_path) as nodes:
        asyncio.run(scenario(nodes))
