"""Reads deploy/kubernetes: its overlays as the objects they come to, and their pods as containers."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from .containers import Container, variables_of_image
from .support import A_KEY, DEPLOY, documents

KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATIONS = sorted(path.parent for path in KUBERNETES.rglob("kustomization.yaml"))
OVERLAYS = [path for path in KUSTOMIZATIONS if path.parent.name == "overlays"]
FILES = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
FOREIGN = ("cert-manager.io/v1",)
"""Whose schemas are not those of Kubernetes."""
WORKLOADS = ("StatefulSet", "Deployment")
COMPONENT = "app.kubernetes.io/component"
ZONE = "zone-1"


def name_of(path: Path) -> str:
    return str(path.relative_to(KUBERNETES))


@functools.cache
def kustomization(directory: Path) -> dict[str, Any]:
    [found] = documents(directory / "kustomization.yaml")
    return found


@functools.cache
def objects(directory: Path) -> list[dict[str, Any]]:
    """Return what a kustomization is made of, with the resources and patches of its components."""
    found: list[dict[str, Any]] = []
    for resource in kustomization(directory).get("resources", []):
        path = (directory / resource).resolve()
        found += objects(path) if path.is_dir() else documents(path)
    for name in kustomization(directory).get("components", []):
        part = (directory / name).resolve()
        found += objects(part)
        for patch in kustomization(part)["patches"]:
            for change in documents(part / patch["path"]):
                place = next(
                    number for number, one in enumerate(found) if _identity(one) == _identity(change)
                )
                found[place] = _patched(found[place], change)
    return found


def _identity(one: dict[str, Any]) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def _patched(before: Any, change: Any) -> Any:
    """Return what kustomize makes of a strategic merge: maps by key, named things by name, changed first."""
    if isinstance(before, dict) and isinstance(change, dict):
        return before | {key: _patched(before.get(key), value) for key, value in change.items()}
    if isinstance(before, list) and all(
        isinstance(one, dict) and "name" in one for one in [*before, *change]
    ):
        named = {one["name"]: one for one in before}
        changed = {one["name"]: _patched(named.get(one["name"]), one) for one in change}
        return [*changed.values(), *(one for name, one in named.items() if name not in changed)]
    return change


def literals(directory: Path) -> dict[str, dict[str, str]]:
    """Return the generated ConfigMaps of a kustomization, its components and those below it."""
    found: dict[str, dict[str, str]] = {}
    one = kustomization(directory)
    for name in [*one.get("resources", []), *one.get("components", [])]:
        if (directory / name).is_dir():
            for key, pairs in literals(directory / name).items():
                found[key] = found.get(key, {}) | pairs
    for generator in one.get("configMapGenerator", []):
        pairs = dict(text.split("=", 1) for text in generator["literals"])
        found[generator["name"]] = found.get(generator["name"], {}) | pairs
    return found


def of_kind(kind: str, directory: Path) -> list[dict[str, Any]]:
    return [found for found in objects(directory) if found["kind"] == kind]


def workloads(directory: Path) -> list[dict[str, Any]]:
    return [found for found in objects(directory) if found["kind"] in WORKLOADS]


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def component(one: dict[str, Any]) -> str:
    found: str = one["spec"]["template"]["metadata"]["labels"][COMPONENT]
    return found


def ports(overlay: Path) -> dict[str, dict[str, int]]:
    """Return the ports of each component, by name."""
    return {
        component(workload): {
            port["name"]: port["containerPort"]
            for container in pod_of(workload)["containers"]
            for port in container.get("ports", [])
        }
        for workload in workloads(overlay)
    }


def environment(
    overlay: Path, workload: dict[str, Any], container: dict[str, Any], number: int = 0
) -> dict[str, str]:
    """Return the environment of a container of a workload's first pod, or of a later one."""
    found = variables_of_image("etcd" if container["image"] == "quaymaster-etcd" else "quaymaster")
    for source in container.get("envFrom", []):
        found |= literals(overlay)[source["configMapRef"]["name"]]
    fields = {
        "metadata.name": f"{workload['metadata']['name']}-{number}",
        "metadata.labels['topology.kubernetes.io/zone']": ZONE,
    }
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            assert source["secretKeyRef"]["key"] == variable["name"]
            found[variable["name"]] = A_KEY
        else:
            # As Kubernetes does: what is there so far.
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], variable["value"])
    return found


def containers(overlay: Path, pods: dict[str, int]) -> dict[str, Container]:
    """Return so many pods of each component as containers that can run here; an edge is `edge-0` and so on."""
    found = {}
    for workload in workloads(overlay):
        role = component(workload)
        for number in range(pods.get(role, 0)):
            pod = f"{role}-{number}"
            for container in pod_of(workload)["containers"]:
                image = "etcd" if container["image"] == "quaymaster-etcd" else "quaymaster"
                mounts = {
                    mount["mountPath"]: {"data": pod, "tls": "ca/nodes"}.get(mount["name"], mount["name"])
                    for mount in container["volumeMounts"]
                    if mount["name"] != "tmp"
                }
                variables = environment(overlay, workload, container, number)
                words = container.get("command", [image, *container.get("args", [])])
                found[f"{container['name']}-{number}"] = Container(f"{pod}.{role}", words, variables, mounts)
    return found
