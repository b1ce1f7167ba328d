"""What a local cluster consists of: names, ports, files, order. Nothing is started."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from quaymaster.cli.local.plan import (
    START_STAGES,
    STOP_STAGES,
    ClusterOptions,
    ClusterPlan,
    PlanRefused,
    Programs,
    check_options,
    choose_ports,
    environment_without_settings,
    plan_cluster,
    port_names,
    settings_of_environment,
)
from quaymaster.settings import Settings

DIRECTORY = Path("/somewhere/cluster")
PROGRAMS = Programs(("quaymaster",), "/usr/bin/etcd", "/usr/sbin/haproxy")


def planned(options: ClusterOptions | None = None, programs: Programs = PROGRAMS) -> ClusterPlan:
    options = options or ClusterOptions()
    ports = choose_ports(options, {}, range(9325, 9400), lambda port: True)
    return plan_cluster(DIRECTORY, options, ports, programs)


def settings_of(plan: ClusterPlan, name: str) -> dict[str, object]:
    (text,) = plan.process(name).files.values()
    return tomllib.loads(text)


def test_a_cluster_has_every_role_and_brokers_in_three_zones() -> None:
    plan = planned()

    assert [(process.name, process.zone) for process in plan.processes] == [
        ("etcd", None),
        ("broker-1", "zone-1"),
        ("broker-2", "zone-2"),
        ("broker-3", "zone-3"),
        ("metadata-1", "zone-1"),
        ("metadata-2", "zone-2"),
        ("manager-1", "zone-1"),
        ("manager-2", "zone-2"),
        ("frontend-1", "zone-1"),
        ("frontend-2", "zone-2"),
        ("haproxy", None),
    ]


def test_every_process_has_its_own_ports_and_directory() -> None:
    plan = planned(ClusterOptions(brokers=5, frontends=3))

    ports = [process.address for process in plan.processes]
    ports += [str(process.admin_port) for process in plan.processes if process.admin_port]
    assert len(set(ports)) == len(ports)
    directories = [
        settings_of(plan, process.name)["data_directory"]
        for process in plan.processes
        if process.role not in ("etcd", "haproxy")
    ]
    assert len(set(directories)) == len(directories) == 12


def test_what_is_written_for_a_process_are_settings_that_exist() -> None:
    plan = planned(ClusterOptions(settings={"log_level": "debug"}))

    for process in plan.processes:
        if process.role in ("etcd", "haproxy"):
            continue
        settings = Settings(**settings_of(plan, process.name))  # type: ignore[arg-type]
        assert settings.node == process.name
        assert settings.log_level == "debug"
        assert str(settings.admin_address.port) == str(process.admin_port)


def test_front_ends_share_their_keys_and_know_every_metadata_node() -> None:
    plan = planned()

    first, second = settings_of(plan, "frontend-1"), settings_of(plan, "frontend-2")

    assert first["keys_directory"] == second["keys_directory"] == "/somewhere/cluster/keys"
    nodes = [plan.process(name).address for name in ("metadata-1", "metadata-2")]
    assert first["metadata_nodes"] == second["metadata_nodes"] == ",".join(nodes)


def test_haproxy_stands_at_the_endpoint_and_asks_front_ends_whether_they_are_ready() -> None:
    plan = planned(ClusterOptions(port=9400))

    haproxy = plan.process("haproxy")
    (configuration,) = haproxy.files.values()

    assert plan.endpoint_url == "http://127.0.0.1:9400"
    assert haproxy.address == "127.0.0.1:9400"
    assert "bind 127.0.0.1:9400" in configuration
    assert "http-check disable-on-404" in configuration
    for name in ("frontend-1", "frontend-2"):
        front_end = plan.process(name)
        assert f"server {name} {front_end.address} check port {front_end.admin_port}" in configuration


def test_without_haproxy_the_first_front_end_stands_at_the_endpoint() -> None:
    plan = planned(programs=Programs(("quaymaster",), "/usr/bin/etcd", None))

    assert [process.name for process in plan.processes][-1] == "frontend-2"
    assert plan.endpoint_url == f"http://{plan.process('frontend-1').address}"
    assert plan.admin_url == f"http://127.0.0.1:{plan.process('frontend-1').admin_port}"


def test_replicas_are_three_where_there_are_so_many_brokers_unless_told_otherwise() -> None:
    assert settings_of(planned(ClusterOptions(brokers=2)), "manager-1")["replicas"] == 1
    assert settings_of(planned(ClusterOptions(brokers=5)), "manager-1")["replicas"] == 3
    five = ClusterOptions(brokers=5, settings={"replicas": "5"})
    assert settings_of(planned(five), "manager-1")["replicas"] == "5"


def test_processes_are_started_after_and_stopped_before_what_they_need() -> None:
    plan = planned()

    started = [{process.role for process in stage} for stage in plan.stages(START_STAGES)]
    stopped = [{process.role for process in stage} for stage in plan.stages(STOP_STAGES)]

    assert started == [{"etcd"}, {"broker", "metadata", "manager", "frontend"}, {"haproxy"}]
    assert stopped == [{"haproxy"}, {"frontend"}, {"metadata", "manager"}, {"broker"}, {"etcd"}]


def test_ports_stay_what_they_were_as_long_as_they_are_free() -> None:
    options = ClusterOptions(port=9324)
    first = choose_ports(options, {}, range(9325, 9400), lambda port: True)
    taken = first["broker-2"]

    again = choose_ports(options, first, range(9325, 9400), lambda port: port != taken)

    assert again["broker-2"] not in first.values()
    assert {name: port for name, port in again.items() if name != "broker-2"} == {
        name: port for name, port in first.items() if name != "broker-2"
    }


def test_ports_go_to_what_is_new_without_moving_the_others() -> None:
    first = choose_ports(ClusterOptions(), {}, range(9325, 9400), lambda port: True)

    more = choose_ports(ClusterOptions(brokers=4), first, range(9325, 9400), lambda port: True)

    assert first.items() <= more.items()
    assert len(set(more.values())) == len(more) == len(list(port_names(ClusterOptions(brokers=4))))


def test_an_endpoint_port_in_use_is_refused_and_any_port_takes_what_is_free() -> None:
    with pytest.raises(PlanRefused, match=r"Port 9324 of 127.0.0.1 is in use.*--port"):
        choose_ports(ClusterOptions(), {}, range(9325, 9400), lambda port: port != 9324)
    with pytest.raises(PlanRefused, match="not enough free ports"):
        choose_ports(ClusterOptions(port=0), {}, range(20_000, 20_100), lambda port: port < 20_005)

    ports = choose_ports(ClusterOptions(port=0), {}, range(20_000, 20_100), lambda port: port % 2 == 0)
    asked = choose_ports(ClusterOptions(port=20_000), {}, range(20_000, 20_100), lambda port: True)
    crowded = choose_ports(ClusterOptions(port=9_324), {}, range(20_000, 20_100), lambda port: port != 9_325)
    last = choose_ports(ClusterOptions(port=65_535), {}, range(20_000, 20_100), lambda port: port <= 65_535)

    assert ports["endpoint"] == 20_000
    assert ports["admin"] == 20_002
    assert (asked["endpoint"], asked["admin"]) == (20_000, 20_001)
    assert len(set(asked.values())) == len(asked)
    assert (crowded["endpoint"], crowded["admin"]) == (9_324, 20_000)
    assert (last["endpoint"], last["admin"]) == (65_535, 20_000)


def test_a_cluster_that_cannot_be_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanRefused, match="--managers 0: at least one"):
        check_options(ClusterOptions(managers=0))
    with pytest.raises(
        PlanRefused, match="3 brokers, and with fewer the messages on the others would be lost"
    ):
        check_options(ClusterOptions(brokers=2), ClusterOptions(brokers=3))
    with pytest.raises(PlanRefused, match="listen, node to each of its processes"):
        check_options(ClusterOptions(settings={"node": "a", "listen": "b", "log_level": "info"}))
    with pytest.raises(
        PlanRefused, match=r"no process 'broker-9' in this cluster\. There are: etcd, broker-1"
    ):
        planned().process("broker-9")


def test_settings_of_the_environment_hold_but_those_that_say_where_things_are() -> None:
    environment = {
        "QUAYMASTER_PURGE_INTERVAL_S": "0",
        "QUAYMASTER_DATA_DIRECTORY": "/elsewhere",
        "QUAYMASTER_PORT": "tcp://10.0.0.1",
        "PATH": "/bin",
    }

    settings = settings_of_environment(environment, list(Settings.model_fields), "QUAYMASTER_")

    assert settings == {"purge_interval_s": "0"}
    assert environment_without_settings(environment, "QUAYMASTER_") == {"PATH": "/bin"}


def test_with_tls_haproxy_serves_it_over_the_sockets_of_the_front_ends() -> None:
    plan = planned(ClusterOptions(tls=True))

    (configuration,) = plan.process("haproxy").files.values()
    port = (plan.tls_url or "").rpartition(":")[2]
    assert f"bind 127.0.0.1:{port} ssl crt {DIRECTORY}/haproxy.pem alpn h2,http/1.1" in configuration
    for name in ("frontend-1", "frontend-2"):
        socket = settings_of(plan, name)["edge_listen"]
        assert socket == f"unix:{DIRECTORY}/{name}/edge.sock"
        assert f"server {name} unix@{DIRECTORY}/{name}/edge.sock send-proxy-v2-ssl" in configuration
    assert plan.ca_file == DIRECTORY / "certificates" / "ca.crt"
    assert planned().tls_url is None
    assert "ssl" not in next(iter(planned().process("haproxy").files.values()))


def test_tls_needs_haproxy_and_paths_that_sockets_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanRefused, match="needs HAProxy"):
        planned(ClusterOptions(tls=True), Programs(PROGRAMS.quaymaster, PROGRAMS.etcd, None))

    monkeypatch.setattr(f"{__name__}.DIRECTORY", DIRECTORY / ("long" * 20))
    with pytest.raises(PlanRefused, match="too long for a socket"):
        planned(ClusterOptions(tls=True))


def test_with_workers_it_is_one_server_at_the_endpoint() -> None:
    plan = planned(
        ClusterOptions(workers=3, settings={"log_level": "debug"}), Programs(("quaymaster",), "", None)
    )

    (server,) = plan.processes
    assert (server.name, server.address, server.admin_port) == ("server", "127.0.0.1:9324", 9325)
    assert server.command == ("quaymaster", "serve", "--config", str(DIRECTORY / "server.toml"))
    settings = settings_of(plan, "server")
    assert (settings["workers"], settings["log_level"]) == ("3", "debug")
    assert settings["console_listen"] == "127.0.0.1:9326"
    assert settings.keys() <= Settings.model_fields.keys()
    assert plan.client_directory == DIRECTORY / "server"
    assert list(port_names(ClusterOptions(workers=1))) == ["endpoint", "admin", "console"]


def test_a_cell_becomes_no_server_with_workers_nor_the_other_way_round() -> None:
    cell, server = ClusterOptions(), ClusterOptions(workers=2)
    with pytest.raises(PlanRefused, match="There is a cell in this directory"):
        check_options(server, cell)
    with pytest.raises(PlanRefused, match="There is a server with workers in this directory"):
        check_options(cell, server)
    with pytest.raises(PlanRefused, match="--tls is for cells"):
        check_options(ClusterOptions(workers=2, tls=True))
    check_options(ClusterOptions(workers=4), server)


def test_console_is_a_process_that_front_ends_make_links_to() -> None:
    plan = planned(ClusterOptions(console=True))

    console, front_end = settings_of(plan, "console-1"), settings_of(plan, "frontend-2")
    assert plan.console_url == console["console_url"] == front_end["console_url"]
    assert plan.console_url == f"http://{console['console_listen']}"
    assert console["console_rpc_listen"] == plan.process("console-1").address
    assert console.keys() <= Settings.model_fields.keys()
    assert [process.role for process in next(plan.stages(STOP_STAGES))] == ["console", "haproxy"]
    assert [process.role for process in list(plan.stages(START_STAGES))[-1]] == ["console", "haproxy"]


def test_cluster_of_before_has_no_console_and_one_whose_address_is_given_is_there() -> None:
    assert planned().console_url is None
    assert "console" not in port_names(ClusterOptions())
    given = ClusterOptions(console=True, settings={"console_listen": "127.0.0.1:9000"})
    assert planned(given).console_url == "http://127.0.0.1:9000"
    named = ClusterOptions(workers=2, console=True, settings={"console_url": "https://console.example"})
    assert planned(named).console_url == "https://console.example"
    assert planned(ClusterOptions(workers=2)).console_url is None
    assert planned(ClusterOptions(workers=2, console=True)).console_url == "http://127.0.0.1:9326"


def test_pusher_is_a_process_that_may_call_endpoints_on_this_machine() -> None:
    pusher = settings_of(planned(ClusterOptions(push=True)), "push-1")

    assert pusher["outbound_networks"] == "127.0.0.0/8,::1/128"
    assert pusher["metadata_nodes"] == settings_of(planned(ClusterOptions()), "frontend-1")["metadata_nodes"]
    given = ClusterOptions(push=True, settings={"outbound_networks": "10.0.0.0/8"})
    assert settings_of(planned(given), "push-1")["outbound_networks"] == "10.0.0.0/8"
    assert "push-1" not in {process.name for process in planned(ClusterOptions()).processes}
