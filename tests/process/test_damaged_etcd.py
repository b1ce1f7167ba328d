"""A bit that flips in etcd's directory, or a file of it that is gone: refused, repaired or harmless, never believed.

By etcd, which then does not start, or by the server. Here a sample is tried; `make damages` tries everything.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.etcd import EtcdCluster
from harness.load import SQSConnection
from harness.operators import operate
from harness.process import SOCKETS, QuaymasterProcess
from harness.running_cell import RunningCell
from harness.waiting import eventually

from quaymaster.cli.local.etcd import is_etcd_ready

from .damages import SETTINGS, Damage, damages_of, sample_size, why_refused
from .support import EXIT_UNUSABLE, CellClient, Client, bodies

SEED = 20261123
FLIPS_PER_FILE = 40
AT_ONCE = 2
ETCD_WAIT_S = 60.0
"""An etcd that has no leader after so long is one that does not start."""
PREFIX = "quaymaster/damaged/"
DATABASE = Path("member/snap/db")
REVISION_BEFORE, KEY_BEFORE = 19, 2
"""So many bytes before a key its row begins with 17 bytes of revision; then the key's tag and length."""


class RowDamage(NamedTuple):
    """A bit of the newest row of a key in etcd's database, counted from where the key begins in it.

    The database has a row once or more, in pages that count and in pages that do not: `copy` says which.
    """

    key: bytes
    copy: int
    place: int

    def do(self, member: Path) -> None:
        """Flip it."""
        at = places_of(self.key, member)[self.copy] + self.place
        Damage(str(DATABASE), at).do(member)


def places_of(key: bytes, member: Path) -> list[int]:
    """Return where in etcd's database a key stands in its newest row."""
    content = (member / DATABASE).read_bytes()
    found = {
        one.start(): content[one.start() - REVISION_BEFORE : one.start() - KEY_BEFORE]
        for one in re.finditer(re.escape(key), content)
    }
    return [place for place, revision in found.items() if revision == max(found.values())]


class EtcdWorld:
    """A server whose metadata is in an etcd with one member, both stopped; and what is true of them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.data = directory / "data"
        with EtcdCluster.started(directory) as etcd:
            self.etcd_data = etcd.members[0].data
            process = QuaymasterProcess(self.data, settings=_settings(etcd))
            process.start()
            try:
                with closing(Client(process)) as client:
                    for queue in ("kept", "gone"):
                        client.create(queue)
                        client.send(queue, bodies(20, queue))
                    assert client.call("DeleteQueue", "gone").status == 200
                    attributes = {"VisibilityTimeout": "77"}
                    assert client.call("SetQueueAttributes", "kept", Attributes=attributes).status == 200
                self.refused_keys = []
                for change in ("delete", "disable"):
                    made = operate(process, "POST", "keys", {})
                    self.refused_keys.append((str(made["access_key_id"]), str(made["secret_access_key"])))
                    if change == "delete":
                        operate(process, "DELETE", f"keys/{made['access_key_id']}")
                    else:
                        operate(process, "POST", f"keys/{made['access_key_id']}/disable", {})
                before = (self.data / "store.witness").read_bytes()
                with closing(Client(process)) as client:
                    client.create("last")
                eventually(lambda: (self.data / "store.witness").read_bytes() != before, "the server looks")
                process.stop()
            finally:
                if process.is_running:
                    process.kill9()

    def outcome(self, damage: Damage | RowDamage, directory: Path) -> str:
        """Harm a copy of etcd's directory, start both, and say what came of that.

        Raises AssertionError when something deleted or disabled is back, or something acknowledged is lost.
        """
        directory.mkdir()
        shutil.copytree(self.data, directory / "data", ignore=SOCKETS)
        shutil.copytree(self.etcd_data, directory / self.etcd_data.name)
        damage.do(directory / self.etcd_data.name)
        etcd = EtcdCluster(directory)
        process = QuaymasterProcess(directory / "data", settings=_settings(etcd))
        try:
            etcd.launch(0)
            if not _starts(etcd):
                return "refused by etcd"
            refusal = why_refused(process)
            if refusal is not None:
                assert f"ended with exit code {EXIT_UNUSABLE} " in refusal, (damage, refusal)
                assert "server not started reason=" in process.log(), (damage, process.log())
                assert "Traceback" not in process.log(), (damage, process.log())
                return "refused"
            self._check(process, damage)
            return "served"
        finally:
            if process.is_running:
                process.kill9()
            etcd.stop()
            shutil.rmtree(directory)

    def _check(self, process: QuaymasterProcess, damage: Damage | RowDamage) -> None:
        with closing(Client(process)) as client:
            assert client.call("GetQueueUrl", QueueName="gone").status == 400, damage
            attributes = client.call("GetQueueAttributes", "kept", AttributeNames=["VisibilityTimeout"])
            assert attributes.fields["Attributes"] == {"VisibilityTimeout": "77"}, (damage, attributes)
            assert client.take_all("kept") == bodies(20, "kept"), damage
        for key_id, secret in self.refused_keys:
            key = process.env()._replace(access_key_id=key_id, secret_access_key=secret)
            with closing(SQSConnection(key, process.listen_port)) as connection:
                assert connection.call("GetQueueUrl", {"QueueName": "kept"}).status == 403, damage


def _settings(etcd: EtcdCluster) -> dict[str, str]:
    return SETTINGS | {
        "coordination": "etcd",
        "etcd_endpoints": ",".join(etcd.endpoints),
        "etcd_prefix": PREFIX,
    }


def _starts(etcd: EtcdCluster) -> bool:
    deadline_s = time.monotonic() + ETCD_WAIT_S
    while not is_etcd_ready(etcd.members[0], None):
        if not etcd.is_running(0) or time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def outcomes_of(
    world: EtcdWorld, damages: Sequence[Damage | RowDamage], directory: Path
) -> dict[Damage | RowDamage, str]:
    """Try damages, each on copies of its own."""
    directories = [directory / str(number) for number in range(len(damages))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = dict(zip(damages, pool.map(world.outcome, damages, directories), strict=True))
    print(f"{len(damages)} damages of etcd, as {damages[0]}: {dict(Counter(outcomes.values()))}")
    return outcomes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> EtcdWorld:
    """What is copied before it is harmed."""
    return EtcdWorld(tmp_path_factory.mktemp("world") / "whole")


@pytest.mark.timeout(14_400)
def test_no_damage_of_etcds_only_member_is_believed(world: EtcdWorld, tmp_path: Path) -> None:
    everything = Damage("member", None)
    found = damages_of(world.etcd_data, random.Random(SEED), FLIPS_PER_FILE)
    others = [one for one in found if one != everything]
    size = sample_size()
    sample = random.Random(SEED).sample(others, min(size, len(others))) if size else others

    outcomes = outcomes_of(world, [everything, *sample], tmp_path)

    assert outcomes[everything] == "refused"


@pytest.mark.timeout(900)
def test_a_bit_that_flips_in_a_row_is_refused_by_the_server(world: EtcdWorld, tmp_path: Path) -> None:
    disabled, _ = world.refused_keys[-1]
    key = f"{PREFIX}/access_keys/{disabled}".encode()
    copies = range(len(places_of(key, world.etcd_data)))
    places = {"root": len(PREFIX) - 2, "key": len(key) - 1, "value": len(key) + 30}

    for name, place in places.items():
        damages = [RowDamage(key, copy, place) for copy in copies]
        found = outcomes_of(world, damages, tmp_path)
        assert "refused" in found.values(), name


@pytest.mark.timeout(900)
def test_brokers_with_journals_refuse_an_etcd_that_was_emptied(tmp_path: Path) -> None:
    roles = {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1}
    with RunningCell.started(tmp_path, roles, settings={"usage": "false"}) as cell:
        with closing(CellClient(cell)) as client:
            eventually(lambda: client.call("CreateQueue", QueueName="kept").status == 200)
            client.send("kept", bodies(10, "kept"))
        for process in cell.processes.values():
            process.kill9()
        member = cell.etcd.members[0].data
        cell.etcd.kill(0)
        member.rename(tmp_path / "kept-etcd")
        cell.etcd.start(0)
        for process in cell.processes.values():
            process.launch()
        for process in (*cell.of_role("broker"), *cell.of_role("metadata")):
            assert process.ended_with() == EXIT_UNUSABLE
            assert "The metadata store is not the one that" in process.log()
            assert "Traceback" not in process.log()

        for process in cell.processes.values():
            process.kill9()
        cell.etcd.kill(0)
        shutil.rmtree(member)
        (tmp_path / "kept-etcd").rename(member)
        cell.etcd.start(0)
        for process in cell.processes.values():
            process.launch()
        for process in cell.processes.values():
            process.wait_until_ready()
        cell.wait_until_whole()
        with closing(CellClient(cell)) as client:
            assert client.take_all("kept") == bodies(10, "kept")
