"""Runs containers of a deployment as processes of this machine: their words and variables as they are there.

    with ContainersHere(tmp_path, containers) as here:
        here.start("broker-1")
        ...  # here.run("frontend-1", "quaymaster", "env", "--json"), here.stop("broker-1")

A container's host becomes 127.0.0.1, each of its ports a free one, its volumes directories. Everything ends with the
`with`, by process id.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from harness.etcd import etcd_or_skip
from harness.forked_programs import Program, run_program, start_program
from harness.process import ProcessFailed, free_port
from harness.waiting import PATIENCE_S

from quaymaster.cli.shared.tools import find_haproxy, tools_directory

from .support import DEPLOY, TOOLS, instructions, mounted

POLL_INTERVAL_S = 0.1
QUAYMASTER = "quaymaster"
ANY_HOST = r"(?:0\.0\.0\.0|127\.0\.0\.1)"


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `volumes` and `files`: the name of a volume, or a text, by the path inside."""

    host: str
    words: list[str]
    environment: dict[str, str]
    volumes: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)


def variables_of_image(stage: str) -> dict[str, str]:
    """Return what the ENV instructions of a stage of the Containerfile set; PATH as it is there."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    found = [arguments for where, name, arguments in instructions(text) if (where, name) == (stage, "ENV")]
    return dict(word.split("=", 1) for arguments in found for word in arguments.split())


def programs_or_skip() -> dict[str, Path]:
    """Return what the images have beside Quaymaster; the test is skipped where it cannot be had."""
    haproxy = find_haproxy()
    if haproxy is None:
        pytest.skip("there is no HAProxy: the cell in deploy/ is not run (scripts/haproxy gets one)")
    return {"etcd": etcd_or_skip(), "haproxy": haproxy}


class ContainersHere:
    """Containers as processes, in a directory of their own."""

    def __init__(self, directory: Path, containers: Mapping[str, Container]) -> None:
        self.directory = directory
        self._programs = programs_or_skip()
        self._containers = containers
        hosts = sorted({container.host for container in containers.values()}, key=len, reverse=True)
        self._host_port = rf"(?<![\w.-])({'|'.join(map(re.escape, hosts))}):(\d+)"
        self._ports: dict[tuple[str, str], int] = {}
        self._running: dict[str, Program] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            child.kill()
            child.wait()

    def port(self, host: str, port: int | str) -> int:
        """Return the port of this machine that stands for one of a host."""
        return self._ports.setdefault((host, str(port)), free_port())

    def volume(self, name: str) -> Path:
        """Return the directory that stands for a volume."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def start(self, name: str) -> None:
        """Start a container."""
        files = {inside: self._written(name, inside) for inside in self._containers[name].files}
        words = [files.get(word, word) for word in self._containers[name].words]
        with self._log(name).open("ab") as log:
            if words[0] == QUAYMASTER:
                self._running[name] = start_program(
                    words[1:], environment=self.environment(name), out=log, directory=self.directory
                )
                return
            self._running[name] = subprocess.Popen(
                [str(self._programs.get(words[0], TOOLS / words[0])), *words[1:]],
                cwd=self.directory,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str) -> int:
        """Stop a container as engines do, with SIGTERM, and return its exit code."""
        child = self._running.pop(name)
        child.send_signal(signal.SIGTERM)
        return child.wait(PATIENCE_S)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as `exec` and `run` do."""
        words = tuple(self.here(name, word) for word in words)
        if words[0] == QUAYMASTER:
            return run_program(words[1:], environment=self.environment(name), directory=self.directory)
        return subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment(name),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def until(self, name: str, *words: str) -> str:
        """Run a command in a container until it succeeds, and return what it prints."""
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.run(name, *words)).returncode:
            for other, child in self._running.items():
                if child.poll() is not None:
                    raise ProcessFailed(f"{other} ended with {child.returncode}\n{self.log(other)}")
            if time.monotonic() > deadline:
                logs = "\n".join(self.log(other)[-1500:] for other in self._running)
                raise ProcessFailed(f"{words}: {done.stdout}{done.stderr}\n{logs}")
            time.sleep(POLL_INTERVAL_S)
        return done.stdout

    def log(self, name: str) -> str:
        """Return what a container printed."""
        return self._log(name).read_text(errors="replace")

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a container's process on this machine."""
        found = {key: self.here(name, value) for key, value in self._containers[name].environment.items()}
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("QUAYMASTER_", "AWS_"))
        }
        of_machine = {
            "PATH": f"{TOOLS}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            "XDG_CACHE_HOME": str(tools_directory().parent.parent),
        }
        return kept | found | of_machine

    def here(self, name: str, text: str) -> str:
        """Return a text of a container with the paths and addresses of this machine."""
        container = self._containers[name]
        paths = {inside: self.volume(volume) for inside, volume in container.volumes.items()}
        text = re.sub(ANY_HOST + r":(\d+)", rf"{container.host}:\1", mounted(paths, text))
        return re.sub(self._host_port, lambda found: f"127.0.0.1:{self.port(found[1], found[2])}", text)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _written(self, name: str, inside: str) -> str:
        """Write a file of a container, an HAProxy's; return where it is."""
        # Names are looked up in the engine's DNS, which is not here.
        text = self._containers[name].files[inside].replace(" resolvers compose init-addr none", "")
        text = re.sub(
            rf"{self._host_port} check port (\d+)",
            lambda found: f"{found[0].rpartition(' ')[0]} {self.port(found[1], found[3])}",
            text,
        )
        path = self.directory / f"{name}-{Path(inside).name}"
        path.write_text(self.here(name, text.replace("bind :", "bind 127.0.0.1:")))
        return str(path)
