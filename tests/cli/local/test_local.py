"""`quaymaster local` over stand-ins for the roles: what it starts, says, refuses and stops."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import standin_role
from harness.command_line import Result, Run
from harness.etcd import etcd_or_skip
from harness.waiting import PATIENCE_S

from cli.local.test_local_ports import holdable
from quaymaster.cli.local import cluster as local_cluster
from quaymaster.cli.local import commands as local
from quaymaster.cli.local import ports as local_ports
from quaymaster.cli.local import start as local_start
from quaymaster.cli.local import status as local_status
from quaymaster.cli.local.cluster import locked, prepare_directory, read_cluster
from quaymaster.cli.local.plan import BLOCK, ClusterPlan, ProcessId, Programs
from quaymaster.cli.local.ports import PortBlock
from quaymaster.cli.local.processes import Condition, condition, stop
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import read_client_file
from quaymaster.cli.shared.failures import EXIT_NO_SERVER, EXIT_REFUSED, EXIT_USAGE, NoServer, WrongUsage
from quaymaster.cli.shared.tools import find_haproxy
from quaymaster.node.children import console_child, console_extra
from quaymaster.node.workers import crew

Local = Callable[..., Result]
NAMES = ["etcd", "broker-1", "broker-2", "metadata-1", "manager-1", "frontend-1", "frontend-2"]
FEW = ("--port", "0", "--brokers", "2", "--metadata", "1", "--managers", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def cluster(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """`cluster("up", ...)` runs a subcommand on one directory; whatever runs is stopped in the end."""
    etcd = etcd_or_skip()
    haproxy = find_haproxy()

    async def led(plan: ClusterPlan) -> bool:
        return True

    def programs(*, needs_cell: bool) -> Programs:
        standin = (sys.executable, standin_role.__file__)
        return Programs(standin, str(etcd), str(haproxy) if haproxy is not None else None, 64)

    monkeypatch.setattr(local, "_programs", programs)
    monkeypatch.setattr(local_start, "are_journals_led", led)
    # A block within one of this test's own, so that nobody takes it from a cluster that was stopped.
    block = PortBlock.hold()
    first = holdable(block)[0]
    monkeypatch.setattr(local_ports, "block_starts", lambda ephemeral: [first])
    monkeypatch.setattr(local_ports, "OWN_PATIENCE_S", PATIENCE_S)

    yield lambda command, *arguments: run("local", command, *arguments, "--data", str(data))

    block.close()
    if (data / "cluster.json").exists():
        stop(read_cluster(data).running.values(), 0.0)


def processes(answer: Result) -> dict[str, dict[str, Any]]:
    return {process["name"]: process for process in answer.json["processes"]}


def test_a_cluster_is_started_shown_and_stopped(cluster: Local, run: Run, data: Path) -> None:
    started = cluster("up", *FEW, "--detach", "--json")
    shown = processes(cluster("status", "--json"))
    as_lines = cluster("status")
    kept = read_cluster(data).running
    stopped = cluster("down", "--json")

    assert (started.code, started.err) == (0, "")
    console_url = started.json["console_url"]
    assert started.json == {**run("env", "--json", "--data", str(data)).json, "console_url": console_url}
    assert shown["console-1"]["role"] == "console"
    assert list(shown)[: len(NAMES)] == NAMES
    assert {process["state"] for process in shown.values()} == {"ready"}
    assert {name: process["pid"] for name, process in shown.items()} == {
        name: process.pid for name, process in kept.items()
    }
    assert shown["broker-2"]["zone"] == "zone-2"
    assert as_lines.out.splitlines()[0] == started.json["endpoint_url"]
    assert [line.split("\t")[0] for line in as_lines.out.splitlines()[1:]] == list(shown)
    assert stopped.json == {"stopped": list(shown)}
    assert all(condition(process) == "ended" for process in kept.values())
    assert "frontend-2 ended well" in (data / "logs" / "frontend-2.log").read_text()


def test_a_server_with_workers_is_started_shown_and_stopped_without_etcd(
    run: Run, data: Path, tmp_path: Path
) -> None:
    try:
        started = run(
            "local", "up", "--workers", "2", "--port", "0", "--detach", "--json", "--data", str(data)
        )
        assert started.code == 0, started.err
        shown = processes(run("local", "status", "--json", "--data", str(data)))
        as_a_cell = run("local", "up", "--brokers", "3", "--workers", "2", "--data", str(data))
        restarted = run("local", "restart", "worker-1", "--data", str(data))
        unknown = run("local", "kill", "worker-2", "--data", str(data))
        backup = run("backup", str(tmp_path / "copy"), "--data", str(data))
        with AdminClient(read_client_file(data)) as admin:
            workers = admin.call("GetStatus")["broker"]["workers"]
        killed = run("local", "kill", "worker-1", "--json", "--data", str(data))
        stopped = run("local", "down", "--json", "--data", str(data))
    finally:
        if (data / "cluster.json").exists():
            stop(read_cluster(data).running.values(), 0.0)

    console_url = started.json["console_url"]
    assert started.json == {**run("env", "--json", "--data", str(data)).json, "console_url": console_url}
    shown.pop("console", None)  # it may just be starting
    assert {name: (each["role"], each["state"]) for name, each in shown.items()} == {
        "server": ("server", "ready"),
        "worker-0": ("worker", "ready"),
        "worker-1": ("worker", "ready"),
    }
    assert restarted.code == EXIT_REFUSED
    assert "local kill worker-1" in restarted.err
    assert killed.json == {"name": "worker-1", "pid": shown["worker-1"]["pid"], "signal": "SIGKILL"}
    assert unknown.code == EXIT_USAGE
    assert as_a_cell.code == EXIT_USAGE
    assert "say one or the other" in as_a_cell.err
    assert backup.code == 0, backup.err
    assert [worker["worker"] for worker in workers] == [0, 1]
    assert stopped.json == {"stopped": ["server"]}


def test_helpers_are_told_by_the_commands_that_start_them() -> None:
    assert crew.COMMAND[-1] == local_cluster._WORKER_MODULE
    assert console_child.COMMAND[-1] == local_cluster._CONSOLE_MODULE


def test_people_are_told_endpoint_and_key_once(
    cluster: Local, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)

    first = cluster("up", *FEW, "--detach")
    down = cluster("down")
    second = cluster("up", "--detach")

    assert "Secret access key a secret" in first.out
    assert "Console: http://127.0.0.1:" in first.out
    assert f'eval "$(quaymaster env --data {data.name})"' in first.out
    assert down.out.startswith("stopped ")
    assert second.code == 0
    assert "a secret" not in second.out
    assert "http://127.0.0.1:" in second.out


def test_cluster_has_no_console_where_the_setting_says_so_or_it_is_not_installed(
    cluster: Local, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched_off = cluster("up", *FEW, "--set", "console=off", "--detach", "--json")
    running = cluster("status", "--json")
    cluster("down")
    monkeypatch.setattr(console_extra, "NEEDED", ("not_installed_at_all",))
    not_installed = cluster("up", "--set", "console=on", "--detach", "--json")

    assert "console_url" not in switched_off.json
    assert "console-1" not in processes(running)
    assert "console_url" not in not_installed.json
    assert "pip install 'quaymaster[console]'" in not_installed.err


def test_a_stopped_cluster_is_started_as_it_was(cluster: Local, data: Path) -> None:
    cluster("up", *FEW, "--set", "purge_interval_s=0", "--detach", "--json")
    before = read_cluster(data).record
    cluster("down")

    again = cluster("up", "--frontends", "3", "--detach", "--json")

    after = read_cluster(data).record
    assert again.code == 0
    assert after.options.brokers == 2
    assert after.options.frontends == 3
    assert after.options.settings == {"purge_interval_s": "0"}
    assert before.ports.items() <= after.ports.items()


def test_ports_are_the_clusters_own_until_its_last_process_has_ended(cluster: Local, data: Path) -> None:
    cluster("up", *FEW, "--detach", "--json")
    first = read_cluster(data).record.ports[BLOCK]
    # What began holding them ends; what was started since holds them too.
    for name in NAMES[1:]:
        cluster("restart", name)
    while_running = PortBlock.join(first)
    cluster("down")

    assert while_running is None


def test_a_stopped_cluster_whose_ports_were_taken_gets_others(cluster: Local, data: Path) -> None:
    cluster("up", *FEW, "--detach", "--json")
    before = read_cluster(data).record.ports
    cluster("down")
    record = read_cluster(data)
    record.save(msgspec.structs.replace(record.record, ports={**before, BLOCK: before[BLOCK] - 1}))

    again = cluster("up", "--detach", "--json")

    assert again.code == 0
    assert read_cluster(data).record.ports[BLOCK] == before[BLOCK]


def test_what_runs_is_not_started_twice(cluster: Local) -> None:
    cluster("up", *FEW, "--detach", "--json")

    again = cluster("up", "--detach")
    cluster("kill", "broker-1")
    as_another = cluster("up", "--brokers", "3", "--detach")

    assert again.code == as_another.code == EXIT_REFUSED
    assert "is already running, on http://127.0.0.1:" in again.err
    assert "Stop it with `quaymaster local down` to change it." in as_another.err


def test_what_is_missing_of_a_cluster_is_started(cluster: Local) -> None:
    cluster("up", *FEW, "--detach", "--json")
    before = processes(cluster("status", "--json"))
    for name in ("etcd", "broker-1", "frontend-2"):
        cluster("kill", name)

    alone = cluster("restart", "broker-1")
    started = cluster("up", "--detach", "--json")
    after = processes(cluster("status", "--json"))

    assert alone.code == EXIT_REFUSED
    assert "broker-1 needs etcd, which does not run" in alone.err
    assert started.code == 0
    assert {process["state"] for process in after.values()} == {"ready"}
    changed = {name for name in before if before[name]["pid"] != after[name]["pid"]}
    assert changed == {"etcd", "broker-1", "frontend-2"}


def test_what_runs_goes_on_when_the_rest_cannot_be_started(
    cluster: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster("up", *FEW, "--detach", "--json")
    cluster("kill", "broker-1")
    cluster("kill", "frontend-2")

    def fail(*arguments: object) -> None:
        raise NoServer("no")

    monkeypatch.setattr(local_cluster.Cluster, "wait_until_ready", fail)
    started = cluster("up", "--detach")
    states = {name: process["state"] for name, process in processes(cluster("status", "--json")).items()}

    assert started.code == EXIT_NO_SERVER
    assert {name for name, state in states.items() if state == "stopped"} == {"broker-1", "frontend-2"}


def test_a_process_is_killed_and_brought_back(cluster: Local) -> None:
    cluster("up", *FEW, "--detach", "--json")
    before = processes(cluster("status", "--json"))["broker-2"]

    killed = cluster("kill", "broker-2", "--json")
    dead = processes(cluster("status", "--json"))["broker-2"]
    killed_again = cluster("kill", "broker-2")
    restarted = cluster("restart", "broker-2", "--json")
    alive = processes(cluster("status", "--json"))["broker-2"]

    assert killed.json == {"name": "broker-2", "pid": before["pid"], "signal": "SIGKILL"}
    assert dead == {**before, "pid": None, "state": "stopped"}
    assert (killed_again.code, killed_again.err) == (EXIT_REFUSED, "quaymaster: broker-2 does not run.\n")
    assert alive == {**before, "pid": restarted.json["pid"]}


def test_a_running_process_is_restarted_after_it_ended_well(cluster: Local, data: Path) -> None:
    cluster("up", *FEW, "--detach", "--json")
    before = processes(cluster("status", "--json"))["manager-1"]["pid"]

    restarted = cluster("restart", "manager-1")

    assert restarted.out == "manager-1 is ready\n"
    assert processes(cluster("status", "--json"))["manager-1"]["pid"] != before
    log = (data / "logs" / "manager-1.log").read_text().splitlines()
    assert log == ["manager-1 was started", "manager-1 ended well", "manager-1 was started"]


def test_a_paused_process_is_shown_as_such_until_it_goes_on(cluster: Local) -> None:
    cluster("up", *FEW, "--detach", "--json")

    sent = cluster("kill", "broker-1", "--signal", "stop")
    paused = processes(cluster("status", "--json"))["broker-1"]["state"]
    cluster("kill", "broker-1", "--signal", "SIGCONT")
    goes_on = processes(cluster("status", "--json"))["broker-1"]["state"]

    assert sent.out == "sent SIGSTOP to broker-1\n"
    assert (paused, goes_on) == ("paused", "ready")


def test_a_process_that_pauses_while_it_is_asked_is_shown_as_paused(
    cluster: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster("up", *FEW, "--detach", "--json")
    real = condition
    pids = {one["pid"]: name for name, one in processes(cluster("status", "--json")).items()}
    seen: list[Condition] = ["paused", "running"]

    def looked_at(process: ProcessId) -> Condition:
        return seen.pop() if seen and pids[process.pid] == "broker-1" else real(process)

    monkeypatch.setattr(local_status, "condition", looked_at)
    monkeypatch.setattr(local_status, "probe", lambda plan, planned: planned.name != "broker-1")
    shown = processes(cluster("status", "--json"))

    assert {name: one["state"] for name, one in shown.items() if one["state"] != "ready"} == {
        "broker-1": "paused"
    }


def test_when_a_process_does_not_start_the_others_are_stopped_and_its_log_is_shown(
    cluster: Local, data: Path
) -> None:
    failed = cluster("up", *FEW, "--set", "log_level=error", "--detach")

    assert failed.code == EXIT_NO_SERVER
    assert "manager-1 ended while it was starting." in failed.err
    assert "no manager today" in failed.err
    assert read_cluster(data).running == {}


def test_names_signals_directories_and_settings_that_are_not_there_are_refused(
    cluster: Local, run: Run, data: Path, tmp_path: Path
) -> None:
    nothing = cluster("down")
    cluster("up", *FEW, "--detach", "--json")
    other = tmp_path / "other"
    other.mkdir()
    (other / "format").write_text("1\n")

    assert nothing.code == EXIT_NO_SERVER
    name, number = cluster("kill", "broker-9"), cluster("kill", "broker-1", "--signal", "FOO")
    nothing = cluster("kill", "broker-1", "--signal", "0")
    setting = run("local", "up", "--set", "no_such=1", "--data", str(tmp_path / "new"))
    theirs = run("local", "up", "--data", str(other))
    assert {name.code, number.code, setting.code, theirs.code} == {EXIT_USAGE}
    assert "There are: etcd, broker-1, " in name.err
    assert "no signal 'FOO'" in number.err
    assert "no signal '0'" in nothing.err
    assert "no_such" in setting.err
    assert "is not the directory of a local cluster" in theirs.err


def test_a_command_on_a_directory_without_a_cluster_leaves_it_as_it_is(cluster: Local, data: Path) -> None:
    data.mkdir()

    answers = [
        cluster("down"),
        cluster("kill", "broker-1"),
        cluster("restart", "broker-1"),
        cluster("status"),
    ]

    assert {answer.code for answer in answers} == {EXIT_NO_SERVER}
    assert all("no cluster was started in this directory" in answer.err for answer in answers)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("left", ["lock", "format.tmp"])
def test_a_cluster_begins_in_a_directory_where_an_earlier_up_was_ended(tmp_path: Path, left: str) -> None:
    (tmp_path / left).touch()

    prepare_directory(tmp_path)

    with locked(tmp_path):
        assert (tmp_path / "format").exists()


def test_a_directory_that_cannot_be_written_or_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Root may write everywhere, so the refusal is played.
    monkeypatch.setattr(local_cluster, "write_file_durably", refuse)
    file = tmp_path / "file"
    file.touch()

    for directory, reason in ((tmp_path / "new", "Permission denied"), (file / "below", "Not a directory")):
        with pytest.raises(WrongUsage, match=f"cannot be used: {reason}"):
            prepare_directory(directory)


def test_a_port_in_use_is_named(cluster: Local) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        refused = cluster("up", "--port", str(port), "--detach")

    assert refused.code == EXIT_USAGE
    assert f"Port {port} of 127.0.0.1 is in use." in refused.err


def test_secrets_are_for_their_owner_only(cluster: Local, data: Path) -> None:
    cluster("up", *FEW, "--detach", "--json")

    (key,) = (data / "keys").iterdir()
    for path in (key, data / "client.json", data / "logs" / "broker-1.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_pid_that_belongs_to_somebody_else_now_is_never_signalled(cluster: Local, data: Path) -> None:
    cluster("up", *FEW, "--detach", "--json")
    cluster("kill", "broker-1")
    record = json.loads((data / "cluster.json").read_text())
    record["processes"]["broker-1"]["pid"] = os.getpid()
    (data / "cluster.json").write_text(json.dumps(record))

    killed = cluster("kill", "broker-1", "--signal", str(int(signal.SIGUSR1)))
    stopped = cluster("down", "--json")

    assert killed.err == "quaymaster: broker-1 does not run.\n"
    assert "broker-1" not in stopped.json["stopped"]
