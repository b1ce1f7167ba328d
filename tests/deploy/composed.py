"""Runs what compose.yaml describes as processes of this machine: commands and variables as they are there.

    with ComposedCell.started(tmp_path) as cell:
        ...  # cell.run("frontend-1", "quaymaster", "env", "--json"), cell.stop("broker-1")

A service's name becomes 127.0.0.1, each of its ports a free one, its volumes directories. Everything ends with the
`with`, by process id.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from harness.process import ProcessFailed, free_port
from harness.waiting import PATIENCE_S

from .support import DEPLOY, TOOLS, documents, instructions, mounted

POLL_INTERVAL_S = 0.1
ANY_HOST = r"(?:0\.0\.0\.0|127\.0\.0\.1)"

[COMPOSE] = documents(DEPLOY / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVICE_PORT = rf"\b({'|'.join(SERVICES)}):(\d+)"


def variables_of_image(stage: str) -> dict[str, str]:
    """Return what the ENV instructions of a stage of the Containerfile set; PATH as it is there."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    found = [arguments for where, name, arguments in instructions(text) if (where, name) == (stage, "ENV")]
    return dict(word.split("=", 1) for arguments in found for word in arguments.split())


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


class ComposedCell:
    """The services of the profile `cell`."""

    def __init__(self, directory: Path, programs: Mapping[str, Path]) -> None:
        self.directory = directory
        self._programs = programs
        self._ports: dict[tuple[str, str], int] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    @contextmanager
    def started(cls, directory: Path, programs: Mapping[str, Path]) -> Iterator[Self]:
        """Start every service of the cell, in the order of their dependencies; `programs`: etcd and haproxy."""
        cell = cls(directory, programs)
        try:
            done = cell.run("certificates", *command(SERVICES["certificates"]))
            assert done.returncode == 0, done.stderr
            for name, service in SERVICES.items():
                if service["profiles"] == ["cell"] and name != "certificates":
                    cell.start(name)
            yield cell
        finally:
            for child in cell._running.values():
                child.kill()
                child.wait()

    def port(self, service: str, port: int | str) -> int:
        """Return the port of this machine that stands for one of a service."""
        return self._ports.setdefault((service, str(port)), free_port())

    def start(self, name: str) -> None:
        """Start a service."""
        configuration = self._written(name)
        words = [configuration.get(word, word) for word in command(SERVICES[name])]
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(self._programs.get(words[0], TOOLS / words[0])), *words[1:]],
                cwd=self.directory,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str) -> int:
        """Stop a service as `docker compose stop` does, and return its exit code."""
        child = self._running.pop(name)
        child.send_signal(signal.SIGTERM)
        return child.wait(PATIENCE_S)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service, as `docker compose exec` and `run` do."""
        return subprocess.run(
            [self._here(name, word) for word in words],
            cwd=self.directory,
            env=self.environment(name),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def until(self, name: str, *words: str) -> str:
        """Run a command in a service until it succeeds, and return what it prints."""
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.run(name, *words)).returncode:
            for service, child in self._running.items():
                if child.poll() is not None:
                    raise ProcessFailed(f"{service} ended with {child.returncode}\n{self.log(service)}")
            if time.monotonic() > deadline:
                logs = "\n".join(self.log(service)[-1500:] for service in self._running)
                raise ProcessFailed(f"{words}: {done.stdout}{done.stderr}\n{logs}")
            time.sleep(POLL_INTERVAL_S)
        return done.stdout

    def log(self, name: str) -> str:
        """Return what a service printed."""
        return self._log(name).read_text(errors="replace")

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a service's process on this machine."""
        found = {key: self._here(name, value) for key, value in variables(SERVICES[name]).items()}
        # The user of the tests stands for the containers' user.
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("QUAYMASTER_", "AWS_"))
        }
        return kept | found | {"PATH": f"{TOOLS}:{os.environ['PATH']}", "HOME": str(self.directory)}

    def _here(self, name: str, text: str) -> str:
        paths = {inside: self._volume(volume) for inside, volume in volumes(SERVICES[name]).items()}
        if name == "certificates":
            # The script goes through /tls itself.
            paths["/tls"] = self._volume("tls")
            text = text.replace("10001", str(os.geteuid()))
        text = re.sub(ANY_HOST + r":(\d+)", rf"{name}:\1", mounted(paths, text))
        return re.sub(SERVICE_PORT, lambda found: f"127.0.0.1:{self.port(found[1], found[2])}", text)

    def _volume(self, name: str) -> Path:
        path = self.directory / name.replace("tls-", "tls/")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _written(self, name: str) -> dict[str, str]:
        """Write the `configs` of a service; return where each is, by its path in the container."""
        found = {}
        for config in SERVICES[name].get("configs", []):
            text = (DEPLOY / COMPOSE["configs"][config["source"]]["file"]).read_text(encoding="utf-8")
            # Names are looked up in Docker's DNS, which is not here.
            text = text.replace(" resolvers compose init-addr none", "")
            text = re.sub(
                rf"{SERVICE_PORT} check port (\d+)",
                lambda found: f"{found[0].rpartition(' ')[0]} {self.port(found[1], found[3])}",
                text,
            )
            path = self.directory / f"{name}-{config['source']}"
            path.write_text(self._here(name, text.replace("bind :", "bind 127.0.0.1:")))
            found[config["target"]] = str(path)
        return found
