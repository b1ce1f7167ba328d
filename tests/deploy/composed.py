"""Reads compose.yaml: its services, and each of them as a container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .containers import Container, variables_of_image
from .support import DEPLOY, documents

[COMPOSE] = documents(DEPLOY / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def variables(service: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that a service's process has: its image's, and its own."""
    stage = service["build"]["target"]
    own = {name: str(value) for name, value in service.get("environment", {}).items()}
    return variables_of_image("quaymaster" if stage == "edge" else stage) | own


def command(service: Mapping[str, Any]) -> list[str]:
    """Return the words that a service runs."""
    entrypoint = {"quaymaster": ["quaymaster"], "etcd": ["etcd"]}
    words = [
        *service.get("entrypoint", entrypoint.get(service["build"]["target"])),
        *service.get("command", []),
    ]
    return [word.replace("$$", "$") for word in words]


def volumes(service: Mapping[str, Any]) -> dict[str, str]:
    """Return the volume's name for each path in the container."""
    return {text.split(":")[1]: text.split(":")[0] for text in service.get("volumes", [])}


def containers() -> dict[str, Container]:
    """Return the services as containers that can run here; the user of the tests stands for that of the images."""
    found = {}
    for name, service in SERVICES.items():
        # The script that makes certificates goes through /tls itself.
        mounts = {path: volume.replace("tls-", "tls/") for path, volume in volumes(service).items()}
        if name == "certificates":
            mounts["/tls"] = "tls"
        files = {
            config["target"]: (DEPLOY / COMPOSE["configs"][config["source"]]["file"]).read_text(
                encoding="utf-8"
            )
            for config in service.get("configs", [])
        }
        words = [word.replace("10001", str(os.geteuid())) for word in command(service)]
        found[name] = Container(name, words, variables(service), mounts, files)
    return found
