"""The manifests: judged by the schemas of Kubernetes, compared with the program, and fitting together."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from quaymaster.broker.cell.broker_service import CALLER_ROLES
from quaymaster.node.roles import CELL_ROLES
from quaymaster.settings import Settings

from .go_programs import go_program_or_skip
from .manifests import (
    COMPONENT,
    FILES,
    FOREIGN,
    KUBERNETES,
    KUSTOMIZATIONS,
    OVERLAYS,
    WORKLOADS,
    ZONE,
    component,
    environment,
    kustomization,
    literals,
    name_of,
    objects,
    of_kind,
    pod_of,
    ports,
    workloads,
)
from .support import USER, check_command, check_settings, documents, lint

SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
KUBERNETES_VERSIONS = ("1.35.0", "1.37.0")
"""The oldest that the manifests are for, and the newest whose schemas are there."""
BUILD_TIMEOUT_S = 1_300
"""The first run on a machine builds two programs."""


def every(*kinds: str) -> list[Any]:
    """Return a test's parameters: each object of these kinds in each overlay."""
    return [
        pytest.param(overlay, one, id=f"{overlay.name}-{one['metadata']['name']}")
        for overlay in OVERLAYS
        for kind in kinds
        for one in of_kind(kind, overlay)
    ]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_an_overlay_is_what_kubernetes_takes(overlay: Path, tmp_path: Path) -> None:
    known = [found for found in objects(overlay) if found["apiVersion"] not in FOREIGN]
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(known))

    lint("kubernetes-validate", "--strict", "--quiet", tmp_path / "objects.yaml")


def test_every_file_is_used_and_every_file_that_is_used_is_there() -> None:
    used = set()
    for directory in KUSTOMIZATIONS:
        found = kustomization(directory)
        named = [*found.get("resources", []), *found.get("components", [])]
        named += [patch["path"] for patch in found.get("patches", []) if "path" in patch]
        named += [
            file.rpartition("=")[2]
            for one in found.get("configMapGenerator", [])
            for file in one.get("files", [])
        ]
        for name in named:
            path = (directory / name).resolve()
            assert path.exists(), f"{name_of(directory)} names {name}"
            assert path.is_file() or (path / "kustomization.yaml").exists(), name
            used.add(path)

    assert set(FILES) <= used
    assert [overlay.name for overlay in OVERLAYS] == ["cell", "cell-cert-manager", "single"]


@functools.cache
def render(overlay: Path) -> str:
    """Return what kustomize makes of an overlay: kubectl's, else the program."""
    if kubectl := shutil.which("kubectl"):
        return lint(kubectl, "kustomize", overlay)
    return lint(go_program_or_skip("kustomize"), "build", overlay)


def referred_to(schema: Any, definitions: dict[str, Any]) -> set[str]:
    """Return the names of the definitions that a schema refers to, and these in turn."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        names = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(waiting.pop()))) - found
        found |= names
        waiting += [definitions[name] for name in names]
    return found


def self_contained(directory: Path, version: str, kinds: set[str]) -> str:
    """Write the schemas of these kinds, with all that they refer to; return where kubeconform finds them.

    kubernetes-validate has them with references to another file, by a URL that kubeconform cannot follow.
    """
    source = SCHEMAS / f"v{version}-local-strict"
    definitions = json.loads((source / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    for kind in kinds:
        text = (source / f"{kind}.json").read_text(encoding="utf-8")
        schema = json.loads(text.replace("/api/_definitions.json#", "#"))
        needed = {name: definitions[name] for name in referred_to(schema, definitions)}
        (directory / f"{kind}.json").write_text(json.dumps({**schema, "$defs": needed}))
    return f"{directory}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubeconform_takes_the_rendered_overlays_and_refuses_what_is_misspelled(
    tmp_path: Path, version: str
) -> None:
    kubeconform = go_program_or_skip("kubeconform")
    found = [
        one
        for overlay in OVERLAYS
        for one in yaml.safe_load_all(render(overlay))
        if one["apiVersion"] not in FOREIGN
    ]
    kinds = {"-".join([one["kind"], *one["apiVersion"].split("/")]).lower() for one in found}
    place = self_contained(tmp_path, version, {kind.replace(".k8s.io", "") for kind in kinds})
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(yaml.safe_dump_all(found))
    wrong.write_text(right.read_text().replace("serviceName:", "serviceNames:"))

    lint(kubeconform, "-strict", "-schema-location", place, right)

    with pytest.raises(AssertionError, match="'serviceNames' not allowed"):
        lint(kubeconform, "-strict", "-schema-location", place, wrong)


@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_kustomize_renders_an_overlay_that_kubernetes_takes(overlay: Path, tmp_path: Path) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(render(overlay))
    found = documents(rendered)
    rendered.write_text(yaml.safe_dump_all(one for one in found if one["apiVersion"] not in FOREIGN))
    lint("kubernetes-validate", "--strict", "--quiet", rendered)

    images = {
        container["image"]
        for one in found
        if one["kind"] in WORKLOADS
        for container in pod_of(one)["containers"]
    }
    assert all(re.fullmatch(r"registry\.example\.com/[a-z-]+:\d+\.\d+\.\d+", image) for image in images), (
        images
    )
    assert {one["metadata"].get("namespace") for one in found} == {"quaymaster", None}
    [settings] = [one["data"] for one in found if one["kind"] == "ConfigMap"] or [{}]
    assert settings == literals(overlay).get("cell", {}), "what the other tests look at"
    for one in found:
        if one["kind"] in WORKLOADS:
            _check_references(one)


def _check_references(workload: dict[str, Any]) -> None:
    """A variable names only those before it; kustomize puts those of patches first."""
    for container in pod_of(workload)["containers"]:
        known: set[str] = set()
        for variable in container.get("env", []):
            assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= known, variable
            known.add(variable["name"])


@pytest.mark.parametrize(("overlay", "workload"), every(*WORKLOADS))
def test_commands_and_settings_of_a_pod_exist(overlay: Path, workload: dict[str, Any]) -> None:
    for container in pod_of(workload)["containers"]:
        variables = environment(overlay, workload, container)
        if container["image"] == "quaymaster-etcd":
            continue
        settings = check_settings(variables)
        for shown in re.findall(r"quaymaster ([a-z ]+)", " ".join(container.get("command", []))):
            check_command(shown.split())
        if "command" not in container:
            name = check_command(container["args"])
            assert name in {"serve", "edge run", f"run {component(workload)}"}
            assert settings.admin_address.port == ports(overlay)[component(workload)]["admin"]
            assert not settings.admin_address.is_loopback, "probes come from outside the pod"
            if name != "edge run":
                _check_addresses(overlay, workload, settings)


def _check_addresses(overlay: Path, workload: dict[str, Any], settings: Settings) -> None:
    role = component(workload)
    known = ports(overlay)
    if role == "server":
        assert settings.listen_address.port == known[role]["sqs"]
        return
    assert settings.node == f"{role}-0"
    assert settings.zone == ZONE
    mount = next(
        mount for mount in pod_of(workload)["containers"][0]["volumeMounts"] if mount["name"] == "tls"
    )
    assert settings.tls_directory == Path(mount["mountPath"]) / f"{role}-0"
    hosts = {
        f"{one}-{number}.{one}": ports
        for one, ports in known.items()
        for number in range(_pods(overlay, one))
    }
    for endpoint in settings.etcd_endpoint_list:
        host, _, port = endpoint.partition("://")[2].partition(":")
        assert hosts[host]["client"] == int(port)
    if role == "broker":
        assert settings.broker_advertise == f"broker-0.broker:{known[role]['broker']}"
        assert settings.broker_listen_address.port == known[role]["broker"]
    if role == "frontend":
        assert {address.host for address in settings.metadata_node_list} == {
            host for host in hosts if host.endswith(".metadata")
        }
        assert {address.port for address in settings.metadata_node_list} == {known["metadata"]["metadata"]}


def _pods(overlay: Path, name: str) -> int:
    """Return how many pods of a component there can be."""
    scalers = {
        one["spec"]["scaleTargetRef"]["name"]: one for one in of_kind("HorizontalPodAutoscaler", overlay)
    }
    if name in scalers:
        found: int = scalers[name]["spec"]["maxReplicas"]
        return found
    [workload] = [one for one in workloads(overlay) if component(one) == name]
    replicas: int = workload["spec"]["replicas"]
    return replicas


@pytest.mark.parametrize(("overlay", "workload"), every(*WORKLOADS))
def test_a_pod_may_do_nothing_but_its_work(overlay: Path, workload: dict[str, Any]) -> None:
    pod = pod_of(workload)
    security = pod["securityContext"]

    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["fsGroup"] == USER
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "variables such as QUAYMASTER_PORT would look like settings"
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize(("overlay", "workload"), every(*WORKLOADS))
def test_what_a_pod_mounts_is_there(overlay: Path, workload: dict[str, Any]) -> None:
    pod = pod_of(workload)
    claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
    there = {volume["name"] for volume in pod["volumes"]} | set(claims)
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}

    assert mounted == there
    assert workload["spec"]["selector"]["matchLabels"] == workload["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize(("overlay", "workload"), every(*WORKLOADS))
def test_a_pod_is_probed_and_has_time_to_drain(overlay: Path, workload: dict[str, Any]) -> None:
    pod = pod_of(workload)
    for container in pod["containers"]:
        if container["image"] == "quaymaster" and "command" not in container:
            assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "admin"}
            assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "admin"}
            waited_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            drained_s = check_settings(environment(overlay, workload, container)).drain_grace_s
            assert pod["terminationGracePeriodSeconds"] >= waited_s + drained_s + 30


@pytest.mark.parametrize(("overlay", "service"), every("Service"))
def test_a_service_leads_to_ports_of_pods(overlay: Path, service: dict[str, Any]) -> None:
    known = ports(overlay)[service["spec"]["selector"][COMPONENT]]

    for port in service["spec"]["ports"]:
        assert port["targetPort"] in known
        assert port["port"] in (known[port["targetPort"]], 443)


@pytest.mark.parametrize(("overlay", "policy"), every("NetworkPolicy"))
def test_a_network_policy_is_of_pods_and_ports_that_exist(overlay: Path, policy: dict[str, Any]) -> None:
    known = ports(overlay)
    own = policy["spec"]["podSelector"].get("matchLabels", {}).get(COMPONENT)

    for rule in policy["spec"].get("ingress", []):
        for peer in rule.get("from", []):
            for expression in peer.get("podSelector", {}).get("matchExpressions", []):
                assert set(expression["values"]) <= set(known)
        for port in rule["ports"]:
            assert any(port["port"] in known[name] for name in known if own in (name, None))


def test_network_policies_let_in_whom_the_processes_take() -> None:
    [broker] = [
        one
        for one in of_kind("NetworkPolicy", KUBERNETES / "overlays/cell")
        if one["metadata"]["name"] == "broker"
    ]
    [rule] = broker["spec"]["ingress"]
    [expression] = rule["from"][0]["podSelector"]["matchExpressions"]

    assert set(expression["values"]) == set(CALLER_ROLES)


def test_consoles_reach_the_metrics_of_each_process_of_a_cell() -> None:
    overlay = KUBERNETES / "overlays/cell"
    [policy] = [
        one for one in of_kind("NetworkPolicy", overlay) if one["metadata"]["name"] == "metrics-of-consoles"
    ]
    [rule] = policy["spec"]["ingress"]
    [reached] = policy["spec"]["podSelector"]["matchExpressions"]
    [callers] = rule["from"][0]["podSelector"]["matchExpressions"]

    assert set(reached["values"]) == set(CELL_ROLES)
    assert callers["values"] == ["console"]
    assert rule["ports"] == [{"port": "admin"}]


@pytest.mark.parametrize("name", [*CELL_ROLES, "etcd"])
def test_what_may_be_lost_of_a_cell_at_once_is_bounded_and_spread_over_zones(name: str) -> None:
    overlay = KUBERNETES / "overlays/cell"
    [workload] = [one for one in workloads(overlay) if component(one) == name]
    budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind("PodDisruptionBudget", overlay)}
    [spread] = pod_of(workload)["topologySpreadConstraints"]

    assert budgets[name]["maxUnavailable"] == 1
    assert budgets[name]["selector"] == workload["spec"]["selector"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"]["matchLabels"][COMPONENT] == name
    assert (spread["whenUnsatisfiable"] == "DoNotSchedule") == (name in ("broker", "etcd"))
    assert "podAntiAffinity" in pod_of(workload)["affinity"]


def test_there_is_a_certificate_for_each_pod_that_there_can_be() -> None:
    overlay = KUBERNETES / "overlays/cell-cert-manager"
    cell = literals(overlay)["cell"]["QUAYMASTER_CELL"]
    certificates = {one["metadata"]["name"]: one["spec"] for one in of_kind("Certificate", overlay)}
    issuers = {one["metadata"]["name"] for one in of_kind("Issuer", overlay)}
    wanted = {f"{role}-{number}": role for role in CELL_ROLES for number in range(_pods(overlay, role))}

    for node, role in (wanted | {"operator": "operator"}).items():
        spec = certificates[f"tls-{node}"]
        assert spec["secretName"] == f"tls-{node}"
        assert spec["uris"] == [f"quaymaster://{cell}/{role}/{node}"]
        assert {"server auth", "client auth"} <= set(spec["usages"])
    assert issuers == {
        spec["issuerRef"]["name"] for spec in certificates.values() if spec["issuerRef"]["kind"] == "Issuer"
    }


def test_etcd_speaks_tls_to_clients_and_between_members() -> None:
    overlay = KUBERNETES / "overlays/cell-cert-manager"
    [workload] = [one for one in workloads(overlay) if component(one) == "etcd"]
    [container] = pod_of(workload)["containers"]
    variables = environment(overlay, workload, container)
    urls = [
        url
        for name, value in variables.items()
        if "URLS" in name and "METRICS" not in name
        for url in [value]
    ]
    members = re.findall(r"etcd-\d=(https?)://([a-z0-9.-]+):2380", variables["ETCD_INITIAL_CLUSTER"])
    [certificate] = [one for one in of_kind("Certificate", overlay) if one["metadata"]["name"] == "etcd-tls"]

    assert len(urls) == 4
    assert all(url.startswith("https://") for url in urls)
    assert {scheme for scheme, _ in members} == {"https"}
    assert literals(overlay)["cell"]["QUAYMASTER_ETCD_ENDPOINTS"].count("https://") == 3
    assert {host for _, host in members} == set(certificate["spec"]["dnsNames"])


def test_the_edge_of_a_front_end_ends_first_and_has_no_master_key() -> None:
    overlay = KUBERNETES / "overlays/cell-cert-manager"
    [workload] = [one for one in workloads(overlay) if component(one) == "frontend"]
    containers = {container["name"]: container for container in pod_of(workload)["containers"]}
    waits = {
        name: one["lifecycle"]["preStop"]["sleep"]["seconds"]
        for name, one in containers.items()
        if "ports" in one
    }
    [secret] = [
        volume["secret"]["secretName"] for volume in pod_of(workload)["volumes"] if "secret" in volume
    ]
    edge = check_settings(environment(overlay, workload, containers["edge"]))

    # HAProxy lets requests in progress end within 30 s.
    assert waits["frontend"] >= waits["edge"] + 30
    assert edge.master_key is None
    assert check_settings(environment(overlay, workload, containers["frontend"])).master_key is not None
    assert {port["containerPort"] for port in containers["edge"]["ports"]} == {
        edge.edge_bind_address.port,
        edge.edge_admin_address.port,
    }
    assert secret in {one["spec"]["secretName"] for one in of_kind("Certificate", overlay)}


@pytest.mark.parametrize("name", [*CELL_ROLES, "operator"])
def test_a_pod_finds_its_certificate_where_it_looks(name: str) -> None:
    overlay = KUBERNETES / "overlays/cell"
    [workload] = [one for one in workloads(overlay) if component(one) == name]
    [volume] = [volume for volume in pod_of(workload)["volumes"] if volume["name"] == "tls"]
    found = {source["secret"]["name"]: source["secret"] for source in volume["projected"]["sources"]}
    nodes = (
        ["operator"] if name == "operator" else [f"{name}-{number}" for number in range(_pods(overlay, name))]
    )

    for node in nodes:
        items = {item["key"]: item["path"] for item in found[f"tls-{node}"]["items"]}
        assert items == {file: f"{node}/{file}" for file in ("ca.crt", "tls.crt", "tls.key")}
